"""Several functions on the same parameters as one class with a method for each."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import invert
from invert import _api
from invert._entry import ArgSpec, EntryPoint, Param
from tests.emission.models import ramp

PARAMS = {"dense/kernel": ramp(3, 4), "head/kernel": ramp(4, 2), "count": np.asarray(0, np.int32)}
TABLE = ramp(2) + 3


def dense(kernel: Any, x: Any) -> Any:
    with jax.named_scope("dense"):
        return jax.nn.relu(x @ kernel)


def features(values: Any, x: Any) -> list[Any]:
    return [dense(values[0], x)]


def predict(values: Any, x: Any) -> list[Any]:
    hidden = dense(values[0], x)
    with jax.named_scope("head"):
        return [hidden @ values[1] + TABLE]


def step(values: Any, x: Any, y: Any) -> list[Any]:
    """Another program for the same layer, which computes something else there."""
    kernel, head, count = values
    with jax.named_scope("dense"):
        hidden = jnp.tanh(x @ kernel) * TABLE[0]
    with jax.named_scope("head"):
        error = hidden @ head + TABLE - y
    return [jnp.mean(error), count + np.int32(1)]


def entry(name: str, fn: Any, params: str, *shapes: tuple[Any, ...], **keywords: Any) -> EntryPoint:
    names = params.split()
    kind = np.dtype(np.float32)
    return EntryPoint(
        name=name,
        fn=fn,
        args=tuple(ArgSpec(n, s, kind) for n, s in zip("xy", shapes, strict=False)),
        kwargs={},
        arg_names=tuple("xy"[: len(shapes)]),
        out_tree=jax.tree_util.tree_structure(0),
        params=tuple(Param(n, PARAMS[n]) for n in names),
        **keywords,
    )


def several(**entries: EntryPoint) -> Any:
    return _api._build_methods("model", entries, list(entries), invert.Config())


def all_three() -> Any:
    every = "dense/kernel head/kernel count"
    return several(
        features=entry("features", features, "dense/kernel", (None, 3)),
        predict=entry("predict", predict, "dense/kernel head/kernel", (None, 3)),
        step=entry("step", step, every, (5, 3), (5, 2), assigned=(2,)),
    )


def test_one_class_with_a_method_for_each(tmp_path: Path) -> None:
    methods = all_three()
    source = methods.source
    classes = [c for c in ast.parse(source).body if isinstance(c, ast.ClassDef)]
    (model,) = (c for c in classes if c.name == type(methods.model).__name__)
    names = [f.name for f in model.body if isinstance(f, ast.FunctionDef)]
    assert names == ["__init__", "features", "predict", "step"]
    # One layer for all; what one of them computes otherwise is a method of its own.
    assert source.count("class Dense(") == 1
    assert "self.dense(x)" in source
    assert "self.dense.step(" in source
    # The same array in two programs is one field.
    assert sum("Float[Array, '2']" in ast.unparse(n) for n in model.body) <= 1
    assert methods._emission().messages == ()
    invert.save(methods, tmp_path)
    loaded: Any = invert.load(tmp_path)
    x, y = ramp(5, 3), ramp(5, 2)
    state, other = eqx.nn.State(methods), eqx.nn.State(loaded)
    for rows in (1, 4):
        assert np.array_equal(methods.features(x[:rows]), loaded.features(x[:rows]))
        assert np.array_equal(methods.predict(x[:rows]), loaded.predict(x[:rows]))
        assert np.array_equal(methods.predict(x[:rows]), methods.model.predict(x[:rows]))
    for _ in range(3):
        want, state = methods.step(x, y, state)
        got, other = loaded.step(x, y, other)
        assert np.array_equal(got, want)
    invert.save(loaded, tmp_path / "again", state=other)
    assert "step" in (tmp_path / "README.md").read_text()


def scaled(values: Any, x: Any, by_area: bool) -> list[Any]:
    """Layers of the same features on images of two sizes, by whose area one function divides."""
    for i, scale in enumerate(values):
        with jax.named_scope(f"scale_{i}"):
            x = x * scale / (x.shape[1] * x.shape[2]) if by_area else x * scale
        x = x[:, ::2]
    return [x]


def test_sizes_are_read_in_each_method() -> None:
    sizes = (None, 8, 6, 3)
    params = tuple(Param(f"scale_{i}/scale", ramp(3) + i) for i in range(2))
    plain = entry("plain", lambda v, x: scaled(v, x, False), "", sizes)
    mean = entry("mean", lambda v, x: scaled(v, x, True), "", sizes)
    both = {e.name: dataclasses.replace(e, params=params) for e in (plain, mean)}
    module = several(**both)
    classes = [n for n in ast.parse(module.source).body if isinstance(n, ast.ClassDef)]
    layer, _ = classes
    assert "math.prod(x.shape[1:-1])" in ast.unparse(layer)
    x = ramp(2, 8, 6, 3)
    for name in both:
        np.testing.assert_array_equal(getattr(module.model, name)(x), getattr(module, name)(x))


def test_changed_parameters_reach_all_methods() -> None:
    methods = all_three()
    params = jax.tree_util.tree_map(lambda p: p + 1, methods.params)
    changed = eqx.tree_at(lambda m: m.params, methods, params)
    x = ramp(4, 3)
    for name in ("features", "predict"):
        assert np.array_equal(getattr(changed, name)(x), getattr(changed.model, name)(x))
        assert not np.array_equal(getattr(changed, name)(x), getattr(methods.model, name)(x))


def test_names_of_functions_become_identifiers() -> None:
    names = ["class", "x-y", "x.y", "params", "größe", "__call__", "emit"]
    functions = {n: entry(n, features, "dense/kernel", (2, 3)) for n in names}
    methods = _api._build_methods("model", functions, names, invert.Config())
    x = ramp(2, 3)
    for name in ("class_", "x_y", "x_y_", "params_", "gr__e", "__call__", "emit_"):
        assert np.array_equal(getattr(methods.model, name)(x), getattr(methods, name)(x))


class Broken(dict[str, EntryPoint]):
    def __getitem__(self, name: str) -> EntryPoint:
        if name == "broken":
            raise invert.SignatureError("no signature")
        return super().__getitem__(name)


def test_functions_that_cannot_be_converted_are_left_out() -> None:
    entries = Broken(features=entry("features", features, "dense/kernel", (2, 3)))
    methods: Any = _api._build_methods("model", entries, ["features", "broken"], invert.Config())
    assert not hasattr(methods.model, "broken")
    assert "broken is left out: no signature" in methods._emission().messages[0]
    with pytest.raises(invert.SignatureError, match="no signature"):
        methods.broken()
