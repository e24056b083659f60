"""Jaxprs as data: canonical form, dead code, counts."""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import weakref
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from typing import TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._opaque import custom_call_p
from invert._private.jax import (
    DropVar,
    arguments_read,
    by_jaxpr,
    close_like,
    constants_as_arguments,
    consts_of,
    dce,
    dim_as_value_p,
    eval_jaxpr,
    has_effects,
    holds_jaxprs,
    is_jaxpr,
    live_part,
    open_jaxpr,
    params_of_jaxprs,
    rename,
    renamed,
    sub_jaxprs,
    trace_closed,
)
from invert._private.meshes import on_shards
from invert._private.programs import close
from invert._private.staging import has_high
from invert.ir.loops import WhileParts
from invert.ir.passes import Made, replaced, rewritten
from invert.ir.size_slices import with_slices
from invert.ir.size_values import with_size_values
from invert.ir.types import AnyJaxpr, Atom, ClosedJaxpr, Eqn, J, Jaxpr, Literal, Value, Var

_T = TypeVar("_T")


def canonicalize(closed: J) -> J:
    """Remove dead equations, also in inner jaxprs, and merge equal constants.

    Shared inner jaxprs stay shared. Searches of jax 0.12 are expanded.
    """
    closed = without_unique(closed)
    live = map_jaxprs(closed, _live)
    merged = with_constants_once(live)
    if live is closed and merged is live:
        return closed
    closed = merged
    while "while" in names_in(open_jaxpr(closed)):
        # Equations of an inner loop may turn dead once an outer body no longer uses its result.
        size = _size(closed)
        closed = map_jaxprs(closed, _live)
        if _size(closed) == size:
            break
    return closed


# The primitive of functions such as `jnp.searchsorted` in jax 0.12. Each of its equations holds an
# object that equals only itself, so no two traces are the same, and lowering expands it.
_UNIQUE = "call_hi_primitive"


def holds_unique(closed: AnyJaxpr) -> bool:
    """Return whether a function is made of such equations, which only a call of it can write."""
    return any(eqn.primitive.name == _UNIQUE for eqn in open_jaxpr(closed).eqns)


def without_unique(closed: J) -> J:
    """Expand such equations, as they trace under JAX's current settings."""
    if _UNIQUE not in names_in(open_jaxpr(closed)):
        return closed
    return map_jaxprs(closed, lambda jaxpr: with_inlined(jaxpr, _expansion))


def with_unique_marked(closed: J) -> J:
    """Record in each jaxpr whether such an equation is inside, since lowering expands only those.

    Rewritten jaxprs keep the mark of the original.
    """

    def marked(jaxpr: Jaxpr) -> Jaxpr:
        return jaxpr if jaxpr.is_high or not has_high(jaxpr) else jaxpr.replace(is_high=True)

    return map_jaxprs(closed, marked) if _UNIQUE in names_in(open_jaxpr(closed)) else closed


def _expansion(eqn: Eqn) -> ClosedJaxpr | None:
    """The program of an equation of `_UNIQUE`, unless its results have a derivative by a rule."""
    if eqn.primitive.name != _UNIQUE or any(
        jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in eqn.outvars
    ):
        return None
    run = functools.partial(eqn.primitive.to_lojax, **eqn.params)
    return trace_closed(run, *(v.aval for v in eqn.invars))


def with_constants_once(closed: J) -> J:
    """Merge equal constants, as lowering does for the operands of loops and calls."""
    jaxpr, constants = open_jaxpr(closed), [np.asarray(c) for c in consts_of(closed)]
    kinds = collections.Counter((c.dtype, c.shape) for c in constants)
    firsts: dict[Hashable, Var] = {}
    names: dict[Var, Atom] = {}
    for v, c in zip(jaxpr.constvars, constants, strict=True):
        if kinds[c.dtype, c.shape] > 1 and (first := firsts.setdefault(_value(c), v)) is not v:
            names[v] = first
    if not names:
        return closed
    kept = [i for i, v in enumerate(jaxpr.constvars) if v not in names]
    jaxpr = rename(jaxpr, names).replace(constvars=[jaxpr.constvars[i] for i in kept])
    return cast("J", close(jaxpr, [consts_of(closed)[i] for i in kept]))


def _size(closed: AnyJaxpr) -> int:
    return sum(1 + len(e.invars) for e in equations(open_jaxpr(closed)))


