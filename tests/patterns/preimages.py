"""A small program for each pattern that contains what it recognizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np
from jax import lax, random
from jax.lax import linalg

from invert._private.jax import (
    iota_2x32_shape_p,
    philox2x32_p,
    philox4x32_p,
    threefry2x32_p,
    threefry4x32_p,
)

S = jax.ShapeDtypeStruct
V = S((4,), np.float32)
X = S((3, 3), np.float32)
C = S((3,), np.complex64)
U = S((2,), np.uint32)
B = S((1, 4, 4, 1), np.float32)


@dataclasses.dataclass(frozen=True)
class Preimage:
    """A program that a pattern applies to.

    **Arguments:**

    - `function`, `avals`: the program; a `str` is the text of a StableHLO module.
    - `platform`: what it is lowered for.
    - `since`: the first JAX release that lowers it in the form the pattern is for.
    - `until`: the first release that lowers it to one op again.
    - `dated`: whether no release of today lowers anything to it, so that nothing can be proved by
        lowering the result again.
    - `near`: a near miss written by hand, for programs where no single change makes one.
    - `heavy`: whether it takes more than a few seconds, and so runs with the slow tests.
    """

    function: Callable[..., Any] | str
    avals: tuple[Any, ...] = ()
    platform: str = "cpu"
    since: tuple[int, ...] = ()
    until: tuple[int, ...] = (1,)
    dated: bool = False
    near: Preimage | None = None
    heavy: bool = False


def _of(function: Callable[..., Any], *avals: Any, **options: Any) -> Preimage:
    return Preimage(function, avals, **options)


def _hash(primitive: Any, words: int, **options: Any) -> Preimage:
    avals = [S((), np.uint32)] * words
    return Preimage(lambda *xs: primitive.bind(*xs), tuple(avals), **options)


def _pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def _dot_of_converted(x: Any, y: Any) -> Any:
    wide = x.astype(np.float32)
    return lax.dot(wide, y), wide


def _step(c: Any, r: Any) -> Any:
    return jnp.sin(c) - r, c * r


def _scan(x: Any) -> Any:
    return lax.scan(_step, x[0], x)


def _keys(key: Any) -> Any:
    one, two = random.split(key)
    return random.bits(one, (3,)), random.bits(two, (3,))


def _derivative(x: Any) -> Any:
    return jax.grad(lambda x: (jnp.sin(x) * jnp.cos(x)).sum())(x)


def _custom_call(target: str, tail: str, result: str) -> str:
    return f"""module @m {{
  func.func public @main(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {{
    %b = stablehlo.constant dense<1> : tensor<i32>
    %n = stablehlo.constant dense<4> : tensor<i32>
    %0:2 = stablehlo.custom_call @{target}(%b, %b, %n, %a)
      : (tensor<i32>, tensor<i32>, tensor<i32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<i32>)
    {tail}
    return {result} : tensor<4x4xf32>
  }}
}}"""


_GUARD = """%zero = stablehlo.constant dense<0> : tensor<i32>
    %ok = stablehlo.compare EQ, %0#1, %zero, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %p = stablehlo.broadcast_in_dim %ok, dims = [] : (tensor<i1>) -> tensor<1x1xi1>
    %nan = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %bad = stablehlo.broadcast_in_dim %nan, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %q = stablehlo.broadcast_in_dim %p, dims = [0, 1] : (tensor<1x1xi1>) -> tensor<4x4xi1>
    %r = stablehlo.select %q, %0#0, %bad : tensor<4x4xi1>, tensor<4x4xf32>"""

_WORDS = "tensor<3xui32>"
_THREEFRY = f"""module @m {{
  func.func public @main(%k: {_WORDS}, %x: {_WORDS}) -> ({_WORDS}, {_WORDS}) {{
    %0:2 = stablehlo.custom_call @cu_threefry2x32(%k, %k, %x, %x)
      : ({_WORDS}, {_WORDS}, {_WORDS}, {_WORDS}) -> ({_WORDS}, {_WORDS})
    return %0#0, %0#1 : {_WORDS}, {_WORDS}
  }}
}}"""
_FALLBACK = """module @m {
  func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = call @xla_fallback_qr(%a) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func private @xla_fallback_qr(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.sine %a : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}"""

PREIMAGES: dict[str, Preimage] = {
    "unrolled_scan": _of(lambda x: lax.scan(_step, x[0], x, unroll=2), S((5, 3), np.float32)),
    # Hash functions.
    "threefry2x32": _hash(threefry2x32_p, 4),
    "threefry4x32": _hash(threefry4x32_p, 8),
    "philox2x32": _hash(philox2x32_p, 3),
    "philox4x32": _hash(philox4x32_p, 6),
    "threefry2x32_unrolled": _hash(threefry2x32_p, 4, platform="tpu"),
    "dated_threefry2x32": Preimage(
        _THREEFRY,
        platform="cuda",
        dated=True,
        near=Preimage(_THREEFRY.replace("cu_threefry", "my_threefry"), platform="cuda"),
    ),
    "dated_fallback": Preimage(
        _FALLBACK, dated=True, near=Preimage(_FALLBACK.replace("xla_fallback", "fallback"))
    ),
    # Windows and indices.
    "cumulative": _of(lambda x: lax.cumsum(x, 0), X),
    "argmax": _of(lambda x: lax.argmax(x, 1, np.int32), X),
    "select_and_gather_add": _of(lambda x, t: jax.jvp(_pool, (x,), (t,))[1], B, B),
    "select_and_scatter_add": _of(jax.grad(lambda x: (_pool(x) ** 2).sum()), B),
    "approx_top_k": _of(lambda x: lax.approx_max_k(x, 2), S((8,), np.float32)),
    "dot_general": _of(
        lambda x, y: lax.dot(x, y, preferred_element_type=jnp.float32),
        S((3, 3), np.float16),
        X,
        near=_of(_dot_of_converted, S((3, 3), np.float16), X),
    ),
    "gather_fill": _of(lambda x, i: x.at[i].get(mode="fill"), X, S((2,), np.int32)),
    "scatter_clip": _of(lambda x, i: x.at[i].set(1.0, mode="clip"), X, S((2,), np.int32)),
    "outlined_call": _of(lambda x: lax.cummax(x, 0), X),
    # Complex numbers.
    "complex_convolution": _of(
        lambda x, y: lax.conv(x, y, (1, 1), "VALID"), *[S((1, 1, 3, 3), np.complex64)] * 2
    ),
    "complex_logistic": _of(lax.logistic, C),
    "complex_sqrt": _of(lax.sqrt, C),
    "complex_log1p": _of(lax.log1p, C),
    "complex_log": _of(lax.log, C),
    "complex_atan": _of(lax.atan, C),
    "complex_sin": _of(lax.sin, C),
    "complex_cos": _of(lax.cos, C),
    "complex_square": _of(lax.square, C),
    "complex_exp2": _of(lax.exp2, C),
    "complex_log2": _of(jnp.log2, C, since=(0, 12)),
    "complex_exp": _of(lax.exp, C),
    "complex_abs": _of(lax.abs, C, since=(0, 12)),
    "conj": _of(lax.conj, C),
    "complex_extremum": _of(lax.max, C, C),
    # Special functions.
    "incomplete_gamma": _of(lax.igamma, V, V),
    "incomplete_beta": _of(lax.betainc, V, V, V, heavy=True),
    "polygamma": _of(lax.polygamma, V, V),
    "digamma": _of(lax.digamma, V),
    "lgamma": _of(lax.lgamma, V, until=(0, 12)),
    "zeta": _of(lax.zeta, V, V),
    "erfc": _of(lax.erfc, V, until=(0, 12)),
    "erf_inv": _of(lax.erf_inv, V),
    "bessel_i0e": _of(lax.bessel_i0e, V),
    "bessel_i1e": _of(lax.bessel_i1e, V),
    "nextafter": _of(lax.nextafter, V, V),
    "logistic": _of(lax.logistic, V),
    "exp2": _of(lax.exp2, V),
    "log2": _of(jnp.log2, V, since=(0, 12)),
    "one_minus_square": _of(jax.grad(lambda x: jnp.tanh(x).sum()), V, since=(0, 12)),
    "atan": _of(lax.atan, V),
    "asin": _of(lax.asin, V, since=(0, 12)),
    "outlined_lgamma": _of(lax.lgamma, V, since=(0, 12)),
    "sign": _of(lax.sign, S((3,), np.uint8)),
    "iota_2x32_shape": _of(lambda: iota_2x32_shape_p.bind(shape=(3, 2))),
    "select_n": _of(lax.select_n, S((3,), np.int32), *[S((3,), np.float32)] * 3),
    # Linear algebra.
    "factorization": _of(linalg.lu, X),
    "linalg": _of(linalg.cholesky, X),
    "cholesky_op": _of(linalg.cholesky, X, platform="tpu"),
    "lu_pivots_to_permutation": _of(
        lambda p: linalg.lu_pivots_to_permutation(p, 4), S((3,), np.int32)
    ),
    "symmetric_product": _of(
        lambda x, y: linalg.symmetric_product(x, y, alpha=0.5, beta=2.0), X, X
    ),
    "cholesky_update": _of(linalg.cholesky_update, X, S((3,), np.float32)),
    "dated_linalg_guarded": Preimage(_custom_call("lapack_spotrf", _GUARD, "%r"), dated=True),
    "dated_linalg": Preimage(_custom_call("lapack_spotrf", "", "%0#0"), dated=True),
    "solve": _of(jnp.linalg.solve, X, S((3,), np.float32)),
    "svd_expanded": _of(linalg.svd, X, platform="tpu", heavy=True),
    "singular_values": _of(
        lambda x: linalg.svd(x, compute_uv=False), X, platform="tpu", heavy=True
    ),
    "svd_call": _of(linalg.svd, X, platform="tpu", heavy=True),
    # Random numbers.
    "random_key": _of(lambda k: random.bits(k, (3,)), U),
    "random_seed": _of(random.PRNGKey, S((), np.int32)),
    "rng_bit_generator": _of(
        lambda k: lax.rng_bit_generator(k, (3,), np.uint32),
        S((4,), np.uint32),
        near=_of(lambda k: lax.rng_bit_generator(k, (3,), np.uint32), S((2,), np.uint64)),
    ),
    "random_gamma": _of(lambda k: random.gamma(k, 2.0, (3,)), U, heavy=True),
    # Functions of JAX's libraries.
    "library_call": _of(jax.nn.relu, V),
    "logaddexp": _of(jnp.logaddexp, V, V),
    "logaddexp2": _of(jnp.logaddexp2, V, V),
    "complex_logaddexp": _of(jnp.logaddexp, C, C),
    "entr": _of(special.entr, V),
    "xlogy": _of(special.xlogy, V, V),
    "xlog1py": _of(special.xlog1py, V, V),
    "logit": _of(special.logit, V),
    "log_ndtr": _of(special.log_ndtr, V),
    "erfcx": _of(special.erfcx, V),
    "dawsn": _of(special.dawsn, V),
    "wofz": _of(special.wofz, S((4,), np.complex64)),
    "poch": _of(special.poch, V, V),
    "fresnel": _of(special.fresnel, V),
    "owens_t": _of(special.owens_t, V, V),
    "kl_div": _of(special.kl_div, V, V, until=(0, 12)),
    "rel_entr": _of(special.rel_entr, V, V, until=(0, 12)),
    "hurwitz_zeta": _of(special.zeta, V, V),
    "branch_operand": _of(jax.vmap(lambda x: lax.cond(x > 0, jnp.sin, jnp.cos, x)), V),
    "ndtri": _of(special.ndtri, V, since=(0, 12)),
    "i0": _of(special.i0, V, since=(0, 12)),
    "i1": _of(special.i1, V, since=(0, 12)),
    "softmax": _of(jax.nn.softmax, X),
    "logsumexp": _of(jax.nn.logsumexp, X),
    # Loops and keys.
    "scan": _of(_scan, X),
    "keys": _of(_keys, U, near=_of(lambda k: threefry2x32_p.bind(k, k, k, k), U)),
    # Names that share their ops.
    "negative_integer_pow": _of(lambda x: lax.integer_pow(x, -3), V),
    "integer_pow": _of(
        lambda x: lax.integer_pow(x, 5), V, near=_of(lambda x, y: (x * x) * (x * y), V, V)
    ),
    "integer_exponent": _of(lax.pow, V, S((4,), np.int32)),
    "bool_extremum": _of(lax.max, *[S((3,), np.bool_)] * 2),
    "conversion": _of(lambda x: lax.convert_element_type(x, np.bool_), V),
    "split": _of(lambda x: lax.split(x, (1, 3)), V),
    "stack": _of(
        lambda x, y: jnp.stack([x, y]),
        V,
        V,
        near=_of(lambda x, y: lax.concatenate([x, y], 0), *[S((1, 4), np.float32)] * 2),
    ),
    "tile": _of(lambda x: lax.tile(x, (2, 1)), X, near=_of(lambda x: jnp.repeat(x, 2, 0), X)),
    "unstack": _of(jnp.unstack, X, near=_of(lambda x: (x[:1], x[1:]), X)),
    "reshape_dimensions": _of(
        lambda x: lax.reshape(x, (9,), dimensions=(1, 0)),
        X,
        near=_of(lambda x: lax.reshape(lax.transpose(x, (1, 0)), (9,)), X),
    ),
    "bool_reduction": _of(lambda x: lax.reduce_max(x, (0,)), S((3, 3), np.bool_)),
    "square": _of(lax.square, V, near=_of(lax.mul, V, V)),
    "add_any": _of(_derivative, V),
    "squeeze": _of(
        lambda x: lax.squeeze(x, (0,)),
        S((1, 3), np.float32),
        near=_of(lambda x: lax.reshape(x, (3, 1)), S((1, 3), np.float32)),
    ),
    "broadcast": _of(
        lambda x: x + lax.broadcast_in_dim(x[:1], (4,), (0,)),
        V,
        near=_of(lambda x: x + x[:1], V),
    ),
}
