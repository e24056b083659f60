"""Linear algebra and random numbers as older JAX releases lowered them.

A custom call is replaced by today's primitive:

- together with the equations that put `NaN` where the routine failed, in the forms of 2023 to 2025;
- alone, if these have another form, with the status replaced by success. The primitive itself puts
    `NaN` where it fails, so that results derived from it are the same.

A program that does more with the status than compare it, or that uses the work space, keeps its
custom call.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np
from jax import lax

from invert._opaque import template_call_p
from invert._private.jax import eval_closed, threefry2x32_p
from invert.ir.kinds import COMPARISONS
from invert.ir.types import JaxFunction, Value
from invert.patterns.dated_routines import Routine, UnknownOptionsError, Values, routine_of, scalar
from invert.rewriting.pattern import Call, EquationPattern, Pattern, Site


def _values(site: Site, routine: Routine, operands: Values) -> list[Value]:
    """All results of the custom call, with zeros as work space and as status (success)."""
    values: list[Value] = [lax.full(v.aval.shape, 0, v.aval.dtype) for v in site.eqn.outvars]
    arrays = operands[routine.first : routine.first + routine.arrays]
    for i, value in zip(routine.results, routine.compute(site, *arrays), strict=False):
        values[i] = values[i] if value is None else value
    return values


def _is_plain(site: Site, routine: Routine) -> bool:
    """Whether the program uses the status only to test for success."""
    for i, v in enumerate(site.eqn.outvars):
        if i in routine.results:
            continue
        users = site.graph.users.get(v, ())
        tests = i == routine.status and all(u.primitive.name in COMPARISONS for u in users)
        if v in site.graph.results or (users and not tests):
            return False
    return True


def _checked(site: Site) -> Routine | None:
    """The routine of a site, if its results have the types of the site's."""
    routine = routine_of(site)
    if routine is None or not _is_plain(site, routine):
        return None
    operands = [site.aval(a) for a in site.eqn.invars]
    try:
        results = jax.eval_shape(lambda *xs: _values(site, routine, xs), *operands)
    # Options of another release, or operands that `jax.lax.linalg` does not take.
    except (UnknownOptionsError, TypeError, ValueError, NotImplementedError):
        return None
    types = [(v.aval.shape, v.aval.dtype) for v in site.eqn.outvars]
    return routine if [(v.shape, v.dtype) for v in results] == types else None


def _call_alone(site: Site) -> JaxFunction | None:
    """`custom_call a -> potrf a`: the equations around it stay."""
    routine = _checked(site)
    if routine is None:
        return None
    return lambda *operands: _values(site, routine, operands)


# The guard around a call. `ok` says which routines of the batch succeeded.


def _bad(x: Value) -> Value:
    return np.asarray(np.nan * (1 + 1j) if x.dtype.kind == "c" else np.nan, x.dtype)


def _select(ok: Value, x: Value, bad: Value) -> Value:
    """`select` by a predicate over the leading axes of `x`."""
    ok = lax.broadcast_in_dim(ok, x.shape, tuple(range(ok.ndim)))
    return lax.select(ok, x, lax.broadcast_in_dim(bad, x.shape, ()))


def _expand(ok: Value, x: Value) -> Value:
    shape = ok.shape + (1,) * (x.ndim - ok.ndim)
    return lax.broadcast_in_dim(ok, shape, tuple(range(ok.ndim)))


def _of_lowering(ok: Value, x: Value) -> Value:
    """As written by the lowering."""
    return _select(_expand(ok, x), x, _bad(x))


def _where(ok: Value, x: Value, bad: Value) -> Value:
    return _select(ok, x, bad)


def _of_numpy(ok: Value, x: Value) -> Value:
    """`jnp.where(ok[..., None, None], x, nan)`."""
    return jax.jit(_where)(_expand(ok, x), x, _bad(x))


def _at_once(ok: Value, x: Value) -> Value:
    """As the lowering wrote `where` around the start of 2025."""
    return _select(ok, x, _bad(x))


# The forms of a guard, and whether all results share one test.
_GUARDS = (
    (_of_lowering, True),
    (_of_numpy, False),
    (_at_once, False),
    (_of_numpy, True),
    (_at_once, True),
)


def _guarded(site: Site) -> Iterator[Call]:
    """`where(status == 0, x, nan) -> x`, which already is `NaN` where the routine failed."""
    routine = _checked(site)
    if routine is None or routine.status is None:
        return
    status = routine.status
    params = site.eqn.params
    if any(site.eqn.outvars[i].aval.dtype.kind not in "fc" for i in routine.results):
        return

    def function(*operands: Value) -> Values:
        values = _values(site, routine, operands)
        return [values[i] for i in routine.results]

    options = tuple(scalar(site, i) for i in range(routine.first))
    for guard, shared in _GUARDS:

        def before(*operands: Value, guard: JaxFunction = guard, shared: bool = shared) -> Values:
            values = template_call_p.bind(*operands, **params)
            zero = lax.full(values[status].shape, 0, values[status].dtype)
            one = [lax.eq(values[status], zero)] * len(routine.results)
            tests = one if shared else [lax.eq(values[status], zero) for _ in one]
            pairs = zip(tests, routine.results, strict=True)
            return [guard(ok, values[i]) for ok, i in pairs]

        key = (params["target"], params["attributes"], options, guard.__name__, shared)
        yield Call(key, function, tuple(map(site.aval, site.eqn.invars)), before=before)


def _threefry(site: Site) -> Iterator[Call]:
    """The kernel of GPUs, which takes the key in the shape of the counter -> `threefry2x32`."""
    params, operands = site.eqn.params, site.eqn.invars[:4]
    if params["target"] not in _HASHES or len(site.eqn.invars) != 4:
        return
    shape = site.out.shape
    keys = []
    for atom in operands[:2]:
        eqn = site.producer(atom)
        if eqn is not None and eqn.primitive is lax.broadcast_in_dim_p:
            atom = eqn.invars[0]
        keys.append(site.aval(atom))

    def before(*words: Value) -> Values:
        widened = [
            lax.broadcast_in_dim(w, shape, range(len(shape) - w.ndim, len(shape))) for w in words
        ]
        return template_call_p.bind(*widened, **params)

    key = ("threefry", params["target"], params["attributes"])
    for kinds in (keys, [site.aval(a) for a in operands[:2]]):
        avals = (*kinds, *map(site.aval, operands[2:]))
        yield Call(key, threefry2x32_p.bind, avals, before=before)


_HASHES = frozenset(f"{p}_threefry2x32{s}" for p in ("cu", "hip") for s in ("", "_ffi"))


def _fallback(site: Site) -> JaxFunction | None:
    """Inline `jit[xla_fallback_qr]`: before 2024 the lowering wrapped calls in such functions."""
    if not str(site.eqn.params["name"]).startswith("xla_fallback_"):
        return None
    closed = site.eqn.params["jaxpr"]
    return lambda *operands: eval_closed(closed, operands)


HASHES = (Pattern("dated_threefry2x32", ("custom_call",), _threefry),)
FALLBACKS = (EquationPattern("dated_fallback", ("jit",), _fallback),)
GUARDED = (Pattern("dated_linalg_guarded", ("custom_call",), _guarded),)
ALONE = (EquationPattern("dated_linalg", ("custom_call",), _call_alone),)
