"""Processor time to write a program as Python, against its number of equations."""

from __future__ import annotations

import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from invert._entry import ArgSpec, EntryPoint, Param
from invert._private.jax import open_jaxpr, trace_closed
from invert.emission.emit import emit
from invert.emission.emitted import Emission
from invert.emission.recovered import Recovered

# Equations of one block of the program below.
PER_BLOCK = 14


def program(blocks: int, *, scoped: bool) -> Recovered:
    """Residual blocks with a normalization and two products each, a class of their own or not."""
    width = 8

    def block(x: Any, w: Any, v: Any) -> Any:
        y = x - jnp.mean(x, axis=-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + 1e-6)
        return x + jnp.tanh(y @ w) @ v

    def apply(*values: Any) -> list[Any]:
        *weights, x = values
        for i in range(blocks):
            w, v = weights[2 * i : 2 * i + 2]
            if scoped:
                with jax.named_scope(f"block_{i}"):
                    x = block(x, w, v)
            else:
                x = block(x, w, v)
        return [x]

    weight = np.ones((width, width), np.float32)
    params = tuple(Param(f"block_{i}/{n}", weight) for i in range(blocks) for n in ("w", "v"))
    x = jax.ShapeDtypeStruct((4, width), jnp.float32)
    jaxpr = trace_closed(apply, *(p.value for p in params), x)
    entry = EntryPoint(
        name="blocks",
        fn=lambda held, x: apply(*held, x),
        args=(ArgSpec("x", x.shape, np.dtype(np.float32)),),
        kwargs={},
        arg_names=("x",),
        out_tree=jax.tree_util.tree_structure(0),
        params=params,
    )
    return Recovered(entry, open_jaxpr(jaxpr), (), x64=False)


def measure(blocks: int, *, scoped: bool) -> tuple[int, float, Emission]:
    recovered = program(blocks, scoped=scoped)
    count = len(recovered.program.eqns)
    start = time.process_time()
    found = emit(recovered)
    return count, time.process_time() - start, found


def main() -> None:
    largest = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    measure(2, scoped=True)  # what is imported and traced once
    print(f"{'equations':>10} {'seconds':>9} {'ms/equation':>12} {'lines':>8}  layers")
    for scoped in (True, False):
        count = 1_000
        while count <= largest:
            equations, seconds, found = measure(count // PER_BLOCK, scoped=scoped)
            lines = len(found.source.splitlines())
            print(
                f"{equations:>10} {seconds:>9.2f} {1e3 * seconds / equations:>12.3f} {lines:>8}  "
                f"{'classes' if scoped else 'one class'}",
                flush=True,
            )
            count *= 10


if __name__ == "__main__":
    main()
