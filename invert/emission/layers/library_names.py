"""Names that libraries give layers, and their numbers."""

from __future__ import annotations

import re

from invert.emission.layers.cut import NUMBER

# Names of layer types in libraries: they say what a layer is, not where it is used.
KINDS_OF_LAYERS = frozenset(
    """Dense Linear DenseGeneral LinearGeneral EinsumDense Conv Conv1d Conv2d Conv3d ConvTranspose
    Conv1dTranspose Conv2dTranspose Conv3dTranspose DepthwiseConv1d DepthwiseConv2d SeparableConv2d
    BatchNorm BatchNormalization LayerNorm LayerNormalization GroupNorm GroupNormalization RmsNorm
    RmsNormalization RMSNorm RMSNormalization InstanceNorm Norm Embed Embedding Embeddings Lstm Gru
    SimpleRnn LstmCell GruCell MultiHeadAttention MultiHeadDotProductAttention Attention Mlp MLP
    Block Layer""".split()
)
# What a convolution with its normalization is called.
CONV_BLOCK = "conv_block"
# A block of a stage, such as `block2a`, `block2b`, `block3a`.
LETTERED = re.compile(r"(.*[A-Za-z]_?)(\d+)([a-z])")
_AUTOMATIC = re.compile(
    r"([a-z]*_?conv[1-3]d(_transpose)?|[a-z]+_normalization)(_\d+)?|[A-Z][A-Za-z]*_\d+"
    rf"|{CONV_BLOCK}(_\d+)?"
)


def is_automatic(name: str) -> bool:
    """Return whether a library or this package, not an author, named a layer."""
    return NUMBER in name or _AUTOMATIC.fullmatch(name) is not None


def row_of(name: str) -> str:
    """`layer_0_1` -> `layer`, the name of all layers of a row, some of which are called twice."""
    return re.sub(r"(_?\d+)+$", "", name)


# Layers of many uses.
_GENERAL = re.compile(r"dense|linear|conv\w*|\w*normalization|\w*pooling\w*")


def says_nothing(name: str) -> bool:
    """Return whether a library named a layer by a kind that says nothing about its result."""
    stem = without_number(name)
    return is_automatic(stem) and _GENERAL.fullmatch(stem) is not None


def without_letter(name: str) -> str:
    """`block2a` -> `block2`; `conv_lstm2d` is of two dimensions."""
    found = None if name.endswith(("lstm1d", "lstm2d", "lstm3d")) else LETTERED.fullmatch(name)
    return name if found is None else found[1] + found[2]


def without_number(name: str) -> str:
    """`conv_1` -> `conv`, `conv1` -> `conv`."""
    return re.sub(r"_?\d+$", "", name)
