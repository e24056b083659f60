"""Random numbers: hash functions and the operations on keys built from them.

Lowering erases key types: a key becomes its `uint32` array. So the calls proposed here take and
return such arrays, including `random_wrap` and `random_unwrap`; `keys.py` then removes the pairs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import jax
import numpy as np
from jax import lax

from invert._private.jax import (
    Literal,
    Primitive,
    philox2x32_p,
    philox4x32_p,
    prngs,
    random_bits_p,
    random_fold_in_p,
    random_gamma_p,
    random_seed_p,
    random_split_p,
    random_unwrap_p,
    random_wrap_p,
    threefry2x32_p,
    threefry4x32_p,
)
from invert.ir import kinds
from invert.ir.avals import is_differentiable
from invert.ir.graph import literal
from invert.ir.types import Aval, JaxFunction, Value
from invert.rewriting.pattern import Call, Pattern, Site, bind

_UINT32 = np.dtype(np.uint32)


@dataclasses.dataclass(frozen=True)
class _Hash:
    """A counter-based hash function and the key type built on it.

    **Arguments:**

    - `primitive`: takes the words of a key, then those of a counter.
    - `keys`, `counters`: the number of words of each.
    - `literal`: a constant of the hash function.
    - `holds`: a primitive that it contains when it is unrolled.
    """

    primitive: Primitive
    keys: int
    counters: int
    literal: int
    holds: str


# jax/_src/random/threefry2x32.py and its neighbours, jax 0.10.2 and 0.12
_HASHES = {
    h.primitive.name: h
    for h in (
        _Hash(threefry2x32_p, 2, 2, 0x1BD11BDA, "shift_left"),
        _Hash(threefry4x32_p, 4, 4, 0x1BD11BDA, "shift_left"),
        _Hash(philox2x32_p, 1, 2, 0xD256D193, "mulhi"),
        _Hash(philox4x32_p, 2, 4, 0xD2511F53, "mulhi"),
    )
}


def uint32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, _UINT32)


# Hash functions.


def _threefry2x32(site: Site) -> Iterator[Call]:
    """The loop over five groups of four rounds -> threefry2x32."""
    operands = site.eqn.invars
    if len(operands) != 9 or operands[2].aval.dtype != _UINT32:
        return
    k1, k2 = operands[6], operands[4]
    for shape in _counter_shapes(site, operands[2], k1):
        words = (k1.aval.shape, k2.aval.shape, shape, shape)
        yield bind(threefry2x32_p, *(uint32(*w) for w in words))


def _counter_shapes(site: Site, total: Value, key: Value) -> list[tuple[int, ...]]:
    """Possible shapes of the counter before the key was added, the likeliest first."""
    shapes = []
    eqn = site.producer(total)
    for operand in eqn.invars if eqn is not None and eqn.primitive.name == "add" else ():
        source = site.producer(operand)
        if source is not None and source.primitive.name == "broadcast_in_dim":
            if source.invars[0] is not key:
                shapes += [source.invars[0].aval.shape, operand.aval.shape]
        elif operand is not key:
            shapes.append(operand.aval.shape)
    return [tuple(s) for s in dict.fromkeys([*shapes, total.aval.shape])]


def _unrolled(name: str, roots: tuple[str, ...], hash_: _Hash) -> Pattern:
    """The body of the function into which JAX outlines an unrolled hash function."""

    def propose(site: Site) -> Iterator[Call]:
        invars = [site.aval(v) for v in site.graph.jaxpr.invars]
        if site.eqn.outvars[0] not in site.graph.results:
            return
        words = all(v.dtype == _UINT32 for v in invars)
        if words and len(invars) == hash_.keys + hash_.counters:
            yield bind(hash_.primitive, *invars)

    return Pattern(name, roots, propose, hash_.literal, hash_.holds)


# Operations on keys.


def wrap(key: Value, impl: str) -> Value:
    """An array of keys, from their words."""
    return random_wrap_p.bind(key, impl=prngs[impl])


def _keyed(key: tuple[object, ...], function: JaxFunction, *avals: Aval) -> Iterator[Call]:
    """The call under each setting of `jax_threefry_partitionable`."""
    for partitionable in (True, False):

        def run(*args: Value, partitionable: bool = partitionable) -> Value:
            with jax.threefry_partitionable(partitionable):
                return function(*args)

        yield Call((*key, partitionable), run, avals)


def _bits(impl: str, batch: tuple[int, ...], shape: tuple[int, ...], width: int) -> Iterator[Call]:
    def run(key: Value) -> Value:
        return random_bits_p.bind(wrap(key, impl), bit_width=width, shape=shape)

    yield from _keyed(("bits", impl, shape, width), run, uint32(*batch, _words(impl)))


def _split(impl: str, batch: tuple[int, ...], shape: tuple[int, ...]) -> Iterator[Call]:
    def run(key: Value) -> Value:
        return random_unwrap_p.bind(random_split_p.bind(wrap(key, impl), shape=shape))

    yield from _keyed(("split", impl, shape), run, uint32(*batch, _words(impl)))


def _fold_in(impl: str, batch: tuple[int, ...], data: tuple[int, ...]) -> Iterator[Call]:
    def run(key: Value, data: Value) -> Value:
        return random_unwrap_p.bind(random_fold_in_p.bind(wrap(key, impl), data))

    yield Call(("fold_in", impl), run, (uint32(*batch, _words(impl)), uint32(*data)))


class _WideCall(Call):
    """A call that is always traced with 64-bit types enabled."""

    @property
    def needs_x64(self) -> bool:
        return True


def _seed(impl: str, seed: jax.ShapeDtypeStruct) -> Iterator[Call]:
    """The three lowerings of seeding, which depend on how the low word is masked."""

    def run(seed: Value) -> Value:
        return random_unwrap_p.bind(random_seed_p.bind(seed, impl=prngs[impl]))

    def run_weak(seed: Value) -> Value:
        seed = lax.convert_element_type_p.bind(
            seed, new_dtype=np.dtype(seed.dtype), weak_type=True, sharding=None
        )
        return run(seed)

    yield Call(("seed", impl), run, (seed,))
    yield Call(("seed", impl, "weak"), run_weak, (seed,))
    yield _WideCall(("seed", impl, "wide"), run, (seed,))


def _words(impl: str) -> int:
    return prngs[impl].key_shape[0]


def _hashed(site: Site) -> Iterator[Call]:
    """A hash function of iotas -> random_bits or random_split; of data -> random_fold_in."""
    impl = site.eqn.primitive.name  # key types are named after their hash functions
    out = tuple(site.out.shape)
    key = tuple(site.eqn.invars[0].aval.shape)
    users = {u.primitive.name for v in site.eqn.outvars for u in site.graph.users.get(v, ())}
    if impl != "threefry2x32":
        for seed in _seeds(site):
            yield from _seed(impl, seed)
    for n in _batch_ranks(key, out):
        batch, shape = out[:n], out[n:]
        if users & {"xor", "convert_element_type"}:
            for width in _widths(site):
                yield from _bits(impl, batch, shape, width)
        if users & {"concatenate", "broadcast_in_dim", "reshape"} or not users:
            yield from _folds(impl, key, out)
            if batch and batch[-1] == 2 and impl == "threefry2x32":
                yield from _split("rbg", batch[:-1], shape)
            yield from _split(impl, batch, shape)
        if impl == "threefry2x32" and len(shape) == 1 and "concatenate" in users:
            for final in _flat_results(site, n):
                dtype = np.dtype(final.dtype)
                if final.shape[-1:] == (2,) and dtype == _UINT32:
                    yield from _split(impl, batch, tuple(final.shape[n:-1]))
                yield from _bits(impl, batch, tuple(final.shape[n:]), 8 * dtype.itemsize)


def _folds(impl: str, key: tuple[int, ...], out: tuple[int, ...]) -> Iterator[Call]:
    """Folding of one or many numbers into one or many keys."""
    batch = out[:-1] if impl == "threefry2x32" else out
    if len(out) != len(batch) and out[-1:] != (1,):
        return
    if not batch:
        yield from _fold_in(impl, (), ())
    elif math.prod(key) == 1:
        yield from _fold_in(impl, (), batch)
    if batch and key[: len(batch)] == batch:
        yield from _fold_in(impl, batch, ())
        yield from _fold_in(impl, batch, batch)


def _batch_ranks(key: tuple[int, ...], out: tuple[int, ...]) -> list[int]:
    """Possible numbers of axes of the key array, the smallest first.

    A batch of keys has size one along the axes of the counters.
    """
    if len(key) != len(out):
        return [0] if not key else []
    return [n for n in range(min(1, len(key)), len(key) + 1) if all(d == 1 for d in key[n:])][:3]


def _widths(site: Site) -> list[int]:
    """Possible widths of bits made of a hash, the longest program first."""
    widths = []
    front = [*site.eqn.outvars]
    for _ in range(4):  # results -> (three) xor -> convert
        users = [u for v in front for u in site.graph.users.get(v, ())]
        for u in users:
            if u.primitive.name == "convert_element_type":
                widths.append(8 * np.dtype(u.params["new_dtype"]).itemsize)
        front = [u.outvars[0] for u in users if u.primitive.name == "xor"]
    return [*dict.fromkeys(w for w in widths if w != 32), 32]


def _flat_results(site: Site, n: int) -> list[Value]:
    """Types that a flat array of words may be reshaped to, last first.

    With `jax_threefry_partitionable=False` the hash runs over half of a flat iota.
    """
    results: list[Value] = []
    size = 2 * math.prod(site.out.shape[n:])
    front = [site.eqn.outvars[0]]
    for _ in range(12):
        users = [u for v in front for u in site.graph.users.get(v, ())]
        front = []
        for u in users:
            if u.primitive.name in _FORMING:
                front.append(u.outvars[0])
                results.append(u.outvars[0].aval)
        front = list(dict.fromkeys(front))
    fits = [a for a in results if np.dtype(a.dtype).kind == "u" and len(a.shape) >= n]
    fits = [a for a in fits if 0 <= 4 * size - _bytes(a, n) <= 7]
    return list({(a.shape, a.dtype): a for a in reversed(fits)}.values())[:4]


def _bytes(aval: Aval, n: int) -> int:
    return math.prod(aval.shape[n:]) * np.dtype(aval.dtype).itemsize


_FORMING = kinds.LAYOUT | frozenset(
    "and concatenate convert_element_type or shift_left shift_right_logical slice".split()
)


def _seeds(site: Site) -> list[jax.ShapeDtypeStruct]:
    """Types of the integers whose high words this body computes."""
    seeds = []
    for eqn in site.graph.by_primitive.get("shift_right_logical", ()):
        x, n = eqn.invars
        if literal(n) == 32:
            seeds.append(site.aval(x))
    return list({(a.shape, a.dtype): a for a in seeds}.values())


def _concatenated(site: Site) -> Iterator[Call]:
    """The two words of an integer, once or twice -> random_seed."""
    out = site.out
    if out.dtype != _UINT32 or not out.shape or len(site.eqn.invars) != 2:
        return
    impl = {2: "threefry2x32", 4: "rbg"}.get(out.shape[-1])
    if impl is None or site.eqn.params["dimension"] != len(out.shape) - 1:
        return
    for seed in _seeds(site):
        if seed.shape == out.shape[:-1]:
            yield from _seed(impl, seed)


def _generated(site: Site) -> Iterator[Call]:
    """A generator on two 64-bit words -> on four 32-bit words or their key."""
    eqn = site.eqn
    state = site.aval(eqn.invars[0])
    if np.dtype(state.dtype) != np.uint64:
        return
    shape, dtype = eqn.params["shape"], eqn.params["dtype"]
    batch = tuple(state.shape[:-1])
    n = len(batch)
    if site.eqn.outvars[0] not in site.graph.results and not site.graph.users.get(
        site.eqn.outvars[0]
    ):
        width = 8 * np.dtype(dtype).itemsize
        yield from _bits("rbg", batch, tuple(shape[n:]), width)
    words = uint32(*batch, 2 * state.shape[-1])
    yield bind(lax.rng_bit_generator_p, words, **eqn.params)


def _gamma(site: Site) -> Iterator[Call]:
    """The rejection sampler of Marsaglia and Tsang -> random_gamma."""
    state = [v.aval for v in site.eqn.outvars]
    keys = [a for a in state if a.dtype == _UINT32 and len(a.shape) == 2]
    floats = [a for a in state if is_differentiable(a) and len(a.shape) == 1]
    if not keys or not floats:
        return
    (n,), dtype = floats[0].shape, floats[0].dtype
    impl = {2: "threefry2x32", 4: "rbg"}.get(keys[0].shape[-1])
    if impl is None:
        return
    shapes = {(n,): None} | ({(): None} if n == 1 else {})
    for eqn in site.graph.by_primitive.get("reshape", ()):
        aval = eqn.outvars[0].aval
        if aval.dtype == dtype and math.prod(aval.shape) == n:
            shapes[tuple(aval.shape)] = None
    log_space = "pow" not in site.graph.by_primitive
    counts = _key_counts(site, n)
    # A parameter shared by all samples was broadcast, as an operand or as a result.
    one = any(
        v.shape == () and v.dtype == dtype
        for eqn in site.graph.by_primitive.get("broadcast_in_dim", ())
        for v in [site.aval(eqn.invars[0])]
        if not isinstance(eqn.invars[0], Literal)
    ) or any(v.shape == () and v.dtype == dtype for v in map(site.aval, site.graph.jaxpr.invars))
    for shape in sorted(shapes, key=lambda s: s == (n,)):
        for rank in range(len(shape) + 1):
            if math.prod(shape[:rank]) in counts:
                key = uint32(*shape[:rank], _words(impl))
                if one and shape:
                    one_for_all = jax.ShapeDtypeStruct((), dtype)
                    yield from _gamma_call(key, one_for_all, shape, log_space)
                yield from _gamma_call(key, jax.ShapeDtypeStruct(shape, dtype), shape, log_space)


def _key_counts(site: Site, n: int) -> set[int]:
    """Numbers of keys that this body splits into `n` each."""
    counts = set()
    for eqn in (
        *site.graph.by_primitive.get("jit", ()),
        *site.graph.by_primitive.get("random_split", ()),
    ):
        for a, b in zip(eqn.invars, eqn.outvars, strict=False):
            shape = b.aval.shape
            if eqn.primitive.name == "jit":
                if a.aval.dtype != _UINT32 or len(shape) != 3 or shape[:1] != a.aval.shape[:1]:
                    continue
                shape = shape[:-1]
            if math.prod(shape) == n:
                counts.add(shape[0])
    return counts


def _gamma_call(
    key: jax.ShapeDtypeStruct,
    a: jax.ShapeDtypeStruct,
    shape: tuple[int, ...],
    log_space: bool,
) -> Iterator[Call]:
    impl = {2: "threefry2x32", 4: "rbg"}[key.shape[-1]]

    def run(key: Value, a: Value) -> Value:
        if a.shape != shape:
            a = lax.broadcast_in_dim(a, shape, ())
        return random_gamma_p.bind(wrap(key, impl), a, log_space=log_space)

    yield from _keyed(("gamma", impl, shape, log_space), run, key, a)


HASHES = (
    Pattern("threefry2x32", ("while",), _threefry2x32, 0x1BD11BDA),
    *(
        _unrolled(name, ("add", "xor"), _HASHES[name])
        for name in ("threefry4x32", "philox2x32", "philox4x32")
    ),
    # On accelerators the loop is unrolled.
    _unrolled("threefry2x32_unrolled", ("add",), _HASHES["threefry2x32"]),
)

KEYS = (
    Pattern("random_key", tuple(_HASHES), _hashed),
    Pattern("random_seed", ("concatenate",), _concatenated, 32),
    Pattern("rng_bit_generator", ("rng_bit_generator",), _generated),
)

SAMPLERS = (Pattern("random_gamma", ("while", "scan"), _gamma, 0.0331),)
