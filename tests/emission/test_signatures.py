"""Signatures of emitted classes: odd names, typed pytrees, open sizes, checks on request."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import invert
from invert._entry import ArgSpec, EntryPoint
from tests.emission import test_methods, test_state
from tests.emission.models import ramp, recovered
from tests.emission.test_modules import lint

KIND = np.dtype(np.float32)


def call(model: Any, *args: Any, **kwargs: Any) -> Any:
    return model(*args, **kwargs)


def _is_shape(value: tuple[Any, ...]) -> bool:
    return all(isinstance(n, (int, str)) for n in value)


def entry(
    fn: Any, args: dict[str, Any], out: Any, kwargs: dict[str, Any] | None = None
) -> EntryPoint:
    """An entry point of some shapes, or of trees of `ArgSpec`."""

    def specs(given: dict[str, Any]) -> dict[str, Any]:
        shapes = {k for k, v in given.items() if isinstance(v, tuple) and _is_shape(v)}
        return {k: ArgSpec(k, v, KIND) if k in shapes else v for k, v in given.items()}

    tree = jax.tree_util.tree_structure(out)
    return EntryPoint(
        name="model",
        fn=lambda params, *flat: jax.tree_util.tree_leaves(fn(*flat)),
        args=tuple(specs(args).values()),
        kwargs=specs(kwargs or {}),
        arg_names=tuple(args),
        out_tree=tree,
    )


@pytest.mark.parametrize("by_name", [False, True])
def test_names_that_are_not_identifiers(by_name: bool) -> None:
    names = ["class", "x-y", "größe", "lambda", "x_y", "self", "state"]
    shapes = dict.fromkeys(names, (2,))
    function = entry(
        lambda *xs: sum(i * x for i, x in enumerate(xs, 1)),
        {} if by_name else shapes,
        0,
        shapes if by_name else None,
    )
    module = recovered(function)
    values = {n: ramp(2) + i for i, n in enumerate(names)}
    if not by_name:
        want = module(*values.values())
        assert np.array_equal(call(module.model, *values.values()), want)
        return
    parameters = list(inspect.signature(module).parameters)
    assert parameters == ["class_", "x_y_", "größe", "lambda_", "x_y", "self_", "state"]
    want = module(**{"self_" if n == "self" else n: v for n, v in values.items()})
    # The names of the container serve as well as those of the parameters.
    assert np.array_equal(module(**dict(zip(parameters, values.values(), strict=True))), want)
    emitted = [p for p in inspect.signature(type(module.model).__call__).parameters if p != "self"]
    named = dict(zip(emitted, values.values(), strict=True))
    assert np.array_equal(call(module.model, **named), want)


def test_pytrees_are_typed() -> None:
    x = ArgSpec("x", (2, 3), KIND)

    def fn(a: Any, b: Any, c: Any, d: Any) -> Any:
        return {"sum": a + b, "parts": (c, [d, a]), "none": None}

    trees = {"inputs": {"a": x, "b": x}, "pair": (x, [x])}
    out = {"sum": 0, "parts": (0, [0, 0]), "none": None}
    module = recovered(entry(fn, trees, out))
    value = ramp(2, 3)
    args = {"a": value, "b": value + 1}, (value, [value - 1])
    got, want = call(module.model, *args), module(*args)
    assert jax.tree_util.tree_structure(got) == jax.tree_util.tree_structure(want)
    source = module.source
    array = 'Float[Array, "2 3"]'
    assert f"class Inputs(TypedDict):\n    a: {array}\n    b: {array}\n" in source
    assert f"tuple[{array}, list[{array}]]" in source
    assert "-> Outputs:" in source
    assert "PyTree" not in source


def test_an_argument_may_have_more_parts_than_python_has_levels() -> None:
    x = ArgSpec("x", (3,), KIND)
    trees = {"rows": [{"a": x, "b": x}] * 600}
    module = recovered(entry(lambda *parts: sum(parts[::2]), trees, 0))
    assert "def __call__(self, rows: list[Rows]" in module.source
    rows = [{"a": ramp(3) + i, "b": ramp(3)} for i in range(600)]
    assert np.array_equal(call(module.model, rows), module(rows))


def test_four_open_sizes() -> None:
    def fn(x: Any, y: Any) -> Any:
        b, n, m = x.shape
        (k,) = y.shape
        return x.reshape(b * n * m), jnp.zeros((b + 2 * k, n)), x[:, :, 0] + 1

    shapes = {"x": ("b", "n", "m"), "y": ("k",)}
    module = recovered(entry(fn, shapes, (0, 0, 0)))
    assert 'x: Float[Array, "b n m"], y: Float[Array, "k"]' in module.source
    assert module._emission().messages == ()
    for sizes in ((1, 2, 3, 4), (5, 1, 2, 3)):
        args = ramp(*sizes[:3]), ramp(sizes[3])
        for got, want in zip(call(module.model, *args), module(*args), strict=True):
            assert np.array_equal(got, want)


def test_a_switch_is_static_or_traced() -> None:
    def fn(x: Any, training: Any) -> Any:
        return jax.lax.cond(training, lambda x: x - x.mean(axis=0), lambda x: x * 2, x)

    switch = ArgSpec("training", (), np.dtype(np.bool_))
    module = recovered(entry(fn, {"x": (4, 3), "training": switch}, 0))
    assert 'training: bool | Bool[Array, ""]' in module.source
    x = ramp(4, 3)
    model: Any = module.emit(typecheck=True).model
    for value in (True, False):
        want = module(x, value)
        assert np.array_equal(model(x, value), want)
        assert np.array_equal(jax.jit(model)(x, jnp.asarray(value)), want)


def test_types_are_checked_on_request(tmp_path: Path) -> None:
    from jaxtyping import TypeCheckError

    module = recovered(entry(lambda x, y: x + y, {"x": ("n", 3), "y": ("n", 3)}, 0))
    assert "beartype" not in module.source
    assert call(module.model, ramp(2, 3), ramp(2, 3)).shape == (2, 3)
    invert.save(module, tmp_path, typecheck=True)
    loaded: Any = invert.load(tmp_path)
    assert np.array_equal(loaded(ramp(2, 3), ramp(2, 3)), module(ramp(2, 3), ramp(2, 3)))
    with pytest.raises(TypeCheckError, match=r"parameter 'x'(.|\n)*f32\[2,4\](.|\n)*'n 3'"):
        loaded(ramp(2, 4), ramp(2, 4))
    with pytest.raises(TypeCheckError, match=r"parameter 'y'(.|\n)*n=2"):
        loaded(ramp(2, 3), ramp(5, 3))
    with pytest.raises(ValueError, match="is already written"):
        invert.save(module.model, tmp_path, typecheck=True)


@pytest.mark.slow
def test_linters_accept_state_and_methods(tmp_path: Path) -> None:
    """No error of pyright, no unused name, no line over 120 characters."""
    made = [test_state.keras_normalization, test_state.keras_training]
    sources = {m.__name__: m()[0].source for m in (*made, test_state.tensorflow_dropout)}
    sources["methods"] = test_methods.all_three().source
    x = ArgSpec("x", (2, 3), KIND)
    trees = {"inputs": {"a": x, "b": x}, "pair": (x, [x])}

    def fn(a: Any, b: Any, c: Any, d: Any) -> Any:
        return {"sum": a + b, "parts": (c, [d, a]), "x-y": {"a": d}}

    out = {"sum": 0, "parts": (0, [0, 0]), "x-y": {"a": 0}}
    module = recovered(entry(fn, trees, out))
    sources["pytrees"] = module.source
    sources["checked"] = module.emit(typecheck=True).source
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
        assert max(map(len, source.splitlines())) <= 120
    lint(tmp_path)


@pytest.mark.parametrize(
    ("fn", "count", "names"),
    [
        (lambda *args: args[1] + args[2], 3, ["arg0", "arg1", "arg2"]),
        (lambda x, *args: args[0] * 2, 2, ["arg0", "arg1"]),
        # Of an argument that is not used, an export has no name.
        (lambda arg1, arg0: arg0 * 2, 2, ["arg0_2", "arg0"]),
    ],
)
def test_arguments_that_an_export_does_not_name(fn: Any, count: int, names: list[str]) -> None:
    xs = [ramp(3) + i for i in range(count)]
    module = invert.from_exported(jax.export.export(jax.jit(fn))(*xs))
    for called in (module, module.model):
        assert list(inspect.signature(called).parameters) == names
        np.testing.assert_array_equal(called(*xs), fn(*xs))
        np.testing.assert_array_equal(called(**dict(zip(names, xs, strict=True))), fn(*xs))


def test_methods_of_open_sizes_are_checked_once() -> None:
    batch = jax.export.symbolic_shape("b, 3")
    exported = jax.export.export(jax.jit(jnp.tanh))(jax.ShapeDtypeStruct(batch, KIND))
    source = invert.from_exported(exported).emit(typecheck=True).source
    assert source.count("@jaxtyped(") == source.count("def __call__(") == 1
