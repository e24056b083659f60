"""Builds functions with custom derivative rules for the gradients that are kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import islice, takewhile
from typing import Literal

import jax
import numpy as np

from invert._errors import only_refusals
from invert._private.jax import (
    consts_of,
    eval_closed,
    eval_jaxpr,
    names_of,
    open_jaxpr,
    sub_jaxprs,
    trace_closed,
)
from invert.gradients.compare import NOT_TRANSPOSED, beyond_rounding, may_not_end, once
from invert.gradients.region import MarkedRegion
from invert.gradients.samples import samples
from invert.ir import jaxprs, kinds
from invert.ir.avals import is_differentiable, type_of, with_float0
from invert.ir.gradient_marker import without_derivative
from invert.ir.graph import Graph, is_var
from invert.ir.interpret import inlined, interpret
from invert.ir.linearity import is_linear
from invert.ir.numbers import on_cpu
from invert.ir.substitution import at_samples
from invert.ir.types import AnyJaxpr, Atom, Eqn, JaxFunction, Value
from invert.rewriting.driver import Rewriter
from invert.rewriting.pattern import Call, Pattern, Stage
from invert.rewriting.templates import written_call


@dataclasses.dataclass(frozen=True)
class Rule:
    """A function of `operands` with a custom derivative.

    `higher`: where its higher derivatives come from, in words; `""` if it has none of its own.
    `region`: what is differentiated, if that is enough.
    """

    function: JaxFunction
    operands: Sequence[Atom]
    kind: Literal["custom_jvp", "custom_vjp", "stop_gradient", "plain", "refused"]
    higher: str = ""
    region: MarkedRegion | None = None


def stopped(*values: Value) -> list[Value]:
    """The values, with zero derivative."""
    return [jax.lax.stop_gradient(v) for v in values]


def refused(text: str, count: int) -> JaxFunction:
    """The first `count` values, whose derivative by any of them and the others is an error."""
    forbid = without_derivative(text)

    def function(*values: Value) -> list[Value]:
        results, by = values[:count], values[count:]
        return [forbid(v, *by) if is_differentiable(v) else v for v in results]

    return function


def by_arguments_only(rule: Rule, region: MarkedRegion, text: str) -> Rule:
    """The rule over all operands, whose derivative by the program's constants is an error."""
    forbid = without_derivative(text)
    held = len(region.held)

    def function(*operands: Value) -> Value:
        constants = [forbid(c) if is_differentiable(c) else c for c in operands[:held]]
        return rule.function(*constants, *operands[held:])

    return dataclasses.replace(rule, function=function)


def is_zero(closed: AnyJaxpr) -> bool:
    """Return whether all results of a program are zero for any arguments."""
    graph = Graph(closed, consts_of(closed))
    numbers = [graph.filling(atom) for atom in graph.jaxpr.outvars]
    return bool(numbers) and all(n is not None and not n.val for n in numbers)


def make_rule(region: MarkedRegion, backward: AnyJaxpr, x64: bool, linear: bool) -> Rule:
    """Make a rule for both modes, or for reverse mode if not `linear`."""
    make, kind = (_custom_jvp, "custom_jvp") if linear else (_custom_vjp, "custom_vjp")
    return Rule(make(region, _pull(region, backward, x64), x64), region.operands, kind)


def calls_of(region: MarkedRegion, rule: Rule, x64: bool) -> Pattern:
    """A pattern that replaces a region by a call of its rule."""
    avals = tuple(type_of(a) for a in rule.operands)
    before = plain_function(region, x64)
    call = Call(rule.kind, rule.function, avals, before=before, of_site=True)
    jaxpr = open_jaxpr(region.forward)
    results = {v for v in jaxpr.outvars if is_var(v)}
    ends = {e.primitive.name for e in jaxpr.eqns if not results.isdisjoint(e.outvars)}
    return Pattern("itself", tuple(sorted(ends)), lambda site: [call])


