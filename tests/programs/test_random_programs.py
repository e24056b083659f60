"""Random programs: loops in branches in loops, calls, random numbers and linear algebra."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random

import invert
from benchmarks.recovery import primitives
from invert import _compat
from tests.harness_cases import compare

X = np.linspace(-1.1, 1.3, 9, dtype=np.float32).reshape(3, 3)
K = np.array([7, 11], np.uint32)
Body = Callable[[Any, Any], Any]


def _definite(x: Any) -> Any:
    return x @ x.T + 2 * jnp.eye(3)


# All take and give a (3, 3) array; the key is one of two words.
LEAVES: dict[str, Body] = {
    "tanh": lambda x, k: jnp.tanh(x),
    "sin": lambda x, k: jnp.sin(x) * 1.5,
    "product": lambda x, k: jnp.tanh(x @ x.T),
    "cumsum": lambda x, k: jnp.cumsum(x, 0) * 0.5,
    "cummax": lambda x, k: lax.cummax(x, axis=1, reverse=True),
    "cumlogsumexp": lambda x, k: lax.cumlogsumexp(x, axis=1) * 0.5,
    "softmax": lambda x, k: jax.nn.softmax(x, 1),
    "log_softmax": lambda x, k: jax.nn.log_softmax(x, 0) * 0.25,
    "logsumexp": lambda x, k: x - jax.nn.logsumexp(x, 1, keepdims=True),
    "relu": lambda x, k: jax.nn.relu(x) - 0.3,
    "silu": lambda x, k: jax.nn.silu(x),
    "gelu": lambda x, k: jax.nn.gelu(x),
    "gather_clip": lambda x, k: x.at[jnp.array([1, 5, -4])].get(mode="clip"),
    "gather_fill": lambda x, k: x.at[jnp.array([2, 7, 0])].get(mode="fill", fill_value=0.5),
    "rows_by_sort": lambda x, k: x[jnp.argsort(x[:, 0])],
    "scatter": lambda x, k: x.at[jnp.array([0, 2, 0])].add(0.5 * x),
    "sort": lambda x, k: jnp.sort(x, axis=0),
    "argmax": lambda x, k: x - jnp.argmax(x, axis=1)[:, None] * 0.25,
    "erf_inv": lambda x, k: lax.erf_inv(jnp.tanh(x) * 0.9),
    "digamma": lambda x, k: jnp.tanh(lax.digamma(1.5 + x * x)),
    "cholesky": lambda x, k: jnp.linalg.cholesky(_definite(x)),
    "solve": lambda x, k: jnp.linalg.solve(_definite(x), x),
    "triangular": lambda x, k: jax.scipy.linalg.solve_triangular(_definite(x), x, lower=True),
    "qr": lambda x, k: jnp.linalg.qr(_definite(x))[1],
    "det": lambda x, k: x * jnp.linalg.det(_definite(x)) * 0.05,
    "normal": lambda x, k: x + 0.1 * random.normal(k, (3, 3)),
    "uniform": lambda x, k: x * random.uniform(random.fold_in(k, 3), (3, 3), minval=0.5),
    "bernoulli": lambda x, k: jnp.where(random.bernoulli(k, 0.5, (3,)), x, 0.5 * x),
    "stack": lambda x, k: jnp.stack([x[0], x[2], x[1]]),
    "where": lambda x, k: jnp.where(x > 0.1, x, jnp.exp(x) - 1),
    "power": lambda x, k: 0.5 * x**3,
}


def _scan(body: Body, reverse: bool) -> Body:
    def run(x: Any, k: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            y = jnp.tanh(body(carry, k)) + 0.1 * row
            return y, y[0]

        last, rows = lax.scan(step, x, x, reverse=reverse)
        return 0.5 * last + rows

    return run


def _scan_with_keys(body: Body) -> Body:
    def run(x: Any, k: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            y, k = state
            k, now = random.split(k)
            return (jnp.tanh(body(y, now)), k), None

        return lax.scan(step, (x, k), length=2)[0][0]

    return run


def _fori(body: Body) -> Body:
    return lambda x, k: lax.fori_loop(0, 3, lambda i, y: jnp.tanh(body(y, k)) + 0.1 * i, x)


def _while(body: Body) -> Body:
    def run(x: Any, k: Any) -> Any:
        # A weakly typed predicate would be converted, which lowers to a comparison with False.
        start = (jnp.int32(0), x)
        going = lambda state: (state[0] < 3) & (jnp.abs(state[1]).sum() < 50)  # noqa: E731
        return lax.while_loop(going, lambda s: (s[0] + 1, jnp.tanh(body(s[1], k))), start)[1]

    return run


def _map(body: Body) -> Body:
    return lambda x, k: lax.map(lambda row: body(row * jnp.ones((3, 1)) + x, k)[0], x)


def _jit(body: Body) -> Body:
    named = jax.jit(body)
    return lambda x, k: 0.5 * (named(x, k) + named(x * 0.5, k))


def _cond(first: Body, second: Body) -> Body:
    return lambda x, k: lax.cond(x.sum() > 0.2, first, second, x, k)


def _switch(first: Body, second: Body) -> Body:
    def run(x: Any, k: Any) -> Any:
        index = jnp.int32(jnp.abs(x[0, 0]) * 3)
        return lax.switch(index, [first, second, lambda x, k: x], x, k)

    return run


def _then(first: Body, second: Body) -> Body:
    return lambda x, k: second(jnp.tanh(first(x, k)), k)


ONE: dict[str, Callable[[Body], Body]] = {
    "scan": lambda b: _scan(b, False),
    "reverse": lambda b: _scan(b, True),
    "scan_with_keys": _scan_with_keys,
    "fori": _fori,
    "while": _while,
    "map": _map,
    "jit": _jit,
}
TWO: dict[str, Callable[[Body, Body], Body]] = {"cond": _cond, "switch": _switch, "then": _then}

# A program is a leaf or a name with programs in it, so that hypothesis prints and shrinks it.
Tree = str | tuple[Any, ...]


def build(tree: Tree) -> Body:
    if isinstance(tree, str):
        return LEAVES[tree]
    name, *parts = tree
    return {**ONE, **TWO}[name](*map(build, parts))


trees = st.recursive(
    st.sampled_from(sorted(LEAVES)),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(sorted(ONE)), inner),
        st.tuples(st.sampled_from(sorted(TWO)), inner, inner),
    ),
    max_leaves=3,
)
nested = st.tuples(st.just("then"), trees, trees)


def check(tree: Tree) -> None:
    """Values, derivatives, primitives and certificate of one program."""
    body = build(tree)
    exported = jax.export.export(jax.jit(body))(X, K)
    module = invert.from_exported(exported)
    original = lambda *args: [body(*args)]  # noqa: E731
    failures = compare(
        original, lambda *args: [module(*args)], [X, K], names=["jit", "jvp", "vjp"], factor=10
    )
    assert failures == {}
    want = primitives(_compat.dce(_compat.open_jaxpr(jax.make_jaxpr(body)(X, K))), True)
    got = primitives(module.jaxpr, True)
    assert got == want, f"missing {want - got}, extra {got - want}"
    certificate = module.report.certificate
    assert certificate.kind == "exact", str(certificate)


@pytest.mark.slow
@hypothesis.given(nested)
@hypothesis.settings(max_examples=8, deadline=None, derandomize=True)
def test_random_programs(tree: Tree) -> None:
    check(tree)


@pytest.mark.slow
@hypothesis.given(nested)
@hypothesis.settings(max_examples=200, deadline=None, derandomize=True)
def test_more_random_programs(tree: Tree) -> None:
    check(tree)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LEAVES))
def test_leaves(name: str) -> None:
    check(name)
