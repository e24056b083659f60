"""Calls of `tf.random`.

Stateless functions draw TensorFlow's own numbers. Others draw with the key of the call, so only
shapes and dtypes are compared.
"""

from __future__ import annotations

import tensorflow as tf

from tests.tf.api.calls import B, F, I, Table, U, V, call, each, left_out, of

R = tf.random
SEED = V([7, -3], "int32")
_KEY = "drawn with the key of the call"
_DRAWN = {"value": _KEY, "gradient": _KEY, "vmap": _KEY}
_CLASSES = V([[1], [3], [5]], "int64")
_STATE = "sets a seed of the process"
ONE = "float32"

RANDOM: Table = {
    "Algorithm": "names of algorithms",
    **left_out(_STATE, "set_seed get_global_generator set_global_generator"),
    "Generator": "tested with its methods",
    "create_rng_state": "runs where the program is built",
    "normal": (call([3, 4], 1.0, 2.0).but(**_DRAWN), of(lambda x: x * R.normal(tf.shape(x)), F(B, 3)).but(**_DRAWN).of(ONE)),
    "uniform": (call([3, 4], -1.0, 2.0).but(**_DRAWN), call([5], 2, 9, dtype=tf.int32).but(**_DRAWN)),
    "truncated_normal": (call([3, 4]).but(**_DRAWN),),
    "gamma": (call([3], U(1, 2, B)).but(**_DRAWN).of(ONE),),
    "poisson": (call([3], U(1, 2, B)).but(**_DRAWN),),
    "categorical": (call(F(B, 4), 5).but(**_DRAWN),),
    "shuffle": (call(F(3, 4)).but(**_DRAWN),),
    **each("uniform_candidate_sampler log_uniform_candidate_sampler", of(lambda c: R.uniform_candidate_sampler(c, 1, 4, True, 8, seed=3), _CLASSES).of(ONE).but(**_DRAWN)),
    "log_uniform_candidate_sampler": (of(lambda c: R.log_uniform_candidate_sampler(c, 1, 4, True, 8, seed=3), _CLASSES).of(ONE).but(**_DRAWN),),
    "fold_in": (call(SEED, I(0, 9)).of(ONE),),
    "split": (call(SEED, 3).of(ONE), call(V([1, 2], "int64"), alg="philox").of(ONE)),
    "stateless_binomial": (call([4, 3], SEED, V([5.0, 9.0, 50.0]), V([0.2, 0.7, 0.5])).of(ONE),),
    "stateless_categorical": (call(F(B, 4), 5, SEED).of(ONE), call(F(3, 4), 5, SEED, dtype=tf.int32).of(ONE)),
    "stateless_gamma": (call([4, 3], SEED, U(0.5, 3, 3)).of(ONE).but(gradient="of the sample with regard to its parameter"), call([4, 3], SEED, U(0.5, 3, 3), U(1, 2, 3)).of(ONE).but(gradient="")),
    "stateless_normal": (call([4, 3], SEED, 1.0, 2.0).of(ONE), call([5], SEED, dtype=tf.float64).of(ONE), of(lambda x, s: x + R.stateless_normal(tf.shape(x), s), F(B, 3), SEED).of(ONE)),
    "stateless_parameterized_truncated_normal": (call([4, 3], SEED, F(3), U(0.5, 2, 3), -1.0, 1.5).of(ONE).but(value="other numbers of the same distribution", vmap="other numbers", gradient="other numbers"),),
    "stateless_poisson": (call([4, 3], SEED, U(0.5, 20, 3), dtype=tf.int32).of(ONE),),
    "stateless_truncated_normal": (call([4, 3], SEED).of(ONE),),
    "stateless_uniform": (
        call([4, 3], SEED, -1.0, 2.0).of(ONE), call([9], SEED, 2, 9, dtype=tf.int32).of(ONE), call([9], SEED, None, None, dtype=tf.int64).of(ONE), call([9], SEED, alg="philox", dtype=tf.float64).of(ONE),
    ),
    "index_shuffle": (call(I(0, 9, 5), V([1, 2], "int32"), 9).of(ONE),),
    "stateless_shuffle": (call(F(B, 2), SEED).of(ONE).but(open="a permutation of as many"),),
}  # fmt: skip
EXPERIMENTAL: Table = {n: RANDOM[n] for n in ("index_shuffle", "stateless_shuffle")}
RANDOM = {n: e for n, e in RANDOM.items() if n not in EXPERIMENTAL}