def with_calls(region: MarkedRegion, pattern: Pattern) -> MarkedRegion | None:
    """The region rewritten by a pattern; `None` where it does not apply."""
    rewriter = Rewriter([Stage((pattern,), inside_rules=False)], written_call)
    forward = rewriter.run(region.forward)
    return region.with_forward(forward) if rewriter.counts else None


def _share(backward: AnyJaxpr, region: MarkedRegion) -> tuple[JaxFunction, list[int]]:
    """The gradient with constants shared with the region as arguments, and their positions."""
    jaxpr, constants = jaxprs.split_constants(backward)
    index = {
        (c.dtype, c.shape, c.tobytes()): i
        for i, c in enumerate(np.asarray(region.constants[v]) for v in region.held)
    }
    places = [index.get((c.dtype, c.shape, c.tobytes()), -1) for c in constants]
    own = [c for c, i in zip(constants, places, strict=True) if i < 0]

    def run(*values: Value) -> list[Value]:
        shared, rest = values[: len(places) - len(own)], values[len(places) - len(own) :]
        first, second = iter(shared), iter(own)
        held = [next(second) if i < 0 else next(first) for i in places]
        return eval_jaxpr(jaxpr, [*held, *rest])

    return run, [i for i in places if i >= 0]


def _pull(region: MarkedRegion, backward: AnyJaxpr, x64: bool) -> JaxFunction:
    """The gradient as a function of the operands and the cotangents."""
    run, shared = _share(backward, region)

    def pull(operands: Sequence[Value], cotangents: Sequence[Value]) -> tuple[Value, ...]:
        rest = operands[len(region.held) :]
        with jax.enable_x64(x64):
            return tuple(run(*(operands[i] for i in shared), *rest, *cotangents))

    return pull


def plain_function(region: MarkedRegion, x64: bool) -> JaxFunction:
    """What a region computes, under a name for the text."""

    def function(*operands: Value) -> list[Value]:
        with jax.enable_x64(x64):
            return eval_closed(region.forward, operands)

    function.__name__ = _name(region)
    return function


# What equations compute, where their primitives have other names.
_NOUNS = {
    "add": "sum", "sub": "difference", "mul": "product", "div": "quotient", "neg": "negative",
    "max": "maximum", "min": "minimum", "integer_pow": "power", "pow": "power",
    "logistic": "sigmoid", "select_n": "where", "dot_general": "product", "clamp": "clip",
    "conv_general_dilated": "conv", "reduce_max": "maximum", "reduce_min": "minimum",
    "reduce_sum": "sum", "reduce_prod": "product",
}  # fmt: skip
_STEPS = kinds.MOVES | kinds.CONVERSIONS | kinds.IDENTITIES
_FEW = 2


def _name(region: MarkedRegion) -> str:
    """A name for what a region computes.

    It is that of the only function which the region calls, of the name scope around it, or of the
    last of few operations; otherwise `compute`.
    """
    steps = [e for e in region.eqns if e.primitive.name not in _STEPS]
    if not steps:
        return "identity"
    if len(steps) > 1:
        columns = zip(*map(names_of, steps), strict=False)
        scope = [c[0] for c in takewhile(lambda c: len(set(c)) == 1, columns)]
        if scope and scope[-1].isidentifier():
            return scope[-1]
    last = steps[-1]
    name = _NOUNS.get(last.primitive.name, last.primitive.name)
    if last.primitive.name == "jit":
        name = str(last.params["name"]).strip("_")
    plain = name.isidentifier() and len(steps) <= _FEW and len(region.results) == 1
    return f"custom_{name}" if plain else "compute"


def _custom_jvp(region: MarkedRegion, pull: JaxFunction, x64: bool) -> JaxFunction:
    """A `custom_jvp` whose tangent rule is the transpose of the linear gradient."""
    cotangents = [type_of(v) for v in region.numbers]
    rule = jax.custom_jvp(plain_function(region, x64))

    def jvp(primals: Sequence[Value], tangents: Sequence[Value]) -> Value:
        # The results keep the rule, for the next derivative.
        results = rule(*primals)
        moved = tuple(tangents[i] for i in region.moved)
        push = jax.linear_transpose(lambda *cts: pull(primals, cts), *cotangents)
        with jax.enable_x64(x64):
            pushed = push(moved)
        return results, with_float0(pushed, region.results)

    rule.defjvp(jvp)
    return rule


