"""A registry of rules by op name, used for TensorFlow and for StableHLO."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from invert.primitives.binding import Binder, Bound

E = TypeVar("E")
F = TypeVar("F", bound=Callable[..., object])


class Registry(Generic[E]):
    """Entries by name. Refuses duplicates, and every change once frozen.

    **Arguments:**

    - `kind`: the kind of ops, for messages, such as `"the TensorFlow op"`.
    - `entry`: makes an entry of a bound rule and further fields.
    - `binder`: binds the parameters of rules.
    """

    def __init__(self, kind: str, entry: Callable[..., E], binder: Binder) -> None:
        self._kind = kind
        self._entry = entry
        self._binder = binder
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

    def bound(self, function: Callable[..., object]) -> Bound:
        """A function of operands and attributes as a rule."""
        return Bound(function, self._binder)

    def rule(self, *ops: str, ignores: Iterable[str] = (), **fields: object) -> Callable[[F], F]:
        """Register a function of operands and attributes as the rule of `ops`.

        Its parameters are bound as `invert.primitives.binding` says. It returns one result, several
        or `None`. An attribute that it does not take is refused.

        **Arguments:** the fields of an entry.
        """

        def register(function: F) -> F:
            entry = self._entry(self.bound(function), ignores=frozenset(ignores), **fields)
            for op in ops:
                self.add(op, entry)
            return function

        return register

    def rules(
        self,
        table: Mapping[str, Callable[..., object]],
        ignores: Iterable[str] = (),
        **fields: object,
    ) -> None:
        """Register one function for each op; fields as for `rule`."""
        for op, function in table.items():
            self.rule(op, ignores=ignores, **fields)(function)

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
        """The entry of an op, if any."""
        return self._entries.get(op)

    def ops(self) -> tuple[str, ...]:
        """The names of all registered ops, sorted."""
        return tuple(sorted(self._entries))

    def _check_open(self, op: str) -> None:
        if self._frozen:
            raise RuntimeError(f"cannot add a rule for {op!r}: the registry is frozen")
