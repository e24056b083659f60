"""Programs exported for several devices, run on one and on several."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import invert
from tests.harness_cases import compare

W = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
X = np.linspace(0, 2, 64, dtype=np.float32).reshape(8, 8).T.copy()

_EXPORT = """
import base64, sys
import jax, jax.export, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

count = int(sys.argv[1])
axes = (2, 4) if count == 8 else (1, 1)
mesh = jax.make_mesh(axes, ("x", "y"), axis_types=(AxisType.Auto,) * 2)
place = lambda *spec: NamedSharding(mesh, P(*spec))

def f(w, x):
    hidden = jax.lax.with_sharding_constraint(jnp.tanh(x @ w), place("x", "y"))
    return jax.lax.with_sharding_constraint(hidden @ w, place("x", None)).sum(1)

spec = jax.ShapeDtypeStruct((8, 8), np.float32)
sharded = jax.jit(f, in_shardings=(place(None, "y"), place("x", None)))
print(base64.b64encode(jax.export.export(sharded)(spec, spec).serialize()).decode())
"""

_RUN = """
import base64, sys
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import invert

module = invert.from_exported(base64.b64decode(sys.stdin.read()))
w = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
for run in (module, module.model):
    with jax.set_mesh(mesh):
        x = jax.device_put(w, NamedSharding(mesh, P("x", None)))
        lowered = jax.jit(run).lower(w, x)
        # Two of the program, two of the arguments.
        assert lowered.as_text().count("sdy.sharding_constraint") == 4, lowered.as_text()
        assert np.allclose(run(w, x), (np.tanh(w @ w) @ w).sum(1), atol=1e-5)
        assert not jax.jit(run)(w, x).sharding.is_fully_replicated
        assert jax.grad(lambda w: run(w, x).sum())(w).shape == (8, 8)
"""


def _python(text: str, count: int, given: str = "", *arguments: str) -> str:
    env = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={count}",
        "PYTHONPATH": str(Path(invert.__file__).parents[1]),
    }
    command = [sys.executable, "-c", text, *arguments]
    done = subprocess.run(
        command, input=given, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _exported(count: int) -> str:
    return _python(_EXPORT, count, "", str(count))


def original(w, x):
    return [(jnp.tanh(x @ w) @ w).sum(1)]


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 8])
def test_on_one_device(count: int) -> None:
    module = invert.from_exported(base64.b64decode(_exported(count)))
    names = [e.primitive.name for e in module.jaxpr.eqns]
    # Those of the program, and where it lies on several devices those of the arguments.
    assert names.count("sharding_constraint") == (2 if count == 1 else 4)
    for run in (module, module.model):
        failures = compare(original, lambda w, x, run=run: [run(w, x)], [W, X], [[W, X], [X, W]])
        assert failures == {}
        hessian = jax.hessian(lambda v, run=run: run(W, X + v).sum())(jnp.ones(8))
        want = jax.hessian(lambda v: original(W, X + v)[0].sum())(jnp.ones(8))
        assert np.allclose(hessian, want, atol=1e-4)


def test_on_eight_devices() -> None:
    _python(_RUN, 8, _exported(8))
