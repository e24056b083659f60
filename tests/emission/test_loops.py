"""Loops over lists of blocks: several results, totals, and lists of several holders."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.export
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import invert
from tests.emission.models import assert_computes

L, ops = keras.layers, keras.ops


def _emitted(model: Any, shape: tuple[int, ...] = (5,)) -> str:
    """The text of a model, with values and gradients compared with the module's."""
    x = np.random.default_rng(1).normal(size=(3, *shape)).astype(np.float32)
    module = invert.convert(model, x)
    emission = module.emit(loader=False)
    assert not emission.messages
    assert_computes(emission.model, module, x, rtol=2e-3, atol=1e-4)
    return emission.source


def _skips(join: Callable[[list[Any]], Any], *, last: bool, blocks: int = 3) -> Any:
    """Blocks of which each changes its input and returns something to be joined."""
    x = given = keras.Input((5,))
    found = []
    for k in range(blocks):
        y = L.Dense(7, activation="tanh", name=f"part{k}_inner")(x)
        found.append(L.Dense(4, name=f"part{k}_skip")(y))
        if last or k < blocks - 1:
            x = L.Add(name=f"part{k}_add")([x, L.Dense(5, name=f"part{k}_back")(y)])
    joined = join(found)
    return keras.Model(given, [joined, x] if last else joined)


def _backwards(found: list[Any]) -> Any:
    return found[2] + (found[1] + found[0])


@pytest.mark.parametrize(
    ("join", "update"),
    [(L.add, "skip + y"), (L.multiply, "skip * y"), (_backwards, "y + skip")],
)
def test_results_of_all_blocks_are_combined_in_a_loop(join: Any, update: str) -> None:
    source = _emitted(_skips(join, last=False))
    assert "x, skip = self.parts[0](inputs)" in source
    assert "for part in self.parts[1:]:" in source
    assert "x, y = part(x)" in source
    assert f"skip = {update}" in source


def test_the_last_block_may_lack_what_changes_its_input() -> None:
    source = _emitted(_skips(L.add, last=False, blocks=4))
    assert "back: Dense | None" in source
    assert "if self.back is not None:\n            x = x + self.back(y)" in source
    assert "use_back=i < depth - 1" in source


@pytest.mark.parametrize(
    "join", [lambda f: f[0] + (f[1] + f[2]), lambda f: f[2] + (f[0] + f[1])], ids=["last", "mixed"]
)
def test_a_total_of_other_order_is_no_loop(join: Any) -> None:
    source = _emitted(_skips(join, last=False))
    assert "for part in" not in source and "class Part" in source


def test_a_value_used_elsewhere_ends_no_total() -> None:
    def join(found: list[Any]) -> Any:
        return L.Concatenate()([L.add(found), found[1]])

    source = _emitted(_skips(join, last=False))
    assert "for part in" not in source


class _Attention(L.Layer):
    def __init__(self, *, table: bool = False, causal: bool = False, **options: Any):
        super().__init__(**options)
        self.causal = causal
        self.query, self.key, self.value = (L.Dense(18, name=n) for n in ("query", "key", "value"))
        self.table = L.Embedding(9, 3, name="bias_table") if table else None

    def call(self, x: Any, bias: Any = None) -> Any:
        batch, length = ops.shape(x)[0], ops.shape(x)[1]

        def split(y: Any) -> Any:
            return ops.transpose(ops.reshape(y, (batch, length, 3, 6)), (0, 2, 1, 3))

        query, key, value = (split(f(x)) for f in (self.query, self.key, self.value))
        if self.table is not None:
            near = ops.arange(length)[None] - ops.arange(length)[:, None]
            bias = ops.transpose(self.table(ops.clip(near + 4, 0, 8)), (2, 0, 1))[None]
            past = ops.arange(length)[:, None] >= ops.arange(length)[None]
            bias = ops.where(past, bias, -1e9) if self.causal else bias
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) + bias
        mixed = ops.transpose(ops.matmul(ops.softmax(scores), value), (0, 2, 1, 3))
        return x + ops.reshape(mixed, (batch, length, 18)), bias


class _Rows(keras.Model):
    """Two rows of blocks, in each of which the first one looks up the bias of all attentions."""

    def __init__(self, *, causal: bool = False) -> None:
        super().__init__(name="rows")
        masked = {"encoder": False, "decoder": causal}
        self.rows = {
            row: [_Attention(table=k == 0, causal=c, name=f"{row}_block_{k}") for k in range(3)]
            for row, c in masked.items()
        }
        self.norms = {row: L.LayerNormalization(name=f"{row}_norm") for row in self.rows}

    def call(self, x: Any) -> Any:
        for row, blocks in self.rows.items():
            bias = None
            for block in blocks:
                x, bias = block(x, bias)
            x = self.norms[row](x)
        return x


