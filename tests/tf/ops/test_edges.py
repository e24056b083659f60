"""Elementwise ops at infinities, zeros, subnormals and NaN, by TensorFlow's two results."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.tf.ops.driver import check_cases
from tests.tf.ops.edges import EXCUSES, OPS, check_edges, edge_case, edge_cases
from tests.tf.ops.table import route

# What is computed by more than one primitive, in the dtypes that differ most.
_SAMPLE = (
    "Abs-float32 Acosh-complex64 BesselJ1-float32 BesselK0e-float64 DivNoNan-float32 "
    "Equal-bfloat16 Expint-float32 Expint-float64 FloorMod-int32 Igamma-float32 Maximum-float32 "
    "MulNoNan-float16 Polygamma-float32 Pow-float32 Relu-bfloat16 Selu-float16 Sqrt-float32 "
    "SqrtGrad-float32 TruncateDiv-float32 Xlogy-float32 Zeta-float32"
).split()


@pytest.mark.slow
def test_sample() -> None:
    wrong, _ = check_edges([edge_case(*name.split("-")) for name in _SAMPLE])
    assert not wrong, "\n".join(wrong)


def test_each_op_has_a_rule() -> None:
    assert set(EXCUSES) <= set(OPS)
    assert [op for op in OPS if route(op) != "rule"] == []


@pytest.mark.slow
@pytest.mark.drawn(12)
@pytest.mark.parametrize("op", OPS)
def test_all_dtypes(op: str) -> None:
    wrong, needed = check_edges(edge_cases(op))
    assert not wrong, "\n".join(wrong)
    excuses = enumerate(EXCUSES.get(op, ()))
    idle = [e.reason for i, e in excuses if e.always and (op, i) not in needed]
    assert not idle, f"{op} needs no excuse: {idle}"


@pytest.mark.parametrize("op", ["Igamma", "Igammac"])
def test_incomplete_gamma_is_flat_at_infinity(op: str) -> None:
    # From 1 on TensorFlow has NaN, for infinity less infinity.
    a, x = np.array([0.5, 0.5, 0.9], np.float32), np.array([2, np.inf, np.inf], np.float32)
    check_cases(dataclasses.replace(edge_case(op, "float32"), inputs=(a, x), modes=("graph",)))