# The primitives that `_live` rewrites rather than only removes.
_NORMALIZED = frozenset({"while", "gather", "dynamic_slice", dim_as_value_p.name})


def _live(jaxpr: Jaxpr) -> Jaxpr:
    """Remove dead equations, and carried values that no loop needs.

    JAX's own dead code elimination keeps the latter.
    """
    made = _made_live(jaxpr)
    return jaxpr if made is None else made


@functools.partial(by_jaxpr, traces=True)
def _made_live(jaxpr: Jaxpr) -> Jaxpr | None:
    """The live part of a jaxpr; `None` if all of it is live, so that this is found once."""
    made = _live_equations(jaxpr)
    return None if made is jaxpr else made


def _live_equations(jaxpr: Jaxpr) -> Jaxpr:
    if {e.primitive.name for e in jaxpr.eqns}.isdisjoint(_NORMALIZED):
        return dce(jaxpr)
    jaxpr = with_size_values(jaxpr)
    while True:
        jaxpr = dce(jaxpr)
        used = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
        eqns = []
        for eqn in reversed(jaxpr.eqns):
            if eqn.primitive.name == "while" and not has_effects(eqn):
                eqn = _live_loop(eqn, used)
            used |= {v for v in eqn.invars if not isinstance(v, Literal)}
            eqns.append(eqn)
        eqns.reverse()
        if all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
            return with_size_values(dce(with_slices(jaxpr)))
        jaxpr = jaxpr.replace(eqns=eqns)


def _live_loop(eqn: Eqn, used: Set[Var]) -> Eqn:
    """Drop carries of a `while` that neither loop nor users need."""
    parts = WhileParts.of(eqn)
    test, body = open_jaxpr(parts.cond), open_jaxpr(parts.body)
    n_cond, n_body = len(parts.cond_consts), len(parts.body_consts)
    tested = arguments_read(test, [True])
    live = [v in used or t for v, t in zip(eqn.outvars, tested[n_cond:], strict=True)]
    while True:
        needed = arguments_read(body, live)
        more = [a or b for a, b in zip(live, needed[n_body:], strict=True)]
        if more == live:
            break
        live = more
    kept_test, kept_body = [*tested[:n_cond], *live], [*needed[:n_body], *live]
    if all((*kept_test, *kept_body)):
        return eqn
    # A carried value that only the condition or only the body ignores stays an argument of both.
    test, _ = live_part(test, [True], kept_test)
    body, _ = live_part(body, live, kept_body)
    kept = WhileParts(
        close_like(parts.cond, test),
        close_like(parts.body, body),
        _selected(parts.cond_consts, tested[:n_cond]),
        _selected(parts.body_consts, needed[:n_body]),
        _selected(parts.init, live),
    )
    return kept.put_into(eqn).replace(outvars=_selected(eqn.outvars, live))


def _selected(values: Sequence[_T], keep: Sequence[bool]) -> list[_T]:
    return [v for v, k in zip(values, keep, strict=True) if k]


def with_values(values: Iterable[_T], places: Iterable[int], new: Iterable[_T]) -> list[_T]:
    """A list of `values`, with `new` ones at some places."""
    result = list(values)
    for i, value in zip(places, new, strict=True):
        result[i] = value
    return result


def tuple_like(original: tuple[object, ...], values: Iterable[Value]) -> tuple[Value, ...]:
    """`values` as a tuple, or named tuple, of the type of `original`."""
    make = getattr(original, "_make", tuple)
    return make(values)


def map_jaxprs(closed: J, function: Callable[[Jaxpr], Jaxpr]) -> J:
    """Apply `function` to each open jaxpr, innermost first; shared ones stay shared.

    The result is `closed` itself where `function` changes nothing.
    """
    done: dict[AnyJaxpr, AnyJaxpr] = {}

    def visit(closed: AnyJaxpr) -> AnyJaxpr:
        if closed not in done:
            jaxpr = new = open_jaxpr(closed)
            if changed := {i: eqn for i in held(jaxpr) if (eqn := inside(jaxpr.eqns[i]))}:
                new = jaxpr.replace(eqns=[changed.get(i, e) for i, e in enumerate(jaxpr.eqns)])
            new = function(new)
            done[closed] = closed if new is jaxpr else close_like(closed, new)
        return done[closed]

    def inside(eqn: Eqn) -> Eqn | None:
        """The equation on changed jaxprs, if any changes."""
        own = params_of_jaxprs(eqn)
        with on_shards(eqn):
            params = {n: new for n, v in own.items() if (new := map_param(v, visit)) is not v}
        return eqn.replace(params={**eqn.params, **params}) if params else None

    return cast(J, visit(closed))


