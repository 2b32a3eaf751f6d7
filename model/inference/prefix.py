"""The prefix cache: pages of tokens that several requests begin with, in a tree keyed by the tokens.

A node is one full page; its key is the page's tokens, its place in the tree what stands before them, and the
root is that of a version of the weights. So a page is found only by what it was computed from. Nodes in use
are counted; the others are given up when pages are short, the longest unused first, leaves before their
parents.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from model.inference.pages import Pages


@dataclass(eq=False)
class Node:
    page: int
    key: tuple[int, ...]
    parent: "Node | None"
    users: int = 0
    last_used: int = 0
    children: dict[tuple[int, ...], "Node"] = field(default_factory=dict)


class PrefixTree:
    def __init__(self, pages: Pages, page_size: int, version: int):
        self._pages, self._page_size = pages, page_size
        self._ticks = count(1)
        # A heap of (last use, serial number, node); entries may be out of date.
        self._unused_leaves: list[tuple[int, int, Node]] = []
        self.version, self.nodes, self.unused = version, 0, 0
        self._roots = {version: Node(-1, (), None)}

    def clear(self, version: int) -> None:
        """Forget every page, as they are another version's. Raises ``RuntimeError`` while one is in use."""
        if self.nodes != self.unused:
            raise RuntimeError("pages of the old weights are still in use")
        self._pages.give_back([node.page for root in self._roots.values() for node in _below(root)])
        self._unused_leaves.clear()
        self.version, self.nodes, self.unused = version, 0, 0
        self._roots = {version: Node(-1, (), None)}

    def lookup(self, ids: Sequence[int], most: int) -> list[Node]:
        """The nodes of the longest known beginning of ``ids``, at most ``most`` pages, all taken into use."""
        node, path = self._roots[self.version], []
        for number in range(most):
            key = tuple(ids[number * self._page_size : (number + 1) * self._page_size])
            node = node.children.get(key)
            if node is None:
                break
            self._use(node)
            path.append(node)
        return path

    def insert(self, parent: Node | None, key: tuple[int, ...], page: int) -> Node:
        """Put a full page behind its parent (None: at the beginning), in use by the caller.

        Where the tree has that page already, the caller's own is given back and the tree's is to be used.
        """
        parent = parent or self._roots[self.version]
        node = parent.children.get(key)
        if node is None:
            node = parent.children[key] = Node(page, key, parent)
            self.nodes += 1
            self.unused += 1
        else:
            self._pages.give_back([page])
        self._use(node)
        return node

    def release(self, path: Sequence[Node]) -> None:
        """End one user's use of these nodes."""
        for node in path:
            node.users -= 1
            node.last_used = next(self._ticks)
            self.unused += not node.users
        for node in reversed(path):
            self._offer(node)

    def evict(self, wanted: int) -> None:
        """Give back pages that nobody uses until ``wanted`` are free, as far as there are any."""
        while self._pages.free < wanted and self._unused_leaves:
            last_used, _, node = heapq.heappop(self._unused_leaves)
            if node.users or node.children or node.last_used != last_used or node.parent is None:
                continue
            del node.parent.children[node.key]
            parent, node.parent = node.parent, None
            self._pages.give_back([node.page])
            self.nodes -= 1
            self.unused -= 1
            self._offer(parent)

    def _use(self, node: Node) -> None:
        self.unused -= not node.users
        node.users += 1

    def _offer(self, node: Node) -> None:
        if not node.users and not node.children and node.parent is not None:
            if len(self._unused_leaves) > 4 * self.nodes + 64:
                self._unused_leaves = [
                    e for e in self._unused_leaves if e[0] == e[2].last_used and e[2].parent
                ]
                heapq.heapify(self._unused_leaves)
            heapq.heappush(self._unused_leaves, (node.last_used, next(self._ticks), node))


def _below(root: Node) -> list[Node]:
    found, stack = [], list(root.children.values())
    while stack:
        node = stack.pop()
        found.append(node)
        stack += node.children.values()
    return found
