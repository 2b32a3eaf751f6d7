"""Problems that ask for a class."""

import random

from environments.programs.problem import Program


def classes(rng: random.Random) -> Program:
    return rng.choice((_bounded, _account))(rng)


def _calls(rng: random.Random, methods: tuple[tuple[str, int], ...], count: int) -> list[list]:
    """Random calls: of a method with a number of at most the given size, or with none where that is 0."""
    chosen = rng.choices(methods, k=count)
    return [[method, rng.randint(1, most)] if most else [method] for method, most in chosen]


def _bounded(rng: random.Random) -> Program:
    name = rng.choice(("Buffer", "Queue", "Shelf", "History"))
    put, take, size = rng.choice(
        (("put", "take", "size"), ("push", "pull", "count"), ("add", "remove", "length"))
    )
    newest, drops = rng.random() < 0.5, rng.random() < 0.5
    code = (
        f"class {name}:\n    def __init__(self, limit):\n        self.limit, self.items = limit, []\n"
        f"    def {put}(self, item):\n        if len(self.items) == self.limit:\n"
        + ("            self.items.pop(0)\n" if drops else "            return False\n")
        + f"        self.items.append(item)\n        return True\n    def {take}(self):\n"
        f"        return self.items.pop({-1 if newest else 0}) if self.items else None\n    def "
        f"{size}(self):\n        return len(self.items)"
    )
    full = "the oldest item is dropped to make room" if drops else "nothing is stored and False is returned"
    inputs = []
    for length in (6, 6, 0, 3, 9, 12, 14, 16):
        calls = _calls(rng, ((put, 9), (put, 9), (take, 0), (size, 0)), length)
        inputs.append([[rng.randint(1, 3)], *calls])
    return Program(
        f"Write a class {name}. {name}(limit) holds at most limit items (limit >= 1). {put}(item) "
        f"stores an item and returns True; when it is full, {full}. {take}() removes and returns the "
        f"{'newest' if newest else 'oldest'} item, or returns None if there is none. {size}() returns "
        f"the number of items.",
        f"a list; {put} appends, {take} pops at {-1 if newest else 0}",
        code,
        inputs,
        5,
        name,
        True,
    )


def _account(rng: random.Random) -> Program:
    name, fee, floor = (
        rng.choice(("Account", "Wallet", "Card", "Purse")),
        rng.randint(1, 9),
        -rng.randint(0, 5) * 10,
    )
    code = (
        f"class {name}:\n    def __init__(self, start):\n        self.balance, self.refused = start, 0\n"
        f"    def pay_in(self, amount):\n        self.balance += amount\n        return self.balance\n"
        f"    def pay_out(self, amount):\n        if self.balance - amount - {fee} < {floor}:\n        "
        f"    self.refused += 1\n            return None\n"
        f"        self.balance -= amount + {fee}\n        return self.balance\n    def report(self):\n "
        f"       return [self.balance, self.refused]"
    )
    inputs = []
    for length in (5, 6, 1, 4, 8, 10, 12, 15):
        calls = _calls(rng, (("pay_in", 30), ("pay_out", 60), ("pay_out", 30), ("report", 0)), length)
        inputs.append([[rng.randint(0, 50)], *calls])
    return Program(
        f"Write a class {name}. {name}(start) begins with the balance start. pay_in(amount) adds and "
        f"returns the new balance. pay_out(amount) takes amount and a fee of {fee} and returns the new "
        f"balance; if the balance would fall below {floor}, it changes nothing and returns None. "
        f"report() returns a list of the balance and the number of refused pay_outs.",
        f"check balance - amount - {fee} >= {floor} first",
        code,
        inputs,
        5,
        name,
        True,
    )
