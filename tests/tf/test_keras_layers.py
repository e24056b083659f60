"""Every Keras 3 layer in a small configuration: values, and gradients through its weights.

`LAYERS` is the table. `ELSEWHERE` lists layers that process strings or Python values, or wrap other
frameworks, with the reason.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

from invert import Config
from invert._pipeline import recover
from invert._private.jax import eval_jaxpr
from invert.frontends.tf_function import Variables, entry_point
from tests.tf.ops.driver import compare, inexact
from tests.tf.ops.samples import normal, weigh

QUICK = Config(verify=False)
keras = pytest.importorskip("keras")
L = keras.layers

pytestmark = [
    pytest.mark.slow,
    # Keras warns about its own arguments.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="Keras runs on JAX"),
]


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer and the shapes of its inputs, without the batch.

    **Arguments:**

    - `make`: makes the layer.
    - `shapes`: one for each input; a list argument where `listed`.
    - `kwargs`: of the call.
    - `inputs`: makes the inputs; random numbers by default.
    - `grad`: whether gradients are compared.
    """

    make: Callable[[], Any]
    shapes: tuple[tuple[int, ...], ...]
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    inputs: Callable[[], list[np.ndarray]] | None = None
    listed: bool = False
    grad: bool = True


def one(make, *shape, **kwargs):
    return Case(make, (shape,), **kwargs)


def two(make, *shape, **kwargs):
    return Case(make, (shape, shape), listed=True, **kwargs)


def images():
    return [np.abs(normal(2, 6, 8, 3)) % 1]


def indices():
    return [np.array([[0, 3, 1], [2, 2, 0]], np.int32)]


