"""Measures which rewrites of `Config(optimize=...)` pay, for the platform that JAX runs on.

    python benchmarks/optimize.py [rewrite ...] [--kinds TEXT] [--quick] [--seconds N] [--larger]

`--kinds` takes those kinds of operands whose name holds a text, and `--quick` one program of each;
after `--seconds` no further program begins. `--larger` keeps an older ratio that is larger, for a
rewrite that has to pay with several releases of jaxlib.

For each kind of operands a few programs of one primitive: the time of the rewritten program over
that of the original, forward and with the gradient by all arguments, which run in turn; the
smallest of several rounds, and the mean over the programs of a kind, on a GPU the largest. The
ratios of this platform go into `invert/patterns/optimized.json` as they come; those of others stay.
On a CPU the time is that of the process's threads, so that other processes do not count. A GPU has
sizes of its own, and one dispatch runs the operation several times, as a network does: alone, an
operation of a few microseconds takes as long as its dispatch.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import math
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import invert
from invert.patterns import optimized

DTYPES = ("float32", "bfloat16", "float16", "float64")
Case = tuple[Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...]]


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a platform is measured.

    **Arguments:**

    - `copies`: operations in one dispatch, each on arguments of its own.
    - `together`: cases that are compiled, on all cores, before any of them runs.
    - `rounds`, `seconds`: how often, and for how long each time.
    - `sizes`: the fewest programs of a kind from which a row is made.
    - `joined`: a row of those of its programs.
    """

    copies: int
    together: int
    rounds: int
    seconds: float
    sizes: int
    joined: Callable[[Sequence[float]], float]


def mean(ratios: Sequence[float]) -> float:
    return math.prod(ratios) ** (1 / len(ratios))


CPU = Settings(copies=1, together=1, rounds=6, seconds=0.002, sizes=1, joined=mean)
# The smallest and the largest programs of a kind have other bottlenecks there.
GPU = Settings(copies=8, together=24, rounds=5, seconds=0.004, sizes=2, joined=max)
# What takes longer is measured well enough by one run.
LONG = 0.3


