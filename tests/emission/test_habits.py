"""Common operations on Equinox modules, on converted and on emitted ones."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import invert
from tests.emission.models import ramp, recovered, with_params


def forward(params, x):
    with jax.named_scope("hidden"):
        x = jnp.tanh(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    with jax.named_scope("head"):
        return x @ params["head"]["kernel"]


PARAMS = {"hidden": {"kernel": ramp(3, 4), "bias": ramp(4)}, "head": {"kernel": ramp(4, 2)}}
X = ramp(5, 3)


@pytest.fixture(scope="module")
def converted() -> invert.Module:
    return recovered(with_params(forward, PARAMS, X, batch="batch"))


@pytest.fixture(params=["converted", "emitted"])
def module(request: pytest.FixtureRequest, converted: invert.Module) -> Any:
    return converted if request.param == "converted" else converted.model


def kernel_of(module: Any) -> Any:
    return module.params["head"]["kernel"] if isinstance(module, invert.Module) else (
        module.head.kernel
    )  # fmt: skip


def test_transformations(module: Any) -> None:
    want = forward(PARAMS, X)
    assert np.allclose(eqx.filter_jit(module)(X), want, rtol=1e-6, atol=1e-6)
    stacked = jnp.stack([X, -X])
    mapped = eqx.filter_vmap(module)(stacked)
    assert np.allclose(mapped, jax.vmap(forward, (None, 0))(PARAMS, stacked), rtol=1e-6, atol=1e-6)

    def loss(f, x):
        return jnp.sum(jnp.square(f(x)))

    slopes = eqx.filter_grad(loss)(module, X)
    wanted = jax.grad(lambda p: loss(lambda x: forward(p, x), X))(PARAMS)
    assert jax.tree_util.tree_structure(slopes) == jax.tree_util.tree_structure(module)
    got = jax.tree_util.tree_leaves(slopes)
    assert len(got) == 3
    for g in got:
        match = [w for w in jax.tree_util.tree_leaves(wanted) if w.shape == g.shape]
        assert any(np.allclose(g, w, rtol=1e-5, atol=1e-6) for w in match)
    each = eqx.filter_vmap(eqx.filter_grad(loss), in_axes=(None, 0))(module, stacked)
    assert kernel_of(each).shape == (2, 4, 2)
    assert np.allclose(kernel_of(each)[0], kernel_of(slopes), rtol=1e-5, atol=1e-6)


def test_surgery_on_a_named_layer(module: Any) -> None:
    changed = eqx.tree_at(kernel_of, module, replace_fn=jnp.zeros_like)
    assert np.array_equal(changed(X), np.zeros((5, 2)))
    assert not np.array_equal(module(X), np.zeros((5, 2)))  # the original stays
    emitted = changed.model if isinstance(changed, invert.Module) else changed
    assert np.array_equal(emitted(X), np.zeros((5, 2)))


def test_a_layer_can_be_another_module(converted: invert.Module) -> None:
    linear = eqx.nn.Linear(4, 7, key=jax.random.key(0))
    changed: Any = eqx.tree_at(lambda m: m.head, converted.model, jax.vmap(linear))
    assert changed(X).shape == (5, 7)


def test_serialised_leaves(module: Any, tmp_path: Path) -> None:
    changed = jax.tree_util.tree_map(lambda p: p + 1, module)
    eqx.tree_serialise_leaves(tmp_path / "leaves.eqx", changed)
    read = eqx.tree_deserialise_leaves(tmp_path / "leaves.eqx", module)
    assert eqx.tree_equal(read, changed)
    assert np.array_equal(read(X), changed(X))


def test_printed_tree(module: Any) -> None:
    text = eqx.tree_pformat(module)
    for name in ("hidden", "head", "kernel", "bias", "f32[3,4]", "f32[4,2]"):
        assert name in text
    assert len(text.splitlines()) < 30  # neither programs nor values


def test_partition(module: Any) -> None:
    trained, rest = eqx.partition(module, eqx.is_inexact_array)
    assert np.array_equal(eqx.combine(trained, rest)(X), module(X))
    assert not jax.tree_util.tree_leaves(rest)


def test_fine_tuning_example(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[2] / "examples" / "finetune.py"
    spec = importlib.util.spec_from_file_location("finetune", path)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert example.main() == 0
    out = capsys.readouterr().out
    assert "4 arrays that are not trained: as they were" in out
    assert "in another process: equal" in out


def test_unused_parameters_stay_in_their_layers() -> None:
    """The last residual path of a network with skip connections has weights that nothing reads."""
    params = {
        "out": {"w": ramp(4, 4)},
        **{f"block_{i}": {"res": {"w": ramp(4, 4)}, "skip": {"w": ramp(4, 4)}} for i in range(2)},
    }

    def apply(params: Any, x: Any) -> Any:
        total = jnp.zeros_like(x)
        for i in range(2):
            p = params[f"block_{i}"]
            with jax.named_scope(f"block_{i}"):
                with jax.named_scope("skip"):
                    total += jnp.tanh(x) @ p["skip"]["w"]
                with jax.named_scope("res"):
                    x = x + jnp.sin(x) @ p["res"]["w"]
        with jax.named_scope("out"):
            return total @ params["out"]["w"]

    model = recovered(with_params(apply, params, ramp(2, 4))).model
    paths = [p for p, _ in jax.tree_util.tree_leaves_with_path(model)]
    names = {jax.tree_util.keystr(p, simple=True, separator=".") for p in paths}
    assert names == {f"block_{i}.{n}.w" for i in range(2) for n in ("res", "skip")} | {"out.w"}
