"""Every op with a region, in many variants, against XLA running the module text."""

from __future__ import annotations

import pytest

from tests.programs.region_ops import MODULES
from tests.programs.stablehlo_text import check


@pytest.mark.parametrize(
    ("op", "variant"), [(op, i) for op in sorted(MODULES) for i in range(len(MODULES[op]))]
)
def test_op(op: str, variant: int) -> None:
    # JAX does not batch the initial value of a reduction.
    check(*MODULES[op][variant], batch_scalars="reduce" not in op)
