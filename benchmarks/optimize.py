"""Measures which rewrites of `Config(optimize=...)` pay, for the platform that JAX runs on.

    python benchmarks/optimize.py [rewrite ...] [--kinds TEXT] [--quick]

`--kinds` takes those kinds of operands whose name holds a text, and `--quick` one program of each.

For each kind of operands a few programs of one primitive: the time of the rewritten program over
that of the original, forward and with the gradient by all arguments, which run in turn; the
smallest of several rounds, and the mean over the programs of a kind. The ratios of this platform
go into `invert/patterns/optimized.json`, those of others stay. On a CPU the time is that of the
process's threads, so that other processes do not count.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import invert
from invert.patterns import optimized

ROUNDS, SECONDS, LONG = 3, 0.002, 0.3
DTYPES = ("float32", "bfloat16", "float16", "float64")
Case = tuple[Callable[..., Any], tuple[Any, ...]]


def sample(shape: tuple[int, ...], dtype: str) -> Any:
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.standard_normal(shape, np.float32)).astype(dtype)


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


CASES: dict[str, Callable[[], Iterator[Case]]] = {
    "depthwise_conv": depthwise,
    "grouped_conv": grouped,
    "pointwise_conv": pointwise,
    "transposed_conv": transposed,
    "max_pool": functools.partial(pools, lax.max, -math.inf),
    "sum_pool": functools.partial(pools, lax.add, 0.0),
}


def clock() -> float:
    return time.process_time() if jax.default_backend() == "cpu" else time.perf_counter()


def seconds(run: Callable[[], Any], count: int) -> float:
    start = clock()
    for _ in range(count - 1):
        run()
    jax.block_until_ready(run())
    return (clock() - start) / count


def ratio(new: Callable[..., Any], old: Callable[..., Any], args: Any) -> float:
    """The shortest time of `new` over that of `old`, which run in turn."""
    runs = [functools.partial(jax.jit(f), *args) for f in (new, old)]
    for run in runs:
        jax.block_until_ready(run())
    best = [seconds(run, 1) for run in runs]
    counts = [max(1, min(1000, int(SECONDS / max(b, 1e-7)))) for b in best]
    # What takes long is measured well enough by one run.
    for _, k in itertools.product(range(ROUNDS if max(best) < LONG else 0), range(2)):
        best[k] = min(best[k], seconds(runs[k], counts[k]))
    return best[0] / best[1]


def gradient(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    def loss(*args: Any) -> Any:
        return jnp.sum(jnp.square(function(*args).astype(jnp.float32)))

    return jax.grad(loss, tuple(range(count)))


def measure(name: str, kinds: str, quick: bool) -> dict[str, list[float]]:
    found: dict[str, list[list[float]]] = defaultdict(list)
    others = set(CASES) - {name}
    for function, args in CASES[name]():
        seen: set[str] = set()

        def pays(rewrite: str, kind: str, seen: set[str] = seen) -> bool:
            seen.add(kind)
            return True

        fast = invert.rewrite(function, optimized.stage(pays, others).patterns)
        jax.eval_shape(fast, *args)
        assert len(seen) == 1, f"{name} does not apply: {[a.shape for a in args]}"
        (kind,) = seen
        if kinds not in kind or (quick and kind in found):
            continue
        forward = ratio(fast, function, args)
        back = ratio(gradient(fast, len(args)), gradient(function, len(args)), args)
        found[kind].append([forward, back])
        print(f"{name:<16} {kind:<64} {forward:6.2f} {back:6.2f}", flush=True)
    return {
        kind: [round(math.prod(r) ** (1 / len(rows)), 3) for r in zip(*rows, strict=True)]
        for kind, rows in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rewrites", nargs="*", metavar="rewrite")
    parser.add_argument("--kinds", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, help="another file than that of the package")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    path = options.out or Path(optimized.__file__).with_name(optimized.FILE)
    data = {k: dict(v) for k, v in optimized.measured().items()}
    table: dict[str, Any] = data.setdefault(jax.default_backend(), {})
    print(f"{'rewrite':<16} {'operands':<64} forward gradient")
    for name in options.rewrites or CASES:
        new = measure(name, options.kinds, options.quick)
        some = options.kinds or options.quick
        table[name] = {**(table.get(name, {}) if some else {}), **new}
        path.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
