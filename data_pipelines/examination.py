"""What each document looks like by itself, found by as many processes as there are cores."""

import gc
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread

import numpy as np

from data_pipelines.decontamination import Index, Overlap
from data_pipelines.documents import Document, read_documents
from data_pipelines.duplicates import Sketcher
from data_pipelines.filters.quality import reason_to_drop
from data_pipelines.ngrams import word_hashes
from pipeline.recipe.data import CurateSection

BATCH = 32  # documents a worker takes at once


@dataclass(frozen=True)
class Finding:
    """What one document looks like by itself; the text is left behind."""

    id: str
    source: str
    path: str
    quality: str | None  # why it fails the quality rules
    overlap: Overlap | None
    sketch: np.ndarray | None


def examine_all(folder: Path, index: Index, section: CurateSection) -> Iterator[Finding]:
    """Findings in the order of the documents, from as many processes as there are cores."""
    workers = min(os.cpu_count() or 1, 16)
    processes = get_context("forkserver")
    processes.set_forkserver_preload([__name__])  # so that workers do not import it all again
    with ProcessPoolExecutor(workers, processes, _start_worker, (index, section)) as pool:
        waiting = []
        for batch in _batches(read_documents(folder)):
            waiting.append(pool.submit(_examine_batch, batch))
            if len(waiting) > 4 * workers:  # so that only a few batches of text are in memory
                yield from waiting.pop(0).result()
        for future in waiting:
            yield from future.result()


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    for document in documents:
        batch.append(document)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


_worker: tuple[Index, CurateSection, Sketcher]


def _start_worker(index: Index, section: CurateSection) -> None:
    global _worker
    gc.disable()  # parsing makes millions of nodes without a cycle; collecting them costs a third of the time
    _worker = (index, section, Sketcher(section.minhash_permutations))
    Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent_process().join()
    os._exit(1)


def _examine_batch(batch: list[Document]) -> list[Finding]:
    return [examine(document, *_worker) for document in batch]


def examine(document: Document, index: Index, section: CurateSection, sketcher: Sketcher) -> Finding:
    """Quality, overlap with the evaluation sets and sketch of one document."""
    quality = reason_to_drop(document, section)
    facts = (document.id, document.source, document.path, quality)
    if quality is not None:
        return Finding(*facts, None, None)
    words = word_hashes(document.text)
    return Finding(*facts, index.overlap(words), sketcher.sketch(words))
