"""Calls raised from their trace, compared with the same calls lowered and raised."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from invert import Call
from invert._private.jax import open_jaxpr, trace_closed
from invert.ir import jaxprs, kinds
from invert.ir.match import difference
from invert.rewriting import traced_calls
from invert.rewriting.pattern import bind
from invert.rewriting.templates import raise_call, unwrap
from invert.rewriting.traced_calls import raised_by_trace
from invert.stablehlo.lowered import raised_again

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_UNARY = (
    *(lax.abs, lax.ceil, lax.cos, lax.exp, lax.expm1, lax.floor, lax.is_finite, lax.log),
    *(lax.log1p, lax.neg, lax.rsqrt, lax.sign, lax.sin, lax.sqrt, lax.tanh),
    lax.stop_gradient,
    functools.partial(lax.reduce_max_p.bind, axes=(1,), out_sharding=None),
    functools.partial(lax.reduce_min_p.bind, axes=(0, 1), out_sharding=None),
    functools.partial(lax.reduce_sum_p.bind, axes=(0,), out_sharding=None),
    lambda x: lax.broadcast_in_dim(x, (4, *x.shape), (1, 2)),
    lambda x: lax.reshape(x, (x.shape[0], 1, 5)),
    lambda x: lax.slice(x, (0, 1), (3, 5), (1, 2)),
    lambda x: lax.squeeze(x[None], (0,)),
    lambda x: lax.transpose(x, (1, 0)),
)
_BINARY = (
    *(lax.add, lax.div, lax.max, lax.min, lax.mul, lax.sub),
    *(lax.eq, lax.ge, lax.gt, lax.le, lax.lt, lax.ne),
)
_WINDOW = {
    "window_dimensions": (2, 1),
    "window_strides": (1, 2),
    "padding": ((1, 0), (0, 0)),
    "base_dilation": (1, 1),
    "window_dilation": (1, 1),
}
_WINDOWED = (
    functools.partial(lax.reduce_window_max_p.bind, **_WINDOW),
    functools.partial(lax.reduce_window_min_p.bind, **_WINDOW),
    functools.partial(lax.reduce_window_sum_p.bind, **_WINDOW),
)
_OF_INDICES = tuple(
    lambda x, compare=compare: lax.select(
        compare(*(lax.broadcasted_iota(np.int32, x.shape, axis) for axis in (0, 1))), x, -x
    )
    for compare in (lax.eq, lax.ge, lax.gt, lax.le, lax.lt, lax.ne)
)
_LIBRARY = (
    *(jax.nn.relu, jax.nn.relu6, jax.nn.softmax, jax.nn.log_softmax, jax.nn.logsumexp),
    *(
        jax.nn.silu,
        jax.nn.sigmoid,
        jax.nn.hard_tanh,
        jax.nn.leaky_relu,
        jax.nn.softplus,
        jax.nn.soft_sign,
        jnp.logaddexp,
    ),
    functools.partial(jax.nn.softmax, axis=0),
    functools.partial(jax.nn.logsumexp, axis=-1, keepdims=True),
    lambda x: jnp.where(x > 0, x, jnp.nan),
    lambda x: jnp.where((x > 0) & ~(x != x) | (x < -1) ^ (x == 0), -x, 2.0),
    lambda x: jnp.broadcast_to(1.5, x.shape) * x,
    lambda x: (x, x),
)


def _named(function: Callable[..., Any]) -> str:
    """The same name in every process."""
    if isinstance(function, functools.partial):
        options = ",".join(f"{k}={v}" for k, v in function.keywords.items())
        return f"{_named(function.func)}({options})"
    return function.__name__


def _check(call: Call) -> None:
    """Assert that both agree, also in the order and names of calls."""
    traced = raised_by_trace(call, "cpu")
    assert traced is not None
    with jax.enable_x64(call.needs_x64):
        lowered = raised_again(call.function, call.avals, platform="cpu", x64=call.needs_x64)
    if not isinstance(call.key[0], str):  # a primitive that JAX outlines
        lowered, traced = unwrap(lowered), unwrap(traced)
    assert difference(lowered, traced) is None
    one, two = (
        [(e.primitive.name, e.params.get("name")) for e in jaxprs.equations(open_jaxpr(p))]
        for p in (lowered, traced)
    )
    assert one == two


@pytest.mark.parametrize("dtype", _FLOATS)
@pytest.mark.parametrize(
    "function", (*_UNARY, *_BINARY, *_WINDOWED, *_OF_INDICES, *_LIBRARY), ids=_named
)
def test_a_trace_equals_the_raised_lowering(function: Callable[..., Any], dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        aval = jax.ShapeDtypeStruct((3, 5), jnp.dtype(dtype))
    count = 2 if function in (*_BINARY, jnp.logaddexp) else 1
    call = Call(("test", function), function, (aval,) * count)
    if raised_by_trace(call, "cpu") is None:
        assert function in _LIBRARY
        pytest.skip("lowering changes an equation")
    _check(call)


@pytest.mark.parametrize("function", [jax.nn.relu, jax.nn.softmax, jax.nn.log_softmax])
def test_a_trace_at_open_sizes_equals_the_raised_lowering(function: Callable[..., Any]) -> None:
    n, m = jax.export.symbolic_shape("n, m")
    for shape in ((n, 5), (3, 2 * n), (n, m)):
        _check(Call(("test", function), function, (jax.ShapeDtypeStruct(shape, np.float32),)))


@pytest.mark.parametrize(
    "function, dtypes",
    [
        (lax.max, ("bool", "bool")),
        (lax.add, ("int32", "int32")),
        (lax.select_n, ("int32", "float32", "float32")),
        (lax.square, ("float32",)),
        (jax.nn.gelu, ("float32",)),
        (lax.exp, ("complex64",)),
        (jnp.cumsum, ("float32",)),
        (lambda x: lax.reshape(x, (15,), (1, 0)), ("float32",)),
    ],
)
def test_what_lowering_changes_is_lowered(
    function: Callable[..., Any], dtypes: tuple[str, ...]
) -> None:
    avals = tuple(jax.ShapeDtypeStruct((3, 5), np.dtype(d)) for d in dtypes)
    assert raised_by_trace(Call(("test", function), function, avals), "cpu") is None


_INDEX = {"axes": (1,), "index_dtype": np.dtype(np.int32)}
_TRACED = [
    (lax.logistic_p, {"accuracy": None}),
    *((p, _INDEX) for p in (lax.argmax_p, lax.argmin_p)),
    *(
        (p, {"axis": axis, "reverse": bool(axis)})
        for p in (lax.cumsum_p, lax.cummax_p, lax.cummin_p)
        for axis in (0, 1)
    ),
    (lax.split_p, {"axis": 1, "sizes": (2, 3)}),
]


@pytest.mark.parametrize("dtype", _FLOATS)
@pytest.mark.parametrize("primitive, params", _TRACED, ids=str)
def test_the_function_that_lowers_a_primitive_equals_its_lowering(
    primitive: Any, params: dict[str, Any], dtype: str
) -> None:
    n, m = jax.export.symbolic_shape("n, m")
    for shape in ((3, 5), (n, 5), *(() if primitive is lax.split_p else [(n, m)])):
        with jax.enable_x64(dtype == "float64"):
            aval = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
        for x64 in (False, True):
            _check(dataclasses.replace(bind(primitive, aval, **params), x64=x64))


def test_a_primitive_whose_lowering_jax_refuses_has_no_program() -> None:
    aval = jax.ShapeDtypeStruct((3, 5), np.float32)
    wide = bind(lax.argmax_p, aval, axes=(1,), index_dtype=np.dtype(np.int64))
    assert raised_by_trace(wide, "cpu") is None
    assert raised_by_trace(dataclasses.replace(wide, x64=True), "cpu") is not None


def test_a_library_function_is_not_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"{args} is lowered")

    monkeypatch.setattr("invert.rewriting.templates.lower", refuse)
    aval = jax.ShapeDtypeStruct((7, 3), np.float32)
    call = Call(("test", jax.nn.relu, 7), jax.nn.relu, (aval,), is_call=True)
    assert raise_call(call, "cpu") is not None
    assert raise_call(bind(lax.cumsum_p, aval, axis=0, reverse=False), "cpu") is not None


def test_every_primitive_in_the_tables_is_tested() -> None:
    aval = jax.ShapeDtypeStruct((3, 5), np.float32)
    names: set[str] = set()
    for function in (*_UNARY, *_BINARY, *_WINDOWED, *_OF_INDICES, *_LIBRARY):
        count = 2 if function in (*_BINARY, jnp.logaddexp) else 1
        program = trace_closed(function, *[aval] * count)
        names |= jaxprs.names_in(open_jaxpr(program))
    assert {p for p, _ in _TRACED} == {*traced_calls._TRACED, *traced_calls._ALIKE}
    floats, integers = traced_calls._OF_FLOATS, traced_calls._OF_INTEGERS
    assert (
        floats | integers | traced_calls._OF_BOOLEANS | kinds.LAYOUT | {"select_n", "slice"}
        <= names
    )
