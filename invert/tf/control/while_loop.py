"""`While`: loops over functions of the graph.

A loop with a known trip count becomes a `while` that counts from zero to it, whatever counters the
graph has. The patterns turn it into a `scan`. Variables that no step changes are closed over, and
static ones stay static.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import UnsupportedOpError
from invert._private.jax import open_jaxpr
from invert.ir.loops import while_loop_of
from invert.ir.sizes import DimSize, as_value, is_open, may_wrap
from invert.ir.types import Value
from invert.tf.control import trip_count
from invert.tf.control.branch_types import (
    ArrayForm,
    Form,
    ListForm,
    ShapeVariesError,
    Static,
    TracedBranch,
    bring,
    flatten,
    form_of,
    join,
    key_of,
    truth,
    type_of,
)
from invert.tf.interpreter.context import Context
from invert.tf.ops.node import Body, Node
from invert.tf.ops.state import Resource
from invert.tf.values import tensor_list as lists
from invert.tf.values.bounds import Fact, OuterFacts, Sum, fact_of
from invert.tf.values.constants import array, pack_dims
from invert.tf.values.dynamic_size import int_max
from invert.tf.values.tensor_list import RaggedListError, TensorList, is_known, is_same

_T = TypeVar("_T")

# Loops whose shapes change from step to step are unrolled up to this length.
_MAX_UNROLLED = 256
# The length of the longest axis.
_LONGEST = 2**31 - 1
# How often a larger bound is tried to prove a trip count.
_MOST_PROOFS = 4


def while_loop(
    ctx: Context, node: Node, condition: str, body: str, values: Sequence[Value]
) -> list[Value]:
    """Run the function `body` on `values` while the function `condition` holds.

    **Raises:** `UnsupportedOpError` if a variable changes its shape, or a list grows without bound.
    """
    results = _folded(ctx, condition, body, values)
    if results is not None:
        return results
    try:
        loop = _Loop(ctx, node, condition, body, values)
        loop.settle()
    except (ShapeVariesError, RaggedListError) as error:
        results = _unrolled(ctx, condition, body, values)
        if results is None:
            problem = node.problem(
                str(error),
                "An array of a JAX program has one shape: keep the shape of the loop variable, or "
                "let shapes alone determine the number of steps.",
            )
            raise UnsupportedOpError([problem]) from error
        return results
    except UnsupportedOpError:
        # Values that an op needs to know may differ between steps. The gradient of a loop over
        # several shapes keeps such shapes on a list.
        results = _unrolled(ctx, condition, body, values)
        if results is None:
            raise
        return results
    return loop.run()


def _folded(ctx: Context, condition: str, body: str, values: Sequence[Value]) -> list[Value] | None:
    """The results of a loop over known integers; `None` if one is unknown."""
    if not all(is_known(v) for v in values):
        return None
    child = ctx.on(dict(ctx.state))
    try:
        results = _unrolled(child, condition, body, values)
    except UnsupportedOpError:
        return None
    written = any(ctx.state.get(place) is not value for place, value in child.state.items())
    if results is None or written or not all(is_known(v) for v in results):
        return None
    return results


def _unrolled(
    ctx: Context, condition: str, body: str, values: Sequence[Value]
) -> list[Value] | None:
    """The loop unrolled; `None` if its trip count is unknown or too large."""
    child = ctx.on(dict(ctx.state))
    current = list(values)
    for _ in range(_MAX_UNROLLED):
        (more,) = map(truth, child.call(condition, current))
        if not isinstance(more, np.ndarray):
            return None
        if not more:
            ctx.state.clear()
            ctx.state.update(child.state)
            return current
        current = child.call(body, current)
    return None


def _sources(body: Body) -> list[tuple[str, int | None]]:
    """The op that produces each result of a body, or the argument passed through."""
    arguments = {i: k for k, i in enumerate(body.args)}
    names: list[tuple[str, int | None]] = []
    for i, k in body.outputs:
        while body.nodes[i].op in ("Identity", "StopGradient") and k == 0:
            i, k = body.nodes[i].inputs[0]
        names.append((body.nodes[i].op, arguments.get(i)))
    return names


def gradient_arrays(ctx: Context, inner: Context) -> bool:
    """Create gradient arrays before the body that creates them; return whether there were any.

    Each loop step and each branch requests the gradient array again; all get the same one.
    """
    new = [r for r in inner.state if r.kind == "tensor_array_gradient" and r not in ctx.state]
    for resource in new:
        lst = inner.state[resource]
        element = lists.known_element(lst)
        ctx.write(resource, lists.empty(lst.dtype, element, lst.size))
    return bool(new)


class _Loop:
    """A `While` node and its operands.

    `forms` holds the forms of variables by number and of written state by handle. Everything else
    is closed over.
    """

    def __init__(
        self, ctx: Context, node: Node, condition: str, body: str, values: Sequence[Value]
    ):
        self.ctx, self.node = ctx, node
        self.condition, self.body = condition, body
        self.values = list(values)
        self.forms: dict[int | Resource, Form] = {}
        for i, (op, argument) in enumerate(_sources(ctx.graph.body(body))):
            if argument == i:
                continue  # no step changes it
            form = form_of(values[i])
            # A counter, or a state that begins at zero: tracing it as a constant would be wasted.
            if isinstance(form, Static) and (op in ("Add", "AddV2", "Sub") or _is_real(form)):
                form = _as_array(form)
            self.forms[i] = form
        self._hints = ctx.plans
        self._facts: list[Fact | None] = []
        self._key = (node, tuple(map(key_of, self.forms.values())))
        for place, (entry, form) in self._hints.get(self._key, {}).items():
            known = self.forms.get(place)
            if isinstance(place, Resource) and place not in ctx.state:
                continue
            if entry != self._entry(place):
                continue  # e.g. a list about which the enclosing loop knows more by now
            if isinstance(place, Resource):
                self.forms[place] = form
            elif isinstance(known, Static) and isinstance(form, ArrayForm):
                self.forms[place] = _as_array(known)
            elif isinstance(known, ListForm):
                self.forms[place] = form

    # -- the loop variables

    def settle(self) -> None:
        """Trace the body until the forms of its variables are a fixed point.

        **Raises:** `ShapeVariesError`.
        """
        while True:
            self._trace()
            if self._changed:
                self._facts = []
                continue
            if not self._give_room() and not self._find_facts():
                break
        self._hints[self._key] = {p: (self._entry(p), form) for p, form in self.forms.items()}

    def _trace(self) -> None:
        entry = [bring(self._value(place), form) for place, form in self.forms.items()]
        self.leaves, self.rebuild = flatten(entry)
        # Initial values of the leaves, if they are known numbers; the last leaf of each variable
        # (of a list, its size).
        self._starts: list[Value] = []
        self._last: dict[int | Resource, int] = {}
        for (place, form), value in zip(self.forms.items(), entry, strict=True):
            self._starts += [None] * len(flatten([value])[0])
            self._last[place] = len(self._starts) - 1
            old = self._value(place)
            if isinstance(form, ArrayForm):
                self._starts[-1] = _number(old)
            elif isinstance(form, ListForm) and form.size is None and isinstance(old.size, int):
                self._starts[-1] = old.size
        self._lines: list[Sum | None] | None = None
        self._steps: trip_count.TripCount | None = None
        self._changed = False
        self._growth: dict[int | Resource, int] = {}
        self.traced = TracedBranch(self._step, [type_of(x) for x in self.leaves])

    def _entry(self, place: int | Resource) -> Hashable:
        return key_of(form_of(self._value(place)))

    def _value(self, place: int | Resource) -> Value:
        return self.ctx.state[place] if isinstance(place, Resource) else self.values[place]

    def _inside(self, leaves: Sequence[Value]) -> tuple[Context, list[Value]]:
        """The context and the variables inside a step."""
        new = dict(zip(self.forms, self.rebuild(leaves), strict=True))
        state = dict(self.ctx.state)
        state.update((k, v) for k, v in new.items() if isinstance(k, Resource))
        values = [new.get(i, v) for i, v in enumerate(self.values)]
        return self.ctx.on(state), values

    def _step(self, *leaves: Value) -> list[Value]:
        ctx, values = self._inside(leaves)
        before = dict(ctx.state)
        before_of = {**dict(enumerate(values)), **before}
        known = OuterFacts(leaves, self._facts or [None] * len(leaves))
        self.ctx.given.append(known)
        try:
            called = ctx.call(self.body, values)
        finally:
            self.ctx.given.pop()
        self._asked = known.asked
        results: dict[int | Resource, Value] = dict(enumerate(called))
        results.update((place, value) for place, value in ctx.state.items())
        for place, old in before.items():
            if place not in self.forms and ctx.state.get(place) is not old:
                self.forms[place] = form_of(self.ctx.state[place])
                self._changed = True
        if self._changed or gradient_arrays(self.ctx, ctx):
            self._changed = True
            return []
        out = []
        for place, form in list(self.forms.items()):
            new = results[place]
            try:
                joined = join(form, form_of(new), growing=True)
            except ShapeVariesError as error:
                raise ShapeVariesError(f"{self._name(place)} {error}") from error
            if not _is_same(joined, form):
                self.forms[place] = joined
                self._changed = True
            if isinstance(new, TensorList):
                self._growth[place] = new.growth - before_of[place].growth
            out.append((new, form))
        return [] if self._changed else [bring(new, form) for new, form in out]

    def _name(self, place: int | Resource) -> str:
        if isinstance(place, Resource):
            return f"the {place.kind} {place.name!r}"
        return f"loop variable {place}"

    def _give_room(self) -> bool:
        """Find the capacity of growing lists; return whether any lacked one."""
        lacking = [
            p
            for p, f in self.forms.items()
            if isinstance(f, ListForm)
            and f.capacity is None
            and f.element is not None
            and f.same is None
            # The enclosing loop finds it.
            and not self._value(p).is_unallocated
        ]
        if not lacking:
            return False
        steps = self.count()
        for place in lacking:
            form = self.forms[place]
            old = self._value(place)
            assert isinstance(form, ListForm)
            room = old.capacity or 0
            if form.size is None:
                needed = self._needed(old, self._last[place], steps, self._growth.get(place, 0))
                room = int_max(room, needed)
            self.forms[place] = dataclasses.replace(form, capacity=room)
        return True

    def _needed(
        self, old: TensorList, leaf: int, steps: trip_count.TripCount, growth: int
    ) -> DimSize:
        """The capacity that a list needs; `leaf` is the index of its size."""
        lines = self.lines()
        line = lines[leaf]
        if (line is not None and line.step <= 0) or (
            line is None
            and growth == 0
            and trip_count.largest(self.traced.closed, lines, leaf, 0) is None
        ):
            return old.capacity or 0
        count, _ = (None, ()) if steps.bound is not None else self._open_count(self._test())
        if count is not None:
            if line is not None:
                return line.at(count)
            if isinstance(old.size, int) and growth > 0:
                return old.size + growth * count
        if steps.bound is None or steps.bound > _LONGEST or not isinstance(old.size, int):
            raise self._no_bound()
        bound = trip_count.largest(self.traced.closed, lines, leaf, steps.bound)
        return bound if bound is not None else old.size + growth * steps.bound

    # -- the trip count

    def lines(self) -> list[Sum | None]:
        """The inductions of the last trace's leaves, over all steps of the loop."""
        self.count()
        assert self._lines is not None
        return self._lines

    def _lines_within(self, steps: int | None) -> list[Sum | None]:
        starts = [None if is_open(s) else s for s in self._starts]
        return self._proved(lambda n: trip_count.lines(self.traced.closed, starts, within=n), steps)

    def _proved(
        self, facts: Callable[[int | None], list[_T | None]], steps: int | None
    ) -> list[_T | None]:
        """Facts about leaves that hold for all inputs; list sizes never wrap around."""
        found = list(facts(steps))
        sizes = {self._last[p] for p, form in self.forms.items() if isinstance(form, ListForm)}
        lacking = [i for i in sizes if found[i] is None]
        if steps is not None and lacking:
            unbounded = facts(None)
            for i in lacking:
                found[i] = unbounded[i]
        return found

    def _test(self) -> TracedBranch:
        def test(*leaves: Value) -> list[Value]:
            ctx, values = self._inside(leaves)
            return list(map(truth, ctx.call(self.condition, values)))

        return TracedBranch(test, [type_of(x) for x in self.leaves])

    def count(self, test: TracedBranch | None = None) -> trip_count.TripCount:
        """The trip count, proved for all inputs, those at which integers wrap around included.

        Facts that hold for some steps give a bound; the bound holds if it is not larger than that.
        """
        if self._steps is not None:
            return self._steps
        test = test or self._test()
        (more,) = test.results
        if isinstance(more, np.ndarray):
            self._lines = self._lines_within(None)
            self._steps = trip_count.TripCount(None if more else 0, exact=not more)
            return self._steps
        self._lines = lines = self._lines_within(None)
        steps = self._count(test, lines, None)
        for _ in range(_MOST_PROOFS):
            if (within := steps.bound) is None:
                break
            lines = self._lines_within(within)
            steps = self._count(test, lines, within)
            if steps.bound is not None and steps.bound <= within:
                self._lines, self._steps = lines, steps
                return steps
        self._steps = trip_count.TripCount(None, exact=False)
        return self._steps

    def _count(
        self, test: TracedBranch, lines: Sequence[Sum | None], within: int | None
    ) -> trip_count.TripCount:
        known = tuple(self.ctx.given)
        return trip_count.count(
            test.closed,
            lines,
            self.traced.closed,
            self._starts,
            lambda value, finite: fact_of(value, known, finite=finite, within=within),
            within,
        )

    def _find_facts(self) -> bool:
        """Find facts about counters that inner loops need; return whether there are any."""
        if not self._asked or self._facts:
            return False
        lines, bound = self.lines(), self.count().bound
        if not bound or all(line is None for line in lines):
            return False
        for line in lines:
            ends = (0, 0) if line is None else sorted((line.at(0), line.at(bound - 1)))
            self._facts.append(None if line is None else Fact.between(*ends))
        return True

    # -- the loop itself

    def run(self) -> list[Value]:
        test = self._test()
        (more,) = test.results
        if isinstance(more, np.ndarray):
            if more:
                raise self.node.error("never ends", "Let its body change what its condition reads.")
            final: Sequence[Value] = self.leaves
        else:
            steps, lines = self.count(test), self.lines()
            if steps.exact:
                assert steps.bound is not None
                final = self._ended(self._counted(steps.bound, lines), lines, steps.bound)
            elif (found := self._open_count(test))[0] is not None:
                final = self._counted(found[0], found[1])
            elif steps.bound is not None and steps.bound <= self.ctx.config.max_scan:
                final = self._bounded(steps.bound, test)
            else:
                final = lax.while_loop(
                    lambda c: test.flat(c)[0], self.traced.flat, list(self.leaves)
                )
        new = dict(zip(self.forms, map(_counted_out, self.rebuild(final)), strict=True))
        for place, value in new.items():
            if isinstance(value, TensorList) and value.is_unallocated:
                new[place] = self._grown(place, value)
        self.ctx.state.update((k, v) for k, v in new.items() if isinstance(k, Resource))
        return [new.get(i, v) for i, v in enumerate(self.values)]

    def _grown(self, place: int | Resource, value: TensorList) -> TensorList:
        """A list of unknown capacity after the loop, for the enclosing loop."""
        per_step, steps = self._growth.get(place, 0), self.count()
        if per_step and (steps.bound is None or steps.bound > _LONGEST):
            raise self._no_bound()
        growth = self._value(place).growth + per_step * (steps.bound or 0)
        return dataclasses.replace(value, growth=growth)

    def _no_bound(self) -> UnsupportedOpError:
        return self.node.error(
            "a list grows in a loop whose trip count has no known bound",
            "Pass maximum_iterations to tf.while_loop, or give the TensorArray a fixed size.",
        )

    def _open_count(self, test: TracedBranch) -> tuple[DimSize | None, Sequence[Sum | None]]:
        """The trip count if an open size, with the inductions of leaves."""
        lines = trip_count.lines(self.traced.closed, self._starts)
        return trip_count.open_count(test.closed, lines, lambda v, finite: fact_of(v)), lines

    def _counted(self, count: DimSize, lines: Sequence[Sum | None]) -> list[Value]:
        """A loop of `count` steps. Induction variables are computed instead of carried.

        Arrays that steps write into come last, as in JAX's lowering of a scan.
        """
        body = open_jaxpr(self.traced.closed)
        kept = [a is b for a, b in zip(body.invars, body.outvars, strict=True)]
        carried = sorted(
            (i for i, line in enumerate(lines) if line is None and not kept[i]),
            key=trip_count.written(self.traced.closed).__contains__,
        )
        types = [type_of(x).dtype for x in self.leaves]

        def step(carry: Sequence[Value]) -> list[Value]:
            k, *rest = carry
            of = dict(zip(carried, rest, strict=True))
            leaves = [
                of.get(i, self.leaves[i]) if line is None else _on_line(line, k, types[i])
                for i, line in enumerate(lines)
            ]
            out = self.traced.flat(leaves)
            return [lax.add(k, np.int32(1)), *(out[i] for i in carried)]

        init = [np.int32(0), *(self.leaves[i] for i in carried)]
        if not carried or count == 0:
            rest = init[1:]
        else:
            # The size is computed where it is compared, as JAX lowers a scan over an open length.
            def more(carry: Sequence[Value]) -> Value:
                return lax.lt(carry[0], as_value(count, np.dtype(np.int32)))

            _, *rest = while_loop_of(more, step, init)
        of = dict(zip(carried, rest, strict=True))
        return [
            of.get(i, self.leaves[i]) if line is None else _end_of(line, count, types[i])
            for i, line in enumerate(lines)
        ]

    def _ended(
        self, final: Sequence[Value], lines: Sequence[Sum | None], count: int
    ) -> list[Value]:
        """Final integers as sums of their initial values, for the enclosing loop."""
        ends: Sequence[trip_count.FinalValue | None] = [None] * len(final)
        if any(line is None and s is None for line, s in zip(lines, self._starts, strict=True)):
            ends = self._proved(lambda n: trip_count.ends(self.traced.closed, count, n), count)
        out = []
        for i, (value, line, end) in enumerate(zip(final, lines, ends, strict=True)):
            if line is not None or end is None:
                out.append(value)
                continue
            base = self.leaves[i if end.above is None else end.above]
            offset = np.asarray(end.offset, base.dtype)
            sum_ = lax.add(base, offset) if end.offset else base
            if end.above is not None:
                sum_ = lax.max(self.leaves[i], sum_.astype(self.leaves[i].dtype))
            out.append(sum_)
        return out

    def _bounded(self, count: int, test: TracedBranch) -> list[Value]:
        """A loop of `count` steps; steps after the condition failed have no effect.

        The condition is tested before each step and not after the last one: `count` is proved for
        all inputs.
        """

        def step(carry: Sequence[Value]) -> list[Value]:
            k, *leaves = carry
            more = test.flat(leaves)[0]
            out = lax.cond(more, lambda: self.traced.flat(leaves), lambda: leaves)
            return [lax.add(k, np.int32(1)), *out]

        init = [np.int32(0), *self.leaves]
        _, *final = lax.while_loop(lambda c: lax.lt(c[0], np.int32(count)), step, init)
        return final


