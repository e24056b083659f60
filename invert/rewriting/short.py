"""The short form of a pattern: two functions, from which the rest is derived."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from invert._errors import PatternError, only_refusals
from invert._private.jax import (
    REFUSALS,
    Primitive,
    consts_of,
    open_jaxpr,
    trace_closed,
)
from invert.ir.graph import read_by
from invert.ir.match import Miss, same_value
from invert.ir.types import AnyJaxpr, Aval, Eqn, JaxFunction, Value
from invert.rewriting.outline import outline, parameters_differ, shaped
from invert.rewriting.pattern import Call, Pattern, Site, bind, kept_by_call
from invert.rewriting.templates import traced_call

Avals = tuple[jax.ShapeDtypeStruct, ...]
# Keyword arguments passed to both functions.
Choice: TypeAlias = tuple[tuple[str, Hashable], ...]

_DTYPES = (np.float32, np.int32, np.complex64, np.bool_)
_RANKS = (2, 1, 3, 4, 0)
# How many combinations of types are tried at one site.
_MAX_TYPES = 64


@dataclasses.dataclass(frozen=True)
class Short:
    """Proposes calls of `after` where `before` may be.

    **Arguments:**

    - `before`, `after`, `arity`: the two functions and their number of operands. If `before` is
        `None`, the lowering of `after` is looked for, with its operands in that order only.
    - `choices`: keyword arguments to try, in order.
    - `given`: types at which `before` traces, if its author gives them.
    - `stored`: as for the calls that are made.
    """

    before: JaxFunction | None
    after: JaxFunction
    arity: int
    choices: tuple[Choice, ...] = ((),)
    given: Avals | None = None
    stored: bool = False

    def call(self, choice: Choice, avals: Avals) -> Call:
        options = dict(choice)
        primitive = getattr(self.after, "__self__", None)
        if self.before is None and isinstance(primitive, Primitive):
            return bind(primitive, *avals, **options)
        before = None if self.before is None else functools.partial(self.before, **options)
        after = functools.partial(self.after, **options)
        key = (self.before, self.after, choice)
        return Call(key, after, avals, before=before, stored=self.stored)

    @functools.cached_property
    def examples(self) -> tuple[Call, ...]:
        """Calls at which `before` traces, for each choice and rank that it takes."""
        return tuple(
            call
            for choice in self.choices
            for call in _accepted(functools.partial(self.call, choice), self.given, self.arity)
        )

    def __call__(self, site: Site) -> Iterator[Call]:
        for choice in self.choices:
            for avals in self._types(site, choice):
                call = self.call(choice, avals)
                template = site.template(call)
                if template is None:
                    continue
                outlined = outline(template, site.graph, site.eqn, None)
                if outlined is None:
                    yield call
                    continue
                if site.misses is not None and (miss := parameters_differ(template, outlined)):
                    site.misses.append(miss)
                # The lowering of a call has one order of operands.
                commuted = frozenset() if self.before is None else outlined.commuted
                yield dataclasses.replace(call, commuted=commuted)

    def likeliest(self, site: Site) -> Iterator[Call]:
        """The calls on operands that all have the type of the result."""
        return (call for choice in self.choices if (call := self._uniform(choice, site.out)))

    def _uniform(self, choice: Choice, out: jax.ShapeDtypeStruct) -> Call | None:
        call = self.call(choice, (out,) * self.arity)
        results = result_types(call) or ()
        return call if list(map(_short, results)) == [_short(out)] else None

    def _types(self, site: Site, choice: Choice) -> Iterator[Avals]:
        """Types of the operands, where an outline finds candidates."""
        types: dict[Avals, None] = {}
        refused: dict[Avals, None] = {}
        laid = 0
        for skeleton in self._skeletons(choice, site.out):
            template = site.template(skeleton)
            if template is None:
                continue
            outlined = outline(template, site.graph, site.eqn, site.misses)
            if outlined is None:
                continue
            laid = len(outlined.eqns)
            made = shaped(site.graph, site.eqn.outvars[0])
            wanted = {(v.aval.shape, v.aval.dtype) for v in made}
            # The source of a broadcast or conversion is more likely than its result.
            atoms = [reversed(outlined.operands[v]) for v in template.jaxpr.invars]
            tries = itertools.product(*(dict.fromkeys(map(site.aval, a)) for a in atoms))
            for avals in itertools.islice(tries, _MAX_TYPES):
                call = self.call(choice, avals)
                results = result_types(call) if _agree(call) else None
                fits = not wanted.isdisjoint((r.shape, r.dtype) for r in results or ())
                (types if fits else refused)[avals] = None
            if types:
                break
        if refused and not types and site.misses is not None:
            types_text = "; ".join(", ".join(map(_short, avals)) for avals in refused)
            reason = f"no operands of a type that gives {_short(site.out)}: {types_text}"
            site.misses.append(Miss(laid, site.eqn, reason))
        yield from types

    def _skeletons(self, choice: Choice, out: jax.ShapeDtypeStruct) -> tuple[Call, ...]:
        """Examples in this dtype, if `before` traces at it, one of this rank first.

        Lowering is costly, so there the likeliest call is the only example.
        """
        if self.before is None and (call := self._uniform(choice, out)) is not None:
            return (call,)
        rank, dtype = len(out.shape), out.dtype
        key = choice, rank, dtype
        if key not in self._known:
            own = [c for c in self.examples if c.key == self.call(choice, ()).key]
            own.sort(key=lambda call: any(len(a.shape) != rank for a in call.avals))
            # If the rank does not matter, a third example adds nothing.
            self._known[key] = tuple(_recast(call, dtype) for call in own[:2])
        return self._known[key]

    @functools.cached_property
    def _known(self) -> dict[tuple[Choice, int, object], tuple[Call, ...]]:
        return {}


def _recast(call: Call, dtype: DTypeLike) -> Call:
    """An example with `dtype` for its first operand's dtype, if that traces."""
    first = call.avals[0].dtype
    dtypes = [dtype if a.dtype == first else a.dtype for a in call.avals]
    pairs = zip(call.avals, dtypes, strict=True)
    new = dataclasses.replace(call, avals=tuple(jax.ShapeDtypeStruct(a.shape, d) for a, d in pairs))
    return call if result_types(new) is None else new