def _custom_vjp(region: MarkedRegion, pull: JaxFunction, x64: bool) -> JaxFunction:
    """A `custom_vjp`, for a gradient that is not linear in the cotangents, e.g. clipped."""
    rule = jax.custom_vjp(plain_function(region, x64))

    def forward(*operands: Value) -> Value:
        return rule(*operands), operands

    def back(operands: Sequence[Value], cotangents: Sequence[Value]) -> tuple[Value, ...]:
        pulled = pull(operands, [cotangents[i] for i in region.places])
        return tuple(jaxprs.with_values([None] * len(operands), region.moved, pulled))

    rule.defvjp(forward, back)
    return rule


def is_transposable(region: MarkedRegion, backward: AnyJaxpr, x64: bool) -> bool:
    """Return whether JAX can transpose the gradient: linear by its equations or numerically."""
    shown = is_linear(backward, len(region.numbers))
    pull = _pull(region, backward, x64)
    n = len(region.operands)
    types = [type_of(v) for v in (*region.operands, *region.numbers)]
    moved = [type_of(region.inputs[i]) for i in region.wanted]

    def push(*values: Value) -> Value:
        transposed = jax.linear_transpose(lambda *cts: pull(values[:n], cts), *types[n:])
        return transposed(tuple(values[n:]))

    def at(*values: Value) -> Value:
        return pull(values[:n], values[n:])

    try:
        with only_refusals():
            trace_closed(push, *types[:n], *moved)
            if shown or may_not_end(backward):
                return shown
            traced = trace_closed(at, *types)
            with jax.enable_x64(x64), on_cpu():
                return all(_is_additive(p, n, len(region.numbers)) for p in at_samples(traced))
    except NOT_TRANSPOSED:
        return False


def meets_rules(backward: AnyJaxpr, cotangents: int) -> bool:
    """Return whether the cotangents may reach a function with a rule."""
    met = False

    def on_eqn(eqn: Eqn, depend: list[bool]) -> list[bool]:
        nonlocal met
        reached = any(depend)
        names = {eqn.primitive.name}.union(*map(jaxprs.names_in, sub_jaxprs(eqn)))
        met |= reached and not names.isdisjoint(kinds.WITH_RULES)
        return [reached] * len(eqn.outvars)

    jaxpr, _ = jaxprs.split_constants(inlined(backward))
    facts = [False] * (len(jaxpr.invars) - cotangents) + [True] * cotangents
    interpret(jaxpr, facts, on_eqn, lambda literal: False)
    return met


@np.errstate(invalid="ignore", over="ignore")
def _is_additive(program: AnyJaxpr, count: int, cotangents: int) -> bool:
    """Return whether a gradient of sums of cotangents is the sum of gradients, on samples."""
    run = once(lambda *values: eval_closed(program, values))
    types = [v.aval for v in open_jaxpr(program).invars]
    for values in islice(samples(types, cotangents, program), 0, None, 3):
        operands, a = values[:count], values[count:]
        b = [np.asarray(30 * np.roll(x, 1), x.dtype) for x in a]
        zero = run(*operands, *(np.zeros_like(x) for x in a))
        both = run(*operands, *(np.asarray(x + y, x.dtype) for x, y in zip(a, b, strict=True)))
        parts_ = zip(run(*operands, *a), run(*operands, *b), both, zero, strict=True)
        for one, two, sum_, none in parts_:
            if np.any(np.nan_to_num(np.asarray(none), posinf=0.0, neginf=0.0)):
                return False
            if beyond_rounding(np.asarray(one) + np.asarray(two), np.asarray(sum_)):
                return False
    return True
