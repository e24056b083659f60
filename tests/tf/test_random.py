"""Random ops: TensorFlow's CPU numbers bit for bit, or `jax.random` where they are open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import invert
from invert.ir.philox import stateless_key
from invert.tf.numerics.philox import known_key

tf = pytest.importorskip("tensorflow")
raw = tf.raw_ops

PLAIN = invert.Config(patterns=False, verify=False)
FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
INTS = (tf.int32, tf.int64, tf.uint32, tf.uint64)
# Scalars, one number, less than a block of four words, more than one, odd sizes, none, thousands.
SHAPES = ((), (3,), (3, 5, 7), (0, 4), (1001, 3))
SEEDS = ([1, 2], [2, 1], [-7, 2**31 - 1])


def outputs(fn: Callable[..., Any], *args: Any, config: Any = PLAIN) -> tuple[Any, Any]:
    """Results of the converted function and of TensorFlow, as flat lists of arrays."""
    args = tuple(np.asarray(a) for a in args)
    module = invert.convert(tf.function(fn, autograph=False), *args, config=config)
    ours = jax.tree_util.tree_leaves(module(*args))
    with tf.device("CPU"):
        theirs = tf.nest.flatten(fn(*(tf.constant(a) for a in args)))
    return ours, theirs


def assert_same_bits(fn: Callable[..., Any], *args: Any) -> None:
    with jax.enable_x64(True):
        ours, theirs = outputs(fn, *args)
        assert len(ours) == len(theirs) > 0
        for i, (x, y) in enumerate(zip(ours, theirs, strict=True)):
            x, y = np.asarray(x), y.numpy()
            assert x.dtype == y.dtype and x.shape == y.shape, i
            assert x.tobytes() == y.tobytes(), (i, x.dtype, x.shape, np.max(x != y))


# -- stateless


@pytest.mark.parametrize(
    "seed", [SEEDS[0], *(pytest.param(s, marks=pytest.mark.slow) for s in SEEDS[1:])], ids=str
)
def test_floats_of_a_seed(seed: list[int]) -> None:
    def draw(seed: Any) -> Any:
        return [
            fn(shape, seed, dtype=dtype)
            for fn in (
                tf.random.stateless_uniform,
                tf.random.stateless_normal,
                tf.random.stateless_truncated_normal,
            )
            for dtype in FLOATS
            for shape in SHAPES
        ]

    assert_same_bits(draw, np.int32(seed))


def test_many_normal_numbers() -> None:
    # A hundred thousand, so that what one in ten thousand rounds otherwise would show.
    def draw(seed: Any) -> Any:
        return [tf.random.stateless_normal([50001, 2], seed, dtype=t) for t in FLOATS]

    assert_same_bits(draw, np.int64([2**40, -3]))


@pytest.mark.parametrize("name", ["uniform", "normal"])
def test_the_text_calls_a_documented_function(name: str) -> None:
    """The file contains TensorFlow's generator as a function, for any batch size."""

    def draw(x: Any, seed: Any) -> Any:
        shape = tf.concat([tf.shape(x), [3]], 0)
        return getattr(tf.random, f"stateless_{name}")(shape, seed) * x[:, None]

    specs = tf.TensorSpec([None]), tf.TensorSpec([2], tf.int32)
    module = invert.convert(tf.function(draw, autograph=False), *specs)
    source = module.emit(loader=False).source
    assert source.count("def philox4x32(") == source.count(f"def stateless_{name}(") == 1
    assert (
        f"stateless_{name}(*stateless_key(" in source or "key, counter = stateless_key(" in source
    )
    assert "jnp.array([" not in source[source.index("class ") :]  # no tables among the fields
    for rows in (1, 5):
        x, seed = np.linspace(1, 2, rows, dtype=np.float32), np.int32([7, -2])
        want = draw(tf.constant(x), tf.constant(seed)).numpy()
        assert np.array_equal(module.model(x, seed), want)
        assert np.array_equal(module(x, seed), want)


def test_integers_of_a_seed() -> None:
    def draw(seed: Any) -> Any:
        whole = [
            tf.random.stateless_uniform(shape, seed, None, None, dtype)
            for dtype in INTS
            for shape in SHAPES
        ]
        ranges = [
            tf.random.stateless_uniform([37], seed, low, high, dtype)
            for dtype in (tf.int32, tf.int64)
            for low, high in ((0, 10), (-5, 3), (-(2**31), 2**31 - 1))
        ]
        far = tf.random.stateless_uniform([9], seed, -(2**63), 2**63 - 1, tf.int64)
        return [*whole, *ranges, far]

    assert_same_bits(draw, np.int32([5, -6]))


