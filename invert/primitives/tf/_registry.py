"""The rules that raise TensorFlow ops: a registry keyed by op type."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..._config import Config
from ..._errors import Problem
from ._node import Node


class Context(Protocol):
    """What a rule may use besides the node and its input values."""

    config: Config

    def call(self, function: str, values: Sequence[Any]) -> list[Any]:
        """Evaluates the library function `function`."""
        ...

    def constant(self, node: Node) -> np.ndarray:
        """The decoded `value` attribute of `node`; decoded once."""
        ...

    def gradient(self, node: Node) -> Any | None:
        """The gradient function that `node` names; `None` where none is to be read."""
        ...

    def program(self, node: Node) -> Any:
        """The parsed module of an `XlaCallModule`; parsed once."""
        ...


Rule = Callable[[Context, Node, list[Any]], Sequence[Any]]
Check = Callable[[Context, Node], Iterable[Problem]]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A rule and an optional `check`, which finds what the rule could not raise beforehand."""

    rule: Rule
    check: Check | None = None


class Registry:
    """Rules by op type. Refuses duplicates, and every change once frozen."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._frozen = False

    def add(self, op: str, entry: Entry) -> None:
        if self._frozen:
            raise RuntimeError(f"cannot add a rule for {op!r}: the registry is frozen")
        if op in self._entries:
            raise ValueError(f"there is already a rule for the TensorFlow op {op!r}")
        self._entries[op] = entry

    def freeze(self) -> None:
        self._frozen = True

    def get(self, op: str) -> Entry | None:
        return self._entries.get(op)

    def ops(self) -> tuple[str, ...]:
        return tuple(sorted(self._entries))


REGISTRY = Registry()


def raises_tf(*ops: str, check: Check | None = None) -> Callable[[Rule], Rule]:
    """Registers the decorated function as the rule of `ops`.

    A rule takes `(ctx, node, values)` and returns the list of results.
    """

    def register(rule: Rule) -> Rule:
        for op in ops:
            REGISTRY.add(op, Entry(rule, check))
        return rule

    return register


def add_table(rows: Mapping[str, Rule]) -> None:
    """Registers one rule for each row."""
    for op, rule in rows.items():
        REGISTRY.add(op, Entry(rule))
