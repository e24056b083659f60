"""A registry of rules by op name, used for TensorFlow and for StableHLO."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, TypeVar

E = TypeVar("E")


class Registry(Generic[E]):
    """Entries by name. Refuses duplicates, and every change once frozen.

    **Arguments:**

    - `kind`: the kind of ops, for messages, such as `"the TensorFlow op"`.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._entries: dict[str, E] = {}
        self._frozen = False

    def add(self, op: str, entry: E) -> None:
        """Register the entry of an op.

        **Raises:** `RuntimeError` once frozen, `ValueError` if the op has one.
        """
        self._check_open(op)
        if op in self._entries:
            raise ValueError(f"{self._kind} {op!r} already has a rule")
        self._entries[op] = entry

    def declare(self, op: str, **fields: object) -> None:
        """Set fields of an entry that still have their defaults.

        **Raises:** `RuntimeError` once frozen, `ValueError` if such a field was set.
        """
        self._check_open(op)
        entry: Any = self._entries[op]
        defaults = {field.name: field.default for field in dataclasses.fields(entry)}
        for name in fields:
            if getattr(entry, name) != defaults[name]:
                raise ValueError(f"the {name} of {self._kind} {op!r} already have a rule")
        self._entries[op] = dataclasses.replace(entry, **fields)

    def freeze(self) -> None:
        """End registration."""
        self._frozen = True

    def get(self, op: str) -> E | None:
        """The entry of an op; `None` if there is none."""
        return self._entries.get(op)

    def ops(self) -> tuple[str, ...]:
        """The names of all registered ops, sorted."""
        return tuple(sorted(self._entries))

    def _check_open(self, op: str) -> None:
        if self._frozen:
            raise RuntimeError(f"cannot add a rule for {op!r}: the registry is frozen")
