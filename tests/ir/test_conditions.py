"""Conditions on sizes, as JAX takes them."""

from __future__ import annotations

import itertools
from typing import Any

import jax.export
import pytest

from invert.ir.sizes import Constraint, decided
from invert.modules.dimensions import scope_of, symbolic_shapes

B: Any
C: Any
B, C = jax.export.symbolic_shape("b, c")


@pytest.mark.parametrize(
    ("left", "right", "text"),
    [
        (B, 2 * C, "b == 2*c"),
        (B, C - 2 * B, "3*b == c"),
        (2 * (C // 2), C, "2*floordiv(c, 2) == c"),
        (2 * B, C - B, ""),
    ],
)
def test_what_stands_for_a_size_does_not_hold_it(left: Any, right: Any, text: str) -> None:
    assert Constraint("eq", left, right).text() == text


def test_sizes_under_a_condition_of_a_size_on_itself_can_be_divided() -> None:
    """JAX would put `c - 2*b` for `b` over and over."""
    conditions = [Constraint("eq", B, C - 2 * B), Constraint("eq", C % 2, 0)]
    assert "3*b == c" in str(scope_of(conditions))
    ((size,),) = symbolic_shapes([["3*c - 8*b - 1"]], conditions) or [(0,)]
    assert str(size // 1) == str(size)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_equal_sizes_have_one_bound_in_any_order(order: tuple[int, ...]) -> None:
    """JAX's comparisons would recur without end in some."""
    (d,) = jax.export.symbolic_shape("d")
    conditions = [Constraint("le", B, 16), Constraint("eq", B, C), Constraint("eq", C, d)]
    found = symbolic_shapes([["b", "c", "d"]], [conditions[i] for i in order])
    assert found is not None
    ((b, c, d),) = found
    assert b == c == d
    assert decided("le", d, 16)
