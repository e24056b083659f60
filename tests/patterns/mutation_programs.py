"""Small programs over all families of patterns, on square arrays, so that mutants stay valid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np
from jax import lax, random
from jax.lax import linalg

S = jax.ShapeDtypeStruct
X = S((3, 3), np.float32)
Y = S((3, 3), np.float32)
V = S((4,), np.float32)
N = S((3,), np.int32)
C = S((3,), np.complex64)
D = S((3, 3), np.float64)
B = S((1, 4, 4, 1), np.float32)
K = S((2,), np.uint32)

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def _gather(mode: str, fill: float | None = None) -> Callable[..., Any]:
    return lambda x, i: x.at[i].get(mode=mode, fill_value=fill)


def _scatter(mode: str, method: str = "set") -> Callable[..., Any]:
    return lambda x, i, u: getattr(x.at[i], method)(u, mode=mode)


def _positive(x: Any) -> Any:
    return x @ x.T + 3 * jnp.eye(3, dtype=x.dtype)


def _scan(x: Any, y: Any) -> Any:
    def step(carry: Any, rows: Any) -> Any:
        a, b = rows
        return jnp.tanh(carry * 0.5 + a), carry - b

    return lax.scan(step, x[0], (x, y))


def _scan_reverse(x: Any) -> Any:
    return lax.scan(lambda c, r: (c - r, c * r), x[0], x, reverse=True)


def _scan_blocks(x: Any) -> Any:
    return lax.scan(lambda c, r: (jnp.sin(c) - r, c * r), x[0], x, unroll=2)


def _fori(x: Any) -> Any:
    return lax.fori_loop(0, 4, lambda i, y: y * 0.5 - i, x)


def _fori_read(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, y: y - x[i] * 0.5, x[0])


def _fori_write(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, y: y.at[i].set(x[2 - i] - i), x)


def _while(x: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] - 0.5 * s[0]), (0, x))


def _scan_in_cond(x: Any) -> Any:
    def run(x: Any) -> Any:
        return lax.scan(lambda c, r: (c - r, c.sum()), x[0], x)

    return lax.cond(x[0, 0] < 0.5, run, lambda x: (x[1], x[:, 2]), x)


def _key(k: Any) -> Any:
    return random.wrap_key_data(k)


FAMILIES: dict[str, dict[str, Program]] = {
    "cumulative": {
        "cumsum": (lambda x: jnp.cumsum(x, 0), (X,)),
        "cumprod_reverse": (lambda x: lax.cumprod(x, axis=1, reverse=True), (X,)),
        "cummax": (lambda x: lax.cummax(x, axis=1), (X,)),
        "cummin": (lambda x: lax.cummin(x, axis=0, reverse=True), (X,)),
        "cumlogsumexp": (lambda x: lax.cumlogsumexp(x, axis=0), (X,)),
        "cumsum_used_twice": (lambda x: jnp.cumsum(x, 0) - jnp.cumsum(x, 1), (X,)),
    },
    "argmax": {
        "argmax": (lambda x: jnp.argmax(x, 1), (X,)),
        "argmin": (lambda x: jnp.argmin(x, 0), (X,)),
    },
    "windows": {
        "max_pool_gradient": (
            jax.grad(
                lambda x: (
                    lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "SAME") ** 2
                ).sum()
            ),
            (B,),
        ),
        "max_pool_tangent": (
            lambda x, t: jax.jvp(
                lambda x: lax.reduce_window(
                    x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
                ),
                (x,),
                (t,),
            )[1],
            (B, B),
        ),
        "windows": (
            lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 1), ((1, 0), (0, 1))),
            (X,),
        ),
    },
    "indexing": {
        "gather_fill": (_gather("fill"), (X, N)),
        "gather_fill_value": (_gather("fill", 7.0), (X, N)),
        "gather_clip": (_gather("clip"), (X, N)),
        "scatter_clip": (_scatter("clip"), (X, N, Y)),
        "scatter_add_clip": (_scatter("clip", "add"), (X, N, Y)),
        "scatter_drop": (_scatter("drop", "max"), (X, N, Y)),
        "take_along": (lambda x: jnp.take_along_axis(x, jnp.argsort(x, 0), 0), (X,)),
    },
    "special": {
        "erf_inv": (lax.erf_inv, (V,)),
        "erfc": (lax.erfc, (V,)),
        "lgamma": (lax.lgamma, (V,)),
        "digamma": (lax.digamma, (V,)),
        "zeta": (lambda x: lax.zeta(2 + x * x, 0.5 + x * x), (V,)),
        "igamma": (lambda x: lax.igamma(1 + x * x, 0.5 + x * x), (V,)),
        "betainc": (lambda x: lax.betainc(1 + x * x, 2.0 + x * x, lax.logistic(x)), (V,)),
        "bessel_i0e": (lax.bessel_i0e, (V,)),
        "bessel_i1e": (lax.bessel_i1e, (V,)),
        "nextafter": (lambda x: lax.nextafter(x, x[::-1]), (V,)),
        "asinh_acosh": (lambda x: (jnp.arcsinh(x), jnp.arccosh(1 + x * x), jnp.arctan(x)), (V,)),
        "tan_exp2": (lambda x: (lax.tan(x), lax.exp2(x), lax.acos(x / 8)), (V,)),
        "polygamma": (lambda x: lax.polygamma(jnp.round(1 + x * x), 0.5 + x * x), (V,)),
        "igamma_grad": (jax.grad(lambda x: lax.igamma(1 + x * x, 0.5 + x * x).sum()), (V,)),
        "lgamma_double": (lax.lgamma, (S((3,), np.float64),)),
    },
    "complex": {
        "complex_sqrt": (lax.sqrt, (C,)),
        "complex_log": (lax.log, (C,)),
        "complex_sin": (lambda z: lax.sin(z) - lax.cos(z), (C,)),
        "complex_exp": (lax.exp, (C,)),
        "complex_tanh": (lambda z: (lax.tanh(z), lax.square(z)), (C,)),
        "complex_atan": (lax.atan, (C,)),
    },
    "linear algebra": {
        "cholesky": (lambda x: jnp.linalg.cholesky(_positive(x)), (X,)),
        "qr": (jnp.linalg.qr, (X,)),
        "cholesky_update": (
            lambda x, y: linalg.cholesky_update(jnp.linalg.cholesky(_positive(x)).T, y[0]),
            (X, Y),
        ),
        "pivots": (
            lambda x: linalg.lu_pivots_to_permutation(linalg.lu(x)[1], 4),
            (X,),
        ),
        "lu": (lambda x: jax.lax.linalg.lu(x), (X,)),
        "eigh": (lambda x: jnp.linalg.eigh(x + x.T)[0], (X,)),
        "svd": (lambda x: jnp.linalg.svd(x, compute_uv=False), (X,)),
        "solve": (lambda x, y: jnp.linalg.solve(_positive(x), y), (X, Y)),
        "triangular_solve": (
            lambda x, y: linalg.triangular_solve(_positive(x), y, left_side=True, lower=True),
            (X, Y),
        ),
        "cholesky_double": (lambda x: jnp.linalg.cholesky(_positive(x)), (D,)),
        "cho_solve": (
            lambda x, y: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(_positive(x)), True), y),
            (X, Y),
        ),
        "symmetric_product": (
            lambda x, y: linalg.symmetric_product(x, y + y.T, alpha=0.5, beta=2.0),
            (X, Y),
        ),
        "det": (jnp.linalg.det, (X,)),
    },
    "random": {
        "split": (lambda k: random.key_data(random.split(_key(k), 3)), (K,)),
        "fold_in": (lambda k: random.key_data(random.fold_in(_key(k), 7)), (K,)),
        "bits": (lambda k: random.bits(_key(k), (3,)), (K,)),
        "uniform": (lambda k: random.uniform(_key(k), (3,)), (K,)),
        "uniform_raw": (lambda k: random.uniform(k, (3,), minval=-1.0, maxval=2.0), (K,)),
        "normal": (lambda k: random.normal(k, (2, 2)), (K,)),
        "seed": (lambda s: random.uniform(random.PRNGKey(s), (3,)), (S((), np.int32),)),
        "categorical": (lambda k, x: random.categorical(_key(k), x), (K, X)),
        "permutation": (lambda k: random.permutation(_key(k), 5), (K,)),
        "randint": (lambda k: random.randint(_key(k), (3,), 2, 9), (K,)),
        "bernoulli": (lambda k: random.bernoulli(_key(k), 0.25, (4,)), (K,)),
        "chain": (
            lambda k: [random.normal(i, (2,)) for i in random.split(_key(k), 3)[::2]],
            (K,),
        ),
        "philox": (
            lambda k: random.uniform(random.wrap_key_data(k, impl="rbg"), (3,)),
            (S((4,), np.uint32),),
        ),
    },
    "loops": {
        "scan": (_scan, (X, Y)),
        "scan_reverse": (_scan_reverse, (X,)),
        "scan_unrolled": (
            lambda x: lax.scan(lambda c, r: (c - r, c), x[0], x, unroll=2),
            (S((4, 3), np.float32),),
        ),
        "scan_blocks": (_scan_blocks, (S((5, 3), np.float32),)),
        "scan_blocks_reverse": (
            lambda x: lax.scan(lambda c, r: (c - r, c * r), x[0], x, unroll=2, reverse=True),
            (S((5, 3), np.float32),),
        ),
        "fori": (_fori, (X,)),
        "fori_read": (_fori_read, (X,)),
        "fori_write": (_fori_write, (X,)),
        "map": (lambda x: lax.map(lambda r: jnp.cumsum(r) - r, x), (X,)),
        "while": (_while, (X,)),
        "switch": (lambda i, x: lax.switch(i[0], [jnp.sin, jnp.cos, jnp.exp], x), (N, X)),
        "scan_in_cond": (_scan_in_cond, (X,)),
        "scan_of_keys": (
            lambda k, x: lax.scan(
                lambda k, r: (random.split(k)[0], random.normal(k, (3,)) - r), k, x
            ),
            (K, X),
        ),
    },
    "library": {
        "relu": (lambda x: (jax.nn.relu(x), jax.nn.relu6(x)), (X,)),
        "softmax": (lambda x: jax.nn.softmax(x, 1), (X,)),
        "log_softmax": (lambda x: jax.nn.log_softmax(x, 0), (X,)),
        "logsumexp": (lambda x: jax.nn.logsumexp(x, 1), (X,)),
        "logaddexp": (jnp.logaddexp, (X, Y)),
        "xlogy": (special.xlogy, (X, Y)),
        "logit": (lambda x: special.logit(jax.nn.sigmoid(x)), (X,)),
        "sinc": (jnp.sinc, (X,)),
        "erfcx": (special.erfcx, (V,)),
        "log_ndtr": (special.log_ndtr, (V,)),
        "silu_gelu": (lambda x: (jax.nn.silu(x), jax.nn.gelu(x)), (X,)),
        "slogdet": (jnp.linalg.slogdet, (X,)),
        "poch": (lambda x: special.poch(1 + x * x, 2 + x * x), (V,)),
        "xlog1py": (special.xlog1py, (X, Y)),
        "logaddexp2": (jnp.logaddexp2, (X, Y)),
    },
    "arrays": {
        "split": (lambda x: lax.split(x, (1, 2), 0), (X,)),
        "stack": (lambda x, y: jnp.stack([x, y, x], 1), (X, Y)),
        "tile": (lambda x: lax.tile(x, (2, 1)), (X,)),
        "unstack": (lambda x: jnp.unstack(x, axis=1), (X,)),
        "squeeze": (lambda x: lax.squeeze(x[:, :1], (1,)) - x[0], (X,)),
        "slices": (lambda x: x[1:, :2] - x[:2, ::2], (X,)),
        "iota_triangle": (lambda x: jnp.tril(x, -1) - jnp.triu(x), (X,)),
        "clamp_where": (lambda x, y: jnp.where(x < y, jnp.clip(x, -0.5, 0.5), y), (X, Y)),
        "pad_roll": (lambda x: jnp.roll(jnp.pad(x, ((1, 0), (0, 1))), 1, 0), (X,)),
    },
    "powers": {
        "integer_pow_3": (lambda x: x**3, (X,)),
        "integer_pow_7": (lambda x: lax.integer_pow(x, 7), (X,)),
        "integer_pow_negative": (lambda x: lax.integer_pow(x, -3), (X,)),
        "pow_int": (lambda x, i: lax.pow(x, i), (S((3,), np.float32), N)),
        "bool_reductions": (lambda x: (jnp.any(x > 0, 0), jnp.all(x < 1, 1)), (X,)),
    },
    "contractions": {
        "dot_general": (
            lambda x, y: lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,)))),
            (S((3, 3, 3), np.float32),) * 2,
        ),
        "mixed_types": (
            lambda x, y: lax.dot(x, y, preferred_element_type=jnp.float32),
            (S((3, 3), np.float16), X),
        ),
        "convolution": (
            lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME"),
            (S((1, 1, 4, 4), np.float32), S((1, 1, 3, 3), np.float32)),
        ),
        "fft": (lambda x: jnp.fft.rfft(x, axis=-1), (S((4, 4), np.float32),)),
    },
    "sorting": {
        "sort": (lambda x: lax.sort(x, dimension=1), (X,)),
        "sort_keys": (lambda x, y: lax.sort((x, y), dimension=0, num_keys=2), (X, Y)),
        "argsort": (lambda x: jnp.argsort(-x, 0), (X,)),
        "top_k": (lambda x: lax.top_k(x, 2), (X,)),
        "median": (lambda x: jnp.median(x, axis=1), (X,)),
    },
}