def without(closed: J, is_identity: Callable[[Eqn], bool]) -> J:
    """Remove equations that return their operands."""

    def dropped(eqn: Eqn) -> Made | None:
        return ([], eqn.invars) if is_identity(eqn) else None

    return map_jaxprs(closed, lambda jaxpr: rewritten(jaxpr, dropped))


def keeps_precision(eqn: Eqn) -> bool:
    """Return whether an equation rounds an array to the precision that it has."""
    if eqn.primitive.name != "reduce_precision":
        return False
    own = jnp.finfo(eqn.outvars[0].aval.dtype)
    return (eqn.params["exponent_bits"], eqn.params["mantissa_bits"]) == (own.nexp, own.nmant)


def map_param(value: Value, function: Callable[[AnyJaxpr], AnyJaxpr]) -> Value:
    """Apply `function` to the jaxprs of a parameter; unchanged ones stay the same objects."""
    if is_jaxpr(value):
        return function(value)
    new = [function(v) if is_jaxpr(v) else v for v in value]
    same = all(a is b for a, b in zip(new, value, strict=True))
    return value if same else tuple_like(value, new)


def with_equations(jaxpr: Jaxpr, eqns: Sequence[Eqn]) -> Jaxpr:
    """The jaxpr with these equations; the same jaxpr if they are its own."""
    return jaxpr if list(eqns) == list(jaxpr.eqns) else jaxpr.replace(eqns=list(eqns))


def map_equations(closed: J, function: Callable[[Eqn], Eqn]) -> J:
    """Apply `function` to each equation, inner ones first, see `map_jaxprs`."""
    return map_jaxprs(
        closed, lambda jaxpr: with_equations(jaxpr, [function(e) for e in jaxpr.eqns])
    )


def reshape_in_place_of(eqn: Eqn, x: Atom, out: Var) -> Eqn:
    """A reshape of `x` to `out`, with the name and place of an equation."""
    params = {"new_sizes": tuple(out.aval.shape), "dimensions": None, "sharding": None}
    return eqn.replace(
        primitive=lax.reshape_p, invars=[x], outvars=[out], params=params, effects=set()
    )


def broadcast_in_place_of(eqn: Eqn, x: Atom, out: Var, dimensions: Iterable[int]) -> Eqn:
    """A broadcast of `x` to `out`, with the name and place of an equation."""
    shape, places = tuple(out.aval.shape), tuple(dimensions)
    params = {"shape": shape, "broadcast_dimensions": places, "sharding": None}
    return eqn.replace(
        primitive=lax.broadcast_in_dim_p, invars=[x], outvars=[out], params=params, effects=set()
    )


def broadcasts(eqn: Eqn) -> bool:
    """Return whether an equation is a broadcast without a sharding."""
    plain = eqn.primitive is lax.broadcast_in_dim_p and len(eqn.invars) == 1
    return plain and eqn.params["sharding"] is None


def composed_dimensions(first: Eqn, second: Eqn) -> tuple[int, ...]:
    """The `broadcast_dimensions` of two broadcasts, the second of the first, as one."""
    outer = second.params["broadcast_dimensions"]
    return tuple(outer[d] for d in first.params["broadcast_dimensions"])


def fills(eqn: Eqn) -> bool:
    """Return whether an equation fills an array with a number."""
    return broadcasts(eqn) and isinstance(eqn.invars[0], Literal)


def as_lowered(closed: J) -> J:
    """Replace each `squeeze` by a reshape and each `split` by slices, as lowering does."""

    def step(eqn: Eqn) -> Sequence[Eqn] | None:
        if eqn.primitive is lax.squeeze_p:
            return [reshape_in_place_of(eqn, eqn.invars[0], eqn.outvars[0])]
        return _slices(eqn) if eqn.primitive is lax.split_p else None

    return map_jaxprs(closed, lambda jaxpr: replaced(jaxpr, step))


