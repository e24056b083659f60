"""Whole programs, exported and recovered: control flow, derivatives, pytrees, dtypes, shapes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import invert
from tests.harness_cases import assert_same, compare

X = np.linspace(-1.5, 2, 6, dtype=np.float32).reshape(2, 3)
W = np.linspace(1, -1, 9, dtype=np.float32).reshape(3, 3)


def shapes(args: Any) -> Any:
    return jax.tree_util.tree_map(
        lambda a: jax.ShapeDtypeStruct(np.shape(a), np.asarray(a).dtype), args
    )


def recovered(f: Callable, *args: Any, **kwargs: Any) -> invert.Module:
    exported = jax.export.export(jax.jit(f))(*shapes(args), **shapes(kwargs))
    return invert.from_exported(exported.serialize())


def scan(x, w):
    def step(carry, row):
        carry = jnp.tanh(carry @ w + row)
        return carry, carry.sum()

    return lax.scan(step, jnp.zeros(3), x)


def scan_reversed_unrolled(x, w):
    return lax.scan(lambda c, r: (c * 0.5 + r, c @ w), x[0], x, reverse=True, unroll=2)


def nested_scan(x, w):
    def outer(carry, row):
        inner, ys = lax.scan(lambda c, v: (c + jnp.sin(v), c * v), carry, row)
        return inner, ys

    return lax.scan(outer, jnp.float32(0), x @ w)


def fori_static(x, w):
    return lax.fori_loop(0, 4, lambda i, y: jnp.sin(y @ w) + i, x)


def while_norm(x, w):
    def body(state):
        i, y = state
        return i + 1, jnp.tanh(y @ w)

    return lax.while_loop(lambda s: (s[0] < 7) & (jnp.abs(s[1]).sum() > 0.1), body, (0, x))


def cond(x, w):
    return lax.cond(x.sum() > 0, lambda: jnp.sin(x), lambda: x @ w)


def switch(x, w):
    index = jnp.int32(x[0, 0] * 10)
    return lax.switch(index, [lambda y: y, jnp.sin, lambda y: y @ w], x)


def cond_in_scan(x, w):
    def step(carry, row):
        return lax.cond(carry > 0, lambda: carry - row.sum(), lambda: carry + (row @ w).sum()), row

    return lax.scan(step, jnp.float32(0.5), x)


def mapped(x, w):
    return lax.map(lambda row: jnp.cumsum(row @ w), x)


@jax.jit
def _named(x):
    return jnp.sin(x) * 2


def nested_jit(x, w):
    return _named(_named(x)) @ w, _named(w)


def checkpointed(x, w):
    return jax.checkpoint(lambda y: jnp.sin(jnp.tanh(y @ w)))(x).sum(0)


def scopes(x, w):
    with jax.named_scope("encoder"):
        y = x @ w
        with jax.named_scope("norm"):
            y = y / jnp.linalg.norm(y)
    return y, y.sum()


def in_program_gradient(x, w):
    return jax.grad(lambda y: jnp.sin(y @ w).sum())(x), jax.jvp(jnp.tanh, (x,), (x,))[1]


def barrier(x, w):
    x, w = lax.optimization_barrier((x, w))
    return x @ w


def composite(x, w):
    twice = lax.composite(lambda y, n: y * n, "author.scaled", version=2)
    return twice(x, n=np.float32(2)) @ w


def sorts(x, w):
    keys, values = lax.sort((x @ w, x), dimension=1, num_keys=1)
    return keys, values, jnp.argsort(-x, axis=0), -jnp.sort(-w)


def reductions(x, w):
    product = lax.reduce(x, np.float32(0), lambda a, b: a + b + a * b, (1,))
    return product, x.max(0), jnp.argmin(w, 1), jnp.all(x > 0), jnp.prod(w, 0)


def scatters(x, w):
    index = jnp.array([2, 0])
    return (
        w.at[index].set(x),
        w.at[index].add(x),
        w.at[index].max(x),
        w.at[:, 1].mul(2.0),
        x[:, index],
    )


def empty_results(x, w):
    return x[:, :0], jnp.zeros((0, 3)) @ w, jnp.concatenate([x[:0], x])


def constants(x, w):
    return jnp.array([1.0, 2.0, 4.0]) * x + jnp.arange(3), jnp.eye(3, dtype=jnp.int32)


PROGRAMS = {
    f.__name__: f
    for f in (
        scan,
        scan_reversed_unrolled,
        nested_scan,
        fori_static,
        while_norm,
        cond,
        switch,
        cond_in_scan,
        mapped,
        nested_jit,
        checkpointed,
        scopes,
        in_program_gradient,
        barrier,
        composite,
        sorts,
        reductions,
        scatters,
        empty_results,
        constants,
    )
}


def leaves(f: Callable) -> Callable:
    return lambda *args: jax.tree_util.tree_leaves(f(*args))


# As `compare` checks: values, jit, vmap, jvp, and vjp where the original has one.
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    f = PROGRAMS[name]
    module = recovered(f, X, W)
    failures = compare(leaves(f), leaves(module), [X, W], [[X, W], [-X, W.T], [X * 2, W * W]])
    assert failures == {}
    assert_same(module(X, W), jax.jit(f)(X, W))  # pytrees as well


@pytest.mark.parametrize("name", ["scan", "cond", "switch", "nested_jit", "checkpointed"])
def test_program_through_a_saved_model(name: str, tmp_path) -> None:
    tf = pytest.importorskip("tensorflow")
    from jax.experimental import jax2tf

    f = PROGRAMS[name]
    holder = tf.Module()
    specs = [tf.TensorSpec(a.shape, a.dtype) for a in (X, W)]
    holder.f = tf.function(
        jax2tf.convert(leaves(f), with_gradient=True), autograph=False, input_signature=specs
    )
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(holder, str(tmp_path), options=options)
    module = invert.load(tmp_path, signature="f")
    assert compare(leaves(f), leaves(module), [X, W], [[X, W], [-X, W.T]]) == {}


def test_custom_derivatives_equal_the_forward_programs() -> None:
    @jax.custom_jvp
    def stable(x):
        return jnp.log1p(jnp.exp(x))

    stable.defjvp(lambda p, t: (stable(*p), jax.nn.sigmoid(p[0]) * t[0]))

    @jax.custom_vjp
    def root(x):
        return jnp.sqrt(x)

    root.defvjp(lambda x: (jnp.sqrt(x), x), lambda x, ct: (ct / (2 * jnp.sqrt(x)),))
    point = np.array([0.5, 2.0], np.float32)
    for f in (stable, root):
        assert compare(lambda x: [f(x)], leaves(recovered(f, point)), [point], [[point]]) == {}  # noqa: B023


def test_dynamic_trip_count() -> None:
    def f(n, x):
        return lax.fori_loop(0, n, lambda i, y: y * 0.5 + i, x)

    module = recovered(f, np.int32(3), X)
    for n in (0, 1, 5):
        assert_same(module(np.int32(n), X), f(n, X))


class Pair(NamedTuple):
    first: Any
    second: Any


@functools.partial(jax.tree_util.register_dataclass, data_fields=["a", "b"], meta_fields=["size"])
@dataclasses.dataclass
class State:
    a: Any
    b: Any
    size: int


jax.export.register_namedtuple_serialization(Pair, serialized_name="tests.Pair")
jax.export.register_pytree_node_serialization(
    State,
    serialized_name="tests.State",
    serialize_auxdata=lambda aux: str(aux[0]).encode(),
    deserialize_auxdata=lambda blob: (int(blob),),
)


def test_pytrees_and_keywords_come_back() -> None:
    def f(state, pairs, *, scale, unused=None):
        total = state.a + pairs["one"].first * scale
        return {
            "pair": Pair(total, None),
            "state": State(total * 2, (pairs["one"].second, []), state.size),
        }

    args = (State(X, X + 1, 5), {"one": Pair(X, {"z": W, "a": ()})})
    keywords = {"scale": np.float32(3), "unused": {"x": X}}
    module = recovered(f, *args, **keywords)
    assert_same(module(*args, **keywords), f(*args, **keywords))


def test_no_arguments() -> None:
    assert_same(recovered(lambda: {"x": jnp.arange(3)})(), {"x": np.arange(3, dtype=np.int32)})


def test_scalars_and_empty_arrays() -> None:
    def f(x, e):
        return x * 2, e.sum(), e + x, e.T

    args = (np.float32(3), np.zeros((0, 4), np.float32))
    module = recovered(f, *args)
    assert compare(leaves(f), leaves(module), args, [args, args]) == {}
    assert_same(module(3.0, args[1])[0], np.float32(6))


def test_donated_and_unused_arguments() -> None:
    f = jax.jit(lambda x, unused, y: x + y, donate_argnums=0)
    module = invert.from_exported(jax.export.export(f)(*shapes((X, W, X))))
    for _ in range(2):
        assert_same(module(X, W, X), X + X)


DTYPES = [
    np.bool_,
    *(np.dtype(f"{s}int{n}") for s in ("", "u") for n in (8, 16, 32, 64)),
    *(ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.bfloat16, np.float16, np.float32, np.float64),
    *(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.complex64, np.complex128),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_dtype(dtype: Any) -> None:
    def f(x):
        return jnp.concatenate([x, x[::-1]]), x == x[0], x.astype(jnp.float32), x.reshape(2, 2).T

    with jax.enable_x64(True):
        x = np.array([0, 1, 1, 0]).astype(dtype)
        if np.dtype(dtype).kind == "c":
            f = lambda x: (jnp.conj(x), x * x, jnp.abs(x), x.reshape(2, 2).T)  # noqa: E731
        module = recovered(f, x)
        assert compare(leaves(f), leaves(module), [x], [[x], [x[::-1]]]) == {}


def test_sharding_constraint_on_a_mesh_of_one() -> None:
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))

    def f(x):
        return lax.with_sharding_constraint(jnp.sin(x), sharding) * 2

    module = recovered(f, X)
    assert compare(leaves(f), leaves(module), [X], [[X], [-X]]) == {}


def test_symbolic_batch_runs_at_several_sizes() -> None:
    def f(x, y):
        rows = jnp.concatenate([x, y])
        return jnp.mean(rows @ W, axis=0), rows.reshape(-1), jnp.arange(x.shape[0])

    b, c = jax.export.symbolic_shape("b, c")
    specs = [jax.ShapeDtypeStruct((n, 3), np.float32) for n in (b, c)]
    module = invert.from_exported(jax.export.export(jax.jit(f))(*specs))
    for n, m in ((2, 5), (7, 1)):
        x, y = np.ones((n, 3), np.float32), np.full((m, 3), 2, np.float32)
        assert compare(leaves(f), leaves(module), [x, y], [[x, y], [-x, y]]) == {}
        assert_same(module(x, y), jax.jit(f)(x, y))


def test_symbolic_constraint_is_checked() -> None:
    b = jax.export.symbolic_shape("2*b")[0]
    exported = jax.export.export(jax.jit(lambda x: x.reshape(2, -1)))(
        jax.ShapeDtypeStruct((b,), np.float32)
    )
    module = invert.from_exported(exported)
    assert_same(
        module(np.arange(6, dtype=np.float32)), np.arange(6, dtype=np.float32).reshape(2, 3)
    )
    with pytest.raises(invert.SignatureError, match="remainder 1"):
        module(np.zeros(5, np.float32))


@pytest.mark.parametrize("platform", [None, "cpu"])
def test_multi_platform(platform: str | None) -> None:
    def f(x):
        return lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos) @ x.T

    exported = jax.export.export(jax.jit(f), platforms=["cpu", "cuda", "tpu"])(*shapes((X,)))
    module = invert.from_exported(exported, config=invert.Config(platform=platform))
    assert compare(leaves(f), leaves(module), [X], [[X], [-X]]) == {}


def test_another_platform_takes_its_branch() -> None:
    f = functools.partial(lax.platform_dependent, cpu=jnp.sin, default=jnp.cos)
    exported = jax.export.export(jax.jit(f), platforms=["cpu", "cuda"])(*shapes((X,)))
    module = invert.from_exported(exported, config=invert.Config(platform="cuda"))
    assert_same(module(X), np.cos(X))


def test_multi_platform_linear_algebra() -> None:
    def f(x):
        return jnp.linalg.cholesky(x @ x.T + 3 * jnp.eye(2))

    exported = jax.export.export(jax.jit(f), platforms=["cpu", "cuda"])(*shapes((X,)))
    module = invert.from_exported(exported)
    assert compare(leaves(f), leaves(module), [X], [[X], [-X]]) == {}
