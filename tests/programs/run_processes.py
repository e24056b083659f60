"""One of several processes that load a model onto a shared mesh; prints JSON.

`python -m tests.programs.run_processes NUMBER COUNT PORT FOLDER`: the folder holds `package`, a
saved module, and `arrays.npz` with its argument `x` and its result `y`.
"""

from __future__ import annotations

import json
import sys

import equinox as eqx
import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import invert


def main(number: int, count: int, port: int, folder: str) -> dict[str, object]:
    jax.distributed.initialize(f"localhost:{port}", count, number)
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    arrays = np.load(f"{folder}/arrays.npz")
    rows = NamedSharding(mesh, P("data"))
    x = jax.make_array_from_callback(arrays["x"].shape, rows, lambda at: arrays["x"][at])
    specs = {"*/kernel": P(None, "model")}
    module = invert.load(f"{folder}/package", mesh=mesh, shardings=specs)
    params = [a for a in jax.tree_util.tree_leaves(module) if isinstance(a, jax.Array)]
    with jax.set_mesh(mesh):
        y = eqx.filter_jit(lambda m, x: m(x))(module, x)
        grads = eqx.filter_jit(eqx.filter_grad(lambda m, x: (m(x) ** 2).sum()))(module, x)
    gaps = [np.abs(np.asarray(s.data) - arrays["y"][s.index]).max() for s in y.addressable_shards]
    try:
        invert.save(module, f"{folder}/again")
        refused = ""
    except invert.InvertError as error:
        refused = str(error)
    return {
        "devices": len(jax.devices()),
        "here": [a.is_fully_addressable for a in params],
        "parts": [list(a.addressable_shards[0].data.shape) for a in params],
        "gap": float(max(gaps)),
        "gradients": [list(g.shape) for g in jax.tree_util.tree_leaves(grads)],
        "refused": refused,
    }


if __name__ == "__main__":
    found = main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    print(json.dumps(found), flush=True)
