"""`invert.explain`: where a pattern matches in a function, and why not elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax

from invert._errors import PatternError
from invert._private.jax import trace_closed
from invert.ir import jaxprs
from invert.ir.avals import type_of_value
from invert.ir.match import place_of
from invert.ir.types import Aval, ClosedJaxpr, JaxFunction, Value
from invert.patterns import STAGES, unknown
from invert.rewriting import driver
from invert.rewriting.pattern import Call, EquationPattern, Pattern, ProgramPattern, Stage
from invert.rewriting.templates import raise_call, written_call


@dataclasses.dataclass(frozen=True)
class Attempt:
    """The outcome of a pattern at one equation.

    **Attributes:**

    - `root`: the primitive of the equation.
    - `place`: its name scopes and source line; `""` if neither is known.
    - `matched`: whether the pattern matches there.
    - `equation`: the primitive of the equation where the longest partial match failed.
    - `equation_place`: the place of that equation.
    - `reason`: what the pattern and the program have there; `""` if the pattern matches.
    - `compared`: how many equations matched before.
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
    """The outcome of a pattern in a program; as text, a line per equation.

    **Attributes:**

    - `pattern`: name of the pattern.
    - `roots`: the primitives where it may apply.
    - `attempts`: an `Attempt` for each match, and for each other equation of these primitives:
        matches first, then failures, the longest partial match first.
    """

    pattern: str
    roots: tuple[str, ...]
    attempts: tuple[Attempt, ...]

    @property
    def matched(self) -> int:
        """The number of matches."""
        return sum(a.matched for a in self.attempts)

    def __str__(self) -> str:
        if not self.attempts:
            return f"{self.pattern}: nothing to try, the program holds no {' or '.join(self.roots)}"
        left = len(self.attempts) - self.matched
        head = f"{self.pattern}: {self.matched} matched, {left} not"
        return "\n".join([head, *(f"  {a}" for a in self.attempts)])


def explain(
    pattern: Pattern | EquationPattern | str,
    fn: JaxFunction,
    *args: Value,
    lowered: bool = False,
    platform: str = "cpu",
) -> Explanation:
    """Find where a pattern matches in a function, and why it does not elsewhere.

    **Arguments:**

    - `pattern`: a pattern of your own, or the name of one of `invert`'s.
    - `fn`: any JAX function of arrays in pytrees, such as a recovered module.
    - `args`: pytrees of arrays or `jax.ShapeDtypeStruct`.
    - `lowered`: whether to match against the lowering of `fn`, rewritten by the earlier patterns,
        as a conversion does. Otherwise the traced program is matched, as `invert.rewrite` does.
        `invert`'s own patterns are always matched against the lowering.
    - `platform`: the platform to lower for.

    **Returns:** an `Explanation`; print it, or read its `attempts`.

    **Raises:** `PatternError` if the pattern is unknown or not a pattern, or rewrites whole
        programs.

    ??? example

        ```python
        import jax
        import jax.numpy as jnp

        import invert

        silu = invert.pattern(before=lambda x: x * (1 / (1 + jnp.exp(-x))), after=jax.nn.silu)
        print(invert.explain(silu, lambda x: x * (2 / (1 + jnp.exp(-x))), jnp.ones(3)))
        # silu: 0 matched, 1 not
        #   mul at model.py:7: div at model.py:7: 1.0 in the pattern, 2.0 in the program
        ```
    """
    if not isinstance(pattern, (str, Pattern, EquationPattern)):
        raise PatternError(
            f"explain takes a pattern or the name of one, not a {type(pattern).__name__}",
            remedy="Call it as explain(pattern, fn, *args).",
        )
    run, avals = _flat(fn, args)
    x64 = any(map(jaxprs.is_wide_dtype, (a.dtype for a in avals)))
    earlier, stage, make = STAGES, None, raise_call
    if isinstance(pattern, str):
        pattern, earlier, stage = _named(pattern)
        lowered = True
    stage = stage or Stage((pattern,))
    if lowered:
        closed = raise_call(Call("explained", run, avals, x64=x64, of_site=True), platform)
        if closed is None:
            raise PatternError(
                f"pattern {pattern.name!r}: JAX does not lower the function",
                remedy="Pass a function that jax.jit compiles at these arguments.",
            )
    else:
        earlier, make = (), written_call
        with jax.enable_x64(x64):
            closed = jaxprs.canonicalize(trace_closed(run, *avals))
    stages = (*earlier, stage)
    rewriter = driver.Rewriter(stages, make, platform, x64=x64, x64_first=x64)
    return Explanation(pattern.name, pattern.roots, _attempts(rewriter, closed))


def _attempts(rewriter: driver.Rewriter, closed: ClosedJaxpr) -> tuple[Attempt, ...]:
    """Record the last stage's attempts in a program rewritten by the earlier ones."""
    last = len(rewriter.stages) - 1
    closed = rewriter.run(closed, last)
    rewriter.trials = []
    rewriter.run_stage(closed, last)
    attempts = map(_described, rewriter.trials)
    return tuple(sorted(attempts, key=lambda a: (not a.matched, -a.compared)))


def _flat(
    fn: JaxFunction, args: Sequence[Value]
) -> tuple[Callable[..., list[Value]], tuple[Aval, ...]]:
    """A function on the leaves of its arguments, and their types."""
    flat, tree = jax.tree_util.tree_flatten(args)

    def run(*values: Value) -> list[Value]:
        return jax.tree_util.tree_leaves(fn(*jax.tree_util.tree_unflatten(tree, values)))

    return run, tuple(map(type_of_value, flat))


def _named(name: str) -> tuple[Pattern | EquationPattern, tuple[Stage, ...], Stage]:
    """A named pattern, the stages before it, and its stage with it alone."""
    for number, stage in enumerate(STAGES):
        for pattern in stage.patterns:
            if pattern.name == name:
                if isinstance(pattern, ProgramPattern):
                    raise PatternError(
                        f"pattern {name!r} rewrites a program as a whole: it is not tried at "
                        "single equations",
                        remedy="Ask for another pattern.",
                    )
                return pattern, STAGES[:number], dataclasses.replace(stage, patterns=(pattern,))
    raise PatternError(unknown(name), remedy="invert.patterns.names() lists them.")


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
