"""Loops: a counted while becomes a scan; a look-alike does not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random

from invert._private.jax import dce, open_jaxpr, scan_layout, trace_closed
from invert.ir import jaxprs
from invert.ir.match import difference
from tests.patterns.recovery import recover, same_values

X = np.random.default_rng(0).uniform(0.5, 1.0, (4, 3)).astype(np.float32)


def nested(x):
    def row(c, a):
        d, inner = lax.scan(lambda d, b: (d * b, d), c, x * a[0])
        return c + a, (d, inner)

    return lax.scan(row, x[0], x)


def collected(x):
    def step(i, state):
        total, out = state
        row = lax.dynamic_slice(x, (i, 0), (1, 3)).reshape(3)
        return total + row, lax.dynamic_update_slice(out, row[None], (i, 0))

    return lax.fori_loop(0, 4, step, (x[0], jnp.zeros_like(x)))


def unchanged_by_branches(x):
    """A state whose first part both branches return as it is, one of them by closing over it."""

    def step(state, _):
        x, y = lax.cond(state[1][0] > 1, lambda x, y: (x, y * x[0]), lambda *_: state, *state)
        return (x, y), y.sum()

    return lax.scan(step, (x, x[0]), None, 3)


SCANS = {
    "carry and ys": lambda x: lax.scan(lambda c, a: (c + a, c * a), x[0], x),
    "ys only": lambda x: lax.scan(lambda c, a: (c, a * 2), 0.0, x)[1],
    "carry only": lambda x: lax.scan(lambda c, a: (c * a, None), x[0], x)[0],
    "reverse": lambda x: lax.scan(lambda c, a: (c + a, (c, a)), x[0], x, reverse=True),
    "xs used whole as well": lambda x: lax.scan(lambda c, a: (c + a @ x.T @ x, c), x[0], x),
    "two xs": lambda x: lax.scan(lambda c, ab: (c + ab[0] * ab[1], c), x[0], (x, x[::-1])),
    "no xs": lambda x: lax.scan(lambda c, _: (jnp.sin(c), c), x, None, length=5),
    "length one": lambda x: lax.scan(lambda c, a: (c + a, c), x[0], x[:1]),
    "map": lambda x: lax.map(lambda a: a * x[0], x),
    "fori_loop": lambda x: lax.fori_loop(0, 5, lambda i, c: c * 1.1 + i, x),
    "fori_loop from three": lambda x: lax.fori_loop(3, 7, lambda i, c: c + i, x),
    "nested": nested,
    "rows collected again": collected,
    "in a cond": lambda x: lax.cond(
        x.sum() > 0, lambda x: lax.scan(lambda c, a: (c + a, c), x[0], x)[1], lambda x: x, x
    ),
    "batched": jax.vmap(lambda r: lax.scan(lambda c, a: (c + a, c * a), r[0], r)),
    "unchanged by branches": unchanged_by_branches,
    "integers": lambda x: lax.scan(lambda c, a: (c + 1, a * c), 0, x),
}


def total(function):
    return lambda x: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(function(x)))


@pytest.mark.parametrize("name", SCANS)
def test_scan(name: str) -> None:
    function = SCANS[name]
    module = recover(function, X)
    assert "scan" in module.report.rewrites
    assert "while" not in module.report.primitives
    assert module.report.certificate.kind == "exact", module.report.certificate
    same_values(function, module, X)
    grads = [jax.jit(jax.grad(total(f)))(X) for f in (function, module)]
    np.testing.assert_allclose(grads[1], grads[0], rtol=1e-6, atol=1e-7)
    many = np.stack([X, X[::-1]])
    grads = [jax.jit(jax.vmap(jax.grad(total(f))))(many) for f in (function, module)]
    np.testing.assert_allclose(grads[1], grads[0], rtol=1e-5, atol=1e-6)


def test_consts_carry_and_length_equal_the_original() -> None:
    def function(x, w):
        return lax.scan(lambda c, a: (c @ w + a, c), x[0], x)

    w = np.eye(3, dtype=np.float32)
    want = next(e for e in jax.make_jaxpr(function)(X, w).eqns if e.primitive.name == "scan")
    got = next(e for e in recover(function, X, w).jaxpr.eqns if e.primitive.name == "scan")
    assert (got.params["length"], got.params["reverse"]) == (want.params["length"], False)
    assert len(got.invars) == len(want.invars)
    inner = [[e.primitive.name for e in eqn.params["jaxpr"].jaxpr.eqns] for eqn in (want, got)]
    assert inner[0] == inner[1]


WHILES = {
    "stops by value": lambda x: lax.while_loop(lambda c: c.sum() < 99, lambda c: c * 2, x),
    "bound from data": lambda x: lax.fori_loop(0, jnp.int32(x[0, 0] * 4), lambda i, c: c + i, x),
    "steps of two": lambda x: lax.while_loop(
        lambda s: s[0] < 6, lambda s: (s[0] + 2, s[1] * 1.5), (0, x)
    ),
    "starts at one": lambda x: lax.while_loop(
        lambda s: s[0] < 6, lambda s: (s[0] + 1, s[1] * 1.5), (1, x)
    ),
    "counts down": lambda x: lax.while_loop(
        lambda s: s[0] > 0, lambda s: (s[0] - 1, s[1] * 1.5), (5, x)
    ),
    "counter changed": lambda x: lax.while_loop(
        lambda s: s[0] < 6,
        lambda s: (jnp.where(s[1].sum() > 50, 6, s[0] + 1), s[1] * 1.5),
        (0, x),  # pyright: ignore[reportArgumentType]
    ),
}


@pytest.mark.parametrize("name", WHILES)
def test_other_loops_stay_while(name: str) -> None:
    function = WHILES[name]
    module = recover(function, X)
    assert "scan" not in module.report.primitives
    assert module.report.certificate.kind == "exact"
    same_values(function, module, X)


def test_a_hand_written_counted_while_differentiates_in_reverse() -> None:
    def function(x):
        return lax.while_loop(lambda s: s[0] < 6, lambda s: (s[0] + 1, s[1] * x + s[0]), (0, x))[1]

    module = recover(function, X)

    def unrolled(x):
        return [y := x] and [y := y * x + i for i in range(6)][-1]

    np.testing.assert_allclose(
        jax.grad(total(module))(X), jax.grad(total(unrolled))(X), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("write", ["read back", "stride", "short"])
def test_buffers_other_than_outputs_stay_in_the_carry(write: str) -> None:
    def function(x):
        def body(s):
            i, buffer = s
            at = {"read back": i, "stride": jnp.minimum(2 * i, 3), "short": i}[write]
            value = buffer[0] + x[0] if write == "read back" else x[0] * i
            return i + 1, lax.dynamic_update_index_in_dim(buffer, value, at, 0)

        return lax.while_loop(lambda s: s[0] < (3 if write == "short" else 4), body, (0, x))[1]

    same_values(function, recover(function, X), X)


def block(c, r):
    y = jnp.tanh(c * 0.5 - r)
    return y, (y + r, c.sum())


SEVEN = np.linspace(-1, 1, 21, dtype=np.float32).reshape(7, 3)
WORDS = np.array([1, 2], np.uint32)
UNROLLED = {
    "one left over": lambda x: lax.scan(block, x[3], x, unroll=2),
    "one left over, reverse": lambda x: lax.scan(block, x[3], x, unroll=3, reverse=True),
    "none left over": lambda x: lax.scan(block, x[0], x[:6], unroll=2),
    "no xs": lambda x: lax.scan(lambda c, _: (jnp.sin(c) * 2, c[0]), x[0], length=8, unroll=3),
    "no xs and no ys": lambda x: lax.scan(
        lambda c, _: (jnp.sin(c) * 2, None), x[0], length=7, unroll=3
    ),
    "map": lambda x: lax.scan(lambda c, r: (None, jnp.sin(r) * 2), None, x, unroll=2)[1],
    "fori_loop": lambda x: lax.fori_loop(0, 7, lambda i, y: jnp.sin(y) - x[i], x[0], unroll=2),
    "one array twice": lambda x: lax.scan(
        lambda c, r: (c - r[0], r[1] * c), x[0], (x, x), unroll=3
    ),
    "constants and a row passed on": lambda x: lax.scan(
        lambda c, r: ((c[1] @ x.T @ x, c[0] - r), r), (x[0], x[1]), x, unroll=3
    ),
    "patterns inside": lambda x: lax.scan(
        lambda c, r: (jnp.cumsum(c) - jnp.argmax(r), jax.nn.softmax(r)), x[0], x, unroll=2
    ),
    "keys": lambda x: lax.scan(
        lambda k, r: (random.split(k)[0], random.normal(k, (3,)) - r),
        jnp.asarray(WORDS),
        x,
        unroll=2,
    ),
    "one in another": lambda x: lax.scan(
        lambda c, r: (lax.scan(block, c, x, unroll=2)[0] - r, None), x[0], x, unroll=3
    ),
}


def scans(jaxpr):
    """Length, direction and blocks of each scan, including inner ones."""
    names = ("length", "reverse", "unroll")
    return sorted(
        tuple(e.params[n] for n in names)
        for e in jaxprs.equations(open_jaxpr(jaxpr))
        if e.primitive.name == "scan"
    )


@pytest.mark.parametrize("name", UNROLLED)
def test_unrolled(name: str) -> None:
    if name == "one in another" and jax.__version__ >= "0.11":
        pytest.skip("this release writes out what older ones call, and only the inner one is found")
    function = UNROLLED[name]
    module = recover(function, SEVEN)
    assert module.report.rewrites["unrolled_scan"] >= 1
    assert module.report.certificate.kind == "exact", module.report.certificate
    assert scans(module.jaxpr) == scans(jax.make_jaxpr(function)(SEVEN))
    same_values(function, module, SEVEN)


@pytest.mark.parametrize("change", ["other function", "other order", "other carry"])
def test_blocks_other_than_unrolled_scans(change: str) -> None:
    """Two steps written out per block, with one difference from an unrolled scan."""

    @jax.jit
    def step(c, r):
        return jnp.sin(c) - r, c * r

    @jax.jit
    def other(c, r):
        return jnp.cos(c) - r, c * r

    def rows(c, pair):
        one, y = step(c, pair[0])
        two, z = (other if change == "other function" else step)(
            c if change == "other carry" else one, pair[1]
        )
        return two, jnp.stack([z, y] if change == "other order" else [y, z])

    def function(x):
        return lax.scan(rows, x[0], x[:6].reshape(3, 2, 3))

    module = recover(function, SEVEN)
    assert "unrolled_scan" not in module.report.rewrites
    assert scans(module.jaxpr) == [(3, False, 1)]
    assert module.report.certificate.kind == "exact"
    same_values(function, module, SEVEN)


def test_loops_do_not_depend_on_the_trees_of_their_values() -> None:
    def plain(x):
        (total,), doubled = lax.scan(lambda c, r: ((c[0] + r,), r * 2), (x[0],), x)
        return total, doubled

    def named(x):
        def step(carry, row):
            now = {"total": carry["total"] + row, "last": row}
            return now, {"unused": row - 1, "doubled": [row * 2]}

        carry, rows = lax.scan(step, {"total": x[0], "last": x[0]}, x)
        return carry["total"], rows["doubled"][0]

    def other(x):
        total, doubled = lax.scan(lambda c, r: (c + r, r * 2), x[0], x)
        return total, doubled + 1

    x = jnp.zeros((3, 2))
    first, second, third = (dce(open_jaxpr(trace_closed(f, x))) for f in (plain, named, other))
    assert difference(first, second) is None and difference(second, first) is None
    assert difference(first, third) is not None


@pytest.mark.parametrize("reads", [False, True])
def test_the_only_row_that_a_loop_of_one_step_stores_is_a_result(reads: bool) -> None:
    """The buffer disappears, unless the row depends on it."""

    def body(state):
        i, h, rows = state
        h = jnp.tanh(h + 1)
        return i + 1, h, (h + rows[0] if reads else h)[None]

    def fn(h):
        _, h, rows = lax.while_loop(lambda s: s[0] < 1, body, (0, h, jnp.zeros((1, *h.shape))))
        return h, rows

    module = recover(fn, X[0])
    (scan,) = [e for e in module.jaxpr.eqns if e.primitive.name == "scan"]
    assert scan_layout(scan.params)[1] == 1 + reads
    assert module.report.certificate.kind == "exact"
    same_values(fn, module, X[0])


def test_a_loop_of_one_step_may_store_a_constant() -> None:
    def body(state):
        i, h, _ = state
        return i + 1, jnp.tanh(h), jnp.arange(1.0)

    def fn(h):
        _, h, rows = lax.while_loop(lambda s: s[0] < 1, body, (0, h, jnp.zeros(1)))
        return h, rows

    module = recover(fn, X[0])
    assert module.report.certificate.kind == "exact"
    same_values(fn, module, X[0])
