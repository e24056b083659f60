"""Special functions."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from invert.tf.interpreter.registry import Array, Int, rules
from invert.tf.numerics import bessel
from invert.tf.numerics.derivatives import with_tangent
from invert.tf.values.constants import broadcast

scipy = jax.scipy.special


def _broadcasting(fn: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *operands: fn(*broadcast(operands))


def _expint(x: Array) -> Array:
    """NaN for negative numbers and minus infinity at zero, as in TensorFlow."""
    # For negative numbers `scipy.expi` is a loop that does not end for some extreme arrays.
    value = scipy.expi(jnp.where(x > 0, x, 1))
    return jnp.where(x > 0, value, jnp.where(x == 0, -jnp.inf, jnp.nan))


def _in_float32(fn: Callable[..., Array]) -> Callable[..., Array]:
    """For functions that `jax.scipy` has only in single and double precision."""

    def wide(*operands: Array) -> Array:
        dtype = operands[0].dtype
        if dtype.itemsize > 2:
            return fn(*operands)
        out = fn(*(lax.convert_element_type(x, jnp.float32) for x in operands))
        return lax.convert_element_type(out, dtype)

    return wide


def _growing(scaled: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """exp(|x|) times `scaled`, with derivative 0 for |x| at 0, which is correct here."""
    return lambda x: lax.exp(x * lax.sign(x)) * scaled(x)


def _spence_tangent(y: Array, primals: tuple[Array], tangents: tuple[Array]) -> Array:
    (x,), (dx,) = primals, tangents
    other = jnp.where(x == 1, 2, x)
    return dx * jnp.where(x == 1, -1, lax.log(other) / (1 - other))


@with_tangent(_spence_tangent)
def spence(x: Array) -> Array:
    """The dilogarithm of 1 - x; autodiff of `jax.scipy.special.spence` has gaps."""
    return scipy.spence(x)


def _incomplete(fn: Callable[..., Array], sign: int) -> Callable[..., Array]:
    """An incomplete gamma function, even where `a` is too large for `lax`.

    There it is the normal distribution function with mean and variance `a`, which is more precise.
    At infinite x the lower function is 1 with slope 0. `sign`: 1 for the lower
    function, -1 for the upper one.
    """

    def incomplete(a: Array, x: Array) -> Array:
        most = 1e12 if a.dtype == jnp.float64 else 1 / float(jnp.finfo(jnp.float32).eps)
        large = a > most
        outside = ~(a > 0)
        few = jnp.where(large | outside, 1, a)
        deviation = lax.sqrt(jnp.where(large & (a < jnp.inf), a, 1))
        normal = scipy.ndtr(sign * (x - a) / deviation)
        whole = (x == jnp.inf) & (a < jnp.inf)
        value = jnp.where(large & (x >= 0), normal, fn(few, jnp.where(whole, 1, x)))
        value = jnp.where(whole, (1 + sign) // 2, value)
        # TensorFlow gives NaN there, but 0 for the lower function at x = 0.
        return jnp.where(outside & ((x != 0) | (sign < 0)), jnp.nan, value)

    return _in_float32(incomplete)


def _betainc(a: Array, b: Array, x: Array) -> Array:
    """`betainc` as in Eigen: NaN unless a, b > 0, without derivatives in these."""
    a, b = lax.stop_gradient(a), lax.stop_gradient(b)
    value = lax.betainc(a, b, x)
    value = jnp.where(jnp.isnan(value) & ((x == 0) | (x == 1)), x, value)
    return jnp.where((a <= 0) | (b <= 0), jnp.nan, value)


def _fresnel(part: int, wave: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A Fresnel integral; its derivative is the integrand, to full precision."""

    @with_tangent(lambda y, primals, dx: dx[0] * wave(lax.square(primals[0]) * (jnp.pi / 2)))
    def fresnel(x: Array) -> Array:
        return scipy.fresnel(x)[part]

    return fresnel


def _zeta_tangent(y: Array, primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> Array:
    x, q = primals
    return -x * zeta(x + 1, q) * tangents[1]


@with_tangent(_zeta_tangent)
def zeta(x: Array, q: Array) -> Array:
    """Hurwitz's zeta function, in TensorFlow with a derivative in q only."""
    # `lax.zeta` is NaN if q or x is infinite, or if x is so large that one term of the sum remains.
    # Unlike Eigen's, it has poles left of 1.
    large = x > _ONE_TERM
    value = lax.zeta(jnp.where(large & (q > 0), 2, x), q)
    value = jnp.where(large & (q > 0), lax.pow(q, -x), value)
    even = jnp.floor(x / 2) == x / 2
    value = jnp.where(large & (q <= 0) & even, jnp.inf, value)
    value = jnp.where((q == jnp.inf) & (x > 1), 0, value)
    return jnp.where(x < 1, jnp.nan, value)


# The second term underflows, unless the first does too.
_ONE_TERM = 4096.0


def _polygamma(n: Int, x: Array) -> Array:
    order = lax.bitwise_and(lax.gt(n, lax.full_like(n, 0)), lax.eq(n, lax.floor(n)))
    vanishes = lax.bitwise_and(lax.eq(x, lax.full_like(x, jnp.inf)), order)
    return lax.select(vanishes, lax.full_like(x, 0), lax.polygamma(n, x))


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "BesselI0": _growing(lax.bessel_i0e),
    "BesselI0e": lax.bessel_i0e,
    "BesselI1": _growing(lax.bessel_i1e),
    "BesselI1e": lax.bessel_i1e,
    "Betainc": _in_float32(_betainc),
    "Dawsn": _in_float32(scipy.dawsn),
    "Digamma": lax.digamma,
    "Erf": lax.erf,
    "Erfc": lax.erfc,
    "Erfinv": lax.erf_inv,
    "Expint": _in_float32(_expint),
    "FresnelCos": _in_float32(_fresnel(1, lax.cos)),
    "FresnelSin": _in_float32(_fresnel(0, lax.sin)),
    "Igamma": _incomplete(lax.igamma, 1),
    "IgammaGradA": lax.igamma_grad_a,
    "Igammac": _incomplete(lax.igammac, -1),
    "Lgamma": lax.lgamma,
    "Ndtri": _in_float32(scipy.ndtri),
    "Polygamma": _polygamma,
    "Spence": _in_float32(spence),
    "Zeta": zeta,
}

FUNCTIONS |= {op: _in_float32(fn) for op, fn in bessel.FUNCTIONS.items()}

rules({op: _broadcasting(fn) for op, fn in FUNCTIONS.items()})