def lowered(
    name: str,
    root: str,
    *functions: JaxFunction,
    arity: int = 1,
    after: str,
    literal: float | tuple[float, ...] | None = None,
    holds: str | None = None,
    kind: type[np.number] = np.floating,
    hint: str | None = None,
    **params: object,
) -> Pattern:
    """A pattern for the lowerings of `functions`, whose result is computed by `root`.

    Everything is declared, so that nothing is traced before a program may match. In dtypes of 16
    bits or less, which are computed in float32, a conversion may follow `root`.

    **Arguments:**

    - `arity`: the number of operands.
    - `after`: the primitives that compute the first operands of `root`, in order: `a|b` is one of
        two, `_` any atom.
    - `literal`, `holds`: as for `Pattern`.
    - `kind`: the kind of numbers that the result holds.
    - `hint`: the primitive that the location has to name, unless it is empty.
    - `params`: keyword arguments of the functions.
    """
    choice = tuple(params.items())
    shorts = [Short(None, f, arity, (choice,), stored=True) for f in functions]
    producers = [word.split("|") for word in after.split()]

    def propose(site: Site) -> Iterator[Call]:
        last: Eqn | None = site.eqn
        if last.primitive.name != root:
            narrow = site.out.dtype.itemsize <= 2
            last = site.producer(last.invars[0], root) if narrow else None
        if last is None or not jnp.issubdtype(site.out.dtype, kind):
            return
        if hint is not None and site.hint not in ("", hint):
            return
        pairs = list(zip(last.invars, producers, strict=False))
        if all(names == ["_"] or site.producer(a, *names) for a, names in pairs):
            yield from itertools.chain.from_iterable(short.likeliest(site) for short in shorts)
            yield from itertools.chain.from_iterable(short(site) for short in shorts)

    roots = ("convert_element_type", root) if kind is np.floating else (root,)
    return Pattern(name, roots, propose, literal, holds)


@kept_by_call
def result_types(call: Call) -> tuple[jax.ShapeDtypeStruct, ...] | None:
    """Result types of the program to look for; `None` if JAX refuses the call."""
    return _results(call, call.before or call.function)


@kept_by_call
def _agree(call: Call) -> bool:
    """Return whether the call and the program to look for have the same result types."""
    theirs, ours = _results(call, call.function), result_types(call)
    return (
        theirs is not None
        and ours is not None
        and list(map(_short, theirs)) == list(map(_short, ours))
    )


def _results(call: Call, function: JaxFunction) -> tuple[jax.ShapeDtypeStruct, ...] | None:
    def results() -> tuple[tuple[Value, ...], ...] | None:
        try:
            with only_refusals(), jax.enable_x64(call.needs_x64):
                types = jax.tree_util.tree_leaves(jax.eval_shape(function, *call.avals))
        except REFUSALS:
            return None
        return tuple((t.shape, t.dtype, t.weak_type) for t in types)

    entry = call.entry("results", function is call.function)
    found = results() if entry is None else entry.stored(results)
    if found is None:
        return None
    return tuple(jax.ShapeDtypeStruct(s, d, weak_type=weak) for s, d, weak in found)