def sample(shape: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def convolution(
    batch: int, size: int, rank: int, window: int, channels: int, results: int,
    groups: int = 1, stride: int = 1, dtype: str = "float32", steps: int = 1,
) -> Case:  # fmt: skip
    letters = "DHW"[3 - rank :]
    numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    x = sample((batch, *[size] * rank, channels), dtype)
    kernel = sample((*[window] * rank, channels // groups, results), dtype)
    padding: Any = "SAME"
    if steps > 1:  # a convolution with these strides, transposed
        cut = max(window - steps, 0)
        padding = [(window - 1 - cut // 2, max(window, steps) - 1 - (cut - cut // 2))] * rank
    return functools.partial(
        lax.conv_general_dilated, window_strides=(stride,) * rank, padding=padding,
        lhs_dilation=(steps,) * rank, dimension_numbers=numbers, feature_group_count=groups,
    ), (x, kernel)  # fmt: skip


# Of images: one that is large and several that are small, as at the start and end of a network.
IMAGES = ((1, 40), (4, 14))


def depthwise() -> Iterator[Case]:
    for dtype, window, channels, stride in itertools.product(
        DTYPES, (3, 5, 7), (3, 12, 48, 192), (1, 2)
    ):
        if dtype != "float32" and (channels < 48 or window == 7):
            continue
        for batch, size in IMAGES if dtype == "float32" else IMAGES[1:]:
            yield convolution(batch, size, 2, window, channels, channels, channels, stride, dtype)
            # Their gradient takes XLA seconds.
            if dtype == "float32" and window == 3 and channels == 48 and batch > 1:
                yield convolution(
                    batch, size, 2, window, channels, 2 * channels, channels, stride, dtype
                )
    for dtype, window, channels in itertools.product(DTYPES[:2], (3, 15, 31), (48, 192)):
        yield convolution(1, 1000, 1, window, channels, channels, channels, 1, dtype)
        yield convolution(4, 250, 1, window, channels, channels, channels, 1, dtype)
    for channels in (48, 192):
        yield convolution(1, 14, 3, 3, channels, channels, channels)


def grouped() -> Iterator[Case]:
    for dtype, window, groups, width, stride in itertools.product(
        DTYPES[:2], (1, 3), (2, 8, 32), (4, 12, 48), (1, 2)
    ):
        if groups * width > 512 or (dtype != "float32" and width < 12):
            continue
        for batch, size in ((1, 28), (4, 14)):
            yield convolution(
                batch, size, 2, window, groups * width, groups * width, groups, stride, dtype
            )
    for groups, width in ((2, 48), (8, 48), (8, 12)):
        yield convolution(1, 500, 1, 3, groups * width, groups * width, groups)


def pointwise() -> Iterator[Case]:
    for dtype, stride in itertools.product(DTYPES, (1, 2)):
        for batch, size, channels, results in (
            (1, 112, 32, 16), (1, 56, 24, 144), (1, 56, 64, 256), (1, 14, 40, 240),
            (1, 14, 384, 64), (1, 7, 960, 160), (4, 56, 16, 96),
            (4, 28, 192, 32), (4, 14, 256, 512), (4, 7, 512, 1024),
        ):  # fmt: skip
            yield convolution(batch, size, 2, 1, channels, results, 1, stride, dtype)
        for batch, size, channels, results in ((1, 500, 64, 256), (4, 200, 256, 64)):
            yield convolution(batch, size, 1, 1, channels, results, 1, stride, dtype)
    for dtype, batch in itertools.product(DTYPES, (1, 8)):
        for channels, results in ((32, 8), (96, 24), (576, 144)):
            yield convolution(batch, 1, 2, 1, channels, results, 1, 1, dtype)


def strided() -> Iterator[Case]:
    """The first of a stage of a ResNet, and that of the input it adds."""
    for dtype in DTYPES:
        for batch, size, channels, results in (
            (1, 56, 256, 128), (4, 56, 256, 512), (1, 28, 512, 1024), (4, 28, 512, 256),
            (4, 14, 1024, 512), (4, 14, 1024, 2048), (8, 56, 64, 128), (1, 56, 64, 128),
            (4, 28, 48, 96), (8, 14, 16, 32), (4, 32, 16, 64), (4, 32, 160, 320), (8, 16, 320, 640),
        ):  # fmt: skip
            yield convolution(batch, size, 2, 1, channels, results, 1, 2, dtype)
        for batch, size, channels, results in ((1, 500, 64, 256), (4, 200, 256, 64)):
            yield convolution(batch, size, 1, 1, channels, results, 1, 2, dtype)


def narrow() -> Iterator[Case]:
    """The last of a decoder, of a network for segmentation or of one for each pixel."""
    for dtype, (batch, size, window, channels, results) in itertools.product(
        DTYPES,
        (
            (1, 64, 3, 16, 1), (4, 32, 3, 16, 3), (1, 96, 3, 8, 3), (8, 32, 3, 8, 1),
            (1, 64, 3, 64, 3), (8, 32, 3, 64, 3), (4, 64, 3, 32, 1), (1, 64, 3, 64, 6),
            (1, 64, 3, 128, 4), (4, 32, 3, 256, 3), (2, 48, 3, 128, 1),
            (8, 16, 3, 128, 8), (2, 32, 3, 64, 8), (8, 24, 3, 32, 8), (4, 16, 3, 256, 12),
            (2, 32, 3, 64, 12), (1, 64, 3, 16, 8), (1, 64, 3, 16, 12),
            (1, 64, 5, 64, 2), (4, 32, 5, 32, 3), (1, 32, 5, 128, 8), (2, 28, 5, 16, 1),
            (1, 64, 7, 64, 3), (4, 32, 7, 32, 3), (2, 32, 7, 128, 1),
        ),
    ):  # fmt: skip
        if dtype == "float32" or (window == 3 and batch > 1):
            yield convolution(batch, size, 2, window, channels, results, 1, 1, dtype)
    for batch, size, window, channels, results in (
        (1, 1000, 3, 64, 1), (4, 250, 3, 64, 4), (1, 1000, 7, 32, 1), (2, 500, 7, 64, 1),
        (1, 1000, 3, 16, 4), (4, 250, 9, 128, 2),
    ):  # fmt: skip
        yield convolution(batch, size, 1, window, channels, results)
    for channels, results in ((16, 1), (32, 3), (64, 1)):
        yield convolution(1, 16, 3, 3, channels, results)


def paired() -> Iterator[Case]:
    """The first of a network, those of large images, and those of a dense block."""
    for dtype, (batch, size, window, channels, results) in itertools.product(
        DTYPES,
        (
            (1, 64, 3, 1, 16), (8, 28, 3, 1, 8), (8, 28, 3, 1, 32), (4, 28, 5, 1, 6),
            (8, 28, 5, 1, 16), (4, 28, 5, 1, 32),
            (1, 128, 3, 3, 16), (8, 64, 3, 3, 16), (1, 96, 3, 3, 8), (4, 64, 3, 4, 8),
            (1, 128, 3, 3, 32), (8, 32, 3, 3, 32), (4, 64, 5, 3, 16), (8, 32, 5, 3, 32),
            (1, 64, 3, 8, 8), (8, 64, 3, 8, 8), (4, 32, 3, 8, 16), (1, 96, 3, 8, 16),
            (4, 64, 3, 8, 32), (4, 28, 5, 6, 16), (4, 28, 5, 8, 8), (4, 64, 3, 6, 4),
            (1, 128, 3, 16, 16), (8, 64, 3, 16, 16), (8, 28, 3, 12, 12), (4, 32, 3, 16, 8),
            (4, 64, 3, 12, 4), (4, 32, 3, 16, 32), (2, 64, 3, 16, 24), (4, 28, 5, 16, 16),
            (4, 64, 3, 24, 24), (2, 64, 3, 32, 32), (4, 64, 3, 32, 16), (1, 112, 3, 24, 16),
            (8, 56, 3, 64, 16), (1, 56, 3, 48, 12), (4, 28, 5, 32, 16),
        ),
    ):  # fmt: skip
        if dtype == "float32" or batch > 2:
            yield convolution(batch, size, 2, window, channels, results, 1, 1, dtype)
    for batch, size, window, channels, results in (
        (1, 1000, 3, 8, 8), (4, 256, 3, 16, 16), (1, 1000, 3, 1, 16), (4, 256, 3, 3, 32),
    ):  # fmt: skip
        yield convolution(batch, size, 1, window, channels, results)
    for channels, results in ((1, 8), (8, 8), (16, 16)):
        yield convolution(1, 16, 3, 3, channels, results)


def winograd() -> Iterator[Case]:
    """Those of a ResNet, a VGG, a U-Net and of text and volumes, alone and in a batch.

    Not those with few places: alone, the transformed kernels take more memory than they save time.
    """
    for dtype, (batch, size, channels, results) in itertools.product(
        ("float32", "float64"),
        (
            (1, 56, 64, 64), (8, 56, 64, 64), (1, 28, 128, 128), (8, 28, 128, 128),
            (1, 14, 256, 256), (8, 14, 256, 256),
            (1, 112, 64, 64), (2, 112, 64, 128), (1, 56, 256, 256), (2, 56, 128, 256),
            (1, 28, 512, 512), (4, 64, 64, 32), (8, 32, 64, 32), (4, 64, 32, 32), (8, 28, 32, 48),
            (4, 64, 16, 32), (8, 28, 16, 16), (4, 32, 128, 64), (8, 16, 64, 128), (2, 48, 96, 96),
            (8, 24, 96, 96), (1, 14, 512, 512), (4, 14, 24, 24),
        ),
    ):  # fmt: skip
        if dtype == "float32" or batch > 2:
            yield convolution(batch, size, 2, 3, channels, results, 1, 1, dtype)
    for batch, size, channels in ((1, 1000, 64), (4, 250, 128), (8, 128, 256)):
        yield convolution(batch, size, 1, 3, channels, channels)
    for batch, size, channels in ((1, 16, 32), (1, 16, 64), (1, 8, 128)):
        yield convolution(batch, size, 3, 3, channels, channels)


def transposed() -> Iterator[Case]:
    for dtype, window, (channels, results) in itertools.product(
        DTYPES, (2, 3, 4, 5), ((12, 8), (48, 32), (128, 64))
    ):
        if dtype != "float32" and (channels == 12 or window == 5):
            continue
        for batch, size in ((1, 24), (4, 12)) if dtype == "float32" else ((4, 12),):
            yield convolution(batch, size, 2, window, channels, results, 1, 1, dtype, 2)
    for window, channels in itertools.product((4, 8), (12, 64, 128)):
        yield convolution(1, 10, 2, window, channels, 32, 1, 1, "float32", 4)
    for window, channels in itertools.product((2, 3, 4), (12, 64, 128)):
        yield convolution(4, 100, 1, window, channels, 32, 1, 1, "float32", 2)


def pool(
    function: Any, start: float, batch: int, size: int, channels: int, window: int, stride: int,
    padding: str, dtype: str, rank: int = 2,
) -> Case:  # fmt: skip
    shape = (batch, *[size] * rank, channels)
    zero = np.array(start, jnp.dtype(dtype))
    windows, strides = (1, *[window] * rank, 1), (1, *[stride] * rank, 1)

    def run(x: Any) -> Any:
        return lax.reduce_window(x, zero, function, windows, strides, padding)

    return run, (sample(shape, dtype),)


def pools(function: Any, start: float) -> Iterator[Case]:
    for dtype, window in itertools.product(DTYPES, (2, 3, 5, 7, 13)):
        if dtype != "float32" and window > 3:
            continue
        for batch, size, channels in ((1, 56, 64), (4, 28, 32)):
            yield pool(function, start, batch, size, channels, window, window, "VALID", dtype)
            if window < 13:
                yield pool(function, start, batch, size, channels, window, 1, "SAME", dtype)
                yield pool(function, start, batch, size, channels, window, 2, "SAME", dtype)
    for window in (2, 3, 5):
        yield pool(function, start, 1, 1000, 64, window, window, "VALID", "float32", 1)
        yield pool(function, start, 1, 1000, 64, window, 1, "SAME", "float32", 1)
    for stride in (1, 2):
        yield pool(function, start, 1, 20, 32, 2, stride, "VALID", "float32", 3)


def products() -> Iterator[Case]:
    """Attention weights times values."""
    for dtype, (batch, heads, length, width) in itertools.product(
        DTYPES,
        (
            (1, 3, 196, 64), (16, 3, 196, 64), (1, 4, 128, 64), (16, 4, 128, 64), (8, 8, 64, 32),
            (1, 12, 50, 64), (32, 12, 50, 64), (1, 8, 512, 64), (4, 8, 512, 64), (1, 4, 1024, 128),
        ),
    ):  # fmt: skip
        weights = sample((batch, heads, length, length), dtype)
        values = sample((batch, length, heads, width), dtype)
        yield functools.partial(jnp.einsum, "bhqk,bkhd->bqhd"), (weights, values)


def between(equation: str, x: Any, y: Any) -> Any:
    """A product between two activations; XLA computes them once more where it transposes them."""
    return jax.nn.silu(jnp.einsum(equation, jax.nn.silu(x), y))


def layers() -> Iterator[Case]:
    """Dense layers of texts and of images, those of attention, and words by their embeddings."""
    sizes = (
        (1, 196, 192, 768), (8, 196, 192, 768), (8, 196, 768, 192), (8, 196, 192, 192),
        (8, 128, 256, 256), (32, 128, 256, 1024), (8, 64, 1024, 256), (8, 128, 256, 5000),
        (2, 128, 768, 3072), (4, 128, 768, 768), (4, 64, 1280, 5120), (4, 128, 3072, 768),
        (16, 100, 64, 256), (16, 100, 32, 32), (16, 100, 16, 64), (32, 20, 128, 64),
    )  # fmt: skip
    for dtype, (batch, length, terms, results) in itertools.product(DTYPES, sizes):
        x, y = sample((batch, length, terms), dtype), sample((terms, results), dtype)
        yield functools.partial(between, "bld,dn->bln"), (x, y)
    for equation, *shapes in (
        ("bld,dhk->blhk", (8, 196, 192), (192, 3, 64)),
        ("bld,dhk->blhk", (1, 64, 768), (768, 12, 64)),
        ("blhk,hkd->bld", (8, 196, 3, 64), (3, 64, 192)),
        ("blhk,hkd->bld", (1, 64, 12, 64), (12, 64, 768)),
        ("bhwd,dn->bhwn", (8, 28, 28, 96), (96, 384)),
        ("bhwd,dn->bhwn", (8, 14, 14, 768), (768, 192)),
        ("bld,vd->blv", (8, 128, 256), (5000, 256)),
        ("bld,vd->blv", (1, 64, 768), (10000, 768)),
    ):
        x, y = (sample(shape, "float32") for shape in shapes)
        yield functools.partial(between, equation), (x, y)


def residual(blocks: int, x: Any, kernels: Any) -> Any:
    """Blocks that add to what they normalize."""
    for i in range(blocks):
        centered = x - jnp.mean(x, axis=-1, keepdims=True)
        scale = lax.rsqrt(jnp.mean(jnp.square(centered), axis=-1, keepdims=True) + 1e-6)
        x = x + jax.nn.gelu(centered * scale @ kernels[i])
    return x


def stacks() -> Iterator[Case]:
    """Blocks of transformers, rows and images; means of 16 bits are sums of wider numbers."""
    for dtype, shape in itertools.product(
        ("float32", "float64"),
        (
            (16, 32, 64), (8, 128, 192), (2, 64, 512),
            (64, 64), (256, 256),
            (4, 14, 14, 96), (8, 7, 7, 256),
        ),
    ):  # fmt: skip
        yield functools.partial(residual, 6), (
            sample(shape, dtype), sample((6, shape[-1], shape[-1]), dtype),
        )  # fmt: skip


def places(function: Any) -> Iterator[Case]:
    """Searches among classes, words and pixels."""
    for dtype, shape in itertools.product(
        DTYPES,
        (
            (4, 64, 64, 16), (4, 64, 64, 21), (32, 64), (16, 100, 100), (256, 256), (32, 1000),
            (1, 1000), (256, 1024), (1, 50257), (32, 50257), (4, 32, 32000),
        ),
    ):  # fmt: skip
        yield (
            functools.partial(function, axis=len(shape) - 1, index_dtype=np.int32),
            (sample(shape, dtype),),
        )
    for dtype, (n, width) in itertools.product(
        DTYPES, itertools.product((8, 16, 50, 200, 1000, 10000), (64, 256))
    ):
        yield (
            functools.partial(function, axis=0, index_dtype=np.int32),
            (sample((n, width), dtype),),
        )


CASES: dict[str, Callable[[], Iterator[Case]]] = {
    "depthwise_conv": depthwise,
    "grouped_conv": grouped,
    "pointwise_conv": pointwise,
    "strided_conv": strided,
    "narrow_conv": narrow,
    "paired_conv": paired,
    "winograd_conv": winograd,
    "transposed_conv": transposed,
    "max_pool": functools.partial(pools, lax.max, -math.inf),
    "sum_pool": functools.partial(pools, lax.add, 0.0),
    "two_pass_argmax": functools.partial(places, lax.argmax),
    "two_pass_argmin": functools.partial(places, lax.argmin),
    "product_order": products,
    "flat_product": layers,
    "gradient_order": stacks,
}


# Of networks: two sizes at least for each kind, in a batch and alone.
def depthwise_gpu() -> Iterator[Case]:
    for dtype, (window, stride, batch, size, channels) in itertools.product(
        DTYPES[:3],
        (
            (3, 2, 32, 112, 96), (3, 2, 32, 56, 144), (3, 2, 32, 14, 576), (3, 2, 1, 56, 144),
            (3, 2, 1, 14, 576), (3, 2, 32, 112, 64), (3, 2, 1, 112, 64),
            (5, 2, 32, 56, 144), (5, 2, 32, 14, 672), (5, 2, 1, 28, 240),
            (5, 2, 16, 112, 48), (5, 2, 1, 112, 48),
            (3, 1, 32, 28, 192), (3, 1, 1, 14, 576), (3, 1, 32, 112, 32), (3, 1, 1, 112, 32),
            (5, 1, 32, 14, 480), (5, 1, 1, 14, 480), (7, 1, 32, 56, 96), (7, 1, 1, 14, 384),
        ),
    ):  # fmt: skip
        yield convolution(batch, size, 2, window, channels, channels, channels, stride, dtype)
    for dtype, window, batch in itertools.product(DTYPES[:2], (3, 31), (1, 8)):
        yield convolution(batch, 1000, 1, window, 256, 256, 256, 1, dtype)


def pointwise_gpu() -> Iterator[Case]:
    for dtype, (batch, size, channels, results, stride) in itertools.product(
        DTYPES[:3],
        (
            (32, 56, 64, 256, 1), (1, 112, 32, 16, 1), (32, 28, 192, 32, 1), (1, 14, 256, 512, 1),
            (32, 14, 384, 64, 1), (32, 7, 960, 160, 1), (1, 7, 960, 160, 1),
            (32, 56, 64, 128, 2), (1, 56, 64, 128, 2), (32, 56, 256, 512, 2), (1, 56, 256, 512, 2),
            (32, 28, 512, 1024, 2), (1, 28, 512, 1024, 2),
        ),
    ):  # fmt: skip
        yield convolution(batch, size, 2, 1, channels, results, 1, stride, dtype)
    for dtype, batch, (channels, results) in itertools.product(
        DTYPES[:2], (1, 32), ((32, 8), (96, 24), (576, 144))
    ):
        yield convolution(batch, 1, 2, 1, channels, results, 1, 1, dtype)


def pools_gpu(function: Any, start: float) -> Iterator[Case]:
    for dtype, (batch, size, channels, window, stride, padding) in itertools.product(
        DTYPES[:3],
        (
            (32, 112, 64, 3, 2, "SAME"), (1, 112, 64, 3, 2, "SAME"), (32, 56, 64, 2, 2, "VALID"),
            (1, 56, 64, 2, 2, "VALID"), (32, 14, 256, 3, 1, "SAME"), (32, 28, 192, 3, 1, "SAME"),
            (1, 35, 192, 3, 1, "SAME"), (32, 14, 256, 5, 1, "SAME"), (8, 20, 256, 5, 1, "SAME"),
            (1, 20, 512, 5, 1, "SAME"), (32, 14, 256, 13, 1, "SAME"), (8, 20, 256, 9, 1, "SAME"),
            (1, 20, 512, 13, 1, "SAME"), (32, 7, 1024, 7, 7, "VALID"), (1, 7, 1024, 7, 7, "VALID"),
            (32, 57, 64, 3, 3, "VALID"), (1, 57, 64, 3, 3, "VALID"),
        ),
    ):  # fmt: skip
        yield pool(function, start, batch, size, channels, window, stride, padding, dtype)
    for batch, (window, stride, padding) in itertools.product(
        (1, 16), ((2, 2, "VALID"), (3, 1, "SAME"))
    ):
        yield pool(function, start, batch, 1000, 64, window, stride, padding, "float32", 1)


def transposed_gpu() -> Iterator[Case]:
    for dtype, batch, (size, window, channels, results, steps) in itertools.product(
        DTYPES[:3],
        (1, 16),
        (
            (64, 2, 64, 32, 2), (28, 2, 128, 64, 2), (64, 4, 64, 32, 2), (16, 4, 256, 128, 2),
            (56, 3, 64, 32, 2), (28, 3, 128, 64, 2), (28, 4, 64, 32, 4), (28, 8, 64, 32, 4),
        ),
    ):  # fmt: skip
        yield convolution(batch, size, 2, window, channels, results, 1, 1, dtype, steps)
    for dtype, batch in itertools.product(DTYPES[:2], (1, 16)):
        yield convolution(batch, 1000, 1, 4, 128, 64, 1, 1, dtype, 2)


def grouped_gpu() -> Iterator[Case]:
    for dtype, batch, (size, groups, width, stride) in itertools.product(
        DTYPES[:2],
        (1, 32),
        (
            (56, 32, 4, 1), (28, 32, 8, 1), (14, 32, 16, 1), (28, 32, 16, 2), (28, 8, 24, 1),
            (27, 2, 48, 1),
        ),
    ):  # fmt: skip
        channels = groups * width
        yield convolution(batch, size, 2, 3, channels, channels, groups, stride, dtype)


# What is most used first, since time may end.
GPU_CASES: dict[str, Callable[[], Iterator[Case]]] = {
    "max_pool": functools.partial(pools_gpu, lax.max, -math.inf),
    "depthwise_conv": depthwise_gpu,
    "shifted_conv": depthwise_gpu,
    "pointwise_conv": pointwise_gpu,
    "sum_pool": functools.partial(pools_gpu, lax.add, 0.0),
    "transposed_conv": transposed_gpu,
    "grouped_conv": grouped_gpu,
}

Run = jax.stages.Compiled


@dataclasses.dataclass(frozen=True)
class Pair:
    """The rewritten program and the original, compiled: forward, and with any gradient."""

    kind: str
    args: tuple[jax.ShapeDtypeStruct, ...]
    forward: tuple[Run, Run]
    gradient: tuple[Run, Run] | None


def clock() -> float:
    return time.process_time() if jax.default_backend() == "cpu" else time.perf_counter()


def seconds(run: Run, args: Any, count: int) -> float:
    start = clock()
    for _ in range(count - 1):
        run(args)
    jax.block_until_ready(run(args))
    return (clock() - start) / count


def text(run: Run) -> str:
    """A compiled program without places in the source, and its values by their order."""
    order: dict[str, str] = {}
    program = re.sub(r", metadata=\{.*?\}", "", (run.as_text() or "").partition("\n%")[2])
    return re.sub(r"%?[\w.-]+", lambda m: order.setdefault(m[0], str(len(order))), program)


def ratio(runs: tuple[Run, Run], args: Any, settings: Settings) -> float:
    """The shortest time of the first over that of the second, which run in turn."""
    if text(runs[0]) == text(runs[1]):
        return 1.0
    for run in runs:
        jax.block_until_ready(run(args))
    best = [seconds(run, args, 1) for run in runs]
    counts = [max(1, min(1000, int(settings.seconds / max(b, 1e-7)))) for b in best]
    for _, k in itertools.product(range(settings.rounds if max(best) < LONG else 0), range(2)):
        best[k] = min(best[k], seconds(runs[k], args, counts[k]))
    return best[0] / best[1]


def gradient(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    def loss(*args: Any) -> Any:
        return jnp.sum(jnp.square(function(*args).astype(jnp.float32)))

    return jax.grad(loss, tuple(range(count)))


def compiled(function: Callable[..., Any], args: Sequence[Any], copies: int) -> Run:
    """A program that runs a function on each group of arguments, one after the other."""

    def run(groups: Sequence[Any]) -> list[Any]:
        results: list[Any] = []
        for group in groups:
            if results:  # otherwise XLA merges what is independent
                group, results[-1] = lax.optimization_barrier((group, results[-1]))
            results.append(function(*group))
        return results

    function = jax.jit(function)  # traced once
    return jax.jit(run).lower([tuple(args)] * copies).compile()


def compile_pair(name: str, case: Case, kinds: str, settings: Settings) -> Pair | None:
    """The programs of a case; `None` if its kind is not wanted, or XLA cannot compile them."""
    function, args = case
    seen: set[str] = set()

    def pays(rewrite: str, kind: str) -> bool:
        seen.add(kind)
        return True

    others = set(optimized.names()) - {name}
    patterns: Any = optimized.stage(pays, others).patterns  # of programs too
    fast = invert.rewrite(function, patterns)
    jax.eval_shape(fast, *args)
    assert len(seen) == 1, f"{name} does not apply: {[a.shape for a in args]}"
    (kind,) = seen
    if kinds not in kind:
        return None
    make = functools.partial(compiled, args=args, copies=settings.copies)
    try:
        forward = make(fast), make(function)
        back = None
        if jnp.issubdtype(jax.eval_shape(function, *args).dtype, jnp.inexact):
            back = make(gradient(fast, len(args))), make(gradient(function, len(args)))
    except jax.errors.JaxRuntimeError as error:
        print(f"{name:<16} {kind}: {str(error)[:200]}", flush=True)
        return None
    return Pair(kind, args, forward, back)


# A prime, so that rows differ.
POOL = np.random.default_rng(0).standard_normal((1 << 16) + 1, np.float32)


def filled(args: Sequence[jax.ShapeDtypeStruct], copies: int) -> list[Any]:
    """Random arguments, in memory of their own for each copy."""
    values = [np.resize(POOL, a.shape).astype(a.dtype) for a in args]
    return [tuple(map(jnp.array, values)) for _ in range(copies)]


def measure(
    name: str, cases: Iterator[Case], kinds: str, quick: bool, settings: Settings, end: float
) -> Iterator[Mapping[str, list[float]]]:
    """The ratios by kind of operands so far, each time that some were measured."""
    found: dict[str, list[list[float]]] = defaultdict(list)
    while time.monotonic() < end and (some := list(itertools.islice(cases, settings.together))):
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            pairs = threads.map(lambda c: compile_pair(name, c, kinds, settings), some)
        for pair in pairs:
            if pair is None or (quick and pair.kind in found):
                continue
            args = filled(pair.args, settings.copies)
            row = [ratio(r, args, settings) if r else 1.0 for r in (pair.forward, pair.gradient)]
            found[pair.kind].append(row)
            shapes = " ".join("x".join(map(str, a.shape)) for a in pair.args)
            print(f"{name:<16} {pair.kind:<64} {row[0]:6.2f} {row[1]:6.2f}  {shapes}", flush=True)
        yield {
            kind: [round(settings.joined(r), 3) for r in zip(*rows, strict=True)]
            for kind, rows in found.items()
            if len(rows) >= settings.sizes
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rewrites", nargs="*", metavar="rewrite")
    parser.add_argument("--kinds", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--larger", action="store_true")
    parser.add_argument("--out", type=Path, help="another file than that of the package")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    platform = jax.default_backend()
    cases, settings = (CASES, CPU) if platform == "cpu" else (GPU_CASES, GPU)
    # A CPU has cases of 64 bits.
    jax.config.update("jax_enable_x64", platform == "cpu")
    path = options.out or Path(optimized.__file__).with_name(optimized.FILE)
    data = {k: dict(v) for k, v in optimized.measured().items()}
    table: dict[str, Any] = data.setdefault(platform, {})
    print(f"{'rewrite':<16} {'operands':<64} forward gradient")
    for name in options.rewrites or cases:
        known = table.get(name, {})
        old = known if options.kinds or options.quick or options.larger else {}
        rows = measure(name, cases[name](), options.kinds, options.quick, settings, end)
        for new in rows:
            if options.larger:
                new = {k: [*map(max, row, known.get(k, row))] for k, row in new.items()}
            table[name] = {**old, **new}
            path.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
