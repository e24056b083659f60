"""StableHLO as PyTorch's exporters write it.

Weights are arguments in any order; a list beside the module has their names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import invert

MLP = """
module @IrToHlo.12 attributes {mhlo.cross_program_prefetches = []} {
  func.func @main(%arg0: tensor<3xf32>, %arg1: tensor<3x8xf32>, %arg2: tensor<8xf32>,
                  %arg3: tensor<8x4xf32>, %arg4: tensor<2x4xf32>) -> tensor<2x3xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.transpose %arg3, dims = [1, 0] {result_layout = dense<[0, 1]> : tensor<2xindex>,
      xla_shape = "f32[4,8]{0,1}"} : (tensor<8x4xf32>) -> tensor<4x8xf32>
    %1 = stablehlo.dot_general %arg4, %0, contracting_dims = [1] x [0],
      precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x8xf32>) -> tensor<2x8xf32>
    %2 = stablehlo.broadcast_in_dim %arg2, dims = [1] : (tensor<8xf32>) -> tensor<2x8xf32>
    %3 = stablehlo.add %1, %2 : tensor<2x8xf32>
    %4 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x8xf32>
    %5 = stablehlo.maximum %3, %4 : tensor<2x8xf32>
    %6 = stablehlo.transpose %arg1, dims = [1, 0] {result_layout = dense<[0, 1]> : tensor<2xindex>,
      xla_shape = "f32[8,3]{0,1}"} : (tensor<3x8xf32>) -> tensor<8x3xf32>
    %7 = stablehlo.dot_general %5, %6, contracting_dims = [1] x [0],
      precision = [DEFAULT, DEFAULT] : (tensor<2x8xf32>, tensor<8x3xf32>) -> tensor<2x3xf32>
    %8 = stablehlo.broadcast_in_dim %arg0, dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32>
    %9 = stablehlo.add %7, %8 : tensor<2x3xf32>
    return %9 : tensor<2x3xf32>
  }
}
"""
NAMES = ["fc2.bias", "fc2.weight", "fc1.bias", "fc1.weight", "x"]


def state_dict() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    shapes = {"fc1.weight": (8, 4), "fc1.bias": (8,), "fc2.weight": (3, 8), "fc2.bias": (3,)}
    return {name: draw.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


def test_a_state_dict_becomes_the_fields_of_a_module(tmp_path: Path) -> None:
    state = state_dict()
    module = invert.from_stablehlo(MLP, names=NAMES, params=state)
    x = np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32)
    hidden = np.maximum(x @ state["fc1.weight"].T + state["fc1.bias"], 0)
    want = hidden @ state["fc2.weight"].T + state["fc2.bias"]
    np.testing.assert_allclose(module(x), want, rtol=1e-5, atol=1e-5)
    assert set(module.named_params()) == set(state)
    model: Any = module.model
    np.testing.assert_array_equal(model.fc1.weight, state["fc1.weight"])
    grads = jax.grad(lambda model: model(x).sum())(model)
    np.testing.assert_allclose(grads.fc2.bias, [2, 2, 2])
    assert "x @ self.weight.T" in module.source
    invert.save(module, tmp_path / "mlp")
    np.testing.assert_array_equal(invert.load(tmp_path / "mlp")(x), module(x))


def test_weights_by_argument_name() -> None:
    state = state_dict()
    by_place = {f"arg{i}": state[name] for i, name in enumerate(NAMES[:-1])}
    x = np.ones((2, 4), np.float32)
    want = invert.from_stablehlo(MLP, names=NAMES, params=state)(x)
    np.testing.assert_array_equal(invert.from_stablehlo(MLP, params=by_place)(x), want)
    renamed = invert.from_stablehlo(
        MLP, names={"arg4": "x", "arg0": "b"}, params={"b": np.zeros(3, np.float32)}
    )
    assert [s.name for s in renamed._function.entry.args] == ["arg1", "arg2", "arg3", "x"]


def test_mismatches_are_named() -> None:
    wrong = state_dict() | {"fc1.bias": np.zeros(7), "fc3.bias": np.zeros(3)}
    with pytest.raises(invert.SignatureError) as error:
        invert.from_stablehlo(MLP, names=NAMES, params=wrong)
    assert "'fc1.bias' is float64[7], expected float32[8]" in str(error.value)
    assert "the module has no argument 'fc3.bias'" in str(error.value)
    with pytest.raises(invert.SignatureError, match="5 arguments"):
        invert.from_stablehlo(MLP, names=NAMES[1:])
    with pytest.raises(invert.SignatureError, match=r"no arguments \['arg9'\]"):
        invert.from_stablehlo(MLP, names={"arg9": "x"})
