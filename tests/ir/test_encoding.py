"""Encoded programs decode to themselves, and damaged data runs nothing."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from invert import Call
from invert._private.jax import eval_closed, names_of, trace_closed
from invert.ir import jaxprs
from invert.ir.encoding import Damaged, NotEncodable, decoded, encoded, key_of
from invert.rewriting.templates import raise_call

X = jax.ShapeDtypeStruct((4, 4), np.float32)
KEY = jax.ShapeDtypeStruct((2,), np.uint32)
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "lgamma": (lax.lgamma, (X,)),
    "erf_inv": (lax.erf_inv, (jax.ShapeDtypeStruct((3,), jnp.bfloat16),)),
    "argmax": (lambda x: lax.argmax(x, 1, np.int32), (X,)),
    "cumsum": (lambda x: lax.cumsum(x, 0), (X,)),
    "sort": (lambda x: lax.sort((x, -x), num_keys=1), (X,)),
    "conv": (lambda x: lax.conv(x[None, None], x[None, None], (1, 1), "SAME"), (X,)),
    "gather": (lambda x: jnp.take(x, jnp.array([2, 0]), axis=1), (X,)),
    "scatter": (lambda x: x.at[1, 2].add(3.0), (X,)),
    "fft": (jnp.fft.fft, (X,)),
    "loop": (lambda x: lax.fori_loop(0, 3, lambda i, y: y * i, x), (X,)),
    "branch": (lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), (X,)),
    "lu": (lax.linalg.lu, (X,)),
    "qr": (lambda x: lax.linalg.qr(x, full_matrices=False), (X,)),
    "solve": (jnp.linalg.solve, (X, X)),
    "normal": (lambda k: jax.random.normal(jax.random.wrap_key_data(k), (3,)), (KEY,)),
    "infinite": (lambda x: jnp.where(x > 0, jnp.inf, jnp.nan) - 0.0, (X,)),
}


def _raised(name: str) -> Any:
    function, avals = FUNCTIONS[name]
    return raise_call(Call(("tested", name), function, avals, of_site=True), "cpu")


def _again(program: Any) -> Any:
    return decoded(json.loads(json.dumps(encoded(program))))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_programs_come_back_as_they_were(name: str) -> None:
    program = _raised(name)
    with jax.enable_x64(True):
        again = _again(program)
        # JAX's text has every parameter, type and literal; a function in one has an address.
        if name != "argmax":
            assert str(again) == str(program)
        assert encoded(again) == encoded(program)
        ours, theirs = (list(jaxprs.equations(p.jaxpr)) for p in (again, program))
        assert list(map(names_of, ours)) == list(map(names_of, theirs))
        types = [
            [type(value) for eqn in eqns for value in eqn.params.values() if not callable(value)]
            for eqns in (ours, theirs)
        ]
        assert types[0] == types[1]
        if name != "lu":
            rng = np.random.default_rng(0)
            values = [np.asarray(rng.uniform(1, 2, v.aval.shape), v.aval.dtype) for v in
                      program.jaxpr.invars]  # fmt: skip
            results = zip(eval_closed(again, values), eval_closed(program, values), strict=True)
            assert all(np.array_equal(a, b, equal_nan=True) for a, b in results)


def test_keys_and_traced_functions() -> None:
    def draw(words: Any) -> Any:
        return jax.random.uniform(jax.random.fold_in(jax.random.wrap_key_data(words), 3), (2,))

    program = trace_closed(draw, KEY)
    assert str(_again(program)) == str(program)


def test_a_solve_keeps_its_functions_scopes_and_derivatives() -> None:
    a, b = jax.ShapeDtypeStruct((3, 3), np.float32), jax.ShapeDtypeStruct((3,), np.float32)
    # The function that solves the transposed system has the scope of a transform.
    program = trace_closed(jnp.linalg.solve, a, b)
    again = _again(program)
    assert str(again) == str(program)
    ours, theirs = (list(jaxprs.equations(p.jaxpr)) for p in (again, program))
    scopes = [[str(e.source_info.name_stack) for e in eqns] for eqns in (ours, theirs)]
    assert scopes[0] == scopes[1]
    assert any("transpose(" in scope for scope in scopes[0])
    rng = np.random.default_rng(0)
    values = [rng.normal(size=x.shape).astype(x.dtype) for x in (a, b)]
    gradients = [
        jax.grad(lambda *xs, p=p: jnp.sum(eval_closed(p, xs)[0]), (0, 1))(*values)
        for p in (again, program)
    ]
    assert jax.tree.all(jax.tree.map(np.array_equal, *gradients))


def test_a_shared_jaxpr_stays_shared() -> None:
    inner = jax.jit(lambda x: x * 2)
    program = trace_closed(lambda x: inner(inner(x)), X)
    first, second = (e.params["jaxpr"] for e in _again(program).jaxpr.eqns)
    assert first is second


def test_open_sizes_come_back_in_their_scope() -> None:
    n, m = jax.export.symbolic_shape("n, m", constraints=["n >= 2*m"])
    x = jax.ShapeDtypeStruct((n, 3 * m + 1), np.float32)
    program = trace_closed(lambda x: jnp.pad(x, ((0, 1), (2, 0))).reshape(-1), x)
    again = decoded(json.loads(json.dumps(encoded(program))), n)
    assert str(again) == str(program)
    assert again.jaxpr.outvars[0].aval == program.jaxpr.outvars[0].aval
    with pytest.raises(Damaged):
        decoded(encoded(program))


@pytest.mark.parametrize(
    "function",
    [
        jax.nn.relu,  # has a derivative rule, which has no name
        lambda x: jax.debug.print("{}", x),
        lambda x: x + np.arange(1 << 20, dtype=np.float32).reshape(-1, 4, 4),
    ],
)
def test_nameless_objects_are_not_encoded(function: Callable[..., Any]) -> None:
    with pytest.raises(NotEncodable):
        encoded(trace_closed(function, X))


def test_keys_name_functions_by_where_they_are_defined() -> None:
    different = [
        *(jax.nn.relu, jax.nn.relu6, 1, True, 1.0, "1", None, (1,), (True,), [1], b"1"),
        *(np.float32(1), np.float64(1), np.dtype("float32"), np.ones(1), jnp.logaddexp),
        *(lax.add_p, jax.ShapeDtypeStruct((1,), np.float32), frozenset({1}), lax.Precision.HIGH),
    ]
    assert len({json.dumps(key_of(value)) for value in different}) == len(different)
    with pytest.raises(NotEncodable):
        key_of(lambda x: x)

    def relu(x: Any) -> Any:
        return x

    relu.__module__, relu.__qualname__ = jax.nn.relu.__module__, jax.nn.relu.__qualname__
    with pytest.raises(NotEncodable):
        key_of(relu)


def _places(data: Any, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    if not isinstance(data, list):
        return [path]
    return [path, *(p for i, part in enumerate(data) for p in _places(part, (*path, i)))]


def test_damaged_data_is_refused_or_gives_a_program() -> None:
    data = json.loads(json.dumps(encoded(_raised("sort"))))
    places = _places(data)[1:]
    rng = random.Random(0)
    refused = 0
    for _ in range(400):
        changed = copy.deepcopy(data)
        *path, last = rng.choice(places)
        part = changed
        for i in path:
            part = part[i]
        part[last] = rng.choice([None, -1, 10**30, "exec", [], ["function", "os", "system"], [[]]])
        try:
            decoded(changed)
        except Damaged:
            refused += 1
    assert refused > 200
