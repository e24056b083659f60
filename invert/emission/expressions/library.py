"""Public JAX functions that may trace to a call of a given name."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import jax.scipy.special
import numpy as np

from invert._private.jax import open_jaxpr
from invert.emission.expressions import fourier, helpers, literals
from invert.emission.expressions.spelling import one_axis
from invert.emission.python import syntax
from invert.emission.python.naming import snake
from invert.emission.python.syntax import call, number
from invert.ir.avals import is_key
from invert.ir.sizes import is_open
from invert.ir.types import Eqn, JaxFunction, Literal, Var

# The modules to search for a called function, in order.
_MODULES: tuple[tuple[str, ModuleType], ...] = (
    ("jax.nn", jax.nn),
    ("jnp", jnp),
    ("jnp.linalg", jnp.linalg),
    ("jax.scipy.special", jax.scipy.special),
    ("jax.scipy.linalg", jax.scipy.linalg),
)

# Calls whose public function has another name.
_RENAMED = {"expn": "exp1", "_where": "where", "_pinv": "pinv", "_var": "var", "_take": "take"}

# Reductions; the correction of the degrees of freedom may be the last operand of their call.
_SPREADS = frozenset({"var", "std", "norm"})


def candidates(name: str, eqn: Eqn, args: Sequence[ast.expr]) -> Iterator[ast.expr]:
    """Expressions that may trace to the call `name`."""
    if not args:  # all of them were folded
        return
    calls = _CALLS.get(name.lstrip("_"))
    if calls is None and eqn.invars and is_key(eqn.invars[0]):
        calls = _random_numbers
    if calls is not None:
        yield from calls(name.lstrip("_"), eqn, args)
        return
    if name in _SIGNS and len(args) == 2:
        yield syntax.infix(args[0], _SIGNS[name], args[1])
    for plain in dict.fromkeys((name, _RENAMED.get(name, name), name.strip("_"))):
        for where, module in _MODULES:
            if callable(getattr(module, plain, None)) and not plain.startswith("_"):
                function = f"{where}.{plain}"
                yield call(function, *args)
                for flag in _flags(getattr(module, plain)):
                    yield call(function, *args, **{flag: number(True)})
                if plain in _TRIANGLES:
                    for shift in _shifts(eqn):
                        yield call(function, *args, number(shift + _TRIANGLES[plain]))
                if plain in _SPREADS:
                    for keywords in _axes(eqn):
                        yield call(function, args[0], **keywords, **_degrees(eqn))
                elif _has_axis(getattr(module, plain)):
                    for axis in (*range(len(eqn.invars[0].aval.shape) - 1), -1):
                        yield call(function, *args, axis=number(axis))
                break


def mapped(name: str, eqn: Eqn, args: Sequence[ast.expr]) -> Iterator[ast.expr]:
    """`jax.vmap(jnp.searchsorted)(x, y)`: the call `name` for each row of some operands."""
    rows = eqn.outvars[0].aval.shape[:1] if eqn.outvars else ()
    if not rows or any(v.aval.shape[:1] != rows for v in eqn.outvars):
        return
    given = [isinstance(v, Var) for v in eqn.invars]
    over = [isinstance(v, Var) and v.aval.shape[:1] == rows for v in eqn.invars]
    if not any(over):
        return
    letters = iter("xyzuvw")
    own, one = list[ast.expr](args), list(eqn.invars)
    for i, v in enumerate(eqn.invars):
        if isinstance(v, Var) and over[i]:
            one[i] = _row(v)
        if given[i]:
            own[i] = syntax.name("key" if not i and is_key(one[i]) else next(letters, f"x_{i}"))
    inner = eqn.replace(invars=one, outvars=[_row(v) for v in eqn.outvars])
    names = [x.id for x, g in zip(own, given, strict=True) if g and isinstance(x, ast.Name)]
    operands = [x for x, g in zip(args, given, strict=True) if g]
    axes = [number(0 if o else None) for o, g in zip(over, given, strict=True) if g]
    some = {} if over == given else {"in_axes": syntax.tuple_of(axes)}
    for candidate in candidates(name, inner, own):
        function: ast.expr = syntax.lambda_of(names, candidate)
        if isinstance(candidate, ast.Call) and candidate.args == own and all(given):
            function = function if candidate.keywords else candidate.func
        yield call(call("jax.vmap", function, **some), *operands)


def _row(v: Var) -> Var:
    """A variable for a row of an array."""
    return Var(v.aval.update(shape=v.aval.shape[1:]))


# Functions with an operator.
_SIGNS = {"remainder": "%", "floor_divide": "//"}


def _resize_bilinear(name: str, eqn: Eqn, args: Sequence[ast.expr]) -> Iterator[ast.expr]:
    """TensorFlow's resizing."""
    size = literals.shape(eqn.outvars[0].aval.shape[1:3])
    yield helpers.calling(helpers.resize_bilinear, *args, size)
    yield helpers.calling(helpers.resize_pixels, *args, size)  # of sizes that are not known
    for align in (False, True):
        yield helpers.calling(helpers.resize_corners, *args, size, number(align))


