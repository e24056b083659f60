"""Key types: recovers arrays of keys from their lowered `uint32` arrays.

The other patterns leave `random_wrap` before and `random_unwrap` after every operation on keys.
This pass propagates the keys themselves through slices, reshapes, calls and loops, and removes both
primitives if the program uses typed keys (`jax.random.key`).

A program that takes keys as `uint32` arguments uses the older style (`jax.random.PRNGKey`), in
which JAX itself wraps and unwraps around each function. There the pass is limited to the functions
of `jax.random`, which work on typed keys in both styles.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax

from invert._private.jax import (
    bind_equation,
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
from invert.ir.loops import bodies
from invert.ir.retrace import Retracer
from invert.ir.types import Atom, ClosedJaxpr, Eqn, Jaxpr, Value, Var
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


def _is_key(value: Value) -> bool:
    """Return whether a value or a variable is an array of keys."""
    dtype = getattr(getattr(value, "aval", value), "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def _lifted(values: Sequence[Value], atoms: Sequence[Atom]) -> list[bool]:
    """Find the values that are keys although the program holds their words."""
    return [_is_key(x) and not _is_key(a) for x, a in zip(values, atoms, strict=True)]


def _is_one_operation(name: str, jaxpr: Jaxpr) -> bool:
    """Return whether a call consists of a single operation on keys that JAX outlines."""
    if not all(e.primitive in _OPERATIONS for e in jaxpr.eqns):
        return False
    wraps = (random_wrap_p, random_unwrap_p)
    done = [e for e in jaxpr.eqns if e.primitive not in wraps]
    alone = len(done) == 1 and done[0].primitive.name in _ALWAYS_OUTLINED
    threefry = alone and key_impl(done[0].invars[0].aval.dtype) == "threefry2x32"
    return name in _ONE_OPERATION or threefry


def lift(closed: ClosedJaxpr) -> ClosedJaxpr | None:
    """The program over typed keys; `None` if it has no operation on keys."""
    jaxpr = open_jaxpr(closed)
    if not _has_keys(jaxpr):
        return None
    typed = not any(_is_wrapped(jaxpr, v) for v in jaxpr.invars)
    retracer = _KeyRetracer(typed)

    def run(*args: Value) -> list[Value]:
        results = retracer(closed, args)
        return retracer.words_of(results, _lifted(results, jaxpr.outvars))

    return jaxprs.canonicalize(trace_closed(run, *(v.aval for v in jaxpr.invars)))


def _has_keys(jaxpr: Jaxpr) -> bool:
    return not jaxprs.names_in(jaxpr).isdisjoint({random_wrap_p.name, random_unwrap_p.name})


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
    """Return whether `var` becomes a key, directly or after slicing and reshaping."""
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


@dataclasses.dataclass
class _KeyRetracer(Retracer[bool]):
    """Retraces programs with keys instead of words; marks distinguish keys.

    **Arguments:**

    - `typed`: whether the program uses typed keys.
    """

    typed: bool
    # By the identity of keys, which are kept alive.
    _words: dict[int, tuple[Value, Value]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def on_typed(self) -> _KeyRetracer:
        return self if self.typed else _KeyRetracer(True, self._words)

    def mark(self, value: object) -> bool:
        return _is_key(value)

    def common(self, marks: Sequence[bool]) -> bool:
        return all(marks)

    def marked(self, value: Value, mark: bool) -> Value:
        return value if mark or not _is_key(value) else self._unwrapped(value)

    def words_of(self, values: Sequence[Value], which: Sequence[bool]) -> list[Value]:
        """The values, with the words of some that are keys."""
        return [self._unwrapped(x) if w else x for x, w in zip(values, which, strict=True)]

    def _unwrapped(self, keys: Value) -> Value:
        if id(keys) not in self._words:
            self._words[id(keys)] = keys, random_unwrap_p.bind(keys)
        return self._words[id(keys)][1]

    def equation(self, eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
        primitive, lifted = eqn.primitive, _lifted(operands, eqn.invars)
        if primitive is random_wrap_p:
            if lifted[0] and key_rules(operands[0].dtype) is eqn.params["impl"]:
                return operands
        elif primitive is random_unwrap_p:
            return operands if self.typed else [self._unwrapped(operands[0])]
        elif primitive.name in _CALLS and (
            any(lifted) or any(map(_has_keys, jaxprs.sub_jaxprs(eqn)))
        ):
            return _CALLS[primitive.name](self, eqn, operands)
        elif (
            any(lifted)
            and primitive.name in _ON_KEYS
            and (moved := _ON_KEYS[primitive.name](eqn, operands)) is not None
        ):
            return [moved]
        return bind_equation(eqn, self.words_of(operands, lifted))

    def jit(self, eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
        name, closed = eqn.params["name"], eqn.params["jaxpr"]
        jaxpr = open_jaxpr(closed)
        if _is_one_operation(name, jaxpr):
            return self(closed, operands)
        if name not in random_functions:
            return self.call(eqn, operands)
        pairs = zip(operands, jaxpr.invars, strict=True)
        return self.on_typed.call(eqn, [_wrapped(a, _only_wrapped(jaxpr, v)) for a, v in pairs])


def _wrapped(value: Value, impl: object) -> Value:
    return value if impl is None or _is_key(value) else random_wrap_p.bind(value, impl=impl)


_CALLS: dict[str, Callable[[_KeyRetracer, Eqn, list[Value]], Sequence[Value]]] = {
    "jit": _KeyRetracer.jit,
    "scan": _KeyRetracer.scan,
    "while": _KeyRetracer.while_loop,
    "cond": _KeyRetracer.cond,
}
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
        args[0],
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
    return eqn.primitive.bind(args[0], **{**eqn.params, "new_sizes": sizes[:-1]})


def _squeeze(eqn: Eqn, args: list[Value]) -> Value:
    axes = eqn.params["dimensions"]
    if len(eqn.invars[0].aval.shape) - 1 in axes:
        return None
    return eqn.primitive.bind(args[0], dimensions=axes)


def _broadcast_in_dim(eqn: Eqn, args: list[Value]) -> Value:
    shape, axes = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    if len(args) != 1 or axes[-1] != len(shape) - 1:
        return None
    if shape[-1] != eqn.invars[0].aval.shape[-1]:
        return None
    return eqn.primitive.bind(
        args[0], **{**eqn.params, "shape": shape[:-1], "broadcast_dimensions": axes[:-1]}
    )


def _transpose(eqn: Eqn, args: list[Value]) -> Value:
    permutation = eqn.params["permutation"]
    if permutation[-1] != len(permutation) - 1:
        return None
    return eqn.primitive.bind(args[0], permutation=permutation[:-1])


def _concatenate(eqn: Eqn, args: list[Value]) -> Value:
    if (
        any(a.dtype != args[0].dtype for a in args)
        or eqn.params["dimension"] == len(eqn.invars[0].aval.shape) - 1
    ):
        return None
    return eqn.primitive.bind(*args, **eqn.params)


def _dynamic_slice(eqn: Eqn, args: list[Value]) -> Value:
    sizes = eqn.params["slice_sizes"]
    if not _is_key(args[0]) or sizes[-1] != eqn.invars[0].aval.shape[-1]:
        return None  # the last start is clamped to 0
    if len(args) != 1 + len(sizes):
        return None
    return eqn.primitive.bind(args[0], *args[1:-1], **{**eqn.params, "slice_sizes": sizes[:-1]})


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
