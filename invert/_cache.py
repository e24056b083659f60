"""A dictionary of bounded size, for results that a process keeps."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Cache(dict[K, V]):
    """A dictionary of at most `most` entries, which evicts the oldest first."""

    def __init__(self, most: int):
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        while key not in self and len(self) >= self._most:
            del self[next(iter(self))]
        super().__setitem__(key, value)
