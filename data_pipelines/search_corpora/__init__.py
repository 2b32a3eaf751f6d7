"""Packages turned into search corpora; each module has ``read_corpus(file, source) -> Corpus``."""
