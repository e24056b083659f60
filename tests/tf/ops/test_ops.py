"""Every public op that XLA compiles, and others: values in all dtypes, and gradients.

The quick tests run each op in one dtype, and a third of them in a second one. `python -m
tests.tf.ops.table` prints which ops have a rule, and the exceptions.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pytest
import tensorflow as tf

import invert
from tests.tf.ops.cases import Drawn, case, cases_of, compare, dtypes_of, first_case, recipes_of
from tests.tf.ops.exceptions import DIFFERENCES, EXCEPTIONS
from tests.tf.ops.recipes_quantized_more import ONEDNN
from tests.tf.ops.table import EVERY, OTHER_OPS, PUBLIC_OPS, TABLE, TESTED_OPS, route

_GROUPS = 24


def test_every_public_op_has_a_case_or_a_reason() -> None:
    assert len(PUBLIC_OPS) == len(set(PUBLIC_OPS)) == 480
    assert set(EXCEPTIONS) <= set(PUBLIC_OPS)
    assert not set(EXCEPTIONS) & set(TABLE)
    assert [op for op in TESTED_OPS if not recipes_of(op, TABLE)] == []
    assert [op for op in (*TESTED_OPS, *OTHER_OPS) if route(op) == "none"] == []


def _differs(one: Drawn) -> bool:
    """Whether the values of a case are known to differ."""
    keys = {"values", f"values {one.dtype}", f"number {one.number}"}
    return bool(keys & set(DIFFERENCES.get(one.op, {})))


# TensorFlow has two kernels, which round differently; which one runs varies between processes.
_ROUNDED = ("QuantizedAvgPool",)


def _compared(cases: Sequence[Drawn], *, slopes: bool = False) -> set[str]:
    """The ops of the cases that run in TensorFlow; fails if one is wrong."""
    chosen = [c for c in cases if not _differs(c) and c.op not in _ROUNDED]
    outcomes = compare(chosen, slopes=slopes)
    wrong = [text for outcome in outcomes for text in outcome.wrong]
    assert not wrong, "\n".join(wrong)
    ran = [outcome.case for outcome in outcomes if outcome.absent is None]
    return {one.op for one in ran if isinstance(one, Drawn)}


def _quick(op: str) -> list[Drawn]:
    """The first recipe in its first dtype and, for a third of the public ops, in another one."""
    first = first_case(op, EVERY)
    assert first is not None, f"{op} has no recipe"
    dtypes = dtypes_of(op, first.recipe)
    number = zlib.crc32(op.encode())
    turn = dtypes[number % len(dtypes)]
    if turn == first.dtype or first.alone or op in OTHER_OPS or number // 8 % 3:
        return [first]
    return [first, case(op, 0, first.recipe, turn)]


_ALONE = [op for op in (*TESTED_OPS, *OTHER_OPS) if _quick(op)[0].alone]
_TOGETHER = [op for op in (*TESTED_OPS, *OTHER_OPS) if op not in _ALONE]
# They take seconds to compile.
_LONG = frozenset(("XlaSvd", "StatefulStandardNormalV2", "StatefulTruncatedNormal"))


@pytest.mark.parametrize("group", range(_GROUPS))
@pytest.mark.drawn(30)
def test_values(group: int) -> None:
    ops = _TOGETHER[group::_GROUPS]
    compared = _compared([c for op in ops for c in _quick(op)])
    left = {op for op in ops if all(map(_differs, _quick(op)))} | set(ONEDNN) | set(_ROUNDED)
    assert set(ops) <= compared | left, set(ops) - compared - left


@pytest.mark.parametrize(
    "op", [pytest.param(op, marks=pytest.mark.slow) if op in _LONG else op for op in _ALONE]
)
@pytest.mark.drawn(15)
def test_values_alone(op: str) -> None:
    first = _quick(op)[0]
    assert _compared([first]) or _differs(first)


@pytest.mark.slow
@pytest.mark.drawn(24)
@pytest.mark.nearest
@pytest.mark.parametrize("op", [*TESTED_OPS, *OTHER_OPS])
def test_all_dtypes(op: str) -> None:
    cases = cases_of(op, EVERY)
    compared = _compared(cases, slopes=op in OTHER_OPS)
    known = all(map(_differs, cases)) or op in ONEDNN or op in _ROUNDED
    assert compared or known, f"{op}: no case runs in TensorFlow"


@pytest.mark.slow
@pytest.mark.drawn(24)
@pytest.mark.parametrize("op", TESTED_OPS)
def test_gradients(op: str) -> None:
    cases = [case(op, i, rc, dtypes_of(op, rc)[0]) for i, rc in enumerate(recipes_of(op, TABLE))]
    if "gradients" not in DIFFERENCES.get(op, {}):
        assert _compared(cases, slopes=True) or all(map(_differs, cases))


_PRINTED = ("QuantizedConv2DWithBiasAndReluAndRequantize", "IsotonicRegression", "MapDefun", "For")


@pytest.mark.parametrize(
    "op", [_PRINTED[0], *(pytest.param(op, marks=pytest.mark.slow) for op in _PRINTED[1:])]
)
def test_program_as_text(op: str) -> None:
    one = first_case(op, EVERY)
    assert one is not None
    function = tf.function(one.flat_function, autograph=False)
    module = invert.convert(function, *one.specs)
    assert str(module.report.certificate) == "exact"
    assert "def __call__" in module.source  # which is traced and compared when it is made
