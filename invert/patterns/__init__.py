"""The ordered pipeline of patterns, with the reason for each position."""

import dataclasses
import difflib
from collections.abc import Iterator

from invert._config import Config, refuse
from invert.patterns import (
    branches,
    calls,
    dated,
    indexing,
    keys,
    library,
    linalg,
    loops,
    optimized,
    random,
    special,
    spelling,
    unrolled,
    windows,
    written,
)
from invert.patterns import complex as complex_
from invert.rewriting.pattern import Stage

# Templates of a stage are rewritten by the stages before it, so what other patterns contain comes
# first.
STAGES = (
    # Loops over blocks first, while their bodies are as lowered, so that templates are too. The
    # outer ones before the inner ones, for the same reason.
    Stage(unrolled.PATTERNS, outermost_first=True),
    # Hash functions of random numbers, which JAX outlines.
    Stage((*random.HASHES, *dated.HASHES, *dated.FALLBACKS)),
    # Reductions and windows: many other functions call cumulative sums and argmax.
    Stage(windows.PATTERNS + indexing.PATTERNS),
    # Functions that JAX outlines around one primitive, once that primitive is recovered.
    Stage(calls.PATTERNS, outermost_first=True),
    # Functions that the lowering expands.
    Stage((*complex_.PATTERNS, *special.PATTERNS)),
    Stage(special.INCOMPLETE),
    Stage((*linalg.PATTERNS, *linalg.EXPANDED)),
    # Lowerings of older releases, if today's are not found.
    Stage(dated.GUARDED),
    Stage(dated.ALONE),
    Stage(linalg.SOLVES),
    # Keys, then the samplers that hold keys and special functions.
    Stage(random.KEYS),
    Stage(random.SAMPLERS),
    # Functions with derivative rules of their own, the outer ones first: they call each other.
    Stage(library.AROUND, outermost_first=True, inside_rules=False),
    Stage(library.PATTERNS, outermost_first=True, inside_rules=False),
    # Loops after the expansions above, which contain loops as they were lowered.
    Stage(loops.PATTERNS),
    # Operands of branches, after the library functions that hold such branches.
    Stage(branches.PATTERNS, inside_rules=False),
    # Keys instead of their words, through the calls and loops recovered by now.
    Stage(keys.PATTERNS),
    # Powers and conversions that only a location distinguishes from their lowering.
    # By now, functions with rules are spelled as in JAX.
    Stage(written.PATTERNS, inside_rules=False),
    # Choices among several primitives of one op, by hints, so no template may come after it.
    Stage(spelling.PATTERNS, inside_rules=False),
)


def names() -> tuple[str, ...]:
    """Names of all patterns, in order; alternatives of one function share a name."""
    return tuple(dict.fromkeys(pattern.name for stage in STAGES for pattern in stage.patterns))


def unknown(name: str) -> str:
    """The reason why a name is unknown, with the closest pattern."""
    close = difflib.get_close_matches(name, names(), 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"no pattern is named {name!r}{hint}"


def check_names(config: Config) -> None:
    """Check the names of patterns in the options, and of the rewrites of `optimize`.

    **Raises:** `ValueError` with all unknown ones.
    """
    refuse(_unknown_names(config))


def _unknown_names(config: Config) -> Iterator[str]:
    every = set(names())
    wanted = config.patterns if isinstance(config.patterns, tuple) else ()
    disabled = every.union(optimized.names())
    options = (
        ("patterns", wanted, every),
        ("disabled_patterns", config.disabled_patterns, disabled),
    )
    for option, given, known in options:
        for name in dict.fromkeys(given):
            if name not in known:
                yield f"{option}: {unknown(name)} (invert.patterns.names() lists them)"


def selected(wanted: bool | tuple[str, ...], disabled: tuple[str, ...]) -> tuple[Stage, ...]:
    """The stages, with the enabled patterns only."""
    if wanted is False:
        return ()
    on = set(names() if wanted is True else wanted) - set(disabled)
    return tuple(
        dataclasses.replace(s, patterns=tuple(p for p in s.patterns if p.name in on), stored=True)
        for s in STAGES
    )
