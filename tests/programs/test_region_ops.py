"""Every op with a region, in many variants, against XLA running the module text."""

from __future__ import annotations

import pytest

import invert
from tests.programs.region_ops import MODULES
from tests.programs.stablehlo_text import check


@pytest.mark.parametrize(
    ("op", "variant"), [(op, i) for op in sorted(MODULES) for i in range(len(MODULES[op]))]
)
def test_op(op: str, variant: int) -> None:
    # JAX does not batch the initial value of a reduction.
    check(*MODULES[op][variant], batch_scalars="reduce" not in op)


def test_every_scatter_and_branch_has_a_text() -> None:
    for op in ("stablehlo.if", "stablehlo.scatter"):
        for text, *_ in MODULES[op]:
            assert "def __call__" in invert.from_stablehlo(text).source  # traced and compared


def test_what_all_branches_give_back_passes_by() -> None:
    jaxpr = invert.from_stablehlo(MODULES["stablehlo.if"][0][0]).jaxpr
    (cond,) = (e for e in jaxpr.eqns if e.primitive.name == "cond")
    assert len(cond.outvars) == 1
    assert jaxpr.outvars[1] is jaxpr.invars[1]