def _resize(name: str, eqn: Eqn, args: Sequence[ast.expr]) -> Iterator[ast.expr]:
    """The other methods of `jax.image.resize` have weights in 64 bits, where these are enabled."""
    shape = literals.shape(eqn.outvars[0].aval.shape)
    yield call("jax.image.resize", *args, shape, number("nearest"))


def _fft(name: str, eqn: Eqn, args: Sequence[ast.expr]) -> Iterator[ast.expr]:
    yield from fourier.calls(eqn, args[0])


def _random_numbers(name: str, eqn: Eqn, args: Sequence[ast.expr]) -> Iterator[ast.expr]:
    """`jax.random.truncated_normal(key, -2, 2, (n, 3))`: a call with its shape and dtype."""
    function = getattr(jax.random, name, None)
    if function is None:
        return
    _, *parameters = inspect.signature(function).parameters
    aval = eqn.outvars[0].aval
    shape = aval.shape[:-1] if name in _OF_VECTORS else aval.shape
    static = {"shape": literals.shape(shape), "dtype": literals.dtype(aval.dtype)}
    for left_out in (("shape", "dtype"), ("dtype",), ()):
        given, positional, keywords = iter(args[1:]), [args[0]], {}
        by_name = False
        for parameter in parameters:
            value = None
            if parameter not in left_out:
                value = static[parameter] if parameter in static else next(given, None)
            if value is None:
                by_name = True
            elif by_name:
                keywords[parameter] = value
            else:
                positional.append(value)
            by_name |= parameter == "dtype"
        yield call(f"jax.random.{name}", *positional, **keywords)


# Functions that draw vectors: the shape that they take lacks the last axis.
_OF_VECTORS = frozenset(("dirichlet", "multivariate_normal"))


def _one_hot(name: str, eqn: Eqn, args: Sequence[ast.expr]) -> Iterator[ast.expr]:
    result = eqn.outvars[0].aval
    keywords = {"dtype": literals.dtype(result.dtype)}
    for axis in (-1, *range(len(result.shape) - 1)):
        classes = literals.size(result.shape[axis])
        syntax.mark(classes, [(id(eqn.outvars[0]), axis % len(result.shape))])
        place = {} if axis == -1 else {"axis": number(axis)}
        yield call("jax.nn.one_hot", args[0], classes, **place, **keywords)


def _linspace(name: str, eqn: Eqn, args: Sequence[ast.expr]) -> Iterator[ast.expr]:
    result = eqn.outvars[0].aval
    keywords = {"dtype": literals.dtype(result.dtype)}
    for axis in range(len(result.shape)):
        place = {"axis": number(axis)} if axis else {}
        count = literals.size(result.shape[axis])
        yield call("jnp.linspace", *args, count, **place, **keywords)
        open_end = {"endpoint": number(False), **place}
        yield call("jnp.linspace", *args, count, **open_end, **keywords)


def _roll_static(name: str, eqn: Eqn, args: Sequence[ast.expr]) -> Iterator[ast.expr]:
    """`jnp.roll(x, -1, axis=0)`, by the parts that the called program joins."""
    joins = [e for e in open_jaxpr(eqn.params["jaxpr"]).eqns if e.primitive.name == "concatenate"]
    axes = [e.params["dimension"] for e in joins]
    sizes = [e.outvars[0].aval.shape[axis] for e, axis in zip(joins, axes, strict=True)]
    shifts = [e.invars[0].aval.shape[axis] for e, axis in zip(joins, axes, strict=True)]
    if joins and not any(map(is_open, (*sizes, *shifts))):
        short = [s - n if 2 * s > n else s for s, n in zip(shifts, sizes, strict=True)]
        shift = syntax.one_or_tuple([number(s) for s in short])
        yield call("jnp.roll", args[0], shift, axis=_axes_of(axes, len(eqn.invars[0].aval.shape)))


