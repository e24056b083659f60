"""Recovered modules as source: the text, its results, and that it runs without invert."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import invert
from invert._entry import ArgSpec, EntryPoint, Param
from invert._private.jax import open_jaxpr
from invert.emission.emit import emit
from invert.emission.recovered import Recovered
from tests.emission.models import MODELS, flax_model, ramp, recovered, with_params

# What a process does that has neither invert nor TensorFlow: import, load, run, differentiate.
_ALONE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("invert", "tensorflow", "flax"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import model

module = model.load()

@eqx.filter_jit
@eqx.filter_grad
def slope(module, x):
    return jnp.sum(jnp.sin(module(x) * 3))

found = {}
for name, x in np.load("inputs.npz").items():
    found[f"{name}_out"] = module(x)
    for i, leaf in enumerate(jax.tree_util.tree_leaves(slope(module, x))):
        found[f"{name}_grad_{i}"] = leaf
np.savez("outputs.npz", **{k: np.asarray(v) for k, v in found.items()})
assert not any(m.split(".")[0] in ("invert", "tensorflow") for m in sys.modules)
"""


@eqx.filter_jit
@eqx.filter_grad
def slope(module: Any, x: Any) -> Any:
    return jnp.sum(jnp.sin(module(x) * 3))


def in_another_process(directory: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    np.savez(directory / "inputs.npz", **inputs)
    result = subprocess.run(
        [sys.executable, "-c", _ALONE], cwd=directory, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return dict(np.load(directory / "outputs.npz"))


# The others take a quarter of a minute each.
QUICK = {"shared"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in MODELS]
)
def test_a_saved_module_runs_without_invert_and_tensorflow(name: str, tmp_path: Path) -> None:
    module, x = flax_model(name, batch="batch")
    model = module.model
    assert "batch" in module.source
    invert.save(module, tmp_path)
    inputs = {"small": x, "large": np.concatenate([x, -x, x])}
    found = in_another_process(tmp_path, inputs)
    for key, value in inputs.items():
        # The same equations, compiled by the same compiler.
        assert np.array_equal(found[f"{key}_out"], module(value))
        assert np.array_equal(found[f"{key}_out"], model(value))
        wanted = jax.tree_util.tree_leaves(slope(model, value))
        for i, leaf in enumerate(wanted):
            assert np.array_equal(found[f"{key}_grad_{i}"], leaf)
        recovered_slopes = jax.tree_util.tree_leaves(slope(module, value))
        total = sum(float(np.abs(w).sum()) for w in wanted)
        assert total > 0
        assert np.isclose(total, sum(float(np.abs(w).sum()) for w in recovered_slopes), rtol=1e-5)


def test_the_text_is_the_running_code(tmp_path: Path) -> None:
    module, x = flax_model("mlp")
    model = module.model
    assert inspect.getsource(type(model)) in module.source
    invert.save(module, tmp_path)
    assert (tmp_path / "model.py").read_text() == module.source
    loaded = invert.load(tmp_path)
    assert np.array_equal(loaded(x), module(x))
    assert inspect.getsource(type(loaded)) in module.source
    again = tmp_path / "again"
    invert.save(loaded, again)
    for name in ("model.py", "README.md", "weights.safetensors"):
        assert (again / name).read_bytes() == (tmp_path / name).read_bytes()


def test_layers_become_classes() -> None:
    module, _ = flax_model("transformer")
    tree = ast.parse(module.source)
    classes = [n.name for n in tree.body if isinstance(n, ast.ClassDef)]
    # Both blocks are of one class, and so are all layers that compute the same.
    assert classes.count("Block") == 1
    assert set(classes) >= {"Dense", "LayerNorm", "SelfAttention", "Block", "Transformer"}
    assert len(classes) <= 8
    assert "for block in self.blocks:" in module.source
    assert "x = x + self.SelfAttention_0(self.LayerNorm_0(x), y)" in module.source
    assert "jax.nn.softmax" in module.source
    assert "jax.nn.gelu(self.Dense_1(self.LayerNorm_1(x)))" in module.source
    assert module._emission().messages == ()
    assert module.model.blocks[1].SelfAttention_0.query.kernel.shape == (16, 2, 8)


def test_layers_can_be_replaced() -> None:
    module, x = flax_model("transformer")
    model = module.model
    changed = eqx.tree_at(lambda m: m.blocks[0].Dense_1.bias, model, replace_fn=lambda b: b + 1)
    assert not np.array_equal(changed(x), model(x))
    trained, rest = eqx.partition(model, eqx.is_inexact_array)
    assert np.array_equal(eqx.combine(trained, rest)(x), model(x))
    params = jax.tree_util.tree_map(lambda p: p + 1, module.params)
    other = eqx.tree_at(lambda m: m.params, module, params)
    assert np.array_equal(other.model(x), other(x))


def test_a_layer_that_is_called_twice_is_written_once() -> None:
    module, x = flax_model("shared")
    assert np.array_equal(module.model(x), module(x))
    assert module.source.count("kernel: Float") == 1


def test_a_loop_over_layers_cannot_be_cut() -> None:
    """Scopes of which each needs the other: one class, and the reason."""

    def apply(params, x):
        with jax.named_scope("first"):
            y = x @ params["first"]["w"]
        with jax.named_scope("second"):
            z = y @ params["second"]["w"]
        with jax.named_scope("first"):
            u = z @ params["first"]["v"]
        with jax.named_scope("second"):
            return u @ params["second"]["v"]

    def weights(seed):
        return {"w": ramp(3, 3) + seed, "v": ramp(3, 3) - seed}

    entry = with_params(apply, {"first": weights(1), "second": weights(2)}, ramp(2, 3))
    module = recovered(entry)
    assert np.array_equal(module.model(ramp(2, 3)), module(ramp(2, 3)))
    assert any("need each other" in m for m in module._emission().messages)
    assert module.model.first.w.shape == (3, 3)


def test_pytrees_of_the_signature() -> None:
    def apply(params, inputs, pair):
        total = inputs["a"] + pair[0] * params["scale"]
        return {"sum": total, "parts": (pair[1], [inputs["b"]["c"]])}

    x = ramp(2, 3)
    args = {"a": x, "b": {"c": x + 1}}, (x, x - 1)
    module = recovered(with_params(apply, {"scale": np.float32(2)}, *args))
    got, want = module.model(*args), module(*args)
    assert jax.tree_util.tree_structure(got) == jax.tree_util.tree_structure(want)
    leaves = map(jax.tree_util.tree_leaves, (got, want))
    assert all(np.array_equal(a, b) for a, b in zip(*leaves, strict=True))


@pytest.mark.parametrize("dtype", ["bfloat16", "int4", "complex64", "float8_e4m3fn", "uint8"])
def test_weights_of_every_type(dtype: str, tmp_path: Path) -> None:
    value = np.asarray(jnp.arange(6).reshape(2, 3)).astype(dtype)
    scalar = np.asarray(3).astype(dtype)

    def apply(params, x):
        return params["w"] == x.astype(dtype), params["s"]

    module = recovered(with_params(apply, {"w": value, "s": scalar}, ramp(2, 3)))
    invert.save(module, tmp_path)
    loaded = invert.load(tmp_path)
    assert loaded.w.dtype == value.dtype
    assert loaded.w.tobytes() == value.tobytes()
    assert loaded.s.shape == ()
    assert loaded.s.tobytes() == scalar.tobytes()


def test_64_bit_values_are_kept(tmp_path: Path) -> None:
    with jax.enable_x64(True):
        value = np.linspace(0, 1, 6).reshape(2, 3)
        entry = with_params(lambda p, x: jnp.sin(x) @ p["w"].T, {"w": value}, value)
    module = recovered(entry)
    assert module.model(value).dtype == np.float64
    assert np.array_equal(module.model(value), module(value))
    invert.save(module, tmp_path)
    loaded = invert.load(tmp_path)
    assert np.array_equal(loaded.w, value)
    assert np.array_equal(loaded(value), module(value))


def test_a_text_for_fixed_sizes_where_none_holds_for_all() -> None:
    entry = with_params(lambda p, x: x * p["w"], {"w": ramp(3)}, ramp(2, 3), batch="n")
    inner = entry.fn

    def other(values: Any, x: Any) -> Any:
        # Another program at each size: as many steps as there are rows.
        for _ in range(x.shape[0]):
            x = jnp.tanh(x)
        return inner(values, x)

    entry = dataclasses.replace(entry, fn=other)
    with pytest.raises(invert.SignatureError, match="no source covers all sizes"):
        _ = recovered(entry).source
    module = recovered(entry, ramp(2, 3))
    assert re.search(r"['\"]2 3['\"]", module.source)
    assert "for fixed sizes only" in module._emission().messages[0]
    assert np.array_equal(module.model(ramp(2, 3)), module(ramp(2, 3)))


def test_the_error_names_the_reason_if_no_size_has_a_text() -> None:
    entry = with_params(lambda p, x: x, {}, ramp(2, 3), batch="n")
    problems = [
        invert.Problem("tf.First", "one reason", "a"),
        invert.Problem("tf.Second", "another", "b"),
    ]

    def refuse(*_: Any) -> Any:
        raise invert.UnsupportedOpError(problems)

    module = recovered(dataclasses.replace(entry, fn=refuse))
    with pytest.raises(invert.SignatureError) as caught:
        _ = module.source
    assert all(str(p) in str(caught.value) for p in problems)


def test_open_sizes_with_rules_of_derivatives() -> None:
    def apply(params, x):
        n = x.shape[0]
        y = jax.nn.relu(x * params["w"]).reshape(n * 3) / (2 * n + 1)
        return y, jnp.zeros((n, n + 1)), jnp.arange(2 * n, dtype=jnp.int32)

    module = recovered(with_params(apply, {"w": ramp(3)}, ramp(2, 3), batch="n"))
    assert re.search(r"n = \w+\.shape\[0\]", module.source)
    for rows in (1, 2, 5):
        got, want = module.model(ramp(rows, 3)), module(ramp(rows, 3))
        assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


def test_only_written_modules_are_saved(tmp_path: Path) -> None:
    linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    with pytest.raises(invert.EmissionError, match="Linear is not a module written by invert"):
        invert.save(linear, tmp_path)


@pytest.mark.slow
def test_example() -> None:
    """The lines of the emitted classes are at most twice those of the original."""
    example = Path(__file__).parents[2] / "examples" / "emission.py"
    out = tool(sys.executable, str(example))
    emitted, written = map(int, re.findall(r"# lines: (\d+) emitted, (\d+) written", out)[0])
    assert emitted <= 2 * written
    assert "in another process: equal" in out
    # The page shows what the example prints.
    page = (Path(__file__).parents[2] / "docs" / "emission.md").read_text()
    shown = out[out.index("class Attention(") : out.index("\n\n\ndef load(")]
    classes, outermost = shown.split("\n\n\nclass Transformer(")
    assert "scores = jnp.einsum(" in classes
    assert classes in page and f"class Transformer({outermost}\n```" in page
    assert f"All classes have {written} lines in Flax and {emitted} as emitted" in page


def test_keys_are_arguments() -> None:
    """A program that draws takes the key as the last argument, by name."""

    def apply(held, x, key):
        return [x * held[0] + jax.random.normal(key, x.shape, x.dtype)]

    x, key = ramp(2, 3), jax.random.key(3)
    jaxpr = open_jaxpr(jax.make_jaxpr(apply)([x], x, key))
    entry = EntryPoint(
        name="noisy",
        fn=apply,
        args=(ArgSpec("x", (2, 3), x.dtype),),
        kwargs={},
        arg_names=("x",),
        out_tree=jax.tree_util.tree_structure(0),
        params=(Param("scale", x),),
        draws=True,
    )
    found = emit(Recovered(entry, jaxpr, (), x64=False))
    assert "jax.random.normal(key, (2, 3), jnp.float32)" in found.source
    model: Any = found.model
    assert np.array_equal(model(x, key=key), jax.jit(apply)([x], x, key)[0])


def tool(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
def test_linters_accept_the_text(tmp_path: Path) -> None:
    for name in MODELS:
        module, _ = flax_model(name, batch="batch")
        (tmp_path / f"{name}.py").write_text(module.source)
        assert max(map(len, module.source.splitlines())) <= 120
    lint(tmp_path)


def lint(directory: Path) -> None:
    """Asserts that ruff and pyright pass on the files of a directory."""
    config = {"typeCheckingMode": "standard", "reportPrivateImportUsage": False}
    (directory / "pyrightconfig.json").write_text(json.dumps(config))
    select = "--select=E,W,F,I,UP,B,SIM"
    tool(sys.executable, "-m", "ruff", "check", "--isolated", "--line-length=120", select,
         str(directory))  # fmt: skip
    tool(sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", str(directory))


def test_layers_that_compute_in_the_scope_around_them() -> None:
    def model(weights: Any, i: Any) -> Any:
        with jax.named_scope("embeddings"):
            own = weights["embeddings"]
            x = own["words"]["table"][i] + own["places"]["table"][jnp.arange(i.shape[1])[None]]
            x = (x + own["types"]["table"][jnp.zeros_like(i)]) * own["norm"]["scale"]
        with jax.named_scope("head"):
            return x @ weights["head"]["kernel"]

    shapes = {"words": (9, 4), "places": (6, 4), "types": (2, 4)}
    tables = {name: {"table": ramp(*shape)} for name, shape in shapes.items()}
    weights = {
        "embeddings": {**tables, "norm": {"scale": ramp(4)}},
        "head": {"kernel": ramp(4, 3)},
    }
    types = jax.export.symbolic_args_specs((jnp.zeros((2, 3), int),), "b, t")
    exported = jax.export.export(jax.jit(model))(weights, *types)
    module = invert.from_exported(exported, params={"weights": weights})
    assert "self.types(jnp.zeros((b, t), jnp.int32))" in module.source
    assert "self.places(jnp.arange(t, dtype=jnp.int32)[None])" in module.source
    classes = [n for n in ast.parse(module.source).body if isinstance(n, ast.ClassDef)]
    assert len(classes) == 5  # one for the tables
    assert all(any(getattr(n, "name", "") == "__call__" for n in c.body) for c in classes)
    i = jnp.array([[0, -1, 8, 4], [3, 3, 1, 2]])
    np.testing.assert_array_equal(module.model(i), jax.jit(model)(weights, i))
