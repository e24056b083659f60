"""StableHLO modules as text, run by XLA itself and as recovered programs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import compiler
from jax._src.lib import xla_client

import invert
from tests.harness_cases import assert_same

TYPES = {
    "bool": "i1",
    **{f"int{n}": f"i{n}" for n in (2, 4, 8, 16, 32, 64)},
    **{f"uint{n}": f"ui{n}" for n in (2, 4, 8, 16, 32, 64)},
    **{f"float{n}": f"f{n}" for n in (16, 32, 64)},
    "bfloat16": "bf16",
    "float8_e4m3b11fnuz": "f8E4M3B11FNUZ",
    "float8_e4m3fn": "f8E4M3FN",
    "float8_e4m3fnuz": "f8E4M3FNUZ",
    "float8_e5m2": "f8E5M2",
    "float8_e5m2fnuz": "f8E5M2FNUZ",
    "complex64": "complex<f32>",
    "complex128": "complex<f64>",
}


def tensor(dtype: Any, shape: Sequence[int] = ()) -> str:
    """The MLIR type of an array."""
    return f"tensor<{''.join(f'{n}x' for n in shape)}{TYPES[str(np.dtype(dtype))]}>"


def type_of(x: Any) -> str:
    return tensor(x.dtype, x.shape)


def main(body: str, args: Sequence[Any], results: Sequence[str], rest: str = "") -> str:
    """A module with one function of `%0`, `%1`, ... that returns `%r0`, `%r1`, ... of `body`."""
    parameters = ", ".join(f"%a{i}: {type_of(x)}" for i, x in enumerate(args))
    values = ", ".join(f"%r{i}" for i in range(len(results)))
    end = f"return {values} : {', '.join(results)}" if results else "return"
    return (
        f"module {{\n{rest}\nfunc.func public @main({parameters}) -> ({', '.join(results)}) {{\n"
        f"{body}\n{end}\n}}\n}}"
    )


def one_op(name: str, args: Sequence[Any], result: str, attributes: str = "") -> str:
    """A module with one op, in MLIR's generic form."""
    operands = ", ".join(f"%a{i}" for i in range(len(args)))
    types = ", ".join(map(type_of, args))
    return main(f'%r0 = "{name}"({operands}) {attributes} : ({types}) -> {result}', args, [result])


@functools.lru_cache(maxsize=1)
def _compiled(text: str) -> Any:
    device = jax.devices()[0]
    return device.client.compile_and_load(
        text.encode(),
        xla_client.DeviceList((device,)),
        compiler.get_compile_options(num_replicas=1, num_partitions=1),
    )


def run_with_xla(text: str, args: Sequence[Any]) -> list[np.ndarray]:
    """The results of XLA's CPU compiler for the text, without any JAX primitive."""
    results = _compiled(text).execute([jax.device_put(x) for x in args])
    return [np.asarray(x) for x in results]


def flat(module: invert.Module) -> Callable[..., list[Any]]:
    """A recovered module as a function that returns a list of arrays."""
    return lambda *args: jax.tree_util.tree_leaves(module(*args))


def check(
    text: str,
    args: Sequence[Any],
    *,
    expected: Sequence[np.ndarray] | None = None,
    vmap: bool = True,
    batch_scalars: bool = True,
) -> invert.Module:
    """Raise the module and compare its values, alone and under `vmap`, with XLA's.

    **Arguments:**

    - `expected`: the values, where XLA on one CPU does not run the op.
    - `vmap`: whether the op can be batched.
    - `batch_scalars`: whether scalar arguments are batched too.
    """
    module = invert.from_stablehlo(text)
    args = [np.asarray(x) for x in args]
    with jax.enable_x64(True):
        want = run_with_xla(text, args) if expected is None else list(expected)
        assert_same(flat(module)(*args), want)
        if vmap and args:
            # The second point is the first one backwards, so that a mixed-up batch shows.
            other, want_other = args, want
            if expected is None:
                other = [x[::-1].copy() if x.ndim and x.shape[0] > 1 else x for x in args]
                want_other = run_with_xla(text, other)
            axes = [0 if x.ndim or batch_scalars else None for x in args]
            points = [
                jnp.stack(pair) if axis == 0 else pair[0]
                for pair, axis in zip(zip(args, other, strict=True), axes, strict=True)
            ]
            if all(axis is None for axis in axes):
                return module
            batched = jax.jit(jax.vmap(flat(module), in_axes=axes))(*points)
            assert_same([x[0] for x in batched], want)
            assert_same([x[1] for x in batched], want_other)
    return module
