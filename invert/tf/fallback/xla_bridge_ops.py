"""The ops that may go over the XLA bridge, and those that must not.

The names are those with an XLA kernel for the CPU in TensorFlow 2.21 (`XlaOpRegistry` in
tensorflow/compiler/tf2xla), less the ones whose `OpDef` is stateful, that draw random numbers,
talk to other devices, or hold a resource or variant. An op that is in no list is not compiled.
"""

from __future__ import annotations

# Inner functions that stand for such an op have this in front of its name.
PREFIX = "tf_"

BRIDGED = frozenset(
    """
    Abs Acos Acosh Add AddN AddV2 AdjustContrastv2 AdjustHue AdjustSaturation All Angle Any
    ApproxTopK ApproximateEqual ArgMax ArgMin Asin Asinh Atan Atan2 Atanh AvgPool AvgPool3D
    AvgPool3DGrad AvgPoolGrad BatchMatMul BatchMatMulV2 BatchMatMulV3 BatchToSpace
    BatchToSpaceND BesselI0e BesselI1e Betainc BiasAdd BiasAddGrad BiasAddV1 Bincount Bitcast
    BitwiseAnd BitwiseOr BitwiseXor BroadcastArgs BroadcastGradientArgs BroadcastTo Bucketize
    Cast Ceil Cholesky ClipByValue Complex ComplexAbs Concat ConcatOffset ConcatV2 Conj
    ConjugateTranspose Conv Conv2D Conv2DBackpropFilter Conv2DBackpropInput Conv3D
    Conv3DBackpropFilterV2 Conv3DBackpropInputV2 Cos Cosh Cross Cumprod Cumsum
    CumulativeLogsumexp DataFormatDimMap DataFormatVecPermute DenseBincount DepthToSpace
    DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter
    DepthwiseConv2dNativeBackpropInput Dequantize Diag DiagPart Digamma Div DivNoNan
    DynamicPartition DynamicStitch Einsum Elu EluGrad EnsureShape Equal Erf Erfc Erfinv Exp
    ExpandDims Expm1 ExtractImagePatches FFT FFT2D FFT3D FakeQuantWithMinMaxArgs
    FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsGradient
    FakeQuantWithMinMaxVarsPerChannel FakeQuantWithMinMaxVarsPerChannelGradient Fill Floor
    FloorDiv FloorMod FusedBatchNorm FusedBatchNormGrad FusedBatchNormGradV2
    FusedBatchNormGradV3 FusedBatchNormV2 FusedBatchNormV3 Gather GatherNd GatherV2 Greater
    GreaterEqual HSVToRGB IFFT IFFT2D IFFT3D IRFFT IRFFT2D IRFFT3D Identity IdentityN Igamma
    IgammaGradA Igammac Imag InTopKV2 Inv Invert InvertPermutation IsFinite IsInf IsNan L2Loss
    LRN LRNGrad LeakyRelu LeakyReluGrad LeftShift Less LessEqual Lgamma LinSpace ListDiff Log
    Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr LowerBound MatMul MatrixBandPart
    MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3
    MatrixInverse MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 MatrixSolve
    MatrixTriangularSolve Max MaxPool MaxPool3D MaxPool3DGrad MaxPool3DGradGrad MaxPoolGrad
    MaxPoolGradGrad MaxPoolGradGradV2 MaxPoolGradV2 MaxPoolV2 Maximum Mean Min Minimum
    MirrorPad MirrorPadGrad Mod Mul MulNoNan Ndtri Neg NextAfter NonMaxSuppressionV3
    NonMaxSuppressionV4 NotEqual OneHot OnesLike Pack Pad PadV2 ParallelDynamicStitch
    PlaceholderWithDefault Polygamma PopulationCount Pow Prod Qr QuantizeAndDequantizeV2
    QuantizeAndDequantizeV3 QuantizeAndDequantizeV4 RFFT RFFT2D RFFT3D RGBToHSV RandomGammaGrad
    Range Rank Real RealDiv Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad Reshape
    ResizeBilinear ResizeBilinearGrad ResizeNearestNeighbor Reverse ReverseSequence ReverseV2
    RightShift Rint Roll Round Rsqrt RsqrtGrad ScatterNd SegmentMaxV2 SegmentMinV2
    SegmentProdV2 SegmentSumV2 Select SelectV2 SelfAdjointEigV2 Selu SeluGrad Shape ShapeN
    Sigmoid SigmoidGrad Sign Sin Sinh Size Slice Softmax SoftmaxCrossEntropyWithLogits Softplus
    SoftplusGrad Softsign SoftsignGrad SpaceToBatch SpaceToBatchND SpaceToDepth SparseMatMul
    SparseSoftmaxCrossEntropyWithLogits SparseToDense Split SplitV Sqrt SqrtGrad Square
    SquaredDifference Squeeze StopGradient StridedSlice StridedSliceGrad Sub Sum Svd Tan Tanh
    TanhGrad TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub
    TensorScatterUpdate TensorStridedSliceUpdate Tile ToBool TopKV2 Transpose TridiagonalMatMul
    TridiagonalSolve TruncateDiv TruncateMod UniformDequantize UniformQuantize
    UniformQuantizedAdd UniformQuantizedClipByValue UniformQuantizedConvolution
    UniformQuantizedDot UniformRequantize Unique UniqueV2 Unpack UnsortedSegmentMax
    UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum UpperBound Where Xdivy
    XlaBroadcastHelper XlaConcatND XlaConv XlaConvV2 XlaDot XlaDotV2 XlaDynamicSlice
    XlaDynamicUpdateSlice XlaEinsum XlaGather XlaKeyValueSort XlaOptimizationBarrier XlaPad
    XlaReduce XlaReducePrecision XlaReduceWindow XlaRemoveDynamicDimensionSize
    XlaRngBitGenerator XlaScatter XlaSelectAndScatter XlaSelfAdjointEig XlaSetBound
    XlaSetDynamicDimensionSize XlaSort XlaSplitND XlaSpmdFullToShardShape
    XlaSpmdShardToFullShape XlaSvd XlaVariadicReduce XlaVariadicReduceV2 XlaVariadicSort
    Xlog1py Xlogy ZerosLike Zeta
    """.split()
)