LAYERS: dict[str, Case] = {
    # core
    "Activation": one(lambda: L.Activation("gelu"), 5),
    "Dense": one(lambda: L.Dense(4, activation="swish"), 3),
    "Dense of sequences": one(lambda: L.Dense(4), 6, 3),
    "EinsumDense": one(lambda: L.EinsumDense("abc,cd->abd", (None, 4), bias_axes="d"), 5, 3),
    "Embedding": one(lambda: L.Embedding(5, 4), 3, inputs=indices),
    "Identity": one(L.Identity, 3),
    "Lambda": one(lambda: L.Lambda(lambda x: x * 2 + 1), 3),
    "Masking": one(lambda: L.Masking(0.0), 4, 3),
    "ReversibleEmbedding": one(lambda: L.ReversibleEmbedding(5, 4), 3, inputs=indices),
    # activations
    "ELU": one(L.ELU, 5),
    "LeakyReLU": one(L.LeakyReLU, 5),
    "PReLU": one(lambda: L.PReLU(alpha_initializer="uniform"), 5),
    "ReLU": one(lambda: L.ReLU(6.0, 0.1, 0.2), 5),
    "Softmax": one(L.Softmax, 5),
    # convolutions
    "Conv1D": one(lambda: L.Conv1D(4, 3, strides=2), 8, 3),
    "Conv1D causal": one(lambda: L.Conv1D(4, 3, padding="causal", dilation_rate=2), 8, 3),
    "Conv1DTranspose": one(lambda: L.Conv1DTranspose(4, 3, strides=2), 8, 3),
    "Conv2D": one(lambda: L.Conv2D(4, 3, padding="same", activation="relu"), 6, 7, 3),
    "Conv2DTranspose": one(lambda: L.Conv2DTranspose(4, 3, strides=2, padding="same"), 6, 7, 3),
    "Conv3D": one(lambda: L.Conv3D(4, 2), 4, 5, 6, 2),
    "Conv3DTranspose": one(lambda: L.Conv3DTranspose(3, 2, strides=2), 3, 4, 5, 2),
    "DepthwiseConv1D": one(lambda: L.DepthwiseConv1D(3, depth_multiplier=2), 8, 3),
    "DepthwiseConv2D": one(lambda: L.DepthwiseConv2D(3, strides=2, padding="same"), 6, 7, 3),
    "SeparableConv1D": one(lambda: L.SeparableConv1D(4, 3), 8, 3),
    "SeparableConv2D": one(lambda: L.SeparableConv2D(4, 3), 6, 7, 3),
    # pools
    "AdaptiveAveragePooling1D": one(lambda: L.AdaptiveAveragePooling1D(3), 8, 2),
    "AdaptiveAveragePooling2D": one(lambda: L.AdaptiveAveragePooling2D(3), 6, 7, 2),
    "AdaptiveAveragePooling3D": one(lambda: L.AdaptiveAveragePooling3D(2), 4, 5, 6, 2),
    "AdaptiveMaxPooling1D": one(lambda: L.AdaptiveMaxPooling1D(3), 8, 2),
    "AdaptiveMaxPooling2D": one(lambda: L.AdaptiveMaxPooling2D(3), 6, 7, 2),
    "AdaptiveMaxPooling3D": one(lambda: L.AdaptiveMaxPooling3D(2), 4, 5, 6, 2),
    "AveragePooling1D": one(lambda: L.AveragePooling1D(2, padding="same"), 7, 2),
    "AveragePooling2D": one(lambda: L.AveragePooling2D(3, 2, padding="same"), 6, 7, 2),
    "AveragePooling3D": one(lambda: L.AveragePooling3D(2), 4, 5, 6, 2),
    "GlobalAveragePooling1D": one(L.GlobalAveragePooling1D, 7, 2),
    "GlobalAveragePooling2D": one(L.GlobalAveragePooling2D, 6, 7, 2),
    "GlobalAveragePooling3D": one(L.GlobalAveragePooling3D, 4, 5, 6, 2),
    "GlobalMaxPooling1D": one(L.GlobalMaxPooling1D, 7, 2),
    "GlobalMaxPooling2D": one(L.GlobalMaxPooling2D, 6, 7, 2),
    "GlobalMaxPooling3D": one(L.GlobalMaxPooling3D, 4, 5, 6, 2),
    "MaxPooling1D": one(lambda: L.MaxPooling1D(2), 7, 2),
    "MaxPooling2D": one(lambda: L.MaxPooling2D(3, 2, padding="same"), 6, 7, 2),
    "MaxPooling3D": one(lambda: L.MaxPooling3D(2), 4, 5, 6, 2),
    # normalization
    "BatchNormalization": one(L.BatchNormalization, 6, 7, 3),
    "BatchNormalization of vectors": one(L.BatchNormalization, 3),
    "GroupNormalization": one(lambda: L.GroupNormalization(2), 6, 7, 4),
    "LayerNormalization": one(L.LayerNormalization, 6, 4),
    "RMSNormalization": one(L.RMSNormalization, 6, 4),
    "Normalization": one(lambda: L.Normalization(mean=[1.0, 2.0], variance=[2.0, 3.0]), 2),
    "SpectralNormalization": one(lambda: L.SpectralNormalization(L.Dense(4)), 3),
    "UnitNormalization": one(L.UnitNormalization, 4),
    # shapes
    "Cropping1D": one(lambda: L.Cropping1D(1), 7, 2),
    "Cropping2D": one(lambda: L.Cropping2D(((1, 2), (0, 1))), 6, 7, 2),
    "Cropping3D": one(lambda: L.Cropping3D(1), 4, 5, 6, 2),
    "Flatten": one(L.Flatten, 4, 3),
    "Permute": one(lambda: L.Permute((2, 1)), 4, 3),
    "RepeatVector": one(lambda: L.RepeatVector(3), 4),
    "Reshape": one(lambda: L.Reshape((3, -1)), 4, 3),
    "UpSampling1D": one(lambda: L.UpSampling1D(2), 4, 3),
    "UpSampling2D": one(lambda: L.UpSampling2D(2, interpolation="bilinear"), 4, 5, 3),
    "UpSampling2D nearest": one(lambda: L.UpSampling2D((2, 3)), 4, 5, 3),
    "UpSampling3D": one(lambda: L.UpSampling3D(2), 2, 3, 4, 2),
    "ZeroPadding1D": one(lambda: L.ZeroPadding1D(1), 4, 3),
    "ZeroPadding2D": one(lambda: L.ZeroPadding2D(((1, 2), (0, 1))), 4, 5, 3),
    "ZeroPadding3D": one(lambda: L.ZeroPadding3D(1), 2, 3, 4, 2),
    # merging
    "Add": two(L.Add, 4, 3),
    "Average": two(L.Average, 4, 3),
    "Concatenate": two(L.Concatenate, 4, 3),
    "Dot": two(lambda: L.Dot(axes=(2, 2), normalize=True), 4, 3),
    "Maximum": two(L.Maximum, 4, 3),
    "Minimum": two(L.Minimum, 4, 3),
    "Multiply": two(L.Multiply, 4, 3),
    "Subtract": two(L.Subtract, 4, 3),
    # attention
    "AdditiveAttention": two(L.AdditiveAttention, 4, 3),
    "Attention": two(lambda: L.Attention(use_scale=True), 4, 3, kwargs={"use_causal_mask": True}),
    "GroupedQueryAttention": Case(lambda: L.GroupQueryAttention(4, 4, 2), ((5, 8), (6, 8))),
    "MultiHeadAttention": Case(lambda: L.MultiHeadAttention(2, 4), ((5, 8), (6, 8))),
    # recurrence
    "Bidirectional": one(lambda: L.Bidirectional(L.LSTM(3, return_sequences=True)), 5, 2),
    "ConvLSTM1D": one(lambda: L.ConvLSTM1D(3, 2), 4, 6, 2),
    "ConvLSTM2D": one(lambda: L.ConvLSTM2D(3, 2), 3, 5, 6, 2),
    "ConvLSTM3D": one(lambda: L.ConvLSTM3D(2, 2), 3, 3, 4, 3, 2),
    "GRU": one(lambda: L.GRU(3, return_sequences=True), 5, 2),
    "GRU before the reset": one(lambda: L.GRU(3, reset_after=False), 5, 2),
    "GRU unrolled": one(lambda: L.GRU(3, unroll=True), 4, 2),
    "LSTM": one(lambda: L.LSTM(3), 5, 2),
    "LSTM backwards": one(lambda: L.LSTM(3, go_backwards=True, return_sequences=True), 5, 2),
    "RNN": one(lambda: L.RNN(L.LSTMCell(3)), 5, 2),
    "SimpleRNN": one(lambda: L.SimpleRNN(3), 5, 2),
    "StackedRNNCells": one(lambda: L.RNN(L.StackedRNNCells([L.GRUCell(3), L.GRUCell(2)])), 5, 2),
    "TimeDistributed": one(lambda: L.TimeDistributed(L.Dense(4)), 5, 3),
    # regularization, which rests at inference
    "ActivityRegularization": one(lambda: L.ActivityRegularization(0.1), 4),
    "AlphaDropout": one(lambda: L.AlphaDropout(0.5), 4),
    "Dropout": one(lambda: L.Dropout(0.5), 4),
    "GaussianDropout": one(lambda: L.GaussianDropout(0.5), 4),
    "GaussianNoise": one(lambda: L.GaussianNoise(0.5), 4),
    "SpatialDropout1D": one(lambda: L.SpatialDropout1D(0.5), 4, 3),
    "SpatialDropout2D": one(lambda: L.SpatialDropout2D(0.5), 4, 5, 3),
    "SpatialDropout3D": one(lambda: L.SpatialDropout3D(0.5), 2, 3, 4, 2),
    # images
    "CenterCrop": one(lambda: L.CenterCrop(4, 5), 6, 8, 3, inputs=images),
    "Rescaling": one(lambda: L.Rescaling(2.0, -1.0), 6, 8, 3),
    "Resizing": one(lambda: L.Resizing(4, 5), 6, 8, 3, inputs=images),
    "Resizing by area": one(
        lambda: L.Resizing(4, 5, interpolation="lanczos3", antialias=True), 6, 8, 3, inputs=images,
        grad=False,
    ),
    # numbers
    "Discretization": one(lambda: L.Discretization([-1.0, 0.0, 1.0]), 4, grad=False),
    "MelSpectrogram": one(
        lambda: L.MelSpectrogram(
            fft_length=16, sequence_stride=8, sequence_length=16, sampling_rate=100,
            num_mel_bins=4, min_freq=5.0,
        ), 64, grad=False,
    ),
    "CategoryEncoding": one(lambda: L.CategoryEncoding(5), 3, inputs=indices, grad=False),
    "CategoryEncoding count": one(
        lambda: L.CategoryEncoding(5, output_mode="count"), 3, inputs=indices, grad=False
    ),
    "STFTSpectrogram": one(
        lambda: L.STFTSpectrogram(frame_length=8, frame_step=4, fft_length=8), 32, 1, grad=False
    ),
}  # fmt: skip

