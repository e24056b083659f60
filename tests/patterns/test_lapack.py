"""Opaque calls of LAPACK run in processes in which nothing else calls it."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

_SCRIPT = """
import sys
import numpy as np
import invert

config = invert.Config(patterns={patterns})
module = invert.from_exported(sys.stdin.buffer.read(), config=config)
assert bool(module.report.opaque) != {patterns}, module.report
x = np.asarray([[4.0, 1.0], [1.0, 3.0]], np.float32)
np.testing.assert_allclose(module(x), [[2.0, 0.0], [0.5, 2.75**0.5]], rtol=1e-6)
"""


@pytest.mark.parametrize("patterns", [True, False])
def test_a_program_loads_what_it_calls(patterns: bool) -> None:
    """Without it, the process would end."""
    x = jax.ShapeDtypeStruct((2, 2), np.float32)
    exported = jax.export.export(jax.jit(jnp.linalg.cholesky), platforms=["cpu"])(x)
    environment = {**os.environ, "INVERT_CACHE_DIR": "", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", _SCRIPT.format(patterns=patterns)]
    subprocess.run(command, env=environment, check=True, input=exported.serialize())
