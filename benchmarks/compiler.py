"""Kernels of XLA's library on a CPU: operations without some kinds of them, over XLA's default.

    python benchmarks/compiler.py [name ...] [--rounds 9]

XLA hands three kinds of operations to the library (YNNPACK) by default. A column has the ratios
without some. All programs of an operation take turns in one process; the ratios are those of the
smallest CPU times.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax import lax

FLAG = "xla_cpu_experimental_ynn_fusion_type"
DOT, CONVOLUTION, REDUCE = (
    f"LIBRARY_FUSION_TYPE_{kind}" for kind in ("INDIVIDUAL_DOT", "INDIVIDUAL_CONVOLUTION", "REDUCE")
)
SETTINGS = {
    "default": None,
    "no convolutions": {FLAG: f"{DOT},{REDUCE}"},
    "no products": {FLAG: f"{CONVOLUTION},{REDUCE}"},
    "no sums": {FLAG: f"{DOT},{CONVOLUTION}"},
    "none": {FLAG: ""},
}
# Batch, height and width, channels, filters.
IMAGES = [
    (1, 56, 64, 64), (1, 14, 256, 256), (8, 128, 16, 16), (8, 64, 32, 32), (8, 64, 64, 32),
    (8, 56, 64, 64), (8, 28, 128, 128), (8, 14, 256, 256), (8, 7, 512, 512), (32, 32, 64, 64),
]  # fmt: skip
# Rows, terms, results.
MATRICES = [
    (196, 192, 768), (1024, 256, 1024), (1024, 1024, 256), (6272, 192, 768), (4096, 256, 5000),
]  # fmt: skip
NAMES = ("convolution", "product", "attention", "sum")


def convolution(x: Any, kernel: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)


def attention(x: Any, y: Any) -> Any:
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", x, y) / 8)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, y)


def total(x: Any, y: Any) -> Any:
    return jnp.sum(x * y, (0, 1, 2))


CASES: dict[str, tuple[Callable[..., Any], list[tuple[tuple[int, ...], ...]]]] = {
    "convolution": (convolution, [((n, h, h, c), (3, 3, c, f)) for n, h, c, f in IMAGES]),
    "product": (jnp.matmul, [((r, n), (n, c)) for r, n, c in MATRICES]),
    "attention": (attention, [((8, 128, 4, 64),) * 2, ((32, 197, 3, 64),) * 2]),
    "sum": (total, [((8, 56, 56, 144),) * 2, ((32, 14, 14, 64),) * 2]),
}


def programs(function: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The function, and its gradients by the first and by the second argument."""

    def pulled(which: int, x: Any, y: Any, g: Any) -> Any:
        return jax.vjp(function, x, y)[1](g)[which]

    by = {f"by argument {i + 1}": functools.partial(pulled, i) for i in range(2)}
    return {"forward": lambda x, y, g: function(x, y), **by}


def ratios(function: Callable[..., Any], args: Any, rounds: int) -> dict[str, float]:
    """Milliseconds by default, and the ratios of the others over them."""
    runs = {k: jax.jit(function, compiler_options=v) for k, v in SETTINGS.items()}
    best: dict[str, float] = {}
    for i in range(rounds + 1):
        for name, run in runs.items():
            start = time.process_time()
            jax.block_until_ready(run(*args))
            taken = time.process_time() - start
            if i:  # the first compiles
                best[name] = min(best.get(name, taken), taken)
    default = best.pop("default")
    return {"default": 1e3 * default, **{k: v / default for k, v in best.items()}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="name", default=NAMES)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(f"jaxlib {jaxlib.__version__}; milliseconds, and ratios over them")
    rng = np.random.default_rng(0)
    for name in options.names:
        function, shapes = CASES[name]
        for shape in shapes:
            given = [jnp.asarray(rng.normal(size=s), jnp.float32) for s in shape]
            result = jax.eval_shape(function, *given)
            args = (*given, jnp.asarray(rng.normal(size=result.shape), jnp.float32))
            for part, program in programs(function).items():
                found = ratios(program, args, options.rounds)
                texts = (f"{k} {v:.2f}" for k, v in found.items())
                print(f"{name} {shape} {part}:", ", ".join(texts), flush=True)


if __name__ == "__main__":
    main()
