"""Every public op that XLA compiles, against TensorFlow: values in all dtypes, and gradients.

The quick tests run each op in one dtype, and in one more that differs from op to op. `python -m
tests.tf.ops.table` prints which ops have a rule, which go over the XLA bridge, and the exceptions.
"""

from __future__ import annotations

import zlib

import pytest

from tests.tf.ops.cases import Case, case, cases_of, dtypes_of, first_case, recipes_of
from tests.tf.ops.compare import Comparison, NoKernel, check_together
from tests.tf.ops.exceptions import DIFFERENCES, EXCEPTIONS
from tests.tf.ops.recipes_other import Variables
from tests.tf.ops.table import PUBLIC_OPS, TABLE, TESTED_OPS, route

_GROUPS = 24


def test_every_public_op_has_a_case_or_a_reason() -> None:
    assert len(PUBLIC_OPS) == len(set(PUBLIC_OPS)) == 480
    assert set(EXCEPTIONS) <= set(PUBLIC_OPS)
    assert not set(EXCEPTIONS) & set(TABLE)
    assert [op for op in TESTED_OPS if not recipes_of(op, TABLE)] == []
    assert [op for op in TESTED_OPS if route(op) == "none"] == []


def _alone(one: Case) -> bool:
    """Whether a case cannot share its program with others, or be run eagerly."""
    return (
        isinstance(one.function, Variables)
        or one.recipe.moments is not None
        or one.op == "RandomShuffle"  # whose order is that of the key
        or route(one.op) == "bridge"
        or one.op.startswith(("Stack", "TensorArray", "Xla", "Stateful"))
    )


def _quick(op: str) -> list[Case]:
    """The first recipe in its first dtype, and in another one by turns."""
    first = first_case(op, TABLE)
    assert first is not None, f"{op} has no recipe"
    dtypes = dtypes_of(op, first.recipe)
    turn = dtypes[zlib.crc32(op.encode()) % len(dtypes)]
    again = case(op, 0, first.recipe, turn)
    return [first] if turn == first.dtype or _alone(first) else [first, again]


@pytest.mark.parametrize("group", range(_GROUPS))
def test_values(group: int) -> None:
    cases = [c for op in TESTED_OPS[group::_GROUPS] for c in _quick(op) if not _alone(c)]
    wrong, _ = check_together([c for c in cases if not _differs(c)])
    assert not wrong, "\n".join(wrong)


_ALONE = [op for op in TESTED_OPS if _alone(_quick(op)[0])]
# They take seconds to compile.
_LONG = frozenset(("XlaSvd", "StatefulStandardNormalV2", "StatefulTruncatedNormal"))


@pytest.mark.parametrize(
    "op", [pytest.param(op, marks=pytest.mark.slow) if op in _LONG else op for op in _ALONE]
)
def test_values_alone(op: str) -> None:
    first = _quick(op)[0]
    if not _differs(first):
        Comparison(first).check()


def _differs(one: Case) -> bool:
    """Whether the values of a case are known to differ."""
    keys = {"values", f"values {one.dtype}", f"number {one.number}"}
    return bool(keys & set(_differences(one)))


def _differences(one: Case) -> dict[str, str]:
    """Known differences of a case: of its values or gradients, with the reason."""
    return DIFFERENCES.get(one.op, {})


@pytest.mark.slow
@pytest.mark.nearest
@pytest.mark.parametrize("op", TESTED_OPS)
def test_all_dtypes(op: str) -> None:
    cases = [c for c in cases_of(op, TABLE) if not _differs(c)]
    # Together: one program for an op and not one for each dtype.
    wrong, left = check_together([c for c in cases if not _alone(c)])
    compared = len(cases) - len(left)
    for one in (*left, *(c for c in cases if _alone(c))):
        try:
            Comparison(one).check()
        except NoKernel:
            compared -= one not in left  # TensorFlow has no kernel for the dtype
        except AssertionError as error:
            wrong.append(str(error))
        else:
            compared += one in left
    assert not wrong, "\n".join(wrong)
    assert compared or not cases, f"{op}: no case runs in TensorFlow"


@pytest.mark.slow
@pytest.mark.parametrize("op", TESTED_OPS)
def test_gradients(op: str) -> None:
    for number, recipe in enumerate(recipes_of(op, TABLE)):
        one = case(op, number, recipe, dtypes_of(op, recipe)[0])
        if "gradients" not in _differences(one) and not _differs(one):
            Comparison(one).check(gradients=True)
