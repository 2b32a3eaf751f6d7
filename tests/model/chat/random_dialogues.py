"""Random dialogues: tools, all roles, unicode, odd white space and text that looks like special tokens."""

import random

from model.config import SPECIAL_TOKENS

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the corpus – “quickly”\n",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}, "any": {}},
            },
        },
    },
    {"name": "größe", "parameters": {"type": "object", "properties": {"of": {"type": ["string", "null"]}}}},
]
WORDS = [
    "sum",
    "42",
    " the answer ",
    "\n",
    "\t",
    "  ",
    "é",
    "思考",
    "🙂",
    "e\u0301",
    "\u00a0",
    "\u200d",
    "<b>",
    "[x]",
]
WORDS += [
    "<",
    "</",
    "<|",
    "|>",
    "[",
    "]",
    "thin>",
    "{}",
    '{"a": 1}',
    '"',
    "\\",
    "null",
    "3.5",
    "\r\n",
    "<tools>",
]


def text(rng: random.Random, forged: bool = False) -> str:
    words = WORDS + list(SPECIAL_TOKENS) if forged else WORDS
    characters = [
        chr(rng.choice([rng.randrange(32, 127), rng.randrange(160, 0xD800), rng.randrange(0x1F300, 0x1FAFF)]))
    ]
    return "".join(rng.choice(words + characters) for _ in range(rng.randrange(12)))


def value(rng: random.Random, forged: bool = False):
    return rng.choice(
        [
            text(rng, forged),
            rng.randrange(-1000, 1000),
            rng.random(),
            rng.choice([True, False, None]),
            [1, text(rng, forged), {"k": text(rng, forged)}],
            {text(rng): [text(rng, forged)], "n": {}},
        ]
    )


def call(rng: random.Random, forged: bool = False) -> dict:
    # Names and keys are not forged: transformers does not look for special tokens in keys.
    arguments = {text(rng).strip() or "key": value(rng, forged) for _ in range(rng.randrange(4))}
    function = {"name": text(rng).strip() or "f", "arguments": arguments}
    return rng.choice([function, {"id": "call_0", "type": "function", "function": function}])


def message(rng: random.Random, role: str, forged: bool = False) -> dict:
    result = {"role": role, "content": text(rng, forged)}
    if role != "assistant":
        if rng.random() < 0.1:
            result["content"] = [{"type": "text", "text": text(rng, forged)} for _ in range(rng.randrange(3))]
        return result
    if rng.random() < 0.7:
        result["reasoning_content"] = text(rng, forged)
    if rng.random() < 0.5:
        result["tool_calls"] = [call(rng, forged) for _ in range(rng.randrange(1, 4))]
        if rng.random() < 0.3:
            result["content"] = None
    return result


def dialogue(rng: random.Random, forged: bool = False) -> list[dict]:
    """One to nine messages, in an order that mostly, not always, makes sense."""
    messages = [message(rng, "system", forged)] if rng.random() < 0.4 else []
    for _ in range(rng.randrange(1, 4)):
        messages.append(message(rng, "user", forged))
        for _ in range(rng.randrange(3)):
            messages.append(message(rng, "assistant", forged))
            messages += [
                message(rng, "tool", forged) for _ in range(len(messages[-1].get("tool_calls") or []))
            ]
    if rng.random() < 0.1:
        rng.shuffle(messages)
    return messages