def _roll_dynamic(name: str, eqn: Eqn, args: Sequence[ast.expr]) -> Iterator[ast.expr]:
    """`jnp.roll(x, shift, axis=1)`, perhaps mapped over a batch of arrays and shifts."""
    if len(eqn.invars) != 2:
        return  # the shift is a number inside
    x, shift = (v.aval for v in eqn.invars)
    mapped = len(shift.shape)
    for axis in range(len(x.shape) - mapped):
        keywords = {"axis": one_axis(axis, len(x.shape) - mapped)}
        if not mapped:
            yield call("jnp.roll", *args, **keywords)
            continue
        rolled = call("jnp.roll", syntax.name("x"), syntax.name("i"), **keywords)
        yield call(call("jax.vmap", syntax.lambda_of(["x", "i"], rolled)), *args)


def _take_along_axis(name: str, eqn: Eqn, args: Sequence[ast.expr]) -> Iterator[ast.expr]:
    for axis in (-1, *range(len(eqn.invars[0].aval.shape) - 1)):
        yield call("jnp.take_along_axis", *args, axis=number(axis))
        yield call("jnp.take_along_axis", *args, axis=number(axis), mode=number("clip"))


# Functions whose calls hold more than their operands.
_CALLS: Mapping[str, Callable[[str, Eqn, Sequence[ast.expr]], Iterator[ast.expr]]] = {
    "resize_bilinear": _resize_bilinear,
    "resize": _resize,
    "fft": _fft,
    "one_hot": _one_hot,
    "linspace": _linspace,
    "roll_static": _roll_static,
    "roll_dynamic": _roll_dynamic,
    "take_along_axis": _take_along_axis,
}


# Arguments of functions that choose what these compute, false unless given.
_FLAGS = ("lower", "descending")


@functools.cache
def _flags(function: JaxFunction) -> Sequence[str]:
    """Those of `_FLAGS` that a function has."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return ()
    return [n for n in _FLAGS if n in parameters and parameters[n].default is False]


@functools.cache
def _has_axis(function: JaxFunction) -> bool:
    """Return whether a function has an argument `axis`."""
    try:
        return "axis" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _axes(eqn: Eqn) -> Iterator[dict[str, ast.expr]]:
    """The axes that a reduction may be over, and whether it keeps them."""
    old, new = (v.aval.shape for v in (eqn.invars[0], eqn.outvars[0]))
    kept = len(old) == len(new)
    count = sum(m != n for m, n in zip(old, new, strict=True)) if kept else len(old) - len(new)
    for axes in itertools.combinations(range(len(old)), count):
        keywords = {} if len(axes) == len(old) else {"axis": _axes_of(axes, len(old))}
        yield keywords | ({"keepdims": number(True)} if kept else {})


def _degrees(eqn: Eqn) -> dict[str, ast.expr]:
    """The degrees of freedom that a variance subtracts."""
    *_, last = eqn.invars
    value = last.val if len(eqn.invars) > 1 and isinstance(last, Literal) else 0
    return {"ddof": number(int(value))} if np.isfinite(value) and value == int(value) != 0 else {}


def _axes_of(axes: Sequence[int], rank: int) -> ast.expr:
    if len(axes) == 1:
        return number(-1 if axes[0] == rank - 1 else axes[0])
    return syntax.tuple_of(map(number, axes))


# The difference between the diagonal's number and the shift of the rows.
_TRIANGLES = {"tril": 0, "triu": 1}


def _shifts(eqn: Eqn) -> list[int]:
    """The numbers that a called program adds to something; zero is not written."""
    adds = [e for e in open_jaxpr(eqn.params["jaxpr"]).eqns if e.primitive.name == "add"]
    numbers = (a for e in adds for a in e.invars if isinstance(a, Literal))
    return [0, *(int(a.val) for a in numbers if not a.aval.shape)]


_ACTIVATIONS = """relu relu6 leaky_relu gelu silu swish elu selu celu softplus mish hard_swish
    hard_silu hard_sigmoid""".split()
# The result of an activation.
HIDDEN = "hidden"
_NOUNS = {
    "where": "y",
    "clip": "y",
    "compute": "y",
    "take_along_axis": "selected",
    "fft": "spectrum",
    **dict.fromkeys(_ACTIVATIONS, HIDDEN),
}
# Functions of several kinds, such as `resize_bilinear`, whose results have one name.
_KINDS = {"resize": "resized"}


def noun(name: str) -> str:
    """A name for the result of a call."""
    plain = snake(name, "y").strip("_")
    kind = _KINDS.get(plain.split("_")[0])
    return kind or _NOUNS.get(plain, plain or "y")
