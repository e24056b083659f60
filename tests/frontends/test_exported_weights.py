"""`jax.export` artifacts whose weights are arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import invert

Tree = Any
RNG = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return RNG.normal(scale=0.1, size=shape).astype(np.float32)


def weights(depth: int = 3) -> Tree:
    def block() -> Tree:
        return {
            "scale": drawn(12), "query": drawn(12, 2, 5), "key": drawn(12, 2, 5),
            "value": drawn(12, 2, 5), "out": drawn(2, 5, 12), "up": drawn(12, 20),
            "down": drawn(20, 12),
        }  # fmt: skip

    blocks = [block() for _ in range(depth)]
    return {"table": drawn(30, 12), "blocks": blocks, "head": drawn(12, 7)}


def block(p: Tree, x: jax.Array) -> jax.Array:
    h = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * p["scale"]
    query, key, value = (jnp.einsum("btd,dhk->bthk", h, p[n]) for n in ("query", "key", "value"))
    scores = jax.nn.softmax(jnp.einsum("bqhk,bthk->bhqt", query, key) / 5**0.5)
    context = jnp.einsum("bhqt,bthk->bqhk", scores, value)
    x = x + jnp.einsum("bthk,hkd->btd", context, p["out"])
    return x + jax.nn.gelu(x @ p["up"]) @ p["down"]


def model(p: Tree, ids: jax.Array) -> jax.Array:
    x = p["table"][ids]
    for own in p["blocks"]:
        x = block(own, x)
    return x @ p["head"]


def types(tree: Tree) -> Tree:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), tree)


@pytest.fixture(scope="module")
def exported() -> jax.export.Exported:
    (b,) = jax.export.symbolic_shape("b")
    ids = jax.ShapeDtypeStruct((b, 6), jnp.int32)
    return jax.export.export(jax.jit(model))(types(weights()), ids)


IDS = np.arange(24, dtype=np.int32).reshape(4, 6)


def test_weights_become_layers(exported: jax.export.Exported, tmp_path: Path) -> None:
    """The text has one class for the blocks, in a loop, and sizes as arguments."""
    own = weights()
    module = invert.from_exported(exported.serialize(vjp_order=1), params={"arg0": own})
    np.testing.assert_array_equal(module(IDS), jax.jit(model)(own, IDS))
    assert module.report.certificate.kind == "exact"
    assert "blocks/0/query" in module.named_params()
    source = module.source
    assert source.count("class ") == 2 and "for block in self.blocks:" in source
    for argument in ("vocab_size: int = 30", "dim: int = 12", "depth: int = 3", "heads: int = 2",
                     "head_dim: int = 5", "hidden: int = 20"):  # fmt: skip
        assert f"{argument}," in source
    invert.save(module, tmp_path / "saved")
    saved = invert.load(tmp_path / "saved")
    np.testing.assert_array_equal(saved(IDS), module(IDS))


def test_blocks_under_a_checkpoint_are_a_list() -> None:
    def f(p: Tree, x: jax.Array) -> jax.Array:
        for own in p["blocks"]:
            x = jax.checkpoint(block)(own, x)
        return x

    own = {"blocks": weights()["blocks"]}
    exported = jax.export.export(jax.jit(f))(types(own), types(drawn(2, 6, 12)))
    module = invert.from_exported(exported.serialize(), params={"p": own})
    assert "for block in self.blocks:" in module.source and "class Model(" in module.source
    x = drawn(2, 6, 12)
    np.testing.assert_array_equal(module(x), jax.jit(f)(own, x))


class Mixer(eqx.Module):
    """A block of Equinox layers, each mapped over the axis that it does not know."""

    norm: eqx.nn.LayerNorm
    rows: eqx.nn.MLP
    columns: eqx.nn.MLP

    def __init__(self, *, key: jax.Array):
        one, two = jax.random.split(key)
        self.norm = eqx.nn.LayerNorm(10)
        self.rows = eqx.nn.MLP(6, 6, 14, 1, key=one)
        self.columns = eqx.nn.MLP(10, 10, 22, 1, key=two)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + jax.vmap(self.rows)(jax.vmap(self.norm)(x).T).T
        return x + jax.vmap(self.columns)(x)


def test_layers_of_equinox() -> None:
    """Their scopes name classes, and their statistics are computed for each row."""
    blocks = [Mixer(key=k) for k in jax.random.split(jax.random.key(0), 3)]
    arrays, rest = eqx.partition(blocks, eqx.is_array)
    leaves, tree = jax.tree.flatten(arrays)
    paths = [jax.tree_util.keystr(p, simple=True, separator="/")
             for p, _ in jax.tree_util.tree_leaves_with_path(arrays)]  # fmt: skip
    own = {f"blocks/{path}": leaf for path, leaf in zip(paths, leaves, strict=True)}

    def f(params: Tree, x: jax.Array) -> jax.Array:
        given = jax.tree.unflatten(tree, [params[f"blocks/{path}"] for path in paths])
        for one in eqx.combine(given, rest):
            x = jax.vmap(one)(x)
        return x

    (b,) = jax.export.symbolic_shape("b")
    spec = jax.ShapeDtypeStruct((b, 6, 10), jnp.float32)
    exported = jax.export.export(jax.jit(f))(types(own), spec)
    module = invert.from_exported(exported.serialize(), params={"params": own})
    x = drawn(3, 6, 10)
    np.testing.assert_array_equal(module(x), jax.jit(f)(own, x))
    source = module.source
    assert "for block in self.blocks:" in source
    assert "jnp.var(x, axis=-1, keepdims=True)" in source and "def var(" not in source
    assert 'weight: Float[Array, "n_out n_in"]' in source


def test_derivatives_by_weights(exported: jax.export.Exported) -> None:
    own = weights()
    module = invert.from_exported(exported, params={"arg0": own})
    grads = jax.grad(lambda m: jnp.sum(m(IDS) ** 2))(module.model)
    wanted = jax.grad(lambda p: jnp.sum(jax.jit(model)(p, IDS) ** 2))(own)
    for i, one in enumerate(wanted["blocks"]):
        for name, value in one.items():
            np.testing.assert_allclose(getattr(grads.blocks[i], name), value, rtol=1e-4, atol=1e-5)


def test_several_arguments_and_keywords() -> None:
    def f(layer: Tree, x: jax.Array, *, scale: Tree) -> jax.Array:
        return (x @ layer["w"] + layer["b"]) * scale

    layer = {"w": drawn(3, 4), "b": drawn(4)}
    scale = drawn(4)
    x = drawn(2, 3)
    exported = jax.export.export(jax.jit(f))(types(layer), types(x), scale=types(scale))
    want = jax.jit(f)(layer, x, scale=scale)
    module = invert.from_exported(exported, params={"layer": layer, "scale": scale})
    np.testing.assert_array_equal(module(x), want)
    assert sorted(module.named_params()) == ["layer/b", "layer/w", "scale"]
    one = invert.from_exported(exported, params={"arg0": layer})
    np.testing.assert_array_equal(one(x, scale=scale), want)
    assert sorted(one.named_params()) == ["b", "w"]


def test_names_stay_apart() -> None:
    def f(p: Tree) -> jax.Array:
        return p["a"]["b"] - p["a/b"]

    own = {"a": {"b": drawn(3)}, "a/b": drawn(3)}
    module = invert.from_exported(jax.export.export(jax.jit(f))(types(own)), params={"p": own})
    np.testing.assert_array_equal(module(), own["a"]["b"] - own["a/b"])
    assert sorted(module.named_params()) == ["a/b", "a/b_1"]


def test_statistics_are_not_trained() -> None:
    def f(variables: Tree, x: jax.Array) -> jax.Array:
        return x * variables["params"]["scale"] + variables["batch_stats"]["mean"]

    own = {"params": {"scale": drawn(3)}, "batch_stats": {"mean": drawn(3)}}
    exported = jax.export.export(jax.jit(f))(types(own), types(drawn(3)))
    module = invert.from_exported(exported, params={"arg0": own})
    trained = jax.tree.leaves(invert.trainable(module))
    assert sorted(map(bool, trained)) == [False, True]


def test_all_mismatches_are_named(exported: jax.export.Exported) -> None:
    wrong = weights(2)
    wrong["head"] = wrong["head"].astype(np.float64)
    wrong["more"] = np.zeros(3)
    wrong["table"] = object()
    with pytest.raises(invert.SignatureError) as error:
        invert.from_exported(exported, params={"arg0": wrong, "weights": {}, "p": {}})
    message = str(error.value)
    for part in (
        "there is no argument 'weights'", "'p' is given twice", "there is no p/more",
        "p/blocks/2/query is missing",
        "p/head is float64[12, 7], expected float32[12, 7]", "p/table is object[]",
    ):  # fmt: skip
        assert part in message


class Pair(NamedTuple):
    loss: Any
    state: Any


@jax.tree_util.register_pytree_with_keys_class
class Box:
    """An array under the attribute `value`, as a variable of Flax."""

    def __init__(self, value: Any):
        self.value = value

    def tree_flatten_with_keys(self) -> tuple[Any, None]:
        return ((jax.tree_util.GetAttrKey("value"), self.value),), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Box:
        return cls(*children)


def test_boxes_keys_and_unused_arrays() -> None:
    """Boxes are no layers, keys are held as their words, and arrays may be unused."""

    def f(p: Tree, x: jax.Array) -> Pair:
        drop = p["drop"]
        key = jax.random.fold_in(drop["key"].value, drop["count"].value)
        y = jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x @ p["dense"]["kernel"].value, 0)
        count = Box(drop["count"].value + 1)
        return Pair(y.sum(), {"drop": {"key": drop["key"], "count": count}, "y": [y]})

    own = {
        "dense": {"kernel": Box(drawn(4, 4)), "unused": Box(drawn(4))},
        "drop": {"key": Box(jax.random.key(3)), "count": Box(np.uint32(5))},
    }
    x = drawn(2, 4)
    exported = jax.export.export(jax.jit(f))(own, x)
    module = invert.from_exported(exported, params={"p": own})
    names = {"dense/kernel", "dense/unused", "drop/key", "drop/count"}
    assert set(module.named_params()) == names
    want = jax.tree.leaves(jax.jit(f)(own, x))
    for net in (module, module.model):
        for have, wanted in zip(jax.tree.leaves(net(x)), want, strict=True):
            np.testing.assert_array_equal(words(have), words(wanted))
    loss, state = module.model(x)
    assert state["drop"].keys() == {"key", "count"} and loss.shape == ()
    trained = eqx.filter(module.model, invert.trainable(module.model))
    assert {a.shape for a in jax.tree.leaves(trained)} == {(4, 4), (4,)}


def words(x: jax.Array) -> Any:
    is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


def test_results_of_classes_of_the_author() -> None:
    """They are tuples in the text, which keeps what is around them."""
    f = jax.jit(lambda x: {"b": Pair(x.sum(), {"a": Box(x + 1)}), "c": [x]})
    x = drawn(3)
    module = invert.from_exported(jax.export.export(f)(x))
    assert type(module(x)["b"]) is Pair
    result = module.model(x)
    assert jax.tree.structure(result) == jax.tree.structure({"b": (0, {"a": 0}), "c": [0]})
    np.testing.assert_array_equal(result["b"][1]["a"], x + 1)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (jax.jit(jnp.sin).lower(1.0), "from_stablehlo"),
        (jax.jit(jnp.sin).trace(1.0), "lower()"),
        (jnp.sin, "lower(*args)"),
        ("model.bin", "invert.load"),
        (None, "invert.load"),
    ],
)
def test_what_is_no_artifact(given: Any, remedy: str) -> None:
    with pytest.raises(invert.MalformedModelError) as error:
        invert.from_exported(given)
    assert "takes a jax.export.Exported" in str(error.value) and remedy in error.value.remedy


def test_weights_without_names(exported: jax.export.Exported) -> None:
    with pytest.raises(invert.SignatureError, match="`params` is a list"):
        invert.from_exported(exported, params=[drawn(2)])  # type: ignore[arg-type]