def _slices(split: Eqn) -> list[Eqn] | None:
    """The slices of a lowered `split`; `None` at open sizes, which lowering computes."""
    (x,), axis, sizes = split.invars, split.params["axis"], split.params["sizes"]
    shape = x.aval.shape
    if not all(isinstance(n, int) for n in shape):
        return None
    made, start = [], 0
    for out, size in zip(split.outvars, sizes, strict=True):
        starts = tuple(start if i == axis else 0 for i in range(len(shape)))
        start += size
        limits = tuple(start if i == axis else n for i, n in enumerate(shape))
        params = {"start_indices": starts, "limit_indices": limits, "strides": None}
        made.append(split.replace(primitive=lax.slice_p, outvars=[out], params=params))
    return made


def with_typed_literals(closed: J) -> J:
    """Replace Python numbers in literals by the typed numbers that lowering makes of them."""

    def typed(atom: Atom) -> Atom:
        if not isinstance(atom, Literal) or isinstance(atom.val, (np.ndarray, np.generic)):
            return atom
        return Literal(np.asarray(atom.val, atom.aval.dtype)[()], atom.aval)

    def one(jaxpr: Jaxpr) -> Jaxpr:
        eqns = [e.replace(invars=list(map(typed, e.invars))) for e in jaxpr.eqns]
        return jaxpr.replace(eqns=eqns, outvars=list(map(typed, jaxpr.outvars)))

    return map_jaxprs(closed, one)


def without_empty(closed: J) -> J:
    """Replace uninitialized arrays, which JAX fills in loops, by zeros.

    Lowering does the same.
    """

    def filled(jaxpr: Jaxpr) -> Jaxpr:
        empty = [e for e in jaxpr.eqns if e.primitive.name == "empty2"]
        zeros = {v: Literal(np.zeros((), v.aval.dtype), v.aval) for e in empty for v in e.outvars}
        kept = [e for e in jaxpr.eqns if e not in empty]
        return rename(jaxpr.replace(eqns=kept), zeros) if empty else jaxpr

    return map_jaxprs(closed, filled)


def returning(program: J, places: Sequence[int]) -> J:
    """A program with these of its results alone, in this order."""
    jaxpr = open_jaxpr(program)
    return close_like(program, jaxpr.replace(outvars=[jaxpr.outvars[i] for i in places]))


def copied(eqns: Iterable[Eqn], env: dict[Var, Atom]) -> list[Eqn]:
    """Copy equations onto the atoms in `env`, to which their new results are added."""
    made: list[Eqn] = []
    for eqn in eqns:
        invars = [a if isinstance(a, Literal) else env[a] for a in eqn.invars]
        for v in eqn.outvars:
            env.setdefault(v, v if isinstance(v, DropVar) else Var(v.aval))
        made.append(eqn.replace(invars=invars, outvars=[env[v] for v in eqn.outvars]))
    return made


def with_inlined(jaxpr: Jaxpr, program_of: Callable[[Eqn], AnyJaxpr | None]) -> Jaxpr:
    """Inline programs in place of the equations for which `program_of` gives one.

    An equation stays if its program uses an array, which the jaxpr of a loop cannot hold.
    """

    def inlined(eqn: Eqn) -> Made | None:
        program = program_of(eqn)
        held = None if program is None else literals(program)
        if program is None or held is None:
            return None
        inner = open_jaxpr(program)
        env = {**held, **dict(zip(inner.invars, eqn.invars, strict=True))}
        return copied(inner.eqns, env), renamed(inner.outvars, env)

    return rewritten(jaxpr, inlined)


def literals(program: AnyJaxpr) -> dict[Var, Atom] | None:
    """The constants that a program uses, as literals; `None` for arrays or keys."""
    return as_literals(_constants_read(program))


def _constants_read(program: AnyJaxpr) -> dict[Var, Value]:
    """The constants that a program uses."""
    jaxpr = open_jaxpr(program)
    if not jaxpr.constvars:
        return {}
    read = variables_read(jaxpr)
    pairs = zip(jaxpr.constvars, consts_of(program), strict=True)
    return {v: value for v, value in pairs if v in read}


def variables_read(jaxpr: Jaxpr) -> set[Var]:
    """The variables that equations read or that are results."""
    atoms = (*jaxpr.outvars, *(a for eqn in jaxpr.eqns for a in eqn.invars))
    return {a for a in atoms if not isinstance(a, Literal)}


