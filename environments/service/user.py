"""The scripted user: answers what is asked, agrees to what was wanted, insists, and says goodbye.

Every reply follows from the agent's words by fixed patterns, so a dialogue has the same end every time.
"""

import re

# What a question is about. "Email address" is no postal address.
TOPICS = {
    "email": r"e-?mail",
    "postcode": r"post(?:al)? ?code|zip",
    "order": r"order (?:number|id)|number of (?:the|your) order|which order",
    "booking": r"booking (?:number|id|reference|code)|number of (?:the|your) booking|which booking",
    "reason": r"reason|why",
    "variant": r"colou?r|variant|size|which (?:one|version)",
    "address": r"(?<!mail )address|where should|where to",
    "date": r"date|which day|what day|when",
    "number": r"how many|how much more|number of bags|what (?:limit|amount)|which (?:limit|amount)",
    "card": r"which card|card number|last (?:four )?digits",
    "item": r"which (?:item|product|article)|what (?:item|product|article)",
}
YES = "Yes, please go ahead."
NO = "No, that is not what I asked for."
WAITING = "I am still waiting for that. Please take care of it."
UNKNOWN = "I am not sure what you mean."
GOODBYE = "Thank you, goodbye."
REFUSED = re.compile(
    r"\b(?:cannot|can't|can not|could not|couldn't|unable|not able|not allowed|not "
    r"possible)\b",
    re.I,
)
ASKS = re.compile(r"\?|\bplease\b|\btell me\b|\bi need\b|\blet me know\b", re.I)
CONFIRM = re.compile(r"\bconfirm", re.I)


class User:
    """``facts`` are the user's words by topic, ``wishes`` the dialogue's wishes in order."""

    def __init__(self, facts: dict[str, str], wishes: list[dict]):
        self._facts, self._wishes = facts, wishes
        self._insisted = False
        self._waited = 0
        self.current = 0  # the wish that is open; len(wishes) when the user has left
        self.told: set[str] = set()  # topics whose facts were given

    @property
    def over(self) -> bool:
        return self.current == len(self._wishes)

    def reply(self, text: str, fulfilled: bool) -> tuple[str, bool]:
        """The user's next words and whether they are a yes. ``fulfilled``: nothing is left to be changed."""
        wish = self._wishes[self.current]
        if ASKS.search(text):
            if CONFIRM.search(text):
                wanted = wish["rule"] or not fulfilled
                agreed = wanted and all(names(text, detail) for detail in wish["confirms"])
                return (YES, True) if agreed else (NO, False)
            asked = [topic for topic, pattern in TOPICS.items() if re.search(pattern, text, re.I)]
            known = [topic for topic in asked if topic in self._facts]
            self.told |= set(known)
            if asked:
                return " ".join(self._facts[topic] for topic in known) or "I do not know that.", False
        return self._take_statement(wish, fulfilled), False

    def _take_statement(self, wish: dict, fulfilled: bool) -> str:
        if wish["rule"] and wish["insists"] and not self._insisted:
            self._insisted = True
            return wish["insists"]
        if not wish["rule"] and not fulfilled and self._waited < 2:
            self._waited += 1
            return WAITING
        self._insisted, self._waited = False, 0
        self.current += 1
        return GOODBYE if self.over else self._wishes[self.current]["opening"]


def names(text: str, value: str) -> bool:
    """Whether a text holds a value, and not only as a part of a longer word or number."""
    text, value = text.lower(), value.lower()
    start = text.find(value)
    while start >= 0:
        before, after = text[max(0, start - 1) : start], text[start + len(value) :][:2]
        part_of_more = (before and (before.isalnum() or before in "_.")) or (
            after and (after[0].isalnum() or after[0] == "_" or (after[0] == "." and after[1:].isdigit()))
        )
        if not part_of_more:
            return True
        start = text.find(value, start + 1)
    return False
