"""Mutants: a module with one change must come back as the changed program."""

from __future__ import annotations

import pytest

from tests.patterns.mutants import Judge, Tally, judge_some
from tests.patterns.mutation_programs import FAMILIES

PROGRAMS = [(family, name) for family, programs in FAMILIES.items() for name in programs]
# About a thousand in all.
EACH = 11


def test_one_mutant_of_each_fifth_program() -> None:
    tally = Tally()
    with Judge() as judge:
        for family, name in PROGRAMS[::5]:
            tally.outcomes += judge_some(judge, name, *FAMILIES[family][name], 1, 1).outcomes
    print(tally)
    assert tally.valid >= len(PROGRAMS[::5]) - 3
    assert not tally.failures, "\n".join(tally.failures)


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_mutants(family: str) -> None:
    tally = Tally()
    with Judge() as judge:
        for name, (function, avals) in FAMILIES[family].items():
            tally.outcomes += judge_some(judge, name, function, avals, EACH).outcomes
    print(f"{family}: {tally}")
    assert tally.valid
    assert not tally.failures, "\n".join(tally.failures)