def as_literals(constants: Mapping[Var, Value]) -> dict[Var, Atom] | None:
    """Constants as literals; `None` if one is an array or a key."""
    extended = jax.dtypes.extended
    if any(
        np.ndim(x) or jax.dtypes.issubdtype(v.aval.dtype, extended) for v, x in constants.items()
    ):
        return None
    return {v: Literal(np.asarray(value)[()], v.aval) for v, value in constants.items()}


def split_constants(closed: AnyJaxpr) -> tuple[Jaxpr, tuple[np.ndarray, ...]]:
    """Turn constants into leading arguments; return the open jaxpr and their values.

    Constants that the program does not read are left out, such as those of an index that a pattern
    has replaced.
    """
    jaxpr = open_jaxpr(closed)
    held = {v: np.asarray(c) for v, c in _constants_read(closed).items()}
    jaxpr = jaxpr if len(held) == len(jaxpr.constvars) else jaxpr.replace(constvars=[*held])
    return constants_as_arguments(jaxpr), tuple(held.values())


def narrow_constants(
    jaxpr: Jaxpr, constants: Sequence[np.ndarray], dtypes: Collection[str]
) -> tuple[Jaxpr, tuple[np.ndarray, ...]]:
    """Store constant arrays of `dtypes` as bfloat16; return program and arrays."""
    narrow = [c.dtype.name in dtypes and c.ndim > 0 for c in constants]
    if not any(narrow):
        return jaxpr, tuple(constants)

    def run(*values: Value) -> list[Value]:
        given = list(values)
        for i, (c, small) in enumerate(zip(constants, narrow, strict=True)):
            given[i] = lax.convert_element_type(values[i], c.dtype) if small else values[i]
        return eval_jaxpr(jaxpr, given)

    pairs = zip(constants, narrow, strict=True)
    kept = tuple(c.astype(jnp.bfloat16) if small else c for c, small in pairs)
    avals = [jax.ShapeDtypeStruct(c.shape, c.dtype) for c in kept]
    traced = trace_closed(run, *avals, *(v.aval for v in jaxpr.invars[len(kept) :]))
    return open_jaxpr(traced), kept


def over_constants(closed: AnyJaxpr, constants: Sequence[np.ndarray]) -> AnyJaxpr:
    """Turn `constants` into leading arguments, also those that the program does not use.

    Other constants, which a derivative rule may bring, stay constants.
    """
    held = [np.asarray(c) for c in consts_of(closed)]
    places = _places(held, constants)
    jaxpr = open_jaxpr(closed)
    if places == list(range(len(constants))):
        return constants_as_arguments(jaxpr)

    def run(*values: Value) -> list[Value]:
        pairs = zip(held, places, strict=True)
        results = [constant if i is None else values[i] for constant, i in pairs]
        args = [*results, *values[len(constants) :]]
        return eval_jaxpr(constants_as_arguments(jaxpr), args)

    return trace_closed(run, *constants, *(v.aval for v in jaxpr.invars))


def _places(held: Sequence[np.ndarray], constants: Sequence[np.ndarray]) -> list[int | None]:
    """The index of each array in `constants`, by identity, then by value."""
    by_identity = {id(c): i for i, c in reversed(list(enumerate(constants)))}
    places = [by_identity.get(id(h)) for h in held]
    if None in places:
        by_value = {_value(c): i for i, c in reversed(list(enumerate(constants)))}
        places = [
            by_value.get(_value(h)) if i is None else i for h, i in zip(held, places, strict=True)
        ]
    return places


def _value(x: np.ndarray) -> Hashable:
    """A key equal for bitwise equal arrays; a digest where they are large."""
    if x.nbytes <= _DIGEST:
        return x.dtype, x.shape, x.tobytes()
    data = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    return x.dtype, x.shape, hashlib.blake2b(data.data).digest()


_DIGEST = 1 << 16


def equations(jaxpr: Jaxpr) -> Iterator[Eqn]:
    """All equations, inner ones included; a shared jaxpr is visited once."""
    pending, seen = [jaxpr], set()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        yield from current.eqns
        for inner in held(current).values():
            pending.extend(inner)


