"""Which pages of the cache are free. Shared ones are counted by the prefix tree (``prefix.py``)."""

from model.attention.cache import NO_PAGE


class Pages:
    """Free pages of a cache of ``total`` pages, without the one that belongs to nobody."""

    def __init__(self, total: int):
        self.total = total - 1
        self._free = [page for page in range(total - 1, -1, -1) if page != NO_PAGE]

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Pages for one owner. Raises ``ValueError`` where fewer are free."""
        if count > len(self._free):
            raise ValueError(f"{count} pages are needed and {len(self._free)} are free")
        return [self._free.pop() for _ in range(count)]

    def give_back(self, pages: list[int]) -> None:
        self._free += pages
        if len(self._free) > self.total:
            raise RuntimeError("a page was given back twice")
