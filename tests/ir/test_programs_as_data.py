"""The evaluator, the parts of loops and branches, and the table of kinds."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src.interpreters import mlir

from invert._private.jax import dce
from invert.ir import fast, jaxprs, kinds
from invert.ir.counted import with_counted_places
from invert.ir.graph import Graph
from invert.ir.interpret import bind, evaluate, inline_calls, interpret, retrace
from invert.ir.loops import CondParts, ScanParts, WhileParts, bodies
from invert.ir.passes import replaced, rewritten
from invert.ir.simplify import simplify
from invert.ir.types import Var

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def _traced(function: Any) -> Any:
    return jax.make_jaxpr(function)


def _only(closed: Any, name: str) -> Any:
    (eqn,) = (e for e in closed.jaxpr.eqns if e.primitive.name == name)
    return eqn


def test_a_program_is_evaluated_with_other_equations() -> None:
    shift = np.array([5, 6, 7], np.float32)
    closed = _traced(lambda x: (jnp.sin(x) * 2 + shift, 3.0))(X)

    def on_eqn(eqn: Any, operands: list[Any]) -> Any:
        return [jnp.cos(operands[0])] if eqn.primitive.name == "sin" else bind(eqn, operands)

    found, number = interpret(closed, [X], on_eqn)
    np.testing.assert_allclose(found, np.cos(X) * 2 + shift, rtol=1e-6, atol=1e-6)
    assert number == 3.0
    assert retrace(closed, on_eqn).jaxpr.eqns[0].primitive.name == "cos"


def test_facts_are_evaluated_like_values() -> None:
    closed = _traced(lambda x: jnp.sum(x * 2) * 3)(X)
    depth = interpret(closed, [0], lambda eqn, xs: [1 + max(xs)], lambda literal: 0)
    assert depth == [len(closed.jaxpr.eqns)]


def test_equations_are_evaluated_on_known_values() -> None:
    closed = _traced(lambda x: jnp.exp(jnp.sin(x)))(X)
    sin, exp = closed.jaxpr.eqns
    read = evaluate([exp], {sin.outvars[0]: X})
    np.testing.assert_allclose(read(closed.jaxpr.outvars[0]), np.exp(X), rtol=1e-6, atol=1e-6)


def test_calls_are_inlined_one_level_deep() -> None:
    inner = jax.jit(lambda x: jax.jit(jnp.sin)(x) + 1)
    closed = inline_calls(_traced(lambda x: inner(x) * 2)(X))
    assert [e.primitive.name for e in closed.jaxpr.eqns] == ["jit", "add", "mul"]


def _nested(x: Any) -> Any:
    inner = jax.jit(lambda x: jnp.sin(x) + 1)
    last, rows = lax.scan(lambda h, row: (h + inner(row), inner(h)), x[0], x)
    return rows * last * inner(x)


def test_a_canonical_program_is_returned_unchanged() -> None:
    closed = jaxprs.canonicalize(_traced(lambda x: (_nested(x), jnp.cos(x))[0])(X))
    assert "cos" not in jaxprs.names_in(closed.jaxpr)
    assert {"sin", "scan", "jit"} <= jaxprs.names_in(closed.jaxpr)
    again = jaxprs.canonicalize(closed)
    assert jaxprs.canonicalize(again) is again
    assert jaxprs.map_jaxprs(closed, lambda jaxpr: jaxpr) is closed


def test_dead_equations_of_inner_programs_are_found() -> None:
    call = jax.jit(lambda x: (jnp.sin(x), jnp.cos(x)))
    closed = _traced(lambda x: (call(x)[0], lax.cond(True, lambda y: y, lambda y: -y, x))[0])(X)
    assert jaxprs.names_in(dce(closed.jaxpr)) == {"jit", "sin"}
    unused = _traced(jax.jit(lambda x, y: x + 1))(X, X)
    (kept,) = dce(unused.jaxpr).eqns
    assert len(kept.invars) == 1 and len(dce(unused.jaxpr).invars) == 2


def test_parts_of_a_while() -> None:
    def run(x: Any, low: Any, step: Any) -> Any:
        return lax.while_loop(lambda s: s[1].sum() > low, lambda s: (s[0] + 1, s[1] - step), (0, x))

    closed = _traced(run)(X, np.float32(1), np.float32(2))
    x, low, step = closed.jaxpr.invars
    eqn = _only(closed, "while")
    parts = WhileParts.of(eqn)
    assert (*parts.cond_consts, *parts.body_consts) == (low, step)
    assert parts.init[1] is x
    assert parts.split("abcd") == ("a", "b", "cd")
    assert [v.aval.shape for v in parts.tested] == [v.aval.shape for v in parts.carried]
    again = parts.put_into(eqn)
    assert again.params == eqn.params and again.invars == eqn.invars
    (_, tested), (_, carried) = bodies(eqn)
    assert list(tested) == [low, *parts.init] and list(carried) == [step, *parts.init]


def test_parts_of_a_scan_and_a_cond() -> None:
    def run(x: Any, w: Any, flag: Any) -> Any:
        carry, ys = lax.scan(lambda c, row: (c * w + row, c), x[0], x)
        return lax.cond(flag, jnp.sin, lambda c: c * w, carry), ys

    closed = _traced(run)(X, np.float32(2), True)
    x, w, _ = closed.jaxpr.invars
    scan = ScanParts.of(_only(closed, "scan"))
    assert list(scan.consts) == [w] and len(scan.init) == 1 and list(scan.xs) == [x]
    eqn = _only(closed, "cond")
    cond = CondParts.of(eqn)
    assert len(cond.branches) == 2 and cond.index is eqn.invars[0] and w in cond.operands
    assert [operands for _, operands in bodies(eqn)] == [cond.operands] * 2


def _rows(first: int, last: int, rows: int, place: Any) -> Any:
    def run(x: Any) -> Any:
        def step(s: Any) -> Any:
            i, total = s
            return i + 1, total + x[place(i)]

        return lax.while_loop(lambda s: s[0] < last, step, (first, np.float32(0)))[1]

    return _traced(run)(np.arange(rows, dtype=np.float32))


@pytest.mark.parametrize(
    ("first", "last", "rows", "place", "dropped"),
    [
        (0, 5, 5, lambda i: i, True),
        (0, 5, 5, lambda i: 4 - i, True),
        # The first or the last place is counted from the end.
        (-1, 5, 5, lambda i: i, False),
        (0, 5, 5, lambda i: 3 - i, False),
        # Such an element is `x[i]`.
        (0, 5, 6, lambda i: i, False),
        (1, 5, 5, lambda i: i, False),
    ],
)
def test_rows_that_a_loop_reads_one_by_one_are_at_its_counter(
    first: int, last: int, rows: int, place: Any, dropped: bool
) -> None:
    closed = _rows(first, last, rows, place)
    simple = with_counted_places(closed)
    body = _only(simple, "while").params["body_jaxpr"]
    assert ("select_n" not in [e.primitive.name for e in body.jaxpr.eqns]) == dropped
    x = np.arange(rows, dtype=np.float32) ** 2
    assert jax.core.eval_jaxpr(simple.jaxpr, simple.consts, x) == jax.core.eval_jaxpr(
        closed.jaxpr, closed.consts, x
    )


_ROWS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def _collecting(change: str) -> Any:
    """A loop that collects the rows of an array, except for one change."""

    def run(x: Any) -> Any:
        def step(s: Any) -> Any:
            i, total, rows = s
            read = 3 - i if change == "reversed" else i
            place = 3 - i if change == "written" else i
            row = lax.dynamic_slice_p.bind(x, read, np.int32(0), slice_sizes=(1, 3)).reshape(3)
            if change == "value":
                row = row * 2
            last = rows + 1 if change == "buffer" else rows
            by = 2 if change == "step" else 1
            put = lax.dynamic_update_slice_p.bind(last, row[None], place, np.int32(0))
            return i + by, total + row, put

        def more(s: Any) -> Any:
            within = s[0] < (3 if change == "short" else 4)
            return within & (s[1][0] < 0.1) if change == "ended" else within

        zeros = jnp.zeros((5 if change == "long" else 4, 3))
        start = np.int32(1 if change == "start" else 0)
        return lax.while_loop(more, step, (start, jnp.zeros(3), zeros))[1:]

    return _traced(run)(_ROWS)


@pytest.mark.parametrize(
    "change",
    ["", *"reversed written value buffer step short ended long start".split()],
)
def test_rows_that_a_loop_collects_are_the_array_they_are_from(change: str) -> None:
    closed = _collecting(change)
    simple = jaxprs.canonicalize(with_counted_places(closed))
    carries = len(_only(simple, "while").outvars)
    assert (carries == 2) == (not change)
    assert (simple.jaxpr.outvars[1] is simple.jaxpr.invars[0]) == (not change)
    for one, two in zip(interpret(simple, [_ROWS]), interpret(closed, [_ROWS]), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("shift", [0, 1])  # each sum reads itself, or the next one
@pytest.mark.parametrize("alike", [True, False])
def test_carries_merged_in_a_chain(shift: int, alike: bool) -> None:
    def run(x: Any) -> Any:
        def step(s: Any) -> Any:
            i, *sums = s
            return i + 1, *(sums[(k + shift) % 3] + x[i] for k in range(3))

        starts = [jnp.full(3, 0.0 if alike or k else 1.0) for k in range(3)]
        return lax.while_loop(lambda s: s[0] < 4, step, (0, *starts))[1:]

    closed = _traced(run)(_ROWS)
    simple = simplify(closed)
    # With different starts, two sums that read themselves are equal,
    # but not two that read each other.
    assert len(_only(simple, "while").outvars) == (2 if alike else 4 if shift else 3)
    for one, two in zip(interpret(simple, [_ROWS]), interpret(closed, [_ROWS]), strict=True):
        np.testing.assert_array_equal(one, two)


def _primitives() -> set[str]:
    return {p.name for p in mlir._lowerings} | {
        p.name for table in mlir._platform_specific_lowerings.values() for p in table
    }


@pytest.mark.parametrize("kind", [k for k, v in vars(kinds).items() if isinstance(v, frozenset)])
def test_kinds_name_primitives_of_jax(kind: str) -> None:
    newer = set() if hasattr(lax, "log2_p") else {"log2"}  # of jax 0.12
    assert getattr(kinds, kind) <= _primitives() | newer


@pytest.mark.parametrize("name", fast.FUNCTIONS)
def test_each_fast_function_computes_a_primitive_of_jax(name: str) -> None:
    def function(x: Any, y: Any) -> Any:
        return x @ y

    function.__name__ = name
    matrices = np.ones((2, 3)), np.ones((3, 4))
    (eqn,) = jax.make_jaxpr(jax.jit(function))(*matrices).jaxpr.eqns
    assert kinds.computes(eqn) in _primitives() - {"jit"}
    (eqn,) = jax.make_jaxpr(function)(*matrices).jaxpr.eqns
    assert kinds.computes(eqn) == "dot_general"


@pytest.mark.parametrize("axes", [1, 2])
def test_a_flat_product_is_one_by_its_form(axes: int) -> None:
    x, y = np.ones((2, 3, 4)), np.ones((3, 4, 5)[2 - axes :])
    (eqn,) = jax.make_jaxpr(lambda x, y: fast.flat_product(x, y, axes))(x, y).jaxpr.eqns
    assert kinds.computes(eqn) == "dot_general"
    (ours, theirs), _ = kinds.product_axes(eqn)
    assert (*ours,) == (1, 2)[2 - axes :] and (*theirs,) == (0, 1)[:axes]


def test_a_function_called_flat_product_may_be_another() -> None:
    @jax.jit
    def flat_product(x: Any, y: Any) -> Any:
        return x * y

    (eqn,) = jax.make_jaxpr(flat_product)(X, X).jaxpr.eqns
    assert kinds.computes(eqn) == "jit"


def test_elementwise_primitives_keep_the_shape() -> None:
    unary = (n for n in sorted(kinds.ELEMENTWISE) if hasattr(lax, f"{n}_p") and hasattr(lax, n))
    found = 0
    for name in unary:
        try:
            closed = _traced(getattr(lax, name))(X)
        except (TypeError, ValueError):
            continue
        found += 1
        assert all(v.aval.shape == X.shape for v in closed.jaxpr.outvars), name
    assert found > 20


def test_a_pass_replaces_equations_and_results() -> None:
    closed = _traced(lambda x: (jnp.sin(x) * 2.0, x + 0.0, jnp.cos(x)))(X)
    assert rewritten(closed.jaxpr, lambda eqn: None) is closed.jaxpr
    instead = {"add": lambda e: ([], e.invars[:1]), "cos": lambda e: ([e, e], e.outvars)}
    made = rewritten(closed.jaxpr, lambda e: instead.get(e.primitive.name, lambda e: None)(e))
    assert [e.primitive.name for e in made.eqns] == ["sin", "mul", "cos", "cos"]
    assert made.outvars[1] is made.invars[0]
    only_results = rewritten(closed.jaxpr, lambda e: ([e], e.invars[:1]))
    assert only_results.outvars == [*closed.jaxpr.invars * 3]


def test_a_step_with_a_graph_sees_its_operands() -> None:
    closed = _traced(lambda x: jnp.cos(jnp.sin(x) * 2.0))(X)
    producers = Graph(closed.jaxpr).producers
    seen = []

    def step(eqn):
        seen.append([producers.get(a) for a in eqn.invars if isinstance(a, Var)])
        return [eqn, eqn] if eqn.primitive.name == "sin" else None

    assert replaced(closed.jaxpr, lambda eqn: None) is closed.jaxpr
    made = replaced(closed.jaxpr, step)
    assert [e.primitive.name for e in made.eqns] == ["sin", "sin", "mul", "cos"]
    assert seen == [[None], closed.jaxpr.eqns[:1], closed.jaxpr.eqns[1:2]]
    with pytest.raises(ValueError, match="drops results of sin"):
        replaced(closed.jaxpr, lambda eqn: [])