def test_rows_of_attentions_with_one_bias_each() -> None:
    """Each row is a layer with a list of its own, and its table has a column for each head."""
    model = _Rows()
    model(np.zeros((2, 7, 18), np.float32))
    source = _emitted(model, (7, 18))
    assert source.count("for block in self.blocks:") == 1
    assert "self.encoder = Stack(" in source and "self.decoder = Stack(" in source
    assert 'bias: Float[Array, "1 heads length' in source
    assert "BiasTable(num_embeddings, heads, key=" in source
    assert "heads: int = 3" in source


def test_tables_with_and_without_a_causal_mask_are_one_class() -> None:
    model = _Rows(causal=True)
    model(np.zeros((2, 7, 18), np.float32))
    source = _emitted(model, (7, 18))
    assert source.count("embeddings: Float[") == 1 and "causal: bool" in source
    assert "jnp.clip(" in source and "minimum" not in source
    # Positions have no batch, and both axes of the scores are as long.
    assert 'x: Int[Array, "length"]) -> Float[Array, "1 n_out length length"]' in source


def test_tables_side_by_side_are_a_tuple() -> None:
    """Each takes one column; a part is no item of a tuple that is joined in another order."""
    ids: Any = keras.Input((4,), dtype="int32")
    rows = [L.Embedding(n, 6, name=f"table_{k}")(ids[:, k]) for k, n in enumerate((5, 9, 8, 20))]
    for order in ((0, 1, 2, 3), (1, 0, 2, 3)):
        joined = ops.stack([rows[k] for k in order], axis=1)
        model = keras.Model(ids, L.Dense(2)(L.Flatten()(joined)))
        module = invert.convert(model)
        emission = module.emit(loader=False)
        x = np.random.default_rng(0).integers(0, 5, (3, 4)).astype(np.int32)
        written: Any = emission.model
        np.testing.assert_array_equal(written(x), module(x))
        listed = "in zip(self.tables, jnp.split(" in emission.source
        assert listed == (order == (0, 1, 2, 3))
        assert "vocab_sizes: tuple[int, ...] = (" in emission.source


def test_convolutions_side_by_side_are_a_tuple() -> None:
    given = keras.Input((12, 5))
    sides = [
        ops.max(L.Conv1D(7, size, name=f"conv{size}", activation="relu")(given), axis=1)
        for size in (3, 4, 5)
    ]
    model = keras.Model(given, L.Dense(2)(L.Concatenate()(sides)))
    source = _emitted(model, (12, 5))
    assert "jnp.max(jax.nn.relu(conv(inputs)), axis=1) for conv in self.convs" in source


def test_blocks_include_the_layers_of_their_names() -> None:
    """A projection that only one block uses is in it, although no path through it passes there."""
    x, time = given = keras.Input((8,)), keras.Input((3,))
    for k in range(3):
        y = L.Dense(16, activation="relu", name=f"down_{k}_up")(x)
        y = y + L.Dense(16, name=f"down_{k}_time")(time)
        x = x + L.Dense(8, name=f"down_{k}_down")(y)
    module = invert.convert(keras.Model(given, x))
    source = module.emit(loader=False).source
    assert "for down in self.downs:" in source
    assert source.count("time: Dense") == 1


def test_channels_of_a_depthwise_convolution_are_no_other_size() -> None:
    """An image of 16 pixels and 16 channels: the number of groups is that of the channels."""
    x = given = keras.Input((16, 16, 8))
    for k, width in enumerate((16, 16, 32)):
        y = L.SeparableConv2D(width, 3, padding="same", name=f"entry{k}_one")(x)
        y = L.SeparableConv2D(width, 3, padding="same", name=f"entry{k}_two")(y)
        x = L.Conv2D(width, 1, name=f"entry{k}_skip")(x) + y
    source = _emitted(keras.Model(given, x), (16, 16, 8))
    assert "groups" not in source
    assert "feature_group_count=x.shape[-1]" in source


