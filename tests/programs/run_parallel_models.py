"""Runs the parallel models and their conversions on eight simulated devices; prints JSON."""

from __future__ import annotations

import collections
import json
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import invert
from invert.ir.jaxprs import primitive_counts
from tests.programs.parallel_models import CASES

_COLLECTIVE = re.compile(
    r" (all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)(?:-start)?\("
)
# Equations that compute nothing: calls, and placements of values.
_FREE = {"jit", "sharding_constraint", "custom_jvp_call", "copy"}


def _mesh(count: int) -> Mesh:
    sizes = {8: (2, 4), 4: (2, 2), 1: (1, 1)}[count]
    axes = (AxisType.Auto,) * 2
    return jax.make_mesh(sizes, ("data", "model"), axes, devices=jax.devices()[:count])


def collectives(fn: Callable[..., Any], args: Sequence[Any]) -> dict[str, int]:
    text = jax.jit(fn).lower(*args).compile().as_text() or ""
    return dict(sorted(collections.Counter(_COLLECTIVE.findall(text)).items()))


def primitives(fn: Callable[..., Any], args: Sequence[Any]) -> dict[str, int]:
    counts = primitive_counts(jax.make_jaxpr(fn)(*args).jaxpr)
    return {name: n for name, n in counts.items() if name not in _FREE}


def gap(a: Any, b: Any) -> float:
    pairs = zip(jax.tree_util.tree_leaves(a), jax.tree_util.tree_leaves(b), strict=True)
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max()) for x, y in pairs)


def _from_export(jitted: Any, args: Any) -> Any:
    return invert.from_exported(bytes(jax.export.export(jitted)(*args).serialize()))


def _from_open_export(jitted: Any, args: Any, axis: int) -> Any:
    """Any multiple of the size along an axis."""
    params, x = args
    shape = ", ".join(f"{n}*b" if i == axis else str(n) for i, n in enumerate(x.shape))
    open_x = jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), x.dtype)
    return _from_export(jitted, (params, open_x))


def _from_saved_model(jitted: Any, args: Any) -> Any:
    import tensorflow as tf
    from jax.experimental import jax2tf

    module: Any = tf.Module()
    specs = jax.tree_util.tree_map(lambda x: tf.TensorSpec(x.shape, x.dtype), args)
    converted = jax2tf.convert(lambda p, x: jitted(p, x))
    module.f = tf.function(converted, input_signature=specs, autograph=False, jit_compile=True)
    with tempfile.TemporaryDirectory() as directory:
        tf.saved_model.save(module, directory)
        return invert.load(directory)


def main(route: str, names: Sequence[str], counts: Sequence[int]) -> None:
    open_up = {"export": _from_export, "saved_model": _from_saved_model}.get(route)
    for name in names:
        for count in counts:
            mesh = _mesh(count)
            fn, params, x, *specs = CASES[name](mesh)
            lies = jax.tree_util.tree_map(
                lambda s, mesh=mesh: NamedSharding(mesh, s), specs,
                is_leaf=lambda s: isinstance(s, P),
            )  # fmt: skip
            jitted = jax.jit(fn, in_shardings=tuple(lies))
            if open_up is None:
                cut = next(i for i, along in enumerate(specs[1]) if along is not None)
                module = _from_open_export(jitted, (params, x), cut)
                x = np.concatenate([x, 2 - x], cut)
            else:
                module = open_up(jitted, (params, x))
            placed = [
                jax.tree_util.tree_map(jax.device_put, a, s)
                if jax.tree_util.tree_structure(a) == jax.tree_util.tree_structure(s)
                else jax.device_put(a, s)
                for a, s in zip((params, x), lies, strict=True)
            ]

            def loss(run: Callable[..., Any]) -> Callable[..., Any]:
                return jax.grad(lambda *args: (run(*args) ** 2).sum(), (0, 1))

            wanted = loss(jitted)(*placed)
            zeros = jax.tree_util.tree_map(np.zeros_like, wanted)
            found = {
                "case": name,
                "devices": count,
                "certificate": str(module.report.certificate),
                "values": gap(jitted(*placed), module(*placed)),
                "text": gap(jitted(*placed), module.model(*placed)),
                "nowhere": max(
                    gap(jitted(*placed), run(params, x))
                    for fn in (module, module.model)
                    for run in (fn, jax.jit(lambda *args, fn=fn: fn(*args)))
                ),
                "gradients": gap(wanted, loss(module)(*placed)) / max(gap(wanted, zeros), 1.0),
                "primitives": [primitives(f, placed) for f in (jitted, module)],
                "collectives": [collectives(f, placed) for f in (jitted, module)],
                "of gradients": [collectives(loss(f), placed) for f in (jitted, module)],
            }
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    partitioner, route, names, counts = sys.argv[1:]
    jax.config.update("jax_use_shardy_partitioner", partitioner == "shardy")
    main(route, names.split(","), [int(n) for n in counts.split(",")])
