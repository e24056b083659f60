"""`invert.explain`: where a pattern applies to a function, and why not elsewhere."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable
from typing import Any

import jax

from invert._errors import PatternError
from invert._private.jax import trace_closed
from invert.ir import jaxprs
from invert.ir.avals import type_of_value
from invert.ir.match import place_of
from invert.ir.types import Value
from invert.patterns import STAGES, names
from invert.rewriting import driver
from invert.rewriting.pattern import Call, EquationPattern, Pattern, ProgramPattern, Stage
from invert.rewriting.templates import raise_call, written_call


@dataclasses.dataclass(frozen=True)
class Attempt:
    """What became of a pattern at one equation.

    **Attributes:**

    - `root`: the primitive of the equation.
    - `place`: its name scopes and the line that it was written at, `""` where neither is known.
    - `matched`: whether the pattern was found there.
    - `equation`: the primitive of the equation at which the furthest try ended.
    - `equation_place`: the place of that.
    - `reason`: what the pattern has there and what the program has; `""` where it was found.
    - `compared`: how many equations were the same until then.
    """

    root: str
    place: str
    matched: bool
    equation: str = ""
    equation_place: str = ""
    reason: str = ""
    compared: int = 0

    def __str__(self) -> str:
        where = _at(self.root, self.place)
        if self.matched:
            return f"{where}: matched"
        if (self.equation, self.equation_place) == (self.root, self.place):
            return f"{where}: {self.reason}"
        return f"{where}: {_at(self.equation, self.equation_place)}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What became of a pattern in a program; its text has a line for each equation.

    **Attributes:**

    - `pattern`: name of the pattern.
    - `roots`: the primitives at which it may apply.
    - `attempts`: an `Attempt` for each equation of these primitives that is not part of a match,
        and for each match: matches first, then those that failed, the furthest first.
    """

    pattern: str
    roots: tuple[str, ...]
    attempts: tuple[Attempt, ...]

    @property
    def matched(self) -> int:
        """How often the pattern was found."""
        return sum(a.matched for a in self.attempts)

    def __str__(self) -> str:
        if not self.attempts:
            return f"{self.pattern}: nothing to try, the program holds no {' or '.join(self.roots)}"
        left = len(self.attempts) - self.matched
        head = f"{self.pattern}: {self.matched} matched, {left} not"
        return "\n".join([head, *(f"  {a}" for a in self.attempts)])


def explain(
    pattern: Pattern | EquationPattern | str,
    fn: Callable[..., Any],
    *args: Value,
    lowered: bool = False,
    platform: str = "cpu",
) -> Explanation:
    """Where a pattern is found in a function, and why not elsewhere.

    **Arguments:**

    - `pattern`: a pattern of your own, or the name of one of `invert`.
    - `fn`: any JAX function of arrays in pytrees, such as a recovered module.
    - `args`: arrays in pytrees, or `jax.ShapeDtypeStruct` in their place.
    - `lowered`: whether the pattern is laid over what JAX lowers `fn` to, after the patterns that
        come before it, as a conversion does; else over the program that JAX traces, as
        `invert.rewrite` does. Patterns of `invert` are always laid over the former.
    - `platform`: the platform for which is lowered.

    **Returns:** an `Explanation`; print it, or read its `attempts`.

    **Raises:** `PatternError` where no pattern has the name, or it rewrites programs as a whole.

    ??? example

        ```python
        print(invert.explain(silu, lambda x: x * (2 / (1 + jnp.exp(-x))), x))
        # silu: 0 matched, 1 not
        #   mul at model.py:7: div at model.py:7: 1.0 in the pattern, 2.0 in the program
        ```
    """
    flat, tree = jax.tree_util.tree_flatten(args)
    avals = tuple(map(type_of_value, flat))

    def run(*values: Value) -> list[Value]:
        return jax.tree_util.tree_leaves(fn(*jax.tree_util.tree_unflatten(tree, values)))

    x64 = any(map(jaxprs.is_wide_dtype, (a.dtype for a in avals)))
    earlier, stage, make = STAGES, None, raise_call
    if isinstance(pattern, str):
        pattern, earlier, stage = _named(pattern)
        lowered = True
    stage = stage or Stage((pattern,))
    if lowered:
        closed = raise_call(Call("explained", run, avals, x64=x64, of_site=True), platform)
        if closed is None:
            raise PatternError(f"pattern {pattern.name!r}: JAX does not lower the function")
    else:
        earlier, make = (), written_call
        with jax.enable_x64(x64):
            closed = jaxprs.canonicalize(trace_closed(run, *avals))
    stages = (*earlier, stage)
    rewriter = driver.Rewriter(stages, make, platform, x64=x64, x64_first=x64)
    closed = rewriter.run(closed, len(earlier))
    rewriter.trials = []
    rewriter.run_stage(closed, len(earlier))
    found = sorted(map(_described, rewriter.trials), key=lambda a: (not a.matched, -a.compared))
    return Explanation(pattern.name, pattern.roots, tuple(found))


def _named(name: str) -> tuple[Pattern | EquationPattern, tuple[Stage, ...], Stage]:
    """The pattern of a name, the stages before its own, and its own without the others."""
    for number, stage in enumerate(STAGES):
        for pattern in stage.patterns:
            if pattern.name == name:
                if isinstance(pattern, ProgramPattern):
                    raise PatternError(
                        f"pattern {name!r} rewrites a program as a whole: "
                        "there is no equation at which it is tried"
                    )
                return pattern, STAGES[:number], dataclasses.replace(stage, patterns=(pattern,))
    close = difflib.get_close_matches(name, names(), 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise PatternError(f"there is no pattern {name!r}{hint} (invert.patterns.names() lists them)")


def _described(trial: driver.Trial) -> Attempt:
    root, place = trial.eqn.primitive.name, place_of(trial.eqn)
    if trial.matched:
        return Attempt(root, place, True)
    if not trial.misses:
        return Attempt(root, place, False, root, place, "the pattern proposes nothing here")
    miss = max(trial.misses, key=lambda m: m.compared)
    at = miss.eqn.primitive.name, place_of(miss.eqn)
    return Attempt(root, place, False, *at, miss.reason, miss.compared)


def _at(primitive: str, place: str) -> str:
    return f"{primitive} at {place}" if place else primitive
