"""Every op with a region, in many variants, compared with XLA running the text."""

from __future__ import annotations

import numpy as np
import pytest

import invert
from invert._private.jax import names_of
from invert.ir import jaxprs
from tests.programs.region_ops import _MIXED, F32, I32, MODULES, _body, _by, _sort
from tests.programs.stablehlo_text import check, main


@pytest.mark.parametrize(
    ("op", "variant"), [(op, i) for op in sorted(MODULES) for i in range(len(MODULES[op]))]
)
def test_op(op: str, variant: int) -> None:
    # JAX does not batch the initial value of a reduction.
    check(*MODULES[op][variant], batch_scalars="reduce" not in op)


def test_a_reduction_in_a_wider_type_than_that_of_its_numbers() -> None:
    """The format allows it, and XLA's CPU compiler does not, so NumPy gives the expected sums."""
    x, init = np.arange(100, 112, dtype=np.int8).reshape(3, 4), np.int8(-3)
    body = _body("add", "tensor<i32>")
    rows = f"""%r0 = "stablehlo.reduce"(%a0, %a1) {body} {{dimensions = array<i64: 1>}} :
      (tensor<3x4xi8>, tensor<i8>) -> tensor<3xi32>"""
    windows = f"""%r0 = "stablehlo.reduce_window"(%a0, %a1) {body}
      {{window_dimensions = array<i64: 1, 4>}} : (tensor<3x4xi8>, tensor<i8>) -> tensor<3x1xi32>"""
    sums = x.sum(1, dtype=np.int32) - 3
    for text, expected in ((rows, sums), (windows, sums[:, None])):
        kind = f"tensor<{'x'.join(map(str, expected.shape))}xi32>"
        result = invert.from_stablehlo(main(text, [x, init], [kind]))(x, init)
        assert result.dtype == np.int32
        np.testing.assert_array_equal(result, expected)


def test_every_scatter_and_branch_has_a_text() -> None:
    for op in ("stablehlo.if", "stablehlo.scatter"):
        for text, *_ in MODULES[op]:
            assert "def __call__" in invert.from_stablehlo(text).source  # traced and compared


def test_what_all_branches_give_back_passes_by() -> None:
    jaxpr = invert.from_stablehlo(MODULES["stablehlo.if"][0][0]).jaxpr
    (cond,) = (e for e in jaxpr.eqns if e.primitive.name == "cond")
    assert len(cond.outvars) == 1
    assert jaxpr.outvars[1] is jaxpr.invars[1]


@pytest.mark.parametrize(
    ("comparator", "known"),
    [
        (_by(0, "LT", "i32"), True),
        (_by(0, "GT", "i32"), True),
        (_by(0, "LE", "i32"), False),
        (_by(0, "GT", "f32", order="TOTALORDER"), True),
        (_by(0, "GT", "f32"), False),  # NaN
        (_MIXED, False),
    ],
)
def test_the_certificate_says_that_an_order_is_assumed(comparator: str, known: bool) -> None:
    two = comparator == _MIXED
    keys = np.arange(3, dtype=F32 if "f32" in comparator and not two else I32)[None]
    text, *_ = _sort(comparator, [keys, np.ones((1, 3), F32)] if two else [keys])
    module = invert.from_stablehlo(text)
    certificate = module.report.certificate
    assert certificate.kind == "exact"
    assert (str(certificate) == "exact") == known
    if not known:
        assumed = "provided that the comparators of its sorts are strict weak orders"
        assert assumed in str(module.report)
        assert assumed in " ".join(module.source.split())  # over several lines
    # The program that is handed out holds no trace of that.
    assert not any("#" in str(names_of(e)) for e in jaxprs.equations(module.jaxpr))
