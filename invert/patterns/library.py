"""Library functions whose derivative differs from that of their equations.

`jax.nn.relu`, `jax.nn.softmax`, `jnp.logaddexp` and others have derivative rules, or stop the
gradient of a part. The module holds neither, so the function itself has to be recovered. Names of
calls suggest which function to try first; the proof is the same as for every pattern.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import cast

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
from jax import Array

from invert._private.jax import close_like, eval_closed, open_jaxpr, trace_closed
from invert.ir import kinds
from invert.ir.graph import literal
from invert.ir.interpret import without_outer_call
from invert.ir.types import Atom, Aval, Eqn, J, JaxFunction, Value
from invert.patterns.fingerprints import fingerprint, may_be
from invert.rewriting.pattern import Call, Pattern, Site
from invert.rewriting.short import lowered


def _result_of(function: JaxFunction, i: int) -> JaxFunction:
    """One result of a function; lowering drops the others as unused."""

    def only(x: Array) -> Array:
        return function(x)[i]

    only.__name__ = f"{function.__name__}[{i}]"
    return only


def _named(module: ModuleType, name: str) -> tuple[JaxFunction, ...]:
    """A function that not every release has."""
    return (getattr(module, name),) if hasattr(module, name) else ()


_SICI, _SLOGDET = jax.scipy.special.sici, jnp.linalg.slogdet
# Functions that JAX lowers to a call: name of the call -> function.
_CALLS: dict[str, tuple[JaxFunction, ...]] = {
    "relu": (jax.nn.relu,),
    "relu6": (jax.nn.relu6,),
    "log_softmax": (jax.nn.log_softmax,),
    "_pinv": (jnp.linalg.pinv,),
    "slogdet": (_SLOGDET, _result_of(_SLOGDET, 0), _result_of(_SLOGDET, 1)),
    "det": (jnp.linalg.det,),
    "expi": (jax.scipy.special.expi,),
    "sinc": (jnp.sinc,),
    "i0": (jnp.i0,),
    "frexp": (jnp.frexp, _result_of(jnp.frexp, 0)),
    "log1mexp": (jax.nn.log1mexp,),
    "sici": (_SICI, _result_of(_SICI, 0), _result_of(_SICI, 1)),
}
# Functions of several arrays, which have no fingerprint.
_CALLS_OF_SEVERAL: dict[str, tuple[JaxFunction, ...]] = {
    "expn": (jax.scipy.special.expn,),
    "_expn": (jax.scipy.special.expn,),  # of jax 0.12
    "hyp1f1": (jax.scipy.special.hyp1f1,),
    "hyp2f1": (jax.scipy.special.hyp2f1,),
    # In jax 0.12; in 0.10 the equations have the same derivatives. Those of `ldexp` are bits.
    "hypot": (jnp.hypot,),
    "ldexp": (jnp.ldexp,),
    "_rel_entr": (jax.scipy.special.rel_entr, jax.scipy.special.kl_div),
    "_erfcinv_impl": _named(jax.scipy.special, "erfcinv"),
}


def as_call(closed: J, name: str) -> J:
    """A program as a call, if named like a function that JAX calls.

    An export of `jnp.sinc` itself does not contain a call of it.
    """
    jaxpr = open_jaxpr(closed)
    if (name not in _CALLS and name not in _CALLS_OF_SEVERAL) or jaxpr.constvars:
        return closed

    def called(*operands: Value) -> list[Value]:
        return eval_closed(closed, operands)

    called.__name__ = name
    outer = trace_closed(jax.jit(called), *(v.aval for v in jaxpr.invars))
    (eqn,) = open_jaxpr(outer).eqns
    # As it was, with its hints; marked as a call that `without_call` inlines.
    eqn = eqn.replace(params={**eqn.params, "jaxpr": closed, "inline": True})
    return close_like(closed, open_jaxpr(outer).replace(eqns=[eqn]))


def without_call(closed: J) -> J:
    """The program without the call of `as_call`, unless that was of the library function."""
    eqns = open_jaxpr(closed).eqns
    if len(eqns) != 1 or not eqns[0].params.get("inline"):
        return closed
    return cast(J, without_outer_call(closed))


FUNCTIONS = tuple(f for functions in _CALLS.values() for f in functions)


def _call(site: Site) -> Iterator[Call]:
    """`jit[name=relu]{ max x 0 }` -> `jax.nn.relu x`."""
    name = site.eqn.params["name"]
    candidates = _CALLS.get(name, ()) or _CALLS_OF_SEVERAL.get(name, ())
    if not candidates and not site.named:
        # No locations and an unknown name: names may have been stripped too.
        digest = fingerprint(site.eqn.params["jaxpr"])
        candidates = may_be(FUNCTIONS, digest, site.template)
    invars = site.eqn.invars
    avals = tuple(site.aval(a) for a in invars)
    for function in candidates:
        if function is jax.scipy.special.expn:
            # In jax 0.10, the order is a part of the derivative rule, so it must not be a tracer.
            yield from _of_order(function, literal(invars[0]), avals)
        elif function is jax.nn.log_softmax:
            (x,) = avals[:1]
            for axis in range(-1, -len(x.shape) - 1, -1):
                yield dataclasses.replace(_of(function, x, axis=axis), is_call=True)
        else:
            yield Call(("library", function), function, avals, is_call=True)


def _of_order(function: JaxFunction, order: Value, avals: Sequence[Aval]) -> Iterator[Call]:
    if order is not None and len(avals) == 2:
        key = ("library", function, np.asarray(order).item())
        yield Call(key, functools.partial(function, order), tuple(avals[1:]), is_call=True)


def _of(function: JaxFunction, *avals: Aval, **params: object) -> Call:
    key = ("library", function, tuple(sorted(params.items())))
    return Call(key, functools.partial(function, **params), avals)


def _through(site: Site, atom: Atom, *names: str) -> Eqn | None:
    """The equation that defines `atom`, skipping equations of these primitives."""
    eqn = site.producer(atom)
    while eqn is not None and eqn.primitive.name in names:
        eqn = site.producer(eqn.invars[0])
    return eqn


def _is_stopped(site: Site, atom: Atom) -> bool:
    """Return whether the gradient of a value is stopped, of which lowering leaves no trace.

    Where a pattern looks for a maximum, JAX's function is there already.
    """
    eqn = _through(site, atom, *kinds.SHAPING)
    return eqn is not None and eqn.primitive.name == "stop_gradient"


def _is_centered(site: Site, atom: Atom) -> bool:
    """Return whether a value is `x - stop_gradient(max x)`."""
    eqn = site.producer(atom, "sub")
    return eqn is not None and _is_stopped(site, eqn.invars[1])


def _softmax(site: Site) -> Iterator[Call]:
    """`exp(x - max x) / sum(exp(x - max x))` -> `jax.nn.softmax x`."""
    numerator, denominator = site.eqn.invars
    above = site.producer(numerator)
    below = _through(site, denominator, *kinds.SHAPING)
    if above is None or below is None or above.primitive.name != "exp":
        return
    if below.primitive.name != "reduce_sum" or _is_centered(site, above.invars[0]):
        return
    axis = _axis(below)
    yield _of(jax.nn.softmax, site.out, axis=axis)
    centered = site.producer(above.invars[0])
    moved = None if centered is None else site.producer(centered.invars[0])
    if moved is not None and moved.primitive.name == "transpose":
        first, *rest = moved.params["permutation"]
        if first and rest == sorted(rest):
            # Under `jax.vmap` the maximum is taken before the mapped axis comes to the front.
            softmax = functools.partial(jax.nn.softmax, axis=axis)
            mapped = jax.vmap(softmax, in_axes=first)
            key = ("library", jax.nn.softmax, axis, first)
            yield Call(key, mapped, (site.aval(moved.invars[0]),))


def _axis(reduce: Eqn) -> int | tuple[int, ...]:
    rank = len(reduce.invars[0].aval.shape)
    axes = tuple(a - rank for a in reduce.params["axes"])
    return axes[0] if len(axes) == 1 else axes


def _logsumexp(site: Site) -> Iterator[Call]:
    """`log(sum(exp(x - max x))) + max x` -> `jax.nn.logsumexp x`."""
    if any(_is_stopped(site, a) or _is_centered(site, a) for a in site.eqn.invars):
        return
    for atom in site.eqn.invars:
        log = _through(site, atom, *kinds.SHAPING)
        if log is None or log.primitive.name != "log":
            continue
        total = _through(site, log.invars[0], "abs", *kinds.SHAPING)
        if total is None or total.primitive.name != "reduce_sum":
            continue
        x = site.aval(total.invars[0])
        if site.eqn.primitive.name == "sub":
            yield _of(jax.nn.log_softmax, x, axis=_axis(total))
            continue
        keep = len(site.out.shape) == len(x.shape)
        axis = _axis(total)
        yield _of(jax.nn.logsumexp, x, axis=axis, keepdims=keep)


_inlined = functools.partial(lowered, kind=np.inexact)

# Functions that contain others of these. In jax 0.12, JAX calls them instead of inlining them.
AROUND = (
    _inlined("kl_div", "add", jax.scipy.special.kl_div, arity=2, after="sub", holds="log"),
    _inlined("rel_entr", "jit", jax.scipy.special.rel_entr, arity=2, after="and sub", holds="log"),
)

PATTERNS = (
    Pattern("library_call", ("jit",), _call),
    # Functions that JAX inlines.
    _inlined("logaddexp", "select_n", jnp.logaddexp, arity=2, after="ne add add", holds="log1p"),
    _inlined("logaddexp2", "select_n", jnp.logaddexp2, arity=2, after="ne add add", holds="exp2"),
    lowered(
        "complex_logaddexp",
        "complex",
        jnp.logaddexp,
        jnp.logaddexp2,
        arity=2,
        after="real sub",
        holds="rem",
        kind=np.complexfloating,
    ),
    _inlined("entr", "select_n", jax.scipy.special.entr, after="lt", holds="log"),
    _inlined("xlogy", "jit", jax.scipy.special.xlogy, arity=2, after="or", holds="log"),
    _inlined("xlog1py", "jit", jax.scipy.special.xlog1py, arity=2, after="or", holds="log1p"),
    _inlined("logit", "log", jax.scipy.special.logit, after="div", holds="sub"),
    _inlined("log_ndtr", "select_n", jax.scipy.special.log_ndtr, after="gt", holds="erfc"),
    _inlined("erfcx", "select_n", jax.scipy.special.erfcx, after="gt mul div", holds="erfc"),
    _inlined(  # of jax 0.12
        "erfcx",
        "select_n",
        jax.scipy.special.erfcx,
        after="lt select_n mul",
        holds="optimization_barrier",
    ),
    lowered(
        "wofz",
        "select_n",
        jax.scipy.special.wofz,
        after="ge sub add",
        holds="complex",
        kind=np.complexfloating,
    ),
    _inlined("dawsn", "mul", jax.scipy.special.dawsn, after="sign select_n", holds="sign"),
    # Both integrals; a program of one does not contain the tables of the other.
    _inlined("fresnel", "jit", jax.scipy.special.fresnel, after="lt neg", literal=2.5625),
    _inlined("owens_t", "jit", jax.scipy.special.owens_t, arity=2, after="or", holds="atan"),
    # Of jax 0.12; the equations have the same derivatives in jax 0.10.
    _inlined("ndtri", "jit", jax.scipy.special.ndtri, after="or", holds="optimization_barrier"),
    _inlined("i0", "mul", jax.scipy.special.i0, after="exp bessel_i0e"),
    _inlined("i1", "mul", jax.scipy.special.i1, after="exp bessel_i1e"),
    # The primitive has no derivative.
    _inlined("hurwitz_zeta", "zeta", jax.scipy.special.zeta, arity=2, after=""),
    _inlined("poch", "jit", jax.scipy.special.poch, arity=2, after="eq", holds="lgamma"),
    Pattern("softmax", ("div",), _softmax),
    Pattern("logsumexp", ("add", "sub"), _logsumexp),
)