# Its `OpDef` calls it stateful, and its kernel keeps no state
# (tensorflow/compiler/tf2xla/kernels/xla_dequantize_op.cc, TensorFlow 2.21).
BRIDGED |= {"XlaDequantize"}

_RANDOM = "draws random numbers and has no rule; over the XLA bridge its numbers would be fixed"
_DEVICES = "communicates with other devices"

# XLA compiles these, but compiled alone they would not mean what they mean in the model.
NEEDS_RULE: dict[str, str] = {
    **dict.fromkeys(
        """
        Multinomial ParameterizedTruncatedNormal RandomShuffle RandomStandardNormal RandomUniform
        RandomUniformInt RngReadAndSkip RngSkip StatefulStandardNormalV2 StatefulTruncatedNormal
        StatefulUniform StatefulUniformFullInt StatefulUniformInt StatelessMultinomial
        StatelessParameterizedTruncatedNormal StatelessRandomGetAlg StatelessRandomGetKeyCounter
        StatelessRandomGetKeyCounterAlg StatelessRandomNormal StatelessRandomNormalV2
        StatelessRandomUniform StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2
        StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformV2
        StatelessTruncatedNormal StatelessTruncatedNormalV2 TruncatedNormal
        """.split(),
        _RANDOM,
    ),
    **dict.fromkeys(("XlaRecv", "XlaSend"), _DEVICES),
    **dict.fromkeys(
        ("XlaCustomCall", "XlaCustomCallV2"), "calls code of the process that made the model"
    ),
}


def bridged_op(name: str) -> str | None:
    """The op for which the inner `jit` of this name stands; `None` where it is another."""
    op = name.removeprefix(PREFIX)
    return op if name.startswith(PREFIX) and op in BRIDGED else None