def _is_real(form: Static) -> bool:
    value = form.value
    return isinstance(value, np.ndarray) and jnp.issubdtype(value.dtype, np.inexact)


def _as_array(form: Static) -> Form:
    if form.value is None or isinstance(form.value, Resource):
        return form
    value = jnp.asarray(array(np.asarray(form.value)))
    return ArrayForm(type_of(value))


def _is_same(one: Form, two: Form) -> bool:
    if isinstance(one, ListForm) and isinstance(two, ListForm):
        known = (one.element is None) == (two.element is None)
        same = is_same(one.same, two.same) or (one.same is None and two.same is None)
        rest = (one.capacity, one.size, one.is_empty) == (two.capacity, two.size, two.is_empty)
        return known and same and rest
    return type(one) is type(two)


def _number(value: Value) -> Value:
    """A static number or open size; `None` for any other value."""
    if not isinstance(value, np.ndarray) or value.ndim:
        return None
    if is_open(value[()]):
        return value[()]
    if value.dtype.kind in "iu":
        return int(value)
    return value[()] if jnp.issubdtype(value.dtype, jnp.floating) else None


def _on_line(line: Sum, k: Value, dtype: np.dtype) -> Value:
    """The value of an induction in step `k`."""
    k = k if dtype == np.int32 else lax.convert_element_type(k, dtype)
    start = as_value(line.constant, dtype)
    if line.step == -1:
        return lax.sub(start, k)
    product = k if line.step == 1 else lax.mul(k, _wrapped(line.step, dtype))
    return lax.add(product, start) if is_open(line.constant) or line.constant else product


def _end_of(line: Sum, count: DimSize, dtype: np.dtype) -> Value:
    """The value of an induction after `count` steps; static if it cannot wrap around."""
    end = line.at(count)
    if not is_open(end):
        return _wrapped(end, dtype)
    if may_wrap(end, dtype):
        return _on_line(line, as_value(count, np.dtype(np.int32)), dtype)
    return pack_dims([end], dtype).reshape(())


def _wrapped(number: int, dtype: np.dtype) -> np.ndarray:
    """A number as an integer type holds it, which wraps around."""
    return np.asarray(number % (1 << 64), np.uint64).astype(dtype)


def _counted_out(value: Value) -> Value:
    """Make the size of a list static if it is known after the loop."""
    if isinstance(value, TensorList) and isinstance(value.size, np.ndarray):
        return dataclasses.replace(value, size=value.size.item())
    return value