def _accepted(make: Callable[[Avals], Call], given: Avals | None, arity: int) -> Iterator[Call]:
    """Calls that trace: at given types, else at equal or mixed types."""
    if given is not None:
        tries = [[given]]
    else:
        kinds = [[jax.ShapeDtypeStruct((2,) * r, d) for r in _RANKS] for d in _DTYPES]
        tries = [[(a,) * arity for a in kind] for kind in kinds]
        if 1 < arity <= 3:
            mixed = [a for kind in kinds[:2] for a in kind[:4]]
            tries.append(list(itertools.product(mixed, repeat=arity)))
    for group in tries:
        calls = [call for call in map(make, group) if result_types(call)]
        if calls:
            yield from calls[: len(_RANKS)]
            return


def combinations(name: str, options: Mapping[str, Sequence[object]]) -> tuple[Choice, ...]:
    """Every combination of the options, in their order."""
    choices = tuple(
        tuple(zip(options, values, strict=True)) for values in itertools.product(*options.values())
    )
    try:
        hash(choices)
    except TypeError as error:
        raise PatternError(
            f"pattern {name!r}: values of options must be hashable",
            remedy="Use numbers, strings or tuples of them.",
        ) from error
    if not choices:
        raise PatternError(
            f"pattern {name!r}: an option has no values to try", remedy="Give each at least one."
        )
    return choices


def _parameters(name: str, before: JaxFunction) -> Sequence[inspect.Parameter]:
    try:
        return list(inspect.signature(before).parameters.values())
    except (TypeError, ValueError) as error:
        raise PatternError(
            f"pattern {name!r}: the operands of `before` cannot be read off its signature",
            remedy="Wrap it in a lambda.",
        ) from error


def arity_of(name: str, before: JaxFunction) -> int:
    """The number of operands: positional parameters without a default."""
    parameters = _parameters(name, before)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise PatternError(
            f"pattern {name!r}: `before` takes any number of operands",
            remedy="Wrap it in a lambda of a fixed number.",
        )
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    arity = sum(p.kind in positional and p.default is p.empty for p in parameters)
    if arity == 0:
        raise PatternError(
            f"pattern {name!r}: `before` has no operand",
            remedy="Give it the arrays of the program as parameters.",
        )
    return arity


def untraced(short: Short) -> str:
    """The reason why `before` has no examples, in JAX's words."""
    avals = short.given or (jax.ShapeDtypeStruct((2, 2), np.float32),) * short.arity
    call = short.call(short.choices[0], avals)
    types_text = ", ".join(map(_short, avals))
    try:
        with only_refusals(), jax.enable_x64(call.needs_x64):
            results = jax.eval_shape(short.before or short.after, *avals, **dict(short.choices[0]))
    except REFUSALS as error:
        line = str(error).strip().splitlines()[:1]
        return (
            f"`before` does not trace, at {types_text} for one: {type(error).__name__}: "
            f"{''.join(line)}"
        )
    return f"`before` computes nothing: its result is {results!r}"


def problems(short: Short) -> Iterator[str]:
    for call in short.examples:
        types_text = ", ".join(map(_short, call.avals))
        try:
            with only_refusals(), jax.enable_x64(call.needs_x64):
                one = traced_call(call)
                two = trace_closed(call.function, *call.avals)
        except REFUSALS as error:
            line = "".join(str(error).strip().splitlines()[:1])
            yield f"`after` does not trace where `before` does: {type(error).__name__}: {line}"
            return
        for which, closed in (("before", one), ("after", two)):
            if open_jaxpr(closed).effects:
                yield f"`{which}` has effects, which a pattern cannot move"
        body = open_jaxpr(one)
        if not body.eqns:
            yield "`before` computes nothing: it has no equation to look for"
            continue
        used = read_by(body.eqns)
        for i, v in enumerate(body.invars):
            if v not in used:
                yield f"`before` does not use operand {i}, so its value cannot be determined"
        ours, theirs = ([_short(v.aval) for v in open_jaxpr(c).outvars] for c in (one, two))
        if ours != theirs:
            yield (
                f"results differ in type: at {types_text}, `before` gives {', '.join(ours)} "
                f"and `after` gives {', '.join(theirs)}"
            )
            return
        held = _arrays(one)
        if new := [a for a in _arrays(two) if not any(same_value(a, b) for b in held)]:
            yield (
                f"`after` holds an array, {_short(new[0])}, that `before` does not, and that no "
                "equation of a program can hold: make it an operand of both, or compute it, "
                "as with jnp.arange; or wrap `after` in `jax.jit`"
            )


def _arrays(closed: AnyJaxpr) -> list[Value]:
    return [c for c in consts_of(closed) if np.ndim(c)]


def _short(aval: Aval) -> str:
    return f"{aval.dtype.name}[{','.join(map(str, aval.shape))}]"
