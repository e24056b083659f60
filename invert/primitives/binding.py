"""Binds operands and attributes of an op to the parameters of its rule.

A rule is a function of its operands. Parameters before the star are operands in order, keyword-only
ones are attributes by name, and a few names denote the context of the op:

    @rule("Roll") def roll(x: Array, shift: Array, axis: Ints): ...

    @rule("stablehlo.concatenate") def concatenate(*operands: Array, dimension: int): ...

The annotation of an operand determines how it is converted for the rule. A `Binder` holds the
conversions for one kind of ops: there is one for TensorFlow and one for StableHLO.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from invert._errors import MalformedModelError, Problem, UnsupportedOpError
from invert.ir.types import JaxFunction, Params, Value
from invert.primitives.recorded import Recorded

# Converts one operand; takes `(ctx, op, values, index)`.
Conversion = Callable[[Value, Value, Sequence[Value], int], Value]

# Marks an attribute that an op does not have.
ABSENT: object = object()


class Attribute(NamedTuple):
    """A keyword-only parameter: its annotation, and whether the rule has a default for it."""

    note: str
    has_default: bool


@dataclasses.dataclass(frozen=True)
class Signature:
    """The parameters of a rule.

    **Arguments:**

    - `operands`: names and annotations of the operands.
    - `required`: number of operands without a default.
    - `rest`: the annotation of `*name`, which takes the remaining operands, if any.
    - `attributes`: the attributes by name.
    - `context`: the context parameters that the rule takes.
    """

    operands: tuple[tuple[str, str], ...]
    required: int
    rest: str | None
    attributes: Mapping[str, Attribute]
    context: frozenset[str]

    @classmethod
    def of(cls, rule: JaxFunction, surroundings: frozenset[str]) -> Signature:
        """Read the parameters of a rule, without evaluating their annotations."""
        operands: list[tuple[str, str]] = []
        attributes: dict[str, Attribute] = {}
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
                attributes[name] = Attribute(note, parameter.default is not parameter.empty)
            elif parameter.kind is parameter.VAR_KEYWORD:
                raise TypeError(f"a rule must name its attributes: {rule} has **{name}")
            else:
                operands.append((name, note))
                required += parameter.default is parameter.empty
        return cls(tuple(operands), required, rest, attributes, frozenset(context))

    def count_problem(self, count: int) -> str | None:
        """The problem with this number of operands; `None` if the rule accepts it."""
        most = len(self.operands)
        if self.required <= count and (count <= most or self.rest is not None):
            return None
        expected = self.required if self.required == most else f"{self.required} to {most}"
        return f"has {count} operands, but its rule takes {expected}"


@dataclasses.dataclass(frozen=True)
class Binder:
    """Binds ops of one kind.

    **Arguments:**

    - `conversions`: converts operands, by the annotation of the parameter.
    - `surroundings`: the values of context parameters; each takes `(ctx, op)`.
    - `attribute`: reads an attribute; takes `(op, name, annotation)`, returns `ABSENT` if the op
        has none of that name.
    - `place`: the name and the location of an op.
    """

    conversions: Mapping[str, Conversion]
    surroundings: Mapping[str, Callable[[Value, Value], Value]]
    attribute: Callable[[Value, str, str], Value]
    place: Callable[[Value], tuple[str, str]]


class Bound:
    """Turn a function of operands and attributes into one of `(ctx, op, values)`.

    It returns a list of results; the function returns one, several, or `None` for none.
    """

    def __init__(self, function: JaxFunction, binder: Binder) -> None:
        self.function = function
        self._binder = binder

    @functools.cached_property
    def signature(self) -> Signature:
        return Signature.of(self.function, frozenset(self._binder.surroundings))

    @functools.cached_property
    def _run(self) -> JaxFunction:
        # A rule without context and op depends on types and attributes only.
        depends = self.signature.context & {"ctx", "node"}
        return self.function if depends else Recorded(self.function)

    @functools.cached_property
    def _parts(
        self,
    ) -> tuple[
        list[Conversion],
        Conversion | None,
        list[tuple[str, Callable[[Value, Value], Value]]],
        list[tuple[str, Attribute]],
    ]:
        signature, binder = self.signature, self._binder
        rest = None if signature.rest is None else binder.conversions[signature.rest]
        context = [(name, binder.surroundings[name]) for name in sorted(signature.context)]
        conversions = [binder.conversions[note] for _, note in signature.operands]
        return conversions, rest, context, list(signature.attributes.items())

    def __call__(self, ctx: Value, op: Value, values: Sequence[Value]) -> list[Value]:
        binder = self._binder
        conversions, rest, context, attributes = self._parts
        if len(values) != len(conversions):
            if (reason := self.signature.count_problem(len(values))) is not None:
                name, location = binder.place(op)
                raise UnsupportedOpError(
                    [Problem(name, reason, location, "Export the model again.")]
                )
            more = [] if rest is None else [rest] * (len(values) - len(conversions))
            conversions = [*conversions, *more][: len(values)]
        operands = [convert(ctx, op, values, i) for i, convert in enumerate(conversions)]
        keywords: Params = {name: find(ctx, op) for name, find in context}
        for name, (note, has_default) in attributes:
            if (value := binder.attribute(op, name, note)) is not ABSENT:
                keywords[name] = value
            elif not has_default:
                label, location = binder.place(op)
                raise MalformedModelError(f"{label} ({location}) lacks the attribute {name!r}")
        results = self._run(*operands, **keywords)
        if results is None:
            return []
        return list(results) if isinstance(results, (list, tuple)) else [results]