def drawn_under(eqn: Eqn) -> bool | None:
    """The `jax_threefry_partitionable` of an equation, if its numbers depend on that setting."""
    return eqn.ctx.threefry_partitionable if eqn.primitive.name in _DRAWS else None


# Those that JAX lowers by the setting of their equation.
_DRAWS = frozenset(("random_bits", "random_split", "random_gamma"))


def held(jaxpr: Jaxpr) -> Mapping[int, Sequence[Jaxpr]]:
    """The jaxprs inside the equations that hold some, by the positions of these."""
    found: dict[int, Sequence[Jaxpr]] = {}
    for i, references in _held(jaxpr).items():
        inner = [j for reference in references if (j := reference()) is not None]
        found[i] = inner if len(inner) == len(references) else [*sub_jaxprs(jaxpr.eqns[i])]
    return found


@by_jaxpr
def _held(jaxpr: Jaxpr) -> Mapping[int, Sequence[weakref.ref[Jaxpr]]]:
    """The same as weak references: a rule inside may refer to the whole jaxpr and keep it."""
    return {
        i: [*map(weakref.ref, sub_jaxprs(eqn))]
        for i, eqn in enumerate(jaxpr.eqns)
        if holds_jaxprs(eqn)
    }


@by_jaxpr
def names_in(jaxpr: Jaxpr) -> frozenset[str]:
    """The names of the primitives, those of inner jaxprs included."""
    names = {eqn.primitive.name for eqn in jaxpr.eqns}
    return frozenset(names.union(*(names_in(j) for own in held(jaxpr).values() for j in own)))


@by_jaxpr
def inlined_count(jaxpr: Jaxpr) -> int:
    """Number of equations if inner jaxprs are counted each time that they are held."""
    inner = (j for own in held(jaxpr).values() for j in own)
    return len(jaxpr.eqns) + sum(map(inlined_count, inner))


def primitive_counts(jaxpr: Jaxpr) -> Mapping[str, int]:
    """Number of equations per primitive."""
    counts = collections.Counter(eqn.primitive.name for eqn in equations(jaxpr))
    return dict(sorted(counts.items()))


def opaque_targets(jaxpr: Jaxpr) -> Mapping[str, int]:
    """Number of opaque equations per custom-call target."""
    if custom_call_p.name not in names_in(jaxpr):
        return {}
    calls = (eqn for eqn in equations(jaxpr) if eqn.primitive is custom_call_p)
    return dict(sorted(collections.Counter(eqn.params["target"] for eqn in calls).items()))


_WIDE = frozenset(map(np.dtype, ("int64", "uint64", "float64", "complex128")))


def is_wide_dtype(dtype: object) -> bool:
    """Return whether a dtype has 64 bits (128 for complex)."""
    return dtype in _WIDE


def is_wide(atom: Atom) -> bool:
    """Return whether a value has a dtype of 64 bits (128 for complex)."""
    return is_wide_dtype(getattr(atom.aval, "dtype", None))


def enabling_x64(needed: bool) -> contextlib.AbstractContextManager[object]:
    """Enable 64-bit types if they are needed, and otherwise leave JAX's setting alone."""
    return jax.enable_x64(True) if needed else contextlib.nullcontext()


@by_jaxpr
def wide_types(jaxpr: Jaxpr) -> frozenset[np.dtype]:
    """The dtypes of 64 bits (128 for complex) that occur."""
    eqns = list(equations(jaxpr))
    pending = [jaxpr.invars, *((*e.invars, *e.outvars) for e in eqns)]
    wide = [v for atoms in pending for v in atoms if getattr(v.aval, "dtype", None) in _WIDE]
    # Sizes have 64 bits only if x64 is enabled.
    sizes = {e.outvars[0] for e in eqns if e.primitive is dim_as_value_p} if wide else ()
    return frozenset(v.aval.dtype for v in wide if isinstance(v, Literal) or v not in sizes)


def has_wide_types(jaxpr: Jaxpr) -> bool:
    """Return whether a value of 64 bits (128 for complex) occurs."""
    return bool(wide_types(jaxpr))


def x64_settings(lowered: Jaxpr, x64: bool) -> tuple[bool, ...]:
    """The settings of `jax_enable_x64` with which a program may have been lowered, `x64` first.

    It was off if nothing has 64 bits.
    """
    return (x64, not x64) if has_wide_types(lowered) else (False,)
