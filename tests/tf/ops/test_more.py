"""Ops that XLA does not compile, against TensorFlow: values in all dtypes, and gradients."""

from __future__ import annotations

import functools

import pytest
import tensorflow as tf

import invert
from tests.tf.ops.cases import case as case_of
from tests.tf.ops.cases import cases_of, dtypes_of
from tests.tf.ops.compare import Comparison, NoKernel
from tests.tf.ops.recipes_more import MORE
from tests.tf.ops.recipes_quantized_more import ONEDNN
from tests.tf.ops.table import PUBLIC_OPS, route


def test_each_has_a_rule() -> None:
    assert not set(MORE) & set(PUBLIC_OPS)
    assert [op for op in MORE if route(op) != "rule"] == []


# Their other kernel, which runs where oneDNN does not, rounds the other way.
_ROUNDED = ("QuantizedAvgPool",)


@functools.cache
def _has_onednn() -> bool:
    """Whether TensorFlow uses oneDNN on this machine."""
    op = next(iter(ONEDNN))
    try:
        Comparison(case_of(op, 0, MORE[op][0], dtypes_of(op, MORE[op][0])[0])).check()
    except NoKernel:
        return False
    return True


@pytest.mark.parametrize("op", MORE)
def test_values(op: str) -> None:
    recipe = MORE[op][0]
    if op in _ROUNDED and not _has_onednn():
        pytest.skip("TensorFlow rounds here as oneDNN does not")
    try:
        Comparison(case_of(op, 0, recipe, dtypes_of(op, recipe)[0])).check()
    except NoKernel:
        if op in ONEDNN:
            pytest.skip("TensorFlow runs it with oneDNN alone")
        raise


@pytest.mark.slow
@pytest.mark.parametrize("op", MORE)
def test_all_dtypes_and_gradients(op: str) -> None:
    if op in _ROUNDED and not _has_onednn():
        pytest.skip("TensorFlow rounds here as oneDNN does not")
    compared = 0
    for one in cases_of(op, MORE):
        try:
            Comparison(one).check(gradients=True)
        except NoKernel:
            continue
        compared += 1
    assert compared or op in ONEDNN, f"{op}: no case runs in TensorFlow"


_PRINTED = ("QuantizedConv2DWithBiasAndReluAndRequantize", "IsotonicRegression", "MapDefun", "For")


@pytest.mark.parametrize(
    "op", [_PRINTED[0], *(pytest.param(op, marks=pytest.mark.slow) for op in _PRINTED[1:])]
)
def test_program_as_text(op: str) -> None:
    recipe = MORE[op][0]
    comparison = Comparison(case_of(op, 0, recipe, dtypes_of(op, recipe)[0]))
    function = tf.function(comparison.function, autograph=False)
    module = invert.convert(function, *comparison.specs)
    assert str(module.report.certificate) == "exact"
    assert "def __call__" in module.source  # which is traced and compared when it is made