def test_blocks_that_attend_to_a_memory_and_to_themselves() -> None:
    """The memory is normalized before keys and values are made of it."""
    given = keras.Input((9, 6), name="points")
    x = L.Dense(6, name="latents")(given[:, :4])
    for k in range(2):
        for name, heads in ((f"c{k}", 1), (f"s{k}0", 3), (f"s{k}1", 3)):
            query = L.LayerNormalization(name=f"{name}_nq")(x)
            memory = L.LayerNormalization(name=f"{name}_nkv")(given) if heads == 1 else query
            x = x + L.MultiHeadAttention(heads, 6 // heads, name=f"{name}_att")(query, memory)
            hidden = L.Dense(12, activation="relu", name=f"{name}_up")(x)
            x = x + L.Dense(6, name=f"{name}_down")(hidden)
    source = _emitted(keras.Model(given, x), (9, 6))
    assert source.count("class CrossBlock(") == source.count("class Block(") == 1
    assert source.count("class Attention(") == 1 and "heads=1" in source
    # Of the attention and of its block.
    assert source.count('memory: Float[Array, "batch memory_length dim"]') == 2


class _Step(nn.Module):
    @nn.compact
    def __call__(self, x: Any, scale: Any, key: Any) -> Any:
        y = nn.Dense(x.shape[-1])(nn.relu(nn.Dense(12)(x)))
        return x + jnp.where(jax.random.bernoulli(key, 0.7, y.shape), y, 0) * scale


class _Steps(nn.Module):
    """Steps under the scopes `stages/0`, `stages/1`, ..., each of which is given rows of arrays."""

    order: tuple[int, ...] = (0, 1, 2)
    more: int = 0
    one_key: bool = False

    @nn.compact
    def __call__(self, x: Any, key: Any, scales: Any = None) -> Any:
        keys = jax.random.split(key, 3 + self.more)
        if scales is None:
            scales = jnp.cos(jnp.arange(3 + self.more, dtype=jnp.float32))
        for i, row in enumerate(self.order):
            x = _Step(name=f"stages/{i}")(x, scales[row], keys[0 if self.one_key else i])
        return x


def _of_steps(model: _Steps, *scales: Any) -> tuple[str, Any]:
    x, key = jnp.ones((2, 5)), jax.random.key(3)
    params = model.init(jax.random.key(0), x, key, *scales)

    def run(params: Any, x: Any, key: Any, *scales: Any) -> Any:
        return model.apply(params, x, key, *scales)

    types = jax.eval_shape(lambda *args: args, params, x, key, *scales)
    batch = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 5"), jnp.float32)
    exported = jax.export.export(jax.jit(run))(types[0], batch, *types[2:])
    emission = invert.from_exported(exported, params={"params": params}).emit(loader=False)
    x = jnp.asarray(np.random.default_rng(2).normal(size=(4, 5)), jnp.float32)
    written: Any = emission.model
    np.testing.assert_array_equal(written(x, key, *scales), jax.jit(run)(params, x, key, *scales))
    return emission.source, written


@pytest.mark.parametrize("given", [False, True])
def test_each_layer_of_a_list_is_given_a_row(given: bool) -> None:
    source, model = _of_steps(_Steps(), *([jnp.arange(3.0)] if given else []))
    array = "arg3" if given else "cos"
    loop = re.search(r"for stage, (.*) in zip\(self.stages, (.*), strict=True\):", source)
    assert loop is not None, source
    assert dict(zip(loop[1].split(", "), loop[2].split(", "), strict=True)) == {
        "key": "keys",
        "scale": array,
    }
    assert "x = stage(x, scale, key=key)" in source
    shorter = eqx.tree_at(lambda m: m.stages, model, model.stages[:2])
    with pytest.raises(ValueError, match="zip"):
        shorter(jnp.ones((2, 5)), jax.random.key(0), *([jnp.arange(3.0)] if given else []))


@pytest.mark.parametrize("model", [_Steps((0, 2, 1)), _Steps((0, 0, 1)), _Steps(more=1)])
def test_other_rows_than_the_first_in_order_are_no_loop(model: _Steps) -> None:
    source, _ = _of_steps(model)
    assert "zip(" not in source
    assert len(re.findall(r"class Stage\w*\(", source)) == 1


def test_layers_of_which_several_are_given_one_row() -> None:
    source, _ = _of_steps(_Steps((0, 0, 0, 1, 1, 1), one_key=True))
    assert "for stage in self.stages:" in source
    assert "zip(" not in source


def test_values_of_a_step_are_not_named_after_the_scopes_of_loops() -> None:
    def run(x: jax.Array, ys: jax.Array) -> Any:
        def step(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
            part = x[:, 1:]
            moved = jnp.pad(part - jnp.where(part > y, part, 0.0), ((0, 0), (1, 0)))
            return x * moved, part.sum()

        return jax.lax.scan(step, x, ys)

    exported = jax.export.export(jax.jit(run))(jnp.ones((2, 4)), jnp.ones(5))
    source = invert.from_exported(exported).source
    assert not re.search(r"\b(eval_jaxpr|closed_call|body)\w* =", source)
