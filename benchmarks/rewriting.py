"""Time of the rewriting stages per equation, and what a recovered cumulative sum is worth.

Prints, for programs of 10^3 to 10^5 equations, the processor time of a conversion per equation, and
the seconds of each stage per equation over those of the smallest program; then, for cumulative sums
of 2^10 to 2^16 numbers, the run time of the recovered program over that of `lax.cumsum`, and the
same with the `reduce_window` left in place.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax

import invert


def chain(length: int) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        for i in range(length // 4):
            x = jnp.sin(x) * 2.0 + jnp.cumsum(x) if i % 100 == 0 else jnp.cos(x + 1.0) * x - x
        return x

    return function


def stages() -> None:
    print("equations  microseconds   raise  patterns  verify   (each, relative to the smallest)")
    x = np.ones(8, np.float32)
    base: dict[str, float] = {}
    for length in (1_000, 10_000, 100_000):
        exported = jax.export.export(jax.jit(chain(length)))(x)
        if not base:  # what is made once is not the program's
            invert.from_exported(exported)
        gc.collect()
        start = time.process_time()
        report = invert.from_exported(exported).report
        spent = (time.process_time() - start) / report.equations
        each = {k: s / report.equations for k, s in report.seconds.items()}
        base = base or each
        ratios = "  ".join(f"{each[k] / base[k]:6.2f}" for k in ("raise", "patterns", "verify"))
        print(
            f"{report.equations:9d}  {1e6 * spent:12.0f}  {ratios}   {report.certificate}",
            flush=True,
        )


def seconds(function: Callable[[Any], Any], x: Any) -> float:
    function(x).block_until_ready()
    times = []
    for _ in range(7):
        start = time.perf_counter()
        function(x).block_until_ready()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def cumulative() -> None:
    print("length   recovered / lax.cumsum   reduce_window / lax.cumsum")
    for power in (10, 12, 14, 16):
        x = jnp.ones(2**power)
        native = jax.jit(lambda x: lax.cumsum(x))
        exported = jax.export.export(native)(x)
        recovered = jax.jit(invert.from_exported(exported))
        window = jax.jit(invert.from_exported(exported, config=invert.Config(patterns=False)))
        base = seconds(native, x)
        print(f"2^{power:<5d}  {seconds(recovered, x) / base:10.2f}", end="")
        print(f"  {seconds(window, x) / base:20.1f}")


if __name__ == "__main__":
    stages()
    cumulative()
