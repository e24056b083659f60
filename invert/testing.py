"""Tests that exported JAX functions are recovered."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Literal

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from invert import _api
from invert._config import Config
from invert.ir.jaxprs import with_values
from invert.ir.types import JaxFunction, Value
from invert.modules.module import Module

Via = Literal["jax.export", "tf.function", "saved_model"]


def assert_roundtrip(
    f: Callable[..., object],
    *args: object,
    via: Via = "jax.export",
    certificate: Literal["exact", "numerical", "unverified"] = "exact",
    derivatives: bool = True,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    config: Config | None = None,
) -> Module:
    """Assert that a JAX function is recovered from its export.

    **Arguments:**

    - `f`: the function; `args`: example arguments, arrays in pytrees.
    - `via`: the route: `jax.export` alone, a `tf.function` around `jax2tf.convert`, or a SavedModel
        written to a temporary directory and loaded again. The last two need TensorFlow.
    - `certificate`: the weakest acceptable certificate.
    - `derivatives`: whether forward and reverse derivatives are compared too, with random tangents
        and cotangents, where `f` has them.
    - `rtol`, `atol`: tolerances for derivatives, and for results unless the certificate is exact:
        equal programs must give results that are equal bit for bit.

    **Returns:** the recovered module, for further checks.

    **Raises:** `AssertionError` with what differs.

    ??? example

        ```python
        import jax
        import jax.numpy as jnp

        import invert

        invert.testing.assert_roundtrip(lambda x: jax.nn.softmax(jnp.sin(x)), jnp.ones((2, 3)))
        ```
    """
    module = _recover(f, args, via, config or Config())
    order = ("exact", "numerical", "unverified")
    got = module.report.certificate
    if order.index(got.kind) > order.index(certificate):
        raise AssertionError(f"the certificate is {got}, expected {certificate}")
    exact = got.kind == "exact"
    _compare(
        "results",
        jax.jit(f)(*args),
        jax.jit(module)(*args),
        0 if exact else rtol,
        0 if exact else atol,
    )
    if derivatives:
        _compare_derivatives(f, module, args, rtol, atol)
    return module


def _recover(
    f: Callable[..., object], args: tuple[object, ...], via: Via, config: Config
) -> Module:
    if via == "jax.export":
        return _api.from_exported(jax.export.export(jax.jit(f))(*args), config=config)
    from jax.experimental import jax2tf

    from invert.tf.ops.node import import_tensorflow

    tf = import_tensorflow()
    function = tf.function(jax2tf.convert(f, with_gradient=True), autograph=False)
    if via == "tf.function":
        return _api.roundtrip(function, *args, config=config)
    holder = tf.Module()
    holder.f = function
    holder.f.get_concrete_function(
        *jax.tree_util.tree_map(lambda x: tf.TensorSpec(np.shape(x), np.asarray(x).dtype), args)
    )
    with tempfile.TemporaryDirectory() as directory:
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
        tf.saved_model.save(holder, directory, options=options)
        return _api.load(directory, config=config)


def _inexact(tree: object) -> list[bool]:
    return [
        jnp.issubdtype(jnp.result_type(x), jnp.inexact) for x in jax.tree_util.tree_leaves(tree)
    ]


def _compare_derivatives(
    f: Callable[..., object], module: Module, args: tuple[object, ...], rtol: float, atol: float
) -> None:
    flat, tree = jax.tree_util.tree_flatten(args)
    moving = [i for i, moves in enumerate(_inexact(args)) if moves]
    if not moving:
        return
    rng = np.random.default_rng(0)

    def of(function: Callable[..., object]) -> JaxFunction:
        def call(*xs: object) -> list[Value]:
            values = with_values(flat, moving, xs)
            leaves = jax.tree_util.tree_leaves(
                function(*jax.tree_util.tree_unflatten(tree, values))
            )
            return [x for x, moves in zip(leaves, _inexact(leaves), strict=True) if moves]

        return call

    xs = [jnp.asarray(flat[i]) for i in moving]
    tangents = [jnp.asarray(rng.standard_normal(x.shape), x.dtype) for x in xs]

    def forward(function: Callable[..., object]) -> Value:
        return jax.jit(lambda xs, ts: jax.jvp(of(function), xs, ts)[1])(tuple(xs), tuple(tangents))

    def reverse(function: Callable[..., object]) -> Value:
        def pull(xs: Value) -> Value:
            results, vjp = jax.vjp(of(function), *xs)
            return vjp([jnp.ones_like(r) for r in results])

        return jax.jit(pull)(tuple(xs))

    for name, derive in (("forward derivatives", forward), ("reverse derivatives", reverse)):
        try:
            expected = derive(f)
        except (TypeError, ValueError, NotImplementedError):
            continue  # the original has none
        _compare(name, expected, derive(module), rtol, atol)


def _compare(what: str, expected: object, got: object, rtol: float, atol: float) -> None:
    one, two = (jax.tree_util.tree_flatten(t) for t in (expected, got))
    if one[1] != two[1]:
        raise AssertionError(f"{what}: the structure is {two[1]}, expected {one[1]}")
    for i, (x, y) in enumerate(zip(one[0], two[0], strict=True)):
        np.testing.assert_allclose(
            np.asarray(y), np.asarray(x), rtol=rtol, atol=atol, err_msg=f"{what}, leaf {i}"
        )
