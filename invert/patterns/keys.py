"""Key types: recovers arrays of keys from the `uint32` arrays that lowering makes of them.

The other patterns leave `random_wrap` before and `random_unwrap` after every operation on keys.
This pass propagates the keys themselves through slices, reshapes, calls and loops, and removes both
primitives if the program uses typed keys (`jax.random.key`).

A program that takes keys as `uint32` arguments uses the older style (`jax.random.PRNGKey`), in
which JAX itself wraps and unwraps around each function. There the pass is limited to the functions
of `jax.random`, which work on typed keys in both styles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

import jax

from invert._private.jax import (
    bind_equation,
    by_jaxpr,
    context_of,
    key_impl,
    key_rules,
    open_jaxpr,
    random_fold_in_p,
    random_functions,
    random_split_p,
    random_unwrap_p,
    random_wrap_p,
    trace_closed,
)
from invert.ir import jaxprs, kinds
from invert.ir.interpret import interpret
from invert.ir.loops import CondParts, ScanParts, WhileParts, bodies
from invert.ir.types import AnyJaxpr, Aval, ClosedJaxpr, Eqn, JaxFunction, Jaxpr, Value, Var
from invert.rewriting.pattern import ProgramPattern

# Functions into which JAX outlines a single operation on keys.
_ONE_OPERATION = frozenset(
    "_threefry_split _threefry_fold_in _threefry4x32_fold_in _philox2x32_fold_in "
    "_philox4x32_fold_in".split()
)
# JAX always outlines these, so that a call with one of them alone is such a function, under any
# name.
_ALWAYS_OUTLINED = frozenset(("random_split", "random_fold_in"))
# Words of keys are never reversed.
_MOVES = kinds.LAYOUT | kinds.PARTS


# A program, and which of its results are keys.
_Traced: TypeAlias = tuple[ClosedJaxpr, list[bool]]


class _Key:
    """An array of keys, which the program represents by its words."""

    def __init__(self, keys: Value):
        self.keys = keys
        self.impl = key_rules(keys.dtype)

    @functools.cached_property
    def words(self) -> Value:
        return random_unwrap_p.bind(self.keys)


def _is_one_operation(name: str, jaxpr: Jaxpr) -> bool:
    """Whether a call consists of a single operation on keys that JAX outlines."""
    if not all(e.primitive in _OPERATIONS for e in jaxpr.eqns):
        return False
    wraps = (random_wrap_p, random_unwrap_p)
    done = [e for e in jaxpr.eqns if e.primitive not in wraps]
    alone = len(done) == 1 and done[0].primitive.name in _ALWAYS_OUTLINED
    threefry = alone and key_impl(done[0].invars[0].aval.dtype) == "threefry2x32"
    return name in _ONE_OPERATION or threefry


def _plain(value: Value) -> Value:
    return value.words if isinstance(value, _Key) else value


def lift(closed: ClosedJaxpr) -> ClosedJaxpr | None:
    """The program over typed keys; `None` if it has no operation on keys."""
    jaxpr = open_jaxpr(closed)
    if not _has_keys(jaxpr):
        return None
    typed = not any(_is_wrapped(jaxpr, v) for v in jaxpr.invars)
    lifter = _Lifter()

    def run(*args: Value) -> list[Value]:
        return [_plain(v) for v in lifter.body(closed, args, typed)]

    return jaxprs.canonicalize(trace_closed(run, *(v.aval for v in jaxpr.invars)))


@by_jaxpr
def _has_keys(jaxpr: Jaxpr) -> bool:
    return any(
        e.primitive in (random_wrap_p, random_unwrap_p)
        or any(_has_keys(inner) for inner in jaxprs.sub_jaxprs(e))
        for e in jaxpr.eqns
    )


def _inner_uses(eqn: Eqn, var: Var) -> list[tuple[Jaxpr, Var]]:
    """The arguments of inner jaxprs that `var` is passed to: `(inner jaxpr, its variable)`."""
    opened = [(open_jaxpr(body), operands) for body, operands in bodies(eqn)]
    return [
        (j, v)
        for j, operands in opened
        for v, a in zip(j.invars, operands, strict=True)
        if a is var
    ]


def _is_wrapped(jaxpr: Jaxpr, var: Var) -> bool:
    """Whether `var` becomes a key, directly or after slicing and reshaping."""
    for eqn in jaxpr.eqns:
        if not any(a is var for a in eqn.invars):
            continue
        if eqn.primitive is random_wrap_p:
            return True
        if eqn.primitive.name in _MOVES and _is_wrapped(jaxpr, eqn.outvars[0]):
            return True
        if any(_is_wrapped(inner, v) for inner, v in _inner_uses(eqn, var)):
            return True
    return False


def _only_wrapped(jaxpr: Jaxpr, var: Var) -> object:
    """The key type of `var`, if all its uses wrap it as that type."""
    impls = []
    if any(v is var for v in jaxpr.outvars):
        return None
    for eqn in jaxpr.eqns:
        if not any(a is var for a in eqn.invars):
            continue
        if eqn.primitive is random_wrap_p:
            impls.append(eqn.params["impl"])
        elif eqn.primitive.name == "jit":
            impls.extend(_only_wrapped(j, v) for j, v in _inner_uses(eqn, var))
        else:
            return None
    return impls[0] if impls and all(i is impls[0] for i in impls) else None


class _Lifter:
    """Retraces a program with keys instead of their words."""

    def __init__(self) -> None:
        # (inner jaxpr, which arguments are keys, style) -> (function, which results are keys)
        self.calls: dict[Hashable, tuple[JaxFunction, list[bool]]] = {}

    def body(self, closed: AnyJaxpr, args: Sequence[Value], typed: bool) -> list[Value]:
        """Evaluate a body; `typed` says whether it uses typed keys."""

        def on_eqn(eqn: Eqn, operands: list[Value]) -> list[Value]:
            with context_of(eqn):
                return self.equation(eqn, operands, typed)

        return interpret(closed, args, on_eqn)

    def equation(self, eqn: Eqn, args: list[Value], typed: bool) -> list[Value]:
        primitive = eqn.primitive
        if primitive is random_wrap_p:
            (x,) = args
            if isinstance(x, _Key) and x.impl is eqn.params["impl"]:
                return [x.keys]
        elif primitive is random_unwrap_p:
            key = _Key(args[0])
            return [key if typed else key.words]
        elif primitive.name in _CALLS and (
            any(isinstance(a, _Key) for a in args) or any(map(_has_keys, jaxprs.sub_jaxprs(eqn)))
        ):
            return getattr(self, _CALLS[primitive.name])(eqn, args, typed)
        elif any(isinstance(a, _Key) for a in args) and primitive.name in _ON_KEYS:
            moved = _ON_KEYS[primitive.name](eqn, args)
            if moved is not None:
                return [_Key(moved)]
        return bind_equation(eqn, [_plain(a) for a in args])

    def jit(self, eqn: Eqn, args: list[Value], typed: bool) -> list[Value]:
        name, closed = eqn.params["name"], eqn.params["jaxpr"]
        jaxpr = open_jaxpr(closed)
        if _is_one_operation(name, jaxpr):
            return self.body(closed, args, typed)
        if name in random_functions:
            typed = True
            args = [
                _wrapped(a, _only_wrapped(jaxpr, v))
                for a, v in zip(args, jaxpr.invars, strict=True)
            ]
        kinds = tuple(isinstance(a, _Key) for a in args)
        entry = (closed, kinds, typed)
        if entry not in self.calls:
            found: list[bool] = []

            def call(*values: Value) -> list[Value]:
                results = self.body(closed, _marked(values, kinds), typed)
                found[:] = [isinstance(r, _Key) for r in results]
                return _bare(results)

            call.__name__ = call.__qualname__ = name
            self.calls[entry] = (jax.jit(call), found)
        function, found = self.calls[entry]
        results = function(*_bare(args))
        return _marked(results, found)

    def scan(self, eqn: Eqn, args: list[Value], typed: bool) -> list[Value]:
        params, parts = eqn.params, ScanParts.of(eqn)
        c, n = len(parts.consts), len(parts.init)
        closed = parts.body

        def trace(kinds: Sequence[bool]) -> _Traced:
            avals = [_element(a, i >= c + n) for i, a in enumerate(_as(args, kinds))]
            return self.trace(closed, avals, kinds, kinds[c : c + n], typed)

        kinds, (_, found) = _fixpoint(args, range(c, c + n), trace)
        consts, init, rows = parts.split(_bare(_as(args, kinds)))

        # Traced through `lax.scan`, since the primitive's parameters differ between releases.
        def step(carry: list[Value], xs: list[Value]) -> tuple[list[Value], list[Value]]:
            results = self.body(closed, _marked([*consts, *carry, *xs], kinds), typed)
            results[:n] = _as(results[:n], kinds[c : c + n])
            results = _bare(results)
            return results[:n], results[n:]

        carry, ys = jax.lax.scan(
            step,
            list(init),
            list(rows),
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
            _split_transpose=params.get("_split_transpose", False),
        )
        return _marked([*carry, *ys], found)

    def while_loop(self, eqn: Eqn, args: list[Value], typed: bool) -> list[Value]:
        parts = WhileParts.of(eqn)
        c, b = len(parts.cond_consts), len(parts.body_consts)

        def trace(kinds: Sequence[bool]) -> _Traced:
            avals = [_element(a, False) for a in _as(args, kinds)]
            return self.trace(parts.body, avals[c:], kinds[c:], kinds[c + b :], typed)

        kinds, (body, found) = _fixpoint(args, range(c + b, len(args)), trace)
        avals = [_element(a, False) for a in _as(args, kinds)]
        (held, _, carry), (kept, _, moving) = parts.split(avals), parts.split(kinds)
        cond, _ = self.trace(parts.cond, [*held, *carry], [*kept, *moving], (), typed)
        results = eqn.primitive.bind(
            *_bare(_as(args, kinds)), **{**eqn.params, "body_jaxpr": body, "cond_jaxpr": cond}
        )
        return _marked(results, found)

    def cond(self, eqn: Eqn, args: list[Value], typed: bool) -> list[Value]:
        index, *args = args
        kinds = [isinstance(a, _Key) for a in args]
        avals = [_element(a, False) for a in args]
        branches = CondParts.of(eqn).branches
        founds = [self.trace(b, avals, kinds, None, typed)[1] for b in branches]
        wanted = [all(f) for f in zip(*founds, strict=True)]
        new = tuple(self.trace(b, avals, kinds, wanted, typed)[0] for b in branches)
        results = eqn.primitive.bind(_plain(index), *_bare(args), **{**eqn.params, "branches": new})
        return _marked(results, wanted)

    def trace(
        self,
        closed: AnyJaxpr,
        avals: Sequence[Aval],
        kinds: Sequence[bool],
        wanted: Sequence[bool] | None,
        typed: bool,
    ) -> _Traced:
        """A body over keys as a closed jaxpr, and which of its results are keys.

        Leading results that are not `wanted` as keys are returned as words.
        """
        found: list[bool] = []

        def run(*values: Value) -> list[Value]:
            results = self.body(closed, _marked(values, kinds), typed)
            for i, want in enumerate(wanted or ()):
                results[i] = results[i] if want else _plain(results[i])
            found[:] = [isinstance(r, _Key) for r in results]
            return _bare(results)

        return trace_closed(run, *avals), found


def _fixpoint(
    args: Sequence[Value], carry: range, trace: Callable[[Sequence[bool]], _Traced]
) -> tuple[list[bool], _Traced]:
    """Which operands of a loop are keys: a carried key must come out of the body as a key."""
    kinds = [isinstance(a, _Key) for a in args]
    while True:
        traced = trace(kinds)
        lost = [i for i, found in zip(carry, traced[1], strict=False) if kinds[i] and not found]
        if not lost:
            return kinds, traced
        for i in lost:
            kinds[i] = False


def _wrapped(value: Value, impl: object) -> Value:
    if impl is None or isinstance(value, _Key):
        return value
    return _Key(random_wrap_p.bind(value, impl=impl))


def _as(args: Sequence[Value], kinds: Sequence[bool]) -> list[Value]:
    return [a if k else _plain(a) for a, k in zip(args, kinds, strict=True)]


def _marked(values: Sequence[Value], kinds: Sequence[bool]) -> list[Value]:
    return [_Key(v) if k else v for v, k in zip(values, kinds, strict=True)]


def _bare(values: Sequence[Value]) -> list[Value]:
    return [v.keys if isinstance(v, _Key) else v for v in values]


def _element(value: Value, scanned: bool) -> jax.ShapeDtypeStruct:
    """Type of an operand inside a loop's body."""
    aval = jax.typeof(value.keys if isinstance(value, _Key) else value)
    shape = aval.shape[1:] if scanned else aval.shape
    return jax.ShapeDtypeStruct(shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


_CALLS = {"jit": "jit", "scan": "scan", "while": "while_loop", "cond": "cond"}
_OPERATIONS = (
    random_wrap_p,
    random_unwrap_p,
    random_split_p,
    random_fold_in_p,
)


# Operations that move the words of keys. Each returns the same operation on keys, or `None` if it
# splits the words of a key.


def _slice(eqn: Eqn, args: list[Value]) -> Value:
    p, last = eqn.params, eqn.invars[0].aval.shape[-1]
    strides = p["strides"]
    if (p["start_indices"][-1], p["limit_indices"][-1]) != (0, last):
        return None
    if strides is not None and strides[-1] != 1:
        return None  # every second word
    return eqn.primitive.bind(
        args[0].keys,
        start_indices=p["start_indices"][:-1],
        limit_indices=p["limit_indices"][:-1],
        strides=None if strides is None else strides[:-1],
    )


def _reshape(eqn: Eqn, args: list[Value]) -> Value:
    sizes = eqn.params["new_sizes"]
    if not sizes or sizes[-1] != eqn.invars[0].aval.shape[-1]:
        return None
    if eqn.params["dimensions"] is not None:
        return None
    return eqn.primitive.bind(args[0].keys, **{**eqn.params, "new_sizes": sizes[:-1]})


def _squeeze(eqn: Eqn, args: list[Value]) -> Value:
    axes = eqn.params["dimensions"]
    if len(eqn.invars[0].aval.shape) - 1 in axes:
        return None
    return eqn.primitive.bind(args[0].keys, dimensions=axes)


def _broadcast_in_dim(eqn: Eqn, args: list[Value]) -> Value:
    shape, axes = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    if len(args) != 1 or axes[-1] != len(shape) - 1:
        return None
    if shape[-1] != eqn.invars[0].aval.shape[-1]:
        return None
    return eqn.primitive.bind(
        args[0].keys, **{**eqn.params, "shape": shape[:-1], "broadcast_dimensions": axes[:-1]}
    )


def _transpose(eqn: Eqn, args: list[Value]) -> Value:
    permutation = eqn.params["permutation"]
    if permutation[-1] != len(permutation) - 1:
        return None
    return eqn.primitive.bind(args[0].keys, permutation=permutation[:-1])


def _concatenate(eqn: Eqn, args: list[Value]) -> Value:
    keys = all(isinstance(a, _Key) and a.impl is args[0].impl for a in args)
    if not keys or eqn.params["dimension"] == len(eqn.invars[0].aval.shape) - 1:
        return None
    return eqn.primitive.bind(*(a.keys for a in args), **eqn.params)


def _dynamic_slice(eqn: Eqn, args: list[Value]) -> Value:
    sizes = eqn.params["slice_sizes"]
    if not isinstance(args[0], _Key) or sizes[-1] != eqn.invars[0].aval.shape[-1]:
        return None  # the last start is clamped to 0
    if len(args) != 1 + len(sizes):
        return None
    return eqn.primitive.bind(
        args[0].keys, *args[1:-1], **{**eqn.params, "slice_sizes": sizes[:-1]}
    )


_ON_KEYS: dict[str, Callable[[Eqn, list[Value]], Value]] = {
    "slice": _slice,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "broadcast_in_dim": _broadcast_in_dim,
    "transpose": _transpose,
    "concatenate": _concatenate,
    "dynamic_slice": _dynamic_slice,
}

PATTERNS = (ProgramPattern("keys", lift),)
