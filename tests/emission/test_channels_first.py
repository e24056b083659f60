"""Images with their channels first, as in programs that come from PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.emission.models import recovered, with_params


def _parameters(depths: Sequence[int], widths: Sequence[int], seed: int) -> dict[str, Any]:
    """Those of a ResNet with the names of torchvision."""
    draw = np.random.default_rng(seed)
    found: dict[str, Any] = {}

    def add(name: str, *shape: int) -> None:
        *path, last = name.split(".")
        inner = found
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = np.abs(draw.normal(size=shape)).astype(np.float32) / 9 + 0.01

    def add_norm(name: str, c: int) -> None:
        for field in ("weight", "bias", "running_mean", "running_var"):
            add(f"{name}.{field}", c)

    add("conv1.weight", widths[0], 3, 5, 5)
    add_norm("bn1", widths[0])
    c = widths[0]
    for k, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        for i in range(depth):
            block = f"layer{k + 1}.{i}"
            add(f"{block}.conv1.weight", width, c, 3, 3)
            add_norm(f"{block}.bn1", width)
            add(f"{block}.conv2.weight", width, width, 3, 3)
            add_norm(f"{block}.bn2", width)
            if c != width:
                add(f"{block}.downsample.0.weight", width, c, 1, 1)
                add_norm(f"{block}.downsample.1", width)
            c = width
    add("fc.weight", 4, c)
    add("fc.bias", 4)
    return found


def _conv(params: Any, x: Any, strides: int = 1) -> Any:
    half = params["weight"].shape[-1] // 2
    return lax.conv_general_dilated(x, params["weight"], (strides,) * 2, ((half, half),) * 2)


def _norm(params: Any, x: Any) -> Any:
    mean, var, scale, shift = (
        params[name][None, :, None, None]
        for name in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) * lax.rsqrt(var + 1e-5) * scale + shift


def _resnet(params: Any, x: Any) -> Any:
    x = jax.nn.relu(_norm(params["bn1"], _conv(params["conv1"], x, 2)))
    for name in sorted(n for n in params if n.startswith("layer")):
        for block in params[name].values():
            strides = 2 if "downsample" in block else 1
            y = jax.nn.relu(_norm(block["bn1"], _conv(block["conv1"], x, strides)))
            y = _norm(block["bn2"], _conv(block["conv2"], y))
            if "downsample" in block:
                x = _norm(block["downsample"]["1"], _conv(block["downsample"]["0"], x, 2))
            x = jax.nn.relu(x + y)
    return jnp.mean(x, axis=(2, 3)) @ params["fc"]["weight"].T + params["fc"]["bias"]


@pytest.fixture(scope="module", params=[(2, 3, 2), (1, 2, 4, 2)], ids=str)
def emitted(request: pytest.FixtureRequest) -> Any:
    """The text of a ResNet, checked against its module."""
    depths = request.param
    widths = (5, 7, 9, 12)[: len(depths)]
    params = _parameters(depths, widths, len(depths))
    leaves, tree = jax.tree_util.tree_flatten_with_path(params)
    flat = {"/".join(k.key for k in path): value for path, value in leaves}
    x = np.random.default_rng(3).normal(size=(2, 3, 24, 24)).astype(np.float32)

    def run(flat: Any, x: Any) -> Any:
        return _resnet(jax.tree_util.tree_unflatten(tree, list(flat.values())), x)

    emission = recovered(with_params(run, flat, x, batch="batch", name="network")).emit(
        loader=False
    )
    assert not emission.messages
    model: Any = emission.model
    for values in (x, np.concatenate([x, x + 1])):
        wanted = jax.jit(_resnet)(params, values)
        np.testing.assert_array_equal(model(values), wanted)
    return emission.source, depths


def test_axes_are_named_by_their_order(emitted: Any) -> None:
    source, _ = emitted
    assert 'weight: Float[Array, "c_out c_in kh kw"]' in source
    assert 'x: Float[Array, "batch c_in h w"]' in source
    assert 'Float[Array, "batch c_out h_out w_out"]' in source
    assert 'def __call__(self, x: Float[Array, "batch c h w"])' in source  # the normalization


def test_convolutions_work_out_their_padding(emitted: Any) -> None:
    source, _ = emitted
    assert "half = kernel_size // 2\n        self.padding = ((half, half), (half, half))" in source
    assert source.count("padding") == 3  # the field, its value, and what it is used for


def test_vectors_are_broadcast_by_none(emitted: Any) -> None:
    source, _ = emitted
    assert "self.running_mean[None, :, None, None]" in source
    assert "broadcast_in_dim" not in source


def test_numbered_lists_stay_lists(emitted: Any) -> None:
    source, depths = emitted
    lists = [f"layer{k + 1}" for k, depth in enumerate(depths) if depth > 1]
    for name in lists:
        assert f"{name}: tuple[Layer, ...]" in source
    assert "for layer in layers:" in source or "for layer in self.layer" in source
