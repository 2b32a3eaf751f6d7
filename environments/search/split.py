"""Which entities are kept for evaluation: a third, decided by the id alone, in every corpus and recipe."""

import hashlib

HELDOUT_ONE_IN = 3


def is_heldout_entity(entity: str) -> bool:
    return int(hashlib.sha256(f"search/{entity}".encode()).hexdigest()[:8], 16) % HELDOUT_ONE_IN == 0
