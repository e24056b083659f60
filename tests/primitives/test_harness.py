"""JAX's own test cases of its primitives: exported, recovered, compared with the original."""

from __future__ import annotations

import re

import jax
import jax.export
import pytest

from tests.harness_cases import Case, compare, harnesses, recover, sample

SAMPLE = frozenset(sample(200))

CHECKS = ("forward", "jit", "vmap", "jvp", "vjp")

# What does not work yet: (cases, checks, reason). A listed check must fail on every case it names.
KNOWN_GAPS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        r"gather_(batchdims_shape_(2_3_3|3_10)_.*"
        r"|op_.*_start_index_map_1_2_.*_slice_sizes_(10_10_10|2_2_3|2_3_3)_.*)"
        r"|scatter_add_modes_out_of_bounds_.*_PROMISE_IN_BOUNDS_.*",
        ("vjp",),
        "an index out of bounds that the original promises to be in them; it comes back as clamped "
        "or dropped",
    ),
)


def gaps(name: str) -> dict[str, str]:
    """Checks known to fail on a case, with the reason."""
    return {
        check: reason
        for cases, checks, reason in KNOWN_GAPS
        if re.fullmatch(cases, name)
        for check in checks
    }


# XLA takes half a minute to compile derivatives of theirs.
_LONG = ("igamma", "random_gamma", "regularized_incomplete_beta")


def _marks(name: str) -> list[pytest.MarkDecorator]:
    quick = name in SAMPLE and not name.startswith(_LONG)
    return [] if quick else [pytest.mark.slow]


def failures(name: str, checks: tuple[str, ...]) -> dict[str, str]:
    case = Case(name)
    try:
        jax.jit(case)(*case.args)
    except Exception as error:  # noqa: BLE001  JAX's own failure says nothing about ours
        pytest.skip(f"JAX itself fails: {type(error).__name__}")
    try:
        recovered = recover(case)
    except ValueError as error:
        if "custom call" in str(error) and "compatibility" in str(error):
            pytest.skip("JAX refuses to export the custom call it lowers to")
        raise
    return compare(case, recovered, case.args, case.batches(), names=checks, seed=case.seed)


@pytest.mark.drawn(40)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=_marks(name), id=name) for name in sorted(harnesses())]
)
def test_case(name: str) -> None:
    known = gaps(name)
    found = failures(name, tuple(c for c in CHECKS if c not in known))
    assert not found, "\n".join(f"{check}: {text}" for check, text in found.items())


@pytest.mark.parametrize(
    ("name", "check"),
    [
        pytest.param(
            name,
            check,
            marks=[*_marks(name), pytest.mark.xfail(strict=True, reason=reason)],
            id=f"{name}-{check}",
        )
        for name in sorted(harnesses())
        for check, reason in gaps(name).items()
    ],
)
def test_known_gap(name: str, check: str) -> None:
    found = failures(name, (check,))
    assert not found, found[check]


def test_sample_takes_from_every_group() -> None:
    groups = {h.group_name for h in harnesses().values()}
    assert {harnesses()[name].group_name for name in SAMPLE} == groups