def test_bounds_that_depend_on_data() -> None:
    def draw(low: Any, high: Any) -> Any:
        return [
            tf.random.stateless_uniform([21], [4, 5], low, high, tf.int32),
            tf.random.stateless_uniform([21], [4, 5], None, None, tf.int32),
        ]

    assert_same_bits(draw, np.int32(-4), np.int32(7))


def test_counter_carries_into_its_upper_half() -> None:
    counter = np.array([2**64 - 2, 2**63], np.uint64)

    def draw(counter: Any) -> Any:
        key = tf.constant([2**64 - 1], tf.uint64)
        return raw.StatelessRandomUniformV2(shape=[40], key=key, counter=counter, alg=1)

    assert_same_bits(draw, counter)


def test_split_and_fold_in() -> None:
    def draw(seed: Any) -> Any:
        seeds = tf.random.experimental.stateless_split(seed, 3)
        folded = tf.random.experimental.stateless_fold_in(seed, 7)
        return [seeds, folded, tf.random.stateless_normal([5], folded)]

    assert_same_bits(draw, np.int32([8, 9]))


@pytest.mark.slow
def test_gamma() -> None:
    def draw(alpha: Any) -> Any:
        seed = [3, -4]
        key, counter = raw.StatelessRandomGetKeyCounter(seed=seed)
        half = tf.cast(alpha, tf.float16)
        return [
            raw.StatelessRandomGammaV2(shape=(301, 2, 2), seed=seed, alpha=alpha),
            raw.StatelessRandomGammaV2(shape=(301, 2, 2), seed=seed, alpha=half),
            raw.StatelessRandomGammaV3(
                shape=(5, 2, 2), key=key, counter=counter, alg=3, alpha=alpha
            ),
            tf.random.stateless_gamma((7, 2, 2), seed, alpha, beta=2.0),
        ]

    assert_same_bits(draw, np.float32([[0.3, 1.0], [2.5, 20.0]]))


def test_gamma_in_double() -> None:
    # XLA fuses multiplications and additions; the last place of some numbers differs.
    def draw(alpha: Any) -> Any:
        return raw.StatelessRandomGammaV2(shape=(301, 4), seed=[3, -4], alpha=alpha)

    with jax.enable_x64(True):
        (ours,), (theirs,) = outputs(draw, np.float64([0.3, 1.0, 2.5, 20.0]))
        np.testing.assert_allclose(ours, theirs, rtol=1e-14)


@pytest.mark.slow
def test_gamma_has_the_implicit_derivative() -> None:
    def draw(alpha: Any) -> Any:
        return tf.random.stateless_gamma([50, 3], [1, 2], alpha)

    alpha = np.float32([0.5, 1.0, 4.0])
    module = invert.convert(tf.function(draw), alpha, config=PLAIN)
    with tf.GradientTape() as tape:
        a = tf.constant(alpha)
        tape.watch(a)
        loss = tf.reduce_sum(tf.square(draw(a)))
    grad = jax.grad(lambda a: jnp.sum(module(a) ** 2))(alpha)
    np.testing.assert_allclose(grad, tape.gradient(loss, a), rtol=1e-4)


@pytest.mark.parametrize(
    "dtype",
    [tf.float32, *(pytest.param(d, marks=pytest.mark.slow) for d in (tf.float16, tf.float64))],
    ids=lambda d: d.name,
)
def test_poisson_and_binomial(dtype: Any) -> None:
    rates = np.array([0.3, 5, 9.99, 10, 12.3, 900], dtype.as_numpy_dtype)
    counts = np.array([[10.0], [4.0], [0.0], [300.0]], dtype.as_numpy_dtype)
    probs = np.array([0.0, 0.1, 0.3, 0.5, 0.7, 0.99, 1.0], dtype.as_numpy_dtype)

    def draw(rates: Any, counts: Any, probs: Any) -> Any:
        kinds = (tf.int32, tf.float32) if dtype is tf.float32 else (tf.int64, tf.float16)
        return [
            raw.StatelessRandomPoisson(shape=(501, 6), seed=[5, 6], lam=rates, dtype=t)
            for t in kinds
        ] + [
            raw.StatelessRandomBinomial(
                shape=(301, 4, 7), seed=[5, 6], counts=counts, probs=probs, dtype=t
            )
            for t in kinds
        ]

    assert_same_bits(draw, rates, counts, probs)


