"""HLO modules, as passed to XLA and as returned by it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import invert

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def function(x: Any, n: Any) -> Any:
    y = jax.nn.softmax(jnp.sin(x) @ x.T)
    y = jax.lax.fori_loop(0, 3, lambda i, c: c * 2 + jnp.sort(c), y)
    return y, jnp.cumsum(y, 0)[n], jax.random.normal(jax.random.key(3), (2,))


def lowered() -> Any:
    return jax.jit(function).lower(X, np.int32(0))


def proto() -> bytes:
    return lowered().compiler_ir("hlo").as_serialized_hlo_module_proto()


def wrapped(data: bytes) -> bytes:
    """An `HloProto`, which holds a module in field 1."""
    size, count = b"", len(data)
    while count > 127:
        size, count = size + bytes([count & 127 | 128]), count >> 7
    return b"\n" + size + bytes([count]) + data


@pytest.mark.parametrize(
    "source",
    [proto, lambda: wrapped(proto()), lambda: lowered().as_text(dialect="hlo")],
    ids=["proto", "wrapped", "text"],
)
def test_hlo_comes_home(source: Any) -> None:
    module = invert.from_stablehlo(source())
    assert module.report.certificate.kind == "exact"
    assert {"scan", "threefry2x32", "cumulative"} <= set(module.report.rewrites)
    for got, want in zip(module(X, np.int32(1)), function(X, 1), strict=True):
        np.testing.assert_array_equal(got, want)
    assert "cumsum(" in module.source


@pytest.mark.parametrize("text", [False, True])
def test_what_xla_has_compiled(text: bool) -> None:
    compiled = lowered().compile()
    module = invert.from_stablehlo(compiled.as_text() if text else compiled)
    assert module.report.certificate.kind == "exact"
    for got, want in zip(module(X, np.int32(1)), function(X, 1), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_files(tmp_path: Path) -> None:
    for name, data in {
        "module.hlo.pb": wrapped(proto()),
        "module.txt": lowered().as_text(dialect="hlo").encode(),
    }.items():
        (tmp_path / name).write_bytes(data)
        got = invert.load(tmp_path / name)(X, np.int32(1))
        np.testing.assert_array_equal(got[0], function(X, 1)[0])


@pytest.mark.slow
def test_damaged_modules() -> None:
    """Damaged modules are refused or still valid; none crashes the process."""
    data, rng = proto(), random.Random(0)
    with pytest.raises(invert.MalformedModelError, match="HLO module"):
        invert.from_stablehlo(data[: len(data) // 2])
    with pytest.raises(invert.MalformedModelError, match="Syntax error"):
        invert.from_stablehlo("HloModule broken, and no more")
    refused = 0
    for _ in range(25):
        damaged = bytearray(data)
        damaged[rng.randrange(20, len(data))] ^= 1 << rng.randrange(8)
        try:
            invert.from_stablehlo(bytes(damaged), config=invert.Config(verify=False))
        except invert.InvertError:
            refused += 1
    assert refused
