"""Binds operands and attributes of an op to the parameters of its rule.

A rule is a function of its operands. Parameters before the star are operands in their order,
keyword-only ones are attributes by their names, and a few names stand for what surrounds the op:

    @rule("Roll")
    def roll(x: Array, shift: Array, axis: Ints): ...

    @rule("Cumsum")
    def cumsum(x: Array, axis: Int, *, exclusive: bool, reverse: bool): ...

The annotation of an operand says how it is converted before the rule sees it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Signature:
    """The parameters of a rule.

    **Arguments:**

    - `operands`: names and annotations of the operands.
    - `required`: how many of them have no default, so that they have to be there.
    - `rest`: annotation of the operands that `*name` takes; `None` where there is no such.
    - `attributes`: names of the attributes, and whether the rule has a default for them.
    - `context`: the names of `surroundings` that the rule asks for.
    """

    operands: tuple[tuple[str, str], ...]
    required: int
    rest: str | None
    attributes: Mapping[str, bool]
    context: frozenset[str]

    @classmethod
    def of(cls, rule: Callable[..., Any], surroundings: frozenset[str]) -> Signature:
        """Reads the parameters of a rule, without evaluating their annotations."""
        operands: list[tuple[str, str]] = []
        attributes: dict[str, bool] = {}
        context: set[str] = set()
        required = 0
        rest: str | None = None
        for name, parameter in inspect.signature(rule).parameters.items():
            annotation = parameter.annotation
            note = "" if annotation is parameter.empty else str(annotation).removesuffix(" | None")
            if name in surroundings:
                context.add(name)
            elif parameter.kind is parameter.VAR_POSITIONAL:
                rest = note
            elif parameter.kind is parameter.KEYWORD_ONLY:
                attributes[name] = parameter.default is not parameter.empty
            elif parameter.kind is parameter.VAR_KEYWORD:
                raise TypeError(f"a rule names its attributes: {rule} has **{name}")
            else:
                operands.append((name, note))
                required += parameter.default is parameter.empty
        return cls(tuple(operands), required, rest, attributes, frozenset(context))

    def count_problem(self, count: int) -> str | None:
        """Describes a number of operands that the rule does not take."""
        most = len(self.operands)
        if self.required <= count and (count <= most or self.rest is not None):
            return None
        expected = self.required if self.required == most else f"{self.required} to {most}"
        return f"has {count} operands, but its rule takes {expected}"