def test_binomial_of_nan() -> None:
    def draw(probs: Any) -> Any:
        counts = tf.constant(5.0)
        return raw.StatelessRandomBinomial(
            shape=(2,), seed=[5, 6], counts=counts, probs=probs, dtype=tf.float32
        )

    assert_same_bits(draw, np.float32(np.nan))


def test_multinomial() -> None:
    def draw(logits: Any) -> Any:
        return [
            tf.random.stateless_categorical(tf.cast(logits, t), 7, [3, 4], dtype=o)
            for t in (tf.float16, tf.float32, tf.float64)
            for o in (tf.int32, tf.int64)
        ]

    assert_same_bits(draw, np.float32([[0.1, 2, -np.inf, 1], [5, 4, 3, 3], [0, np.inf, 1, 2]]))


def test_shuffle() -> None:
    def draw(x: Any) -> Any:
        key, counter = raw.StatelessRandomGetKeyCounter(seed=[6, 7])
        return [
            raw.StatelessShuffle(value=x, key=key, counter=counter, alg=1),
            raw.StatelessShuffle(value=x[:, 0], key=key, counter=counter, alg=1),
            raw.StatelessShuffle(value=x[:1], key=key, counter=counter, alg=1),
            raw.StatelessShuffle(value=x > 9, key=key, counter=counter, alg=1),
        ]

    assert_same_bits(draw, np.arange(63, dtype=np.float32).reshape(21, 3))


def test_parameterized_truncated_normal_has_its_distribution() -> None:
    def draw(mean: Any) -> Any:
        return tf.random.stateless_parameterized_truncated_normal(
            [20000, 4], [1, 2], mean, 2.0, tf.constant([-1.0, 0, 5, -np.inf]), [1.0, 9, 9, -4]
        )

    (ours,), (theirs,) = outputs(draw, np.float32([0, 1, 0, 0]))
    theirs = theirs.numpy()
    ours = np.asarray(ours)
    assert (ours >= [-1, 0, 5, -np.inf]).all() and (ours <= [1, 9, 9, -4]).all()
    np.testing.assert_allclose(ours.mean(0), theirs.mean(0), atol=0.03)
    np.testing.assert_allclose(ours.std(0), theirs.std(0), atol=0.03)


def test_seeds_are_not_added() -> None:
    module = invert.convert(
        tf.function(lambda s: tf.random.stateless_uniform([4], s)), np.int32([1, 2]), config=PLAIN
    )
    assert not np.array_equal(module(np.int32([1, 2])), module(np.int32([2, 1])))


@pytest.mark.slow
def test_batched_seeds_draw_like_single_seeds() -> None:
    def draw(seed: Any) -> Any:
        return [
            tf.random.stateless_normal([5], seed),
            tf.random.stateless_truncated_normal([5], seed),
            tf.random.stateless_gamma([5], seed, 0.7),
        ]

    module = invert.convert(tf.function(draw), np.int32([0, 0]), config=PLAIN)
    seeds = np.arange(8, dtype=np.int32).reshape(4, 2)
    batched = jax.vmap(module)(seeds)
    for i, seed in enumerate(seeds):
        for x, y in zip(batched, module(seed), strict=True):
            np.testing.assert_array_equal(x[i], y)


@pytest.mark.parametrize(
    "shape",
    [(4, 3), *(pytest.param(s, marks=pytest.mark.slow) for s in ((), (3,), (3, 5), (301, 7)))],
    ids=str,
)
@pytest.mark.parametrize("algorithm", [1, 2], ids=["philox", "threefry"])
def test_numbers_of_xla(shape: tuple[int, ...], algorithm: int) -> None:
    def draw(key: Any, counter: Any) -> Any:
        rng = {"shape": shape, "key": key, "counter": counter, "alg": algorithm}
        bounds = tf.constant(-3, tf.int64), tf.constant(17, tf.int64)
        return [
            *(raw.StatelessRandomUniformV2(**rng, dtype=t) for t in FLOATS),
            *(raw.StatelessRandomNormalV2(**rng, dtype=t) for t in FLOATS),
            *(raw.StatelessRandomUniformFullIntV2(**rng, dtype=t) for t in INTS),
            raw.StatelessRandomUniformIntV2(**rng, minval=-3, maxval=17),
            raw.StatelessRandomUniformIntV2(**rng, minval=bounds[0], maxval=bounds[1]),
        ]

    key, counter = np.uint64([0x123456789ABCDEF]), np.uint64([2**33 - 3, 2])
    compiled = tf.function(draw, autograph=False, jit_compile=True)
    module = invert.convert(compiled, key, counter, config=PLAIN)
    with jax.enable_x64(True):
        for x, y in zip(module(key, counter), compiled(key, counter), strict=True):
            assert np.asarray(x).tobytes() == y.numpy().tobytes(), y.dtype


