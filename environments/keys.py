"""Letters and keys that tasks are made of: a letter is one token of a small vocabulary, so a key is two."""

LETTERS = "abcdefghkmnprstx"
KEYS = tuple(letter + digit for letter in LETTERS for digit in "0123456789")
