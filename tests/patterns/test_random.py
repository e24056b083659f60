"""Random numbers: hashes, operations on keys, samplers and key types."""

import collections

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random

import invert
from invert._private.jax import (
    is_jaxpr,
    open_jaxpr,
    philox2x32_p,
    philox4x32_p,
    threefry2x32_p,
    threefry4x32_p,
)
from tests.patterns.recovery import equations

RAW = jnp.array([1, 2], jnp.uint32)
X = jnp.linspace(0.5, 2.5, 6, dtype=jnp.float32).reshape(2, 3)
WORDS = jnp.arange(6, dtype=jnp.uint32).reshape(2, 3)


def recovered(f, *args):
    """The recovered module, after comparing its values with `f`; random bits exactly."""
    module = invert.from_exported(jax.export.export(jax.jit(f))(*args))
    wanted = jax.tree.leaves(jax.jit(f)(*args))
    for got, want in zip(jax.tree.leaves(module(*args)), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        if jnp.issubdtype(want.dtype, jnp.integer):
            np.testing.assert_array_equal(got, want)
    return module


def primitives(f, *args):
    """Counts of equations on random numbers, including inner bodies."""
    counts = collections.Counter()

    def visit(jaxpr):
        for eqn in jaxpr.eqns:
            counts[eqn.primitive.name] += 1
            for value in eqn.params.values():
                for v in value if isinstance(value, (tuple, list)) else (value,):
                    if is_jaxpr(v):
                        visit(open_jaxpr(v))

    visit(jax.make_jaxpr(f)(*args).jaxpr)
    kinds = ("random_", "rng_", "threefry", "philox", "while")
    return {name: n for name, n in counts.items() if name.startswith(kinds)}


def same(f, *args):
    module = recovered(f, *args)
    assert primitives(module, *args) == primitives(f, *args)
    return module


HASHES = {
    "threefry2x32": (threefry2x32_p, 2, 2),
    "threefry4x32": (threefry4x32_p, 4, 4),
    "philox2x32": (philox2x32_p, 1, 2),
    "philox4x32": (philox4x32_p, 2, 4),
}


@pytest.mark.parametrize("name", HASHES)
def test_hash(name):
    primitive, keys, counters = HASHES[name]

    def f(k, x):
        return primitive.bind(*[k[0, 0]] * keys, *[x] * counters)

    same(f, WORDS, WORDS)


def test_hash_with_broadcast_operands():
    def f(x):
        return threefry2x32_p.bind(x[:, :1], x[:, :1], x[:1], x[:1])

    same(f, WORDS)


def test_hash_near_miss():
    """One constant of the hash differs."""
    module = jax.export.export(jax.jit(lambda k: random.bits(k, (3,))))(RAW).mlir_module()
    assert module.count("466688986") == 1
    changed = invert.from_stablehlo(module.replace("466688986", "466688987"))
    assert primitives(changed, RAW).keys() <= {"while"}
    right = invert.from_stablehlo(module)
    assert primitives(right, RAW) == {"random_wrap": 1, "random_bits": 1}
    assert not np.array_equal(changed(RAW), right(RAW))


IMPLS = ("threefry2x32", "threefry4x32", "philox2x32", "philox4x32", "rbg")


def data(key):
    return random.key_data(key)


@pytest.mark.parametrize(
    "impl", [pytest.param(i, marks=[pytest.mark.slow] if i[-4:] == "4x32" else []) for i in IMPLS]
)
def test_operations_on_keys(impl):
    words = data(random.key(3, impl=impl))

    def wrap(k):
        return random.wrap_key_data(k, impl=impl)

    same(lambda k: random.bits(wrap(k), (3, 4)), words)
    same(lambda k: random.bits(wrap(k), (), dtype="uint8"), words)
    same(lambda k: data(random.split(wrap(k), (2, 3))), words)
    same(lambda s: data(random.key(s, impl=impl)), 3)
    if impl != "rbg":
        same(lambda k, i: data(random.fold_in(wrap(k), i)), words, 3)


@pytest.mark.parametrize("seed", [3, np.int32(3), np.uint32(3), np.int8(-3)])
def test_seed(seed):
    module = same(lambda s: data(random.key(s)), seed)
    assert module.report.certificate.kind == "exact"


def test_wide():
    with jax.enable_x64(True):
        same(lambda s: data(random.key(s)), np.int64(-5))
        same(lambda s: data(random.key(s)), np.int32(-5))
        same(lambda k: random.bits(k, (3,), dtype="uint64"), RAW)
        same(lambda k: random.normal(k, (3,), dtype="float64"), RAW)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("width", [8, 32])
def test_not_partitionable(shape, width):
    """The equation records the setting under which its bits were drawn."""

    def f(k):
        return random.bits(k, shape, dtype=f"uint{width}"), random.split(k)

    with jax.threefry_partitionable(False):
        exported = jax.export.export(jax.jit(f))(RAW)
        want = f(RAW)
    module = invert.from_exported(exported)
    for a, b in zip(module(RAW), want, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(module(RAW)[1], random.split(RAW))
    assert "random_split" in primitives(module, RAW)


@pytest.mark.parametrize(
    "f",
    [
        lambda k: (random.normal(k, (3,)), random.bits(k, (5,))),
        lambda k: random.gamma(k, jnp.asarray(2.0)),
    ],
    ids=["normal", "gamma"],
)
@pytest.mark.parametrize("session", [True, False])
def test_text_not_partitionable(f, session):
    """The text draws under the setting of the program, whatever that of the session is."""

    def g(k):
        return f(random.wrap_key_data(k))

    with jax.threefry_partitionable(False):
        exported = jax.export.export(jax.jit(g))(RAW).serialize()
        want = jax.tree.leaves(jax.jit(g)(RAW))
    with jax.threefry_partitionable(session):
        module = invert.from_exported(exported)
        assert module.report.certificate.kind == "exact"
        assert "with jax.threefry_partitionable(False):" in module.source
        for run in (module, module.model):
            for a, b in zip(jax.tree.leaves(run(RAW)), want, strict=True):
                np.testing.assert_array_equal(a, b)


def test_both_settings():
    """Equal operations under different settings draw different numbers."""

    def f(k):
        with jax.threefry_partitionable(False):
            first = random.split(k)
        return first, random.split(k)

    module = invert.from_exported(jax.export.export(jax.jit(f))(RAW).serialize())
    for a, b in zip(module(RAW), jax.jit(f)(RAW), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(invert.EmissionError, match="random_split"):
        _ = module.source


@pytest.mark.parametrize(
    "f",
    [
        lambda k, x: random.bits(random.split(k, 3)[1], x.shape),
        lambda k, x: jax.vmap(lambda k: random.normal(k, (2,)))(random.split(k, 3)),
        lambda k, x: jax.vmap(lambda i: random.fold_in(k, i))(jnp.arange(3)),
        lambda k, x: random.randint(k, (5,), 0, 10),
        lambda k, x: random.permutation(k, x),
        lambda k, x: random.categorical(k, x),
        lambda k, x: random.choice(k, 5, (3,), replace=False),
        lambda k, x: random.truncated_normal(k, -1, 1, (3,)),
        lambda k, x: lax.scan(lambda c, k: (c, random.uniform(k)), 0, random.split(k, 4))[1],
        lambda k, x: lax.cond(
            x.sum() > 0, lambda k: random.normal(k), lambda k: random.uniform(k), k
        ),
    ],
)
@pytest.mark.drawn(6)
def test_programs_in_both_styles(f):
    same(f, RAW, X)

    def typed(x):
        result = f(random.key(7), x)
        return data(result) if jnp.issubdtype(result.dtype, jax.dtypes.prng_key) else result

    module = same(typed, X)
    assert "random_wrap" not in primitives(module, X)


def test_typed_key_is_carried():
    def body(carry, _):
        key, x = carry
        key, sub = random.split(key)
        return (key, x + random.normal(sub, x.shape)), x.sum()

    def f(x):
        return lax.scan(body, (random.key(0), x), None, length=3)[1]

    module = same(f, X)
    assert primitives(module, X) == {"random_seed": 1, "random_split": 1, "random_bits": 1}

    def loop(x):
        def step(c):
            return random.fold_in(c[0], 1), c[1] + random.uniform(c[0])

        return lax.while_loop(lambda c: c[1] < 5, step, (random.key(0), x[0, 0]))[1]

    same(loop, X)


MOVED = {
    "unstack": lambda k: lax.unstack(random.split(k, (3, 2)), axis=1),
    "unstack, one result": lambda k: lax.unstack(random.split(k))[1],
    "split": lambda k: lax.split(random.split(k, 6), (2, 4)),
    "stack": lambda k: lax.stack_p.bind(k, random.fold_in(k, 1), axis=0),
    "tile": lambda k: lax.tile(random.split(k), (3,)),
}


@pytest.mark.parametrize("name", MOVED)
def test_arrays_of_keys_are_joined_and_split(name):
    function, key = MOVED[name], random.key(0)
    module = invert.from_exported(jax.export.export(jax.jit(function))(key))
    want = [eqn.primitive.name for eqn in equations(jax.make_jaxpr(function)(key))]
    assert [eqn.primitive.name for eqn in equations(module.jaxpr)] == want
    assert module.report.certificate.kind == "exact"
    wanted = jax.tree.leaves(function(key))
    for got, keys in zip(jax.tree.leaves(module(key)), wanted, strict=True):
        np.testing.assert_array_equal(random.key_data(got), random.key_data(keys))


def test_dropout():
    def net(key, x):
        for _ in range(2):
            key, sub = random.split(key)
            keep = random.bernoulli(sub, 0.5, x.shape)
            x = jnp.where(keep, jnp.tanh(x @ jnp.ones((3, 3))) / 0.5, 0)
        return x.sum()

    module = same(net, RAW, X)
    want, got = jax.grad(net, argnums=1)(RAW, X), jax.grad(module, argnums=1)(RAW, X)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    keys = random.split(RAW, 4)
    batched = jax.vmap(module, (0, None))(keys, X)
    np.testing.assert_allclose(batched, jax.vmap(net, (0, None))(keys, X), rtol=1e-5, atol=1e-6)


def test_words_that_escape():
    """The words of a key are used as numbers too."""

    def f(k, x):
        keys = random.split(k)
        return keys[0], keys.sum(), random.normal(keys[1], x.shape)

    same(f, RAW, X)
    same(lambda x: (data(random.key(1)).sum(), random.normal(random.key(1))), X)


def test_hash_that_escapes():
    """Both halves of a hash are results, so they cannot be replaced."""

    def f(k, x):
        a, b = threefry2x32_p.bind(k[0], k[1], x, x)
        return a ^ b, a, b

    assert primitives(recovered(f, RAW, WORDS), RAW, WORDS) == {"threefry2x32": 1}


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(lambda k, a: random.gamma(k, a[0, 0]), marks=pytest.mark.slow),
        pytest.param(lambda k, a: random.loggamma(k, a[0, 0], (2,)), marks=pytest.mark.slow),
        lambda k, a: jax.vmap(random.gamma)(random.split(k, 2), a),
    ],
)
def test_gamma(sample):
    module = same(sample, RAW, X)
    assert primitives(module, RAW, X)["random_gamma"] == 1

    def derivatives(f):
        tangent = jax.jvp(lambda a: f(RAW, a), (X,), (jnp.ones_like(X),))[1]
        return tangent, jax.grad(lambda a: f(RAW, a).sum())(X)

    got, want = (jax.jit(lambda f=f: derivatives(f))() for f in (module, sample))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["uint32", "uint8"])