# At inference these pass their input on, and at training they draw.
AUGMENTATIONS = """AugMix AutoContrast ContrastLimitedAdaptiveHistogramEqualization CutMix
    Equalization MixUp RandAugment RandomBrightness RandomColorDegeneration RandomColorJitter
    RandomContrast RandomCrop RandomElasticTransform RandomErasing RandomFlip RandomGaussianBlur
    RandomGrayscale RandomHue RandomInvert RandomPerspective RandomPosterization RandomRotation
    RandomSaturation RandomSharpness RandomShear RandomTranslation RandomZoom
    Solarization""".split()
ARGUMENTS = {
    "RandomBrightness": (0.2,), "RandomColorDegeneration": (0.3,), "RandomContrast": (0.2,),
    "RandomCrop": (4, 5), "RandomHue": (0.2,), "RandomPosterization": (4,),
    "RandomRotation": (0.1,), "RandomSaturation": (0.3,), "RandomSharpness": (0.3,),
    "RandomTranslation": (0.1, 0.1), "RandomZoom": (0.1,),
}  # fmt: skip
ELSEWHERE = {
    "FlaxLayer": "wraps another framework",
    "JaxLayer": "wraps another framework",
    "TorchModuleWrapper": "wraps another framework",
    "TFSMLayer": "is a SavedModel",
    "Hashing": "works on strings",
    "HashedCrossing": "works on strings",
    "IntegerLookup": "holds a lookup table",
    "StringLookup": "holds a lookup table",
    "TextVectorization": "works on strings",
    "MaxNumBoundingBoxes": "works on dictionaries of boxes in Python",
    "InputLayer": "computes nothing",
    "Layer": "is abstract",
    "Wrapper": "is abstract",
    "Pipeline": "is a list of layers",
    "GRUCell": "is a part of RNN",
    "LSTMCell": "is a part of RNN",
    "SimpleRNNCell": "is a part of RNN",
}


