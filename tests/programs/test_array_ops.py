"""Every op on shapes, indices and matrices, compared with XLA running the text."""

from __future__ import annotations

import pytest

from tests.programs.array_ops import CONVERSIONS, MODULES
from tests.programs.stablehlo_text import check


@pytest.mark.parametrize("op", sorted(MODULES))
def test_op(op: str) -> None:
    for text, args in MODULES[op]:
        check(text, args)


@pytest.mark.slow
def test_conversions_of_every_type() -> None:
    for text, args in CONVERSIONS:
        check(text, args)
