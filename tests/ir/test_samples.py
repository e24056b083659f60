"""Sizes at which programs with open dimensions run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from invert import InvertError
from invert.ir.sizes import parsed, scope
from invert.ir.substitution import samples


def _program(*constraints: str) -> Any:
    (size,) = parsed(("b",), scope(constraints))
    return jax.make_jaxpr(lambda x: x + 1)(jax.ShapeDtypeStruct((size,), jnp.float32))


@pytest.mark.parametrize("constraint", ["b >= 5", "b >= 60", "mod(b, 16) == 0", "b <= 2"])
def test_samples_meet_the_conditions(constraint: str) -> None:
    found = samples(_program(constraint))
    assert found
    for sizes in found:
        left, sign, right = constraint.rsplit(" ", 2)
        value = eval(left, {"mod": lambda a, b: a % b, **sizes})
        assert eval(f"{value} {sign} {right}")


def test_no_sample_is_an_error_rather_than_an_empty_comparison() -> None:
    with pytest.raises(InvertError, match="conditions"):
        samples(_program("b >= 100000"))