def test_every_layer_is_here():
    named = {name.split()[0] for name in LAYERS}
    named |= {*AUGMENTATIONS, *ELSEWHERE}
    known = {
        cls.__name__
        for _, cls in inspect.getmembers(L, inspect.isclass)
        if issubclass(cls, L.Layer) and cls.__module__.startswith("keras")
    }
    assert known <= named, sorted(known - named)


def batch(case):
    if case.inputs is not None:
        return case.inputs()
    return [normal(2, *shape, seed=str(i)) for i, shape in enumerate(case.shapes)]


def concrete_of(layer, case, inputs, **kwargs):
    """The layer as a function of an open batch, and its variables by unique names."""

    def call(*xs):
        return layer(list(xs), **kwargs) if case.listed else layer(*xs, **kwargs)

    call(*map(tf.constant, inputs))  # makes the weights
    rng = np.random.default_rng(0)
    for v in layer.trainable_variables:
        # Zeros hide mistakes.
        v.assign(v + rng.normal(size=v.shape).astype(v.dtype) * 0.3)
    specs = [tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in inputs]
    names = {id(v.value): f"v{i}" for i, v in enumerate(layer.variables)}
    return tf.function(call, autograph=False).get_concrete_function(*specs), call, names


def recovered(entry, inputs):
    """The program after all patterns: counting loops are scans, which differentiate."""
    avals = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs]
    stage = recover(entry, avals, QUICK)
    return lambda values, xs: eval_jaxpr(stage.jaxpr, [*stage.constants, *values, *xs])


