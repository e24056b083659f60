"""Which tests `make quick` runs."""

from __future__ import annotations

import pytest

from tests.changed import nearest, ops_of

TESTS = ("tests/tf/ops/test_sort.py", "tests/tf/test_rows.py", "tests/ir/test_match.py")
TEXT = {
    TESTS[0]: "import tensorflow as tf\n",
    TESTS[1]: "from invert.tf.values.bounded import BoundedArray\n",
    TESTS[2]: "from invert.ir import jaxprs\nfrom tests.harness_cases import cases\n",
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("invert/primitives/tf/sort.py", [TESTS[0]]),
        ("invert/tf/values/bounded.py", [TESTS[1], TESTS[0]]),  # an import is nearer than a folder
        ("invert/ir/jaxprs.py", [TESTS[2]]),
        ("tests/harness_cases.py", [TESTS[2]]),
        ("tests/tf/test_rows.py", [TESTS[1]]),
        ("docs/index.md", []),
    ],
)
def test_the_nearest_tests_come_first(changed: str, expected: list[str]) -> None:
    assert nearest([changed], TESTS, TEXT) == expected


def test_a_file_of_rules_has_the_tests_of_its_ops() -> None:
    source = '@rule("TopKV2")\ndef top_k(x: Array, k: Int, *, op: str): return named("NoSuchOp")'
    assert ops_of(source) == ["tests/tf/ops/test_ops.py::test_all_dtypes[TopKV2]"]
    # XLA does not compile it, but there are recipes for it.
    assert ops_of('@rule("MapDefun")') == ["tests/tf/ops/test_ops.py::test_all_dtypes[MapDefun]"]
