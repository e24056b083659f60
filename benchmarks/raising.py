"""Is the time of raising linear in the size of the program?

Transformers of 2, 8 and 32 layers are exported once and recovered; every stage is timed by the
report of the module. Prints ops per second and the seconds per op relative to the smallest.
"""

from __future__ import annotations

import statistics
import time

import jax
import jax.export
import numpy as np
from _transformer import apply, parameters

import invert

LAYERS = (2, 8, 32)
REPEATS = 3


def measure(layers: int) -> tuple[int, list[float], dict[str, float]]:
    """Number of ops, seconds of every conversion, seconds of each stage of the last one."""
    params = parameters(layers, 64)
    x = np.zeros((16, 64), np.float32)
    exported = jax.export.export(jax.jit(apply))(params, x)
    ops = exported.mlir_module().count(" = ")
    seconds = []
    stages: dict[str, float] = {}
    for _ in range(REPEATS):
        start = time.perf_counter()
        module = invert.from_exported(exported)
        seconds.append(time.perf_counter() - start)
        stages = dict(module.report.seconds)
    return ops, seconds, stages


def main() -> None:
    invert.from_exported(
        jax.export.export(jax.jit(apply))(parameters(1, 64), np.zeros((16, 64), np.float32))
    )
    print(f"{'layers':>6} {'ops':>6} {'seconds':>8} {'ops/s':>7} {'per op, relative':>17}  stages")
    first = None
    for layers in LAYERS:
        ops, seconds, stages = measure(layers)
        median = statistics.median(seconds)
        per_op = median / ops
        first = first or per_op
        shown = ", ".join(f"{name} {value:.2f} s" for name, value in stages.items())
        print(
            f"{layers:6d} {ops:6d} {median:8.2f} {ops / median:7.0f} "
            f"{per_op / first:17.2f}  {shown}"
        )


if __name__ == "__main__":
    main()
