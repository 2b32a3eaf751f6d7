"""Two problems in HumanEval's form, written for the tests."""

PROBLEMS = [
    {
        "task_id": "Own/0",
        "prompt": 'from hashlib import md5\n\n\ndef digest(text):\n    """The MD5 of a text."""\n',
        "canonical_solution": "    return md5(text.encode()).hexdigest()\n",
        "test": "def check(candidate):\n    assert candidate('') == 'd41d8cd98f00b204e9800998ecf8427e'\n",
        "entry_point": "digest",
    },
    {
        "task_id": "Own/1",
        "prompt": 'def larger(a, b):\n    """The larger of two numbers."""\n',
        "canonical_solution": "    return a if a > b else b\n",
        "test": "def check(candidate):\n    assert candidate(1, 2) == 2\n    assert candidate(5, -1) == 5\n",
        "entry_point": "larger",
    },
]
