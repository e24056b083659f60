"""PyTorch's StableHLO

What torch_xla writes for an `nn.Module`: weights are arguments without names. With the list of
names that it writes beside the module, and a state dict, they become fields.
"""

import numpy as np

import invert

text = """
module @IrToHlo.12 {
  func.func @main(%arg0: tensor<3xf32>, %arg1: tensor<3x8xf32>, %arg2: tensor<8xf32>,
                  %arg3: tensor<8x4xf32>, %arg4: tensor<2x4xf32>) -> tensor<2x3xf32> {
    %cst = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.transpose %arg3, dims = [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
    %1 = stablehlo.dot_general %arg4, %0, contracting_dims = [1] x [0]
      : (tensor<2x4xf32>, tensor<4x8xf32>) -> tensor<2x8xf32>
    %2 = stablehlo.broadcast_in_dim %arg2, dims = [1] : (tensor<8xf32>) -> tensor<2x8xf32>
    %3 = stablehlo.add %1, %2 : tensor<2x8xf32>
    %4 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x8xf32>
    %5 = stablehlo.maximum %3, %4 : tensor<2x8xf32>
    %6 = stablehlo.transpose %arg1, dims = [1, 0] : (tensor<3x8xf32>) -> tensor<8x3xf32>
    %7 = stablehlo.dot_general %5, %6, contracting_dims = [1] x [0]
      : (tensor<2x8xf32>, tensor<8x3xf32>) -> tensor<2x3xf32>
    %8 = stablehlo.broadcast_in_dim %arg0, dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32>
    %9 = stablehlo.add %7, %8 : tensor<2x3xf32>
    return %9 : tensor<2x3xf32>
  }
}
"""
names = ["fc2.bias", "fc2.weight", "fc1.bias", "fc1.weight", "x"]
state_dict = {
    "fc1.weight": np.full((8, 4), 0.1, np.float32),
    "fc1.bias": np.zeros(8, np.float32),
    "fc2.weight": np.full((3, 8), 0.2, np.float32),
    "fc2.bias": np.zeros(3, np.float32),
}

module = invert.from_stablehlo(text, names=names, params=state_dict)
