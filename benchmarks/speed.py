"""Does the recovered program run as fast as the original?

Both are compiled in one process and run in turn, so that whatever else the machine does falls on
both. Prints the median over the rounds of the ratio recovered / original.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from _transformer import apply, parameters

import invert

ROUNDS = 41
SECONDS_PER_RUN = 0.02


def recurrent(x: Any, w: Any) -> Any:
    return jax.lax.scan(lambda h, row: (jnp.tanh(h @ w + row), None), x[0], x)[0]


def cumulative(x: Any, w: Any) -> Any:
    return jnp.cumsum(x, 0).sum() + jnp.sort(x @ w, 0)


CASES: dict[str, tuple[Callable, tuple[Any, ...]]] = {
    "transformer, 4 layers": (apply, (parameters(4, 128), np.ones((64, 128), np.float32))),
    "recurrent network": (
        recurrent,
        (np.ones((200, 64), np.float32), np.eye(64, dtype=np.float32)),
    ),
    "cumsum and sort": (
        cumulative,
        (np.ones((2000, 32), np.float32), np.eye(32, dtype=np.float32)),
    ),
}


def seconds(run: Callable, args: Any, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        result = run(*args)
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / count


def ratio(f: Callable, args: tuple[Any, ...]) -> tuple[float, float, float]:
    """Median ratio and the quartiles around it."""
    module = invert.from_exported(jax.export.export(jax.jit(f))(*args))
    args = jax.device_put(args)
    original = jax.jit(f).lower(*args).compile()
    recovered = jax.jit(lambda *a: module(*a)).lower(*args).compile()
    count = max(1, int(SECONDS_PER_RUN / seconds(original, args, 3)))
    ratios = []
    for i in range(ROUNDS):
        pair = [original, recovered] if i % 2 else [recovered, original]
        times = {run: seconds(run, args, count) for run in pair}
        ratios.append(times[recovered] / times[original])
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, low, high


def main() -> None:
    print(f"{'program':24} recovered / original (median, quartiles)")
    for name, (f, args) in CASES.items():
        middle, low, high = ratio(f, args)
        print(f"{name:24} {middle:.3f}  ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
