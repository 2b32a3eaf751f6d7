"""A real byte-level BPE with GLM's special tokens, trained on a few sentences."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from model.config import SPECIAL_TOKENS

SENTENCES = [
    "The sum of 12 and 30 is 42, so the answer is 42.",
    "def add(left: int, right: int) -> int:\n    return left + right\n",
    "<p>Look up <b>the</b> capital of [France] and think about it</p>",
    '{"name": "search", "arguments": {"query": "Ærø ferry", "limit": 3}} user system tool_call arg_key',
    "思考してから答えます。 Größe, naïve, привет 🙂",
]


def train_tokenizer(folder, tags_are_special: bool) -> None:
    """GLM's release flags its role tokens as special but not its tags (<think>, <tool_call>, ...)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    tag = ("<think", "</", "<tool", "<arg")
    tokenizer.add_tokens(
        [
            AddedToken(name, normalized=False, special=tags_are_special or not name.startswith(tag))
            for name in SPECIAL_TOKENS
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
