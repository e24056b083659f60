"""Every elementwise op on every dtype it takes, against XLA running the module text."""

from __future__ import annotations

import pytest

from tests.programs.elementwise_ops import MODULES
from tests.programs.stablehlo_text import check


@pytest.mark.parametrize("op", sorted(MODULES))
def test_op(op: str) -> None:
    text, args = MODULES[op]
    check(text, args)