def check_layer(case, *, training=False):
    """Compare values, and gradients of the inputs and all trainable weights."""
    layer, inputs = case.make(), batch(case)
    kwargs = dict(case.kwargs)
    if "training" in inspect.signature(layer.call).parameters:
        kwargs["training"] = training
    concrete, call, names = concrete_of(layer, case, inputs, **kwargs)
    entry = entry_point(concrete, config=Config(), variables=Variables(names))
    assert not entry.draws
    values = [p.value for p in entry.params]
    want = tf.nest.flatten(call(*map(tf.constant, inputs)))
    count = len(want)
    program = recovered(entry, inputs)
    got = jax.jit(program)(values, inputs)[:count]
    # Sums in another order, through several layers of exponentials.
    compare(got, [w.numpy() for w in want], rtol=1e-4, atol=1e-4)
    if not case.grad:
        return
    tensors = [tf.constant(x) for x in inputs]
    floats = [i for i, x in enumerate(inputs) if x.dtype.kind == "f"]
    by_name = {names[id(v.value)]: v.value for v in layer.trainable_variables}
    trained = [i for i, p in enumerate(entry.params) if p.name in by_name]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        results = tf.nest.flatten(call(*tensors))
        total = weigh([y for y in results if y.dtype.is_floating], tf.cast)
    sources = [by_name[entry.params[i].name] for i in trained] + [tensors[i] for i in floats]
    slopes = tape.gradient(total, sources, unconnected_gradients="zero")

    def loss(weights, xs):
        full, given = list(values), list(inputs)
        for i, w in zip(trained, weights, strict=True):
            full[i] = w
        for i, x in zip(floats, xs, strict=True):
            given[i] = x
        results = program(full, given)[:count]
        return weigh([y for y in results if inexact(y)], jax.lax.convert_element_type)

    weights, xs = [values[i] for i in trained], [inputs[i] for i in floats]
    mine = jax.jit(jax.grad(loss, (0, 1)))(weights, xs)
    slopes = [tf.convert_to_tensor(s).numpy() for s in slopes]
    compare([*mine[0], *mine[1]], slopes, rtol=1e-3, atol=1e-3, what="gradient")


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name):
    check_layer(LAYERS[name])


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_augmentation_at_inference(name):
    layer = getattr(L, name)
    # The darkest and brightest pixels lie on the kinks of what follows.
    grad = name != "AutoContrast"
    make = lambda: layer(*ARGUMENTS.get(name, ()))  # noqa: E731
    check_layer(Case(make, ((6, 8, 3),), inputs=images, grad=grad))


def test_batch_normalization_in_training():
    """The new statistics are the new values of the variables."""
    layer = L.BatchNormalization(momentum=0.7)
    x = normal(4, 5, 6, 3)
    concrete, call, names = concrete_of(layer, LAYERS["BatchNormalization"], [x], training=True)
    entry = entry_point(concrete, config=Config(), variables=Variables(names))
    y, *updated = jax.jit(entry.fn)([p.value for p in entry.params], x)
    want = call(tf.constant(x))
    compare([y], [want.numpy()], rtol=1e-4, atol=1e-5)
    by_name = {names[id(v.value)]: v for v in layer.variables}
    assert len(updated) == 2
    for i, value in zip(entry.assigned, updated, strict=True):
        new = np.asarray(by_name[entry.params[i].name])
        np.testing.assert_allclose(value, new, rtol=1e-4, atol=1e-5)
