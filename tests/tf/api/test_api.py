"""The public functions of TensorFlow and Keras, compared with TensorFlow.

Each table names every public function of a namespace, with calls of it or the reason why there are
none. A call is compared in values, gradients, special values, with an open size, under `vmap`, and
in other dtypes. `python -m tests.tf.api.report` prints the counts.
"""

from __future__ import annotations

import zlib

import pytest

from tests.tf.api.calls import Call
from tests.tf.api.suites import ASPECTS, SUITES, Suite, check, missing, unknown

_TOGETHER = 10
# One of so many functions, on every push.
_SHARE = 28


def test_every_public_function_has_an_entry() -> None:
    assert missing() == []


def test_every_entry_is_for_a_public_function() -> None:
    assert unknown() == []


def test_omissions_have_a_reason() -> None:
    empty = [f"{s.name}.{n}" for s in SUITES.values() for n, e in s.table.items() if not e]
    assert empty == []


def _groups(size: int) -> list[tuple[str, int]]:
    return [
        (suite.name, start)
        for suite in SUITES.values()
        for start in range(0, len(list(suite.calls())), size)
    ]


def _assert_equal(suite: Suite, calls: list[tuple[str, int, Call]], *aspects: str) -> None:
    outcomes = check(suite, calls, aspects)
    problems = [
        f"{o.label} {aspect}: {problem}"
        for o in outcomes
        for aspect, problem in o.problems.items()
        if problem is not None
    ]
    assert not problems, "\n".join(problems)
    assert all(o.problems for o in outcomes)


def _quick(suite: Suite) -> list[tuple[str, int, Call]]:
    """The first call of each of some functions."""
    return [
        (name, number, one)
        for name, number, one in suite.calls()
        if number == 0
        and not one.error
        and zlib.crc32(f"{suite.name}.{name}".encode()) % _SHARE == 0
    ]


@pytest.mark.parametrize("name", [n for n, s in SUITES.items() if _quick(s)])
def test_values_and_gradients_of_a_sample(name: str) -> None:
    _assert_equal(SUITES[name], _quick(SUITES[name]), "value")


@pytest.mark.slow
@pytest.mark.drawn(24)
@pytest.mark.parametrize(("name", "start"), _groups(_TOGETHER))
def test_calls(name: str, start: int) -> None:
    suite = SUITES[name]
    _assert_equal(suite, list(suite.calls())[start : start + _TOGETHER], *ASPECTS)
