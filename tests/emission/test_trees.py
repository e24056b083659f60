"""Operations on all arrays of a tree, as of an optimizer, are written once."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

import invert

_RNG = np.random.default_rng(23)


def _f(*shape: int) -> np.ndarray:
    return 0.5 * _RNG.standard_normal(shape).astype(np.float32)


def _module(step: Callable[..., Any], args: tuple[Any, ...], types: tuple[Any, ...] = ()) -> Any:
    exported = jax.export.export(jax.jit(step))(*(types or args))
    return invert.from_exported(bytes(exported.serialize()))


def _text(step: Callable[..., Any], args: tuple[Any, ...], types: tuple[Any, ...] = ()) -> str:
    """The method of an exported step; values and trees of results equal those of the step."""
    module = _module(step, args, types)
    wanted = jax.jit(step)(*args)
    for run in (module, module.model):
        found = jax.jit(lambda *a, run=run: run(*a))(*args)
        assert jax.tree.structure(found) == jax.tree.structure(wanted)
        jax.tree.map(np.testing.assert_array_equal, found, wanted)
    text, _, _ = module.source.partition("\ndef load(")
    return text.partition("def __call__(")[2]


P = {"in": {"w": _f(3, 7), "b": _f(7)}, "out": {"w": _f(7, 2), "b": _f(2)}}
ZEROS = jax.tree.map(np.zeros_like, P)
BATCH = _f(5, 3), _f(5, 2)


def _loss(p: Any, x: Any, y: Any) -> Any:
    h = jnp.tanh(x @ p["in"]["w"] + p["in"]["b"])
    return jnp.mean((h @ p["out"]["w"] + p["out"]["b"] - y) ** 2)


def _adam(state: Any, x: Any, y: Any) -> Any:
    loss, grads = jax.value_and_grad(_loss)(state["params"], x, y)
    count = state["count"] + 1
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mu"], grads)
    nu = jax.tree.map(lambda n, g: 0.99 * n + 0.01 * g**2, state["nu"], grads)
    scale, root = 1 - 0.9**count, 1 - 0.99**count

    def update(p: Any, m: Any, n: Any) -> Any:
        return p - 0.1 * (m / scale) / (jnp.sqrt(n / root) + 1e-8)

    params = jax.tree.map(update, state["params"], mu, nu)
    return {"params": params, "mu": mu, "nu": nu, "count": count}, loss


STATE = {"params": P, "mu": ZEROS, "nu": ZEROS, "count": np.float32(2)}


def test_an_optimizer_has_a_line_for_each_of_its_trees() -> None:
    text = _text(_adam, (STATE, *BATCH))
    assert 'mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mu"], grads)' in text
    assert "jax.tree.map(update, " in text
    assert text.count("jax.tree.map(") == 3
    assert 'grads["' not in text
    assert '"mu": mu, "nu": nu, "params": params}' in text


def test_a_step_of_an_open_batch_and_an_open_width() -> None:
    shapes = {"in": {"w": "3,n", "b": "n"}, "out": {"w": "n,2", "b": "2"}}
    sizes = {"params": shapes, "mu": shapes, "nu": shapes, "count": ""}, "b,3", "b,2"
    types = jax.export.symbolic_args_specs((STATE, *BATCH), sizes)
    assert _text(_adam, (STATE, *BATCH), types).count("jax.tree.map(") == 3


def test_a_saved_step_checks_its_types(tmp_path: Path) -> None:
    module = _module(_adam, (STATE, *BATCH))
    invert.save(module, tmp_path / "step", typecheck=True)
    spec = importlib.util.spec_from_file_location("saved_step", tmp_path / "step" / "model.py")
    assert spec is not None and spec.loader is not None
    sys.modules["saved_step"] = space = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(space)
    found, wanted = space.load()(STATE, *BATCH), jax.jit(_adam)(STATE, *BATCH)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_all_gradients_are_one_value() -> None:
    text = _text(jax.value_and_grad(_loss), (P, *BATCH))
    assert "return jax.value_and_grad(loss_fn)(p)" in text or "return loss, grads" in text
    assert 'grads["' not in text


def test_the_norm_of_all_gradients() -> None:
    def step(p: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(_loss)(p, x, y)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / norm), grads)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), loss, norm

    text = _text(step, (P, *BATCH))
    assert "sum(jnp.sum(g**2) for g in jax.tree.leaves(grads))" in text
    assert "jax.tree.map(" in text


def test_a_product_of_zeros_is_not_written() -> None:
    """As in the square of the absolute value of what may be complex."""

    def norm(p: Any) -> Any:
        zeros = jax.tree.map(jnp.zeros_like, p)
        pairs = zip(jax.tree.leaves(p), jax.tree.leaves(zeros), strict=True)
        return jnp.sqrt(sum(jnp.sum(a**2 + b * b) for a, b in pairs))

    assert "sum(jnp.sum(p**2) for p in jax.tree.leaves(p))" in _text(norm, (P,))


def test_a_sum_over_several_trees() -> None:
    def distance(p: Any, q: Any) -> Any:
        pairs = zip(jax.tree.leaves(p), jax.tree.leaves(q), strict=True)
        return sum(jnp.sum(jnp.abs(a - b)) for a, b in pairs), p, q

    text = _text(distance, (P, ZEROS))
    assert "in zip(jax.tree.leaves(p), jax.tree.leaves(q))" in text
    assert ", p, q" in text


def test_lists_and_tuples_of_arrays() -> None:
    def step(p: Any, q: Any) -> Any:
        return jax.tree.map(lambda a, b: jnp.tanh(a) * b + a, p, q)

    tree = [(_f(3), _f(2, 3)), (_f(1), _f(4, 1))]
    text = _text(step, (tree, tree[::-1][::-1]))
    assert text.count("jax.tree.map(") == 1


def test_only_some_arrays_decay() -> None:
    """What arrays have in common is written once."""

    def step(p: Any, m: Any, x: Any, y: Any) -> Any:
        _, grads = jax.value_and_grad(_loss)(p, x, y)
        m = jax.tree.map(lambda m, g: 0.9 * m + g, m, grads)
        return jax.tree.map(lambda w, m: w - 0.1 * (m + 0.01 * w if w.ndim > 1 else m), p, m), m

    text = _text(step, (P, ZEROS, *BATCH))
    assert text.count("jax.tree.map(") == 2
    assert 'm["in"]["w"] + 0.01 * p["in"]["w"]' in text
    assert '0.01 * p["in"]["b"]' not in text


def test_arrays_of_several_types() -> None:
    def step(p: Any) -> Any:
        return jax.tree.map(lambda a: jnp.tanh(a * a) + a, p)

    tree = {"a": _f(3), "b": _f(2, 3).astype(jnp.bfloat16), "c": _f(4).astype(np.float16)}
    assert _text(step, (tree,)).count("jax.tree.map(") == 1


def test_arrays_change_places() -> None:
    def step(p: Any) -> Any:
        new = jax.tree.map(lambda a: jnp.tanh(a) * a + 1.0, p)
        return {"a": new["b"], "b": new["c"], "c": new["a"]}

    text = _text(step, ({"a": _f(3), "b": _f(3), "c": _f(3)},))
    assert "jax.tree.map" not in text and '{"a": a, "b": b, "c": c}' in text


def test_arrays_that_need_each_other() -> None:
    def step(p: Any, c: Any) -> Any:
        new = dict[str, Any]()
        for k in p:
            c = new[k] = jnp.tanh(p[k]) * 2.0 + c
        return new

    assert "jax.tree.map" not in _text(step, ({k: _f(3) for k in "abcd"}, _f(3)))


def test_numbers_that_differ() -> None:
    def step(p: Any) -> Any:
        return {k: jnp.tanh(v) * (i + 1.5) for i, (k, v) in enumerate(sorted(p.items()))}

    text = _text(step, ({k: _f(3) for k in "abcd"},))
    assert "* 1.5" in text and "* 4.5" in text


def test_two_trees_of_the_same_arrays() -> None:
    """What is returned twice, and as another tree."""

    def step(p: Any, x: Any, y: Any) -> Any:
        grads = jax.grad(_loss)(p, x, y)
        p = jax.tree.map(lambda w, g: w - 0.1 * jnp.tanh(g), p, grads)
        return p, p, [*jax.tree.leaves(p)], {"all": p, "one": p["in"]["w"]}

    text = _text(step, (P, *BATCH))
    assert text.count("jax.tree.map(") == 1 and '"one": all_["in"]["w"]' in text


def test_numbers_among_results() -> None:
    def step(p: Any) -> Any:
        return {"count": jnp.zeros((), jnp.int32), "p": p}, (1.5, True), [jnp.tanh(p["a"]), 0]

    _text(step, ({"a": _f(3)},))
    assert '{"count": np.int32(0), "p": p}' in _text(step, ({"a": _f(3), "b": _f(2)},))
