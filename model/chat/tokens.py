"""Names of the chat format: its special tokens and its three thinking modes (paper section 3.1)."""

from typing import NamedTuple

from model.config import END_OF_TEXT

START = ("[gMASK]", "<sop>")  # opens every chat

SYSTEM, USER, ASSISTANT, OBSERVATION = "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"
THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"
KEY, END_KEY = "<arg_key>", "</arg_key>"
VALUE, END_VALUE = "<arg_value>", "</arg_value>"
RESPONSE, END_RESPONSE = "<tool_response>", "</tool_response>"

ROLE_TOKENS = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": OBSERVATION}
# There is no end-of-message token: an assistant turn ends when the model writes who speaks next.
STOP_TOKENS = (END_OF_TEXT, USER, OBSERVATION)


class Thinking(NamedTuple):
    """How reasoning is treated, with the chat template's own two switches."""

    enabled: bool  # the generation prompt opens a <think> block
    clear: bool  # reasoning older than the last user message is left out


MODES = {
    "interleaved": Thinking(enabled=True, clear=True),
    "preserved": Thinking(enabled=True, clear=False),
    "off": Thinking(enabled=False, clear=True),
}


def thinking_of(mode: str | Thinking) -> Thinking:
    """The switches of a mode's name; ``Thinking`` itself passes through, for other combinations.

    For one turn without thinking inside a preserved session use ``Thinking(enabled=False, clear=False)``.
    Raises ``ValueError`` for an unknown name.
    """
    if isinstance(mode, Thinking):
        return mode
    if mode not in MODES:
        raise ValueError(f"thinking mode {mode!r} is unknown; use one of {', '.join(MODES)}")
    return MODES[mode]
