"""Each pattern applies to its preimage, and not to programs that differ in one place.

Near misses are derived from the preimage: one literal, operand, primitive or parameter of its
lowering is changed. Whatever is recognized, the result must lower to the changed program, and the
pattern must not apply to all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import zlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.export
import numpy as np
import pytest

import invert.patterns
from invert import Certificate, Config
from invert._private.jax import REFUSALS, eval_closed, open_jaxpr, trace_closed
from invert._verify import certify
from invert.frontends import exported, stablehlo
from invert.ir import hints, jaxprs
from invert.ir.match import difference
from invert.patterns import STAGES
from invert.rewriting.driver import Rewriter
from invert.rewriting.templates import raise_call
from invert.stablehlo.lowered import lower
from tests.patterns.perturb import perturbed
from tests.patterns.preimages import PREIMAGES, Preimage

NAMES = invert.patterns.names()
_JAX = tuple(int(n) for n in jax.__version__.split(".")[:2])


def _raised(preimage: Preimage) -> Any:
    """The program right after raising."""
    if isinstance(preimage.function, str):
        (entry,) = stablehlo.entry_points(preimage.function, config=Config()).values()
        avals = [jax.ShapeDtypeStruct(tuple(a.shape), a.dtype) for a in entry.args]
    else:
        with jax.enable_x64(any(jaxprs.is_wide_dtype(a.dtype) for a in preimage.avals)):
            found = jax.export.export(
                jax.jit(preimage.function),
                platforms=[preimage.platform],
                disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("ApproxTopK")],
            )(*preimage.avals)
        entry = exported.entry_point(found, config=Config())
        avals = list(preimage.avals)
    with jax.enable_x64(True):
        closed = trace_closed(lambda *xs: entry.fn((), *xs), *avals)
        return jaxprs.canonicalize(closed)


@functools.cache
def _rewriter(platform: str, wide: bool, first: bool, named: bool) -> Rewriter:
    """Shared by all tests, so that each template is lowered once."""
    return Rewriter(STAGES, raise_call, platform, wide, first, named)


@dataclasses.dataclass(frozen=True)
class Recovered:
    """A program before and after; `fired` counts the applications of the pattern."""

    raw: Any
    closed: Any
    fired: int

    def certificate(self, platform: str) -> Certificate:
        raw, constants = jaxprs.split_constants(self.raw)
        recovered = jaxprs.over_constants(hints.merge_broadcasts(self.closed), constants)
        wide = jaxprs.has_wide_types(raw)
        return certify(raw, recovered, constants, platform=platform, x64=wide)


def _recovered(name: str, raw: Any, platform: str) -> Recovered:
    with jax.enable_x64(True):
        wide = jaxprs.wide_types(open_jaxpr(raw))
        first = bool(wide - {np.dtype(np.uint64)})
        rewriter = _rewriter(platform, bool(wide), first, hints.names_primitives(raw))
        before = rewriter.counts[name]
        closed = rewriter.run(raw)
        return Recovered(raw, closed, rewriter.counts[name] - before)


def _near(name: str, raw: Any) -> Iterator[tuple[str, Any]]:
    """Near misses of a program, the hand-written one first."""
    by_hand = PREIMAGES[name].near
    if by_hand is not None:
        # Without locations, which would tell: what is left are the ops.
        yield "by hand", hints.without_hints(_raised(by_hand))
    changes = perturbed(raw, random.Random(zlib.crc32(name.encode())))
    while True:
        with jax.enable_x64(True):
            what, changed = next(changes, ("", None))
            if changed is None:
                return
            changed = jaxprs.canonicalize(changed)
        # A change to something unused does not change the program.
        if difference(raw, changed) is not None:
            yield what, changed


def _lower(program: Any, platform: str) -> None:
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in program.jaxpr.invars]
    lower(lambda *xs: eval_closed(program, xs), avals, platform=platform, x64=True).raised()


def check(name: str, count: int, enough: int) -> tuple[int, int]:
    """Try `count` near misses until the pattern has rejected `enough` of them.

    **Returns:** how many it rejected, and how many were tried.
    """
    preimage = PREIMAGES[name]
    if not preimage.since <= _JAX < preimage.until:
        pytest.skip(f"jax {jax.__version__} lowers it in another form")
    raw = _raised(preimage)
    good = _recovered(name, raw, preimage.platform)
    assert good.fired, "the pattern does not apply to its preimage"
    if not preimage.dated:
        assert str(good.certificate(preimage.platform)) == "exact"
    # Not every changed program is what lowering would write, so that it does not come back as it
    # was even where it was left alone: then the values have to be the same, bit for bit.
    left, tried = 0, []
    for what, changed in itertools.islice(_near(name, raw), count):
        tried.append(what)
        found = _recovered(name, changed, preimage.platform)
        if not preimage.dated:
            try:
                certificate = found.certificate(preimage.platform)
            except AssertionError:
                # JAX asserts that a parameter, such as an algorithm's number, is one it knows.
                with pytest.raises(AssertionError):
                    _lower(changed, preimage.platform)
                continue
            if not (certificate.kind == "exact" or certificate.largest_error == 0):
                # A program that JAX does not lower proves nothing.
                with pytest.raises(REFUSALS):
                    _lower(changed, preimage.platform)
                continue
        left += found.fired < good.fired
        if left >= enough:
            break
    assert left, f"applies to all of {tried}"
    return left, len(tried)


@pytest.mark.parametrize("name", [n for n in NAMES if not PREIMAGES[n].heavy])
def test_near_miss(name: str) -> None:
    check(name, 40, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_near_misses(name: str) -> None:
    left, tried = check(name, 30, 30)
    print(f"{name}: {left} of {tried}")


def test_every_pattern_has_a_preimage() -> None:
    assert set(PREIMAGES) == set(NAMES)