@pytest.mark.parametrize("algorithm", [1, 2], ids=["philox", "threefry"])
def test_truncated_normal_of_xla(algorithm: int) -> None:
    def draw(key: Any) -> Any:
        counter = tf.constant([1, 2], tf.uint64)
        return raw.StatelessTruncatedNormalV2(shape=[99], key=key, counter=counter, alg=algorithm)

    key = np.uint64([77])
    compiled = tf.function(draw, autograph=False, jit_compile=True)
    module = invert.convert(compiled, key, config=PLAIN)
    # The last place depends on what each XLA fuses.
    np.testing.assert_allclose(module(key), compiled(key), rtol=3e-6)


def test_a_function_compiled_by_xla_draws_as_xla_within_one_that_is_not(tmp_path) -> None:
    class Draws(tf.Module):
        @tf.function(jit_compile=True)
        def compiled(self, seed: Any) -> Any:
            return tf.random.stateless_uniform([5], seed)

        @tf.function(input_signature=[tf.TensorSpec([2], tf.int32)])
        def both(self, seed: Any) -> Any:
            branch = tf.cond(seed[0] > 0, lambda: self.compiled(seed), lambda: tf.zeros([5]))
            return branch, tf.random.stateless_uniform([5], seed)

    draws, seed = Draws(), np.int32([3, 4])
    tf.saved_model.save(draws, str(tmp_path))
    want = draws.both(seed)
    assert not np.array_equal(*want)
    for module in (
        invert.convert(draws.both, seed, config=PLAIN),
        invert.load(tmp_path, signature="both", config=PLAIN),
    ):
        for x, y in zip(module(seed), want, strict=True):
            np.testing.assert_array_equal(x, y)


# -- generators


def test_generator_state_is_read_and_written() -> None:
    generator = tf.random.Generator.from_seed(7)
    resource = generator.state.handle

    @tf.function
    def draw() -> Any:
        return [
            generator.normal([5]),
            generator.uniform([3], dtype=tf.float64),
            generator.uniform([3], -2, 9, dtype=tf.int32),
            generator.truncated_normal([6]),
            generator.uniform_full_int([2], dtype=tf.uint64),
            generator.binomial([4], counts=[30.0] * 4, probs=[0.4]),
            raw.StatefulUniform(resource=resource, algorithm=1, shape=[7]),
            raw.StatefulStandardNormalV2(resource=resource, algorithm=1, shape=[7]),
            raw.StatefulTruncatedNormal(resource=resource, algorithm=1, shape=[7]),
            raw.StatefulUniformInt(resource=resource, algorithm=1, shape=[7], minval=0, maxval=9),
            raw.StatefulUniformFullInt(resource=resource, algorithm=1, shape=[7], dtype=tf.int32),
            raw.RngReadAndSkip(resource=resource, alg=1, delta=tf.constant(3, tf.uint64)),
        ]

    module = invert.convert(draw, config=PLAIN)
    with jax.enable_x64(True):
        state = eqx.nn.State(module)
        for _ in range(2):
            ours, state = module(state=state)
            for i, (x, y) in enumerate(zip(ours, draw(), strict=True)):
                assert np.asarray(x).tobytes() == y.numpy().tobytes(), i


def test_generator_that_no_kernel_draws_from() -> None:
    generator = tf.random.Generator.from_seed(3, alg="threefry")
    with pytest.raises(invert.UnsupportedOpError, match=r"RngReadAndSkip.*ThreeFry"):
        invert.convert(tf.function(lambda: generator.normal([3]), autograph=False))


def test_generator_in_a_loop() -> None:
    generator = tf.random.Generator.from_seed(11)

    @tf.function
    def draw(n: Any) -> Any:
        total = tf.zeros([3])
        for _ in tf.range(n):
            total += generator.normal([3])
        return total

    module = invert.convert(draw, np.int32(0), config=PLAIN)
    ours, state = module(np.int32(4), state=eqx.nn.State(module))
    np.testing.assert_allclose(ours, draw(tf.constant(4)), rtol=1e-6, atol=1e-6)
    again, _ = module(np.int32(2), state=state)
    np.testing.assert_allclose(again, draw(tf.constant(2)), rtol=1e-6, atol=1e-6)


