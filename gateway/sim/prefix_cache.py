"""The prefix cache of an engine: a radix tree over packed token ids.

Owns: how long a cached prefix is, what is evicted first. Must never enter: a dialect, requests.
"""

from __future__ import annotations

from gateway.sim.tokens import WIDTH


class _Node:
    __slots__ = ("children", "edge", "used")

    def __init__(self, edge: bytes, used: int) -> None:
        self.edge = edge
        self.children: dict[bytes, _Node] = {}
        self.used = used


class PrefixCache:
    """Cached prefixes in full pages of ``page`` tokens, about ``capacity`` tokens at most; least recently
    used are evicted first.
    """

    def __init__(self, page: int, capacity: int) -> None:
        self.page = page
        self.capacity = capacity
        self.hits = 0
        self.queries = 0
        self._step = page * WIDTH
        self.clear()

    def clear(self) -> None:
        self._root = _Node(b"", 0)
        self._size = 0
        self._clock = 0

    @property
    def tokens(self) -> int:
        """The number of cached tokens."""
        return self._size // WIDTH

    def match(self, packed: bytes) -> int:
        """Return how many tokens of ``packed`` are cached; at most all but one, as engines must compute
        one.
        """
        self._clock += 1
        limit = (len(packed) - WIDTH) // self._step * self._step
        node, at = self._root, 0
        while at < limit:
            child = node.children.get(packed[at : at + self._step])
            if child is None:
                break
            child.used = self._clock
            common = self._common(child.edge, packed, at)
            at += common
            if common < len(child.edge):
                break
            node = child
        found = max(0, min(at, limit)) // WIDTH
        self.queries += len(packed) // WIDTH
        self.hits += found
        return found

    def insert(self, packed: bytes) -> None:
        """Add the full pages of ``packed``."""
        if not self.capacity:
            return
        self._clock += 1
        end = len(packed) // self._step * self._step
        node, at = self._root, 0
        while at < end:
            key = packed[at : at + self._step]
            child = node.children.get(key)
            if child is None:
                node.children[key] = _Node(packed[at:end], self._clock)
                self._size += end - at
                break
            child.used = self._clock
            common = self._common(child.edge, packed, at)
            if common < len(child.edge):
                child = self._split(node, key, child, common)
            node, at = child, at + common
        if self._size > self.capacity * WIDTH:
            self._evict()

    def _common(self, edge: bytes, packed: bytes, at: int) -> int:
        """Return the length in bytes of the full pages that ``edge`` and ``packed[at:]`` share; at least one
        page.
        """
        low, high = 1, min(len(edge), len(packed) - at) // self._step
        if edge[: high * self._step] == packed[at : at + high * self._step]:
            return high * self._step
        while low < high:
            middle = (low + high + 1) // 2
            if edge[: middle * self._step] == packed[at : at + middle * self._step]:
                low = middle
            else:
                high = middle - 1
        return low * self._step

    def _split(self, parent: _Node, key: bytes, child: _Node, common: int) -> _Node:
        upper = _Node(child.edge[:common], child.used)
        child.edge = child.edge[common:]
        upper.children[child.edge[: self._step]] = child
        parent.children[key] = upper
        return upper

    def _evict(self) -> None:
        """Drop the least recently used leaves until a tenth of the capacity is free."""
        target = self.capacity * WIDTH * 9 // 10
        while self._size > target:
            leaves = sorted(self._leaves(), key=lambda leaf: leaf[2].used)
            for parent, key, leaf in leaves:
                del parent.children[key]
                self._size -= len(leaf.edge)
                if self._size <= target:
                    break
            if not leaves:
                break

    def _leaves(self) -> list[tuple[_Node, bytes, _Node]]:
        found = []
        stack = [self._root]
        while stack:
            node = stack.pop()
            for key, child in node.children.items():
                if child.children:
                    stack.append(child)
                else:
                    found.append((node, key, child))
        return found