@pytest.mark.parametrize("batched", [False, True])
def test_rng_bit_generator(dtype, batched):
    def f(k):
        return lax.rng_bit_generator(k, (3,), dtype)

    words = jnp.arange(4, dtype=jnp.uint32)
    if batched:
        same(jax.vmap(f), jnp.stack([words, words + 1]))
    else:
        same(f, words)


def test_rng_uniform():
    module = invert.from_exported(
        jax.export.export(jax.jit(lambda a: lax.rng_uniform(a, 1.0, (3,))))(0.0)
    )
    assert primitives(module, 0.0) == {"rng_uniform": 1}


def _noise(x, key):
    return x + random.normal(key, x.shape)


def _scaled(x, key):
    return x * random.uniform(key, x.shape, minval=-2.0, maxval=3.0)


def _dropped(x, key):
    return jnp.where(random.bernoulli(key, 0.9, x.shape), x / 0.9, 0.0)


@pytest.mark.parametrize("typed", [True, False], ids=["key", "words"])
@pytest.mark.parametrize("shape", ["b, 3", "4, 3"])
@pytest.mark.parametrize("fn", [_noise, _scaled, _dropped])
@pytest.mark.drawn(6)
def test_exported_draws_are_calls_of_jax_random(fn, shape, typed):
    """Also at open sizes that only the result of a draw has, and without 64-bit types."""
    make = random.key if typed else random.PRNGKey
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), np.float32)
    exported = jax.export.export(jax.jit(fn))(x, jax.eval_shape(make, 0))
    module = invert.from_exported(exported)
    assert module.report.certificate.kind == "exact"
    found = collections.Counter(e.primitive.name for e in equations(module.jaxpr))
    assert found["random_bits"] == 1 and not found["threefry2x32"] and not found["iota"]
    text, _, _ = module.source.partition("\ndef load(")
    assert "jax.random." in text and "enable_x64" not in text
    for n in (4,) if shape[0] == "4" else (1, 2, 7):
        x = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
        want = exported.call(x, make(n))
        for wide in (False, True):
            with jax.enable_x64(wide):
                np.testing.assert_array_equal(module(x, make(n)), want)
                np.testing.assert_array_equal(module.model(x, make(n)), want)


@pytest.mark.filterwarnings("error::invert.DefectWarning")
def test_gamma_of_another_generator():
    module = recovered(random.gamma, random.key(3, impl="rbg"), X)
    assert module.report.certificate.kind == "exact"
