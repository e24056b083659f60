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
from invert._private.jax import open_jaxpr
from invert.ir import jaxprs
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
    "eigvalsh": lambda x, k: x + jnp.linalg.eigvalsh(_definite(x)) * 0.1,
    "svd_values": lambda x, k: x + jnp.linalg.svd(_definite(x), compute_uv=False) * 0.1,
    "inv": lambda x, k: jnp.linalg.inv(_definite(x)),
    "cho_solve": lambda x, k: jax.scipy.linalg.cho_solve(
        (jnp.linalg.cholesky(_definite(x)), True), x
    ),
    "gumbel": lambda x, k: x + 0.05 * random.gumbel(k, (3, 3)),
    "categorical": lambda x, k: x[random.categorical(k, x, axis=1)],
    "randint": lambda x, k: x * random.randint(k, (3,), 1, 4) * 0.5,
    "permutation": lambda x, k: x[random.permutation(k, 3)],
    "split_keys": lambda x, k: (
        x + 0.1 * jnp.stack([random.uniform(i, (3,)) for i in random.split(k, 3)])
    ),
    "top_k": lambda x, k: jnp.concatenate([lax.top_k(x, 2)[0], x[:, :1]], 1),
    "cumprod": lambda x, k: lax.cumprod(x, axis=0, reverse=True) * 0.5,
    "one_hot": lambda x, k: x * 0.5 + jax.nn.one_hot(jnp.argmin(x, 0), 3),
    "lgamma": lambda x, k: jnp.tanh(lax.lgamma(1.5 + x * x)),
    "erfc": lambda x, k: lax.erfc(x) - 0.5,
    "clip": lambda x, k: jnp.clip(x, -0.6, 0.7),
    "fft": lambda x, k: jnp.fft.irfft(jnp.fft.rfft(x, axis=1) * 0.5, 3, axis=1),
    "dynamic_slice": lambda x, k: (
        x - lax.dynamic_index_in_dim(x, jnp.argmax(x[0]).astype(int), 0, keepdims=True)
    ),
    "roll": lambda x, k: jnp.roll(x, 1, 0) - jnp.tril(x),
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


def _while_with_keys(body: Body) -> Body:
    def run(x: Any, k: Any) -> Any:
        def step(state: Any) -> Any:
            i, y, k = state
            return i + 1, jnp.tanh(body(y, random.fold_in(k, i))), random.split(k)[1]

        start = (jnp.int32(0), x, k)
        return lax.while_loop(lambda s: s[1].sum() + s[0] < 4, step, start)[1]

    return run


def _vmap(body: Body) -> Body:
    """Batched predicates, loops and decompositions."""
    return lambda x, k: jax.vmap(body, (0, None))(jnp.stack([x, 0.5 * x]), k).sum(0)


def _remat(body: Body) -> Body:
    return jax.checkpoint(body)


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
    "while_with_keys": _while_with_keys,
    "vmap": _vmap,
    "remat": _remat,
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


def holds(tree: Tree, names: frozenset[str]) -> bool:
    """Whether a program contains one of these primitives."""
    if isinstance(tree, str):
        return tree in names
    return any(part in names if isinstance(part, str) else holds(part, names) for part in tree)


def is_plain(tree: Tree) -> bool:
    """Whether no `while` is batched: lowering merges its predicates, without a trace."""
    if isinstance(tree, str):
        return True
    name, *parts = tree
    batched = name == "vmap" and holds(tree, frozenset(("while", "while_with_keys")))
    return not batched and all(map(is_plain, parts))


trees = st.recursive(
    st.sampled_from(sorted(LEAVES)),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(sorted(ONE)), inner),
        st.tuples(st.sampled_from(sorted(TWO)), inner, inner),
    ),
    max_leaves=3,
)
nested = st.tuples(st.just("then"), trees, trees).filter(is_plain)
# A scan in a branch in a loop, with random numbers and linear algebra somewhere in it.
leaves = st.sampled_from(sorted(LEAVES))
inmost = st.tuples(st.sampled_from(("scan", "reverse", "scan_with_keys", "map", "fori")), leaves)
branches = st.one_of(
    st.tuples(st.just("cond"), inmost, leaves), st.tuples(st.just("switch"), leaves, inmost)
)
loops = st.tuples(st.sampled_from(("while", "while_with_keys", "fori", "scan_with_keys")), branches)


def check(tree: Tree) -> None:
    """Check values, derivatives, primitives and certificate of one program."""
    body = build(tree)
    exported = jax.export.export(jax.jit(body))(X, K)
    module = invert.from_exported(exported)
    original = lambda *args: [body(*args)]  # noqa: E731
    failures = compare(
        original, lambda *args: [module(*args)], [X, K], names=["jit", "jvp", "vjp"], factor=10
    )
    assert failures == {}
    # Exported modules hold no dead equations, those of inner bodies included.
    traced = jaxprs.canonicalize(jax.make_jaxpr(body)(X, K))
    want = primitives(open_jaxpr(traced), True)
    got = primitives(module.jaxpr, True)
    assert got == want, f"missing {want - got}, extra {got - want}"
    certificate = module.report.certificate
    assert certificate.kind == "exact", str(certificate)


# Each example compiles a dozen functions: making a failing one smaller takes minutes.
PHASES = (hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate)


@hypothesis.given(st.one_of(loops, nested))
@hypothesis.settings(max_examples=3, deadline=None, derandomize=True, phases=PHASES)
def test_random_programs(tree: Tree) -> None:
    check(tree)


@pytest.mark.parametrize(
    "tree",
    [
        ("fori", ("cond", ("fori", "gather_clip"), "gather_clip")),
        ("while", ("fori", ("then", "gather_fill", "gather_fill"))),
    ],
    ids=["and branches", "alone"],
)
def test_loops_that_read_a_constant_twice(tree: Tree) -> None:
    """Their calls have two arguments for it, which lowering the loops merges."""
    check(tree)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_more_random_programs(seed: int) -> None:
    @hypothesis.seed(seed)
    @hypothesis.given(st.one_of(nested, loops))
    @hypothesis.settings(
        max_examples=10, deadline=None, derandomize=False, database=None, phases=PHASES
    )
    def run(tree: Tree) -> None:
        check(tree)

    run()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LEAVES))
def test_leaves(name: str) -> None:
    check(name)
