"""Every elementwise op in every dtype, compared with XLA running the text."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

import invert
from tests.programs.elementwise_ops import MODULES
from tests.programs.stablehlo_text import check, one_op, type_of


@pytest.mark.parametrize("op", sorted(MODULES))
def test_op(op: str) -> None:
    text, args = MODULES[op]
    check(text, args, vmap=False)


@pytest.mark.slow
@pytest.mark.drawn(20)
@pytest.mark.parametrize("op", sorted(MODULES))
def test_batches_of_an_op(op: str) -> None:
    text, args = MODULES[op]
    check(text, args)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32"])
def test_integer_power_at_its_edges(dtype: str) -> None:
    info = np.iinfo(dtype)
    edges = [-1000, -7, -2, -1, 0, 1, 2, 3, 7, 63, 64, 127, 255, 1000, int(info.min), int(info.max)]
    held = [n for n in edges if info.min <= n <= info.max]
    x, y = np.array(list(itertools.product(held, held)), dtype).T.copy()
    powers = [_power(int(a), int(b), info.bits) for a, b in zip(x, y, strict=True)]
    want = np.array(powers, f"uint{info.bits}").astype(dtype)
    with jax.enable_x64(True):
        check(
            one_op("stablehlo.power", (x, y), type_of(x)),
            (x, y),
            expected=[want],
            vmap=False,
        )


def _power(base: int, exponent: int, bits: int) -> int:
    """The power modulo `2**bits`; negative exponents give a fraction, truncated to an integer."""
    if exponent < 0:
        return {1: 1, -1: -1 if exponent % 2 else 1}.get(base, 0) % 2**bits
    return pow(base, exponent, 2**bits)


@pytest.mark.parametrize(("kind", "order"), [("i32", "UNSIGNED"), ("ui8", "SIGNED")])
def test_integers_in_the_order_of_others(kind: str, order: str) -> None:
    x = f"tensor<4x{kind}>"
    with pytest.raises(invert.UnsupportedOpError, match=f"{order} is not the order of"):
        invert.from_stablehlo(f"""
        func.func @main(%a: {x}, %b: {x}) -> tensor<4xi1> {{
          %0 = stablehlo.compare LT, %a, %b, {order} : ({x}, {x}) -> tensor<4xi1>
          return %0 : tensor<4xi1> }}""")