# -- numbers that TensorFlow leaves open


def keyed(fn: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """The converted function, as a function of the key."""
    args = tuple(np.asarray(a) for a in args)
    module = invert.convert(tf.function(fn, autograph=False), *args, config=PLAIN)
    return lambda seed=0: module(*args, key=jax.random.key(seed))


# Each with its mean and its deviation. Those that XLA compiles too are in `ops/recipes_random.py`.
MOMENTS: dict[str, tuple[Callable[[], Any], float, float]] = {
    "gamma": (lambda: tf.random.gamma([20000], 2.0, 3.0), 2 / 3, 2**0.5 / 3),
    "poisson": (lambda: tf.random.poisson([20000], 3.5), 3.5, 3.5**0.5),
    "poisson_int": (
        lambda: raw.RandomPoissonV2(shape=[20000], rate=tf.constant(3.5, tf.float64)),
        3.5,
        3.5**0.5,
    ),
    "bits": (lambda: raw.NonDeterministicInts(shape=[20000], dtype=tf.int32), 0.0, 2**32 / 12**0.5),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_moments(name: str) -> None:
    fn, mean, deviation = MOMENTS[name]
    with jax.enable_x64(True):
        draw = keyed(fn)
        x, want = np.asarray(draw()), fn()
        assert x.dtype == want.dtype.as_numpy_dtype and x.shape == want.shape
        y = x.astype(np.float64)
        np.testing.assert_allclose(y.mean(), mean, atol=0.05 * deviation)
        np.testing.assert_allclose(y.std(), deviation, rtol=0.04)
        assert np.array_equal(x, draw()) and not np.array_equal(x, draw(1))


def test_shuffle_from_a_key() -> None:
    x = np.arange(40.0, dtype=np.float32).reshape(20, 2)
    shuffled = np.asarray(keyed(tf.random.shuffle, x)())
    assert not np.array_equal(shuffled, x)
    np.testing.assert_array_equal(shuffled[np.argsort(shuffled[:, 0])], x)


def test_gamma_from_a_key_has_a_derivative() -> None:
    alpha = np.float32([0.5, 4.0])
    module = invert.convert(tf.function(lambda a: tf.random.gamma([2000], a)), alpha, config=PLAIN)
    key = jax.random.key(0)
    # The mean of a gamma number is its parameter.
    grad = jax.grad(lambda a: jnp.sum(jnp.mean(module(a, key=key), 0)))(alpha)
    np.testing.assert_allclose(grad, [1, 1], atol=0.15)


def test_every_op_draws_anew() -> None:
    x, y = keyed(lambda: [tf.random.normal([5]), tf.random.normal([5])])()
    assert not np.array_equal(x, y)


def test_draws_in_a_loop_differ() -> None:
    def draw(n: Any) -> Any:
        return tf.map_fn(
            lambda _: tf.random.uniform([4]), tf.range(n), fn_output_signature=tf.float32
        )

    rows = np.asarray(keyed(lambda: draw(5))())
    assert len(np.unique(rows)) == 20


def test_dropout() -> None:
    x = np.ones((100, 100), np.float32)
    dropped = np.asarray(keyed(lambda x: tf.nn.dropout(x, 0.25), x)())
    values, counts = np.unique(dropped, return_counts=True)
    np.testing.assert_allclose(values, [0, 4 / 3], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(counts[0] / 10000, 0.25, atol=0.02)


def test_a_key_is_asked_for() -> None:
    x = np.ones(3, np.float32)
    module = invert.convert(tf.function(lambda x: tf.nn.dropout(x, 0.5)), x, config=PLAIN)
    with pytest.raises(invert.SignatureError, match="key"):
        module(x)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
def test_a_known_seed_gives_the_key_that_a_program_computes(dtype: type) -> None:
    limits = np.iinfo(dtype)
    draw = np.random.default_rng(3).integers(limits.min, limits.max, (5, 2), dtype, endpoint=True)
    for seed in (*draw, np.array([limits.min, limits.max], dtype)):
        with jax.enable_x64(True):
            wanted = stateless_key(jnp.asarray(seed))
        for ours, theirs in zip(known_key(seed), wanted, strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)
