"""One class for layers of which some lack a step of the others."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert
from tests.emission.models import assert_computes, recovered, with_params
from tests.emission.test_blocks import _classes


def _conv(x: Any, kernel: Any, stride: int = 1, padding: Any = "SAME", groups: int = 1) -> Any:
    dims = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=dims, feature_group_count=groups
    )


def _emitted(run: Any, params: dict[str, np.ndarray], x: np.ndarray) -> Any:
    """The text of a function of named arrays, with values and gradients compared."""
    emission = recovered(with_params(run, params, x, batch="batch", name="network")).emit()
    assert not emission.messages
    original = jax.jit(lambda x: run(params, x))
    batches = x, np.concatenate([x, x + 1]), np.full_like(x, np.nan)
    assert_computes(emission.model, original, *batches)
    return emission


def _arrays(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {n: (random.normal(size=s) / 3).astype(np.float32) for n, s in shapes.items()}


# The input, hidden and output features, stride, kernel size, and activation of each block.
_INVERTED = (
    (8, 8, 8, 1, 3, jax.nn.relu),
    (8, 24, 12, 2, 3, jax.nn.silu),
    (12, 36, 12, 1, 5, jax.nn.silu),
    (12, 24, 20, 1, 5, jax.nn.relu),
    (20, 40, 20, 1, 3, jax.nn.relu),
)


def test_blocks_with_and_without_expansion_padding_and_shortcut_are_one_class() -> None:
    shapes: dict[str, tuple[int, ...]] = {}
    for i, (c, hidden, out, _, size, _) in enumerate(_INVERTED):
        if hidden != c:
            shapes[f"block{i}/expand/kernel"] = (1, 1, c, hidden)
        shapes[f"block{i}/depthwise/kernel"] = (size, size, 1, hidden)
        shapes[f"block{i}/project/kernel"] = (1, 1, hidden, out)

    def run(params: Any, x: Any) -> Any:
        for i, (c, hidden, out, stride, _, act) in enumerate(_INVERTED):
            with jax.named_scope(f"block{i}"):
                y = x
                if hidden != c:
                    with jax.named_scope("expand"):
                        y = act(_conv(y, params[f"block{i}/expand/kernel"]))
                if stride == 2:
                    y = jnp.pad(y, ((0, 0), (0, 1), (0, 1), (0, 0)))
                padding = "SAME" if stride == 1 else "VALID"
                with jax.named_scope("depthwise"):
                    kernel = params[f"block{i}/depthwise/kernel"]
                    y = _conv(y, kernel, stride, padding, groups=hidden)
                y = act(y)
                with jax.named_scope("project"):
                    y = _conv(y, params[f"block{i}/project/kernel"])
                x = x + y if stride == 1 and c == out else y
        return x

    x = _arrays({"x": (2, 9, 9, 8)}, 7)["x"]
    emission = _emitted(run, _arrays(shapes, 3), x)
    classes = _classes(emission)
    blocks = [name for name in classes if "Block" in name]
    assert blocks == ["Block"]
    fields = {field.partition(":")[0]: field for field in classes["Block"]}
    assert fields.keys() >= {"expand", "depthwise", "project", "residual"}
    assert "| None" in fields["expand"]
    assert "if self.residual else" in emission.source
    assert "self.residual = c_in == c_out and strides == 1\n" in emission.source
    assert "if c_in != hidden" in emission.source and "use_expand" not in emission.source
    # The convolution pads images as its strides and its kernel need it.
    assert "jnp.pad(" not in emission.source
    padding = '"SAME" if strides == 1 else ((half - 1, half), (half - 1, half))'
    assert f"self.padding = {padding}" in emission.source
    # All arguments train from scratch at the shapes of the original.
    space: Any = emission.namespace
    fresh = eqx.filter_eval_shape(type(emission.model), key=jax.random.key(0))
    shapes_ = [[a.shape for a in jax.tree_util.tree_leaves(m)] for m in (fresh, emission.model)]
    assert shapes_[0] == shapes_[1] and hasattr(space, "Block")


@pytest.mark.parametrize("seed", [0, 1])
def test_a_sum_with_another_value_is_not_a_shortcut(seed: int) -> None:
    """The second block adds what its first layer computes, not its input."""
    names = [f"b{i}/{n}/kernel" for i in range(2) for n in ("one", "two")]
    params = _arrays(dict.fromkeys(names, (6, 6)), seed)

    def run(params: Any, x: Any) -> Any:
        for i in range(2):
            with jax.named_scope(f"b{i}"):
                with jax.named_scope("one"):
                    y = jnp.tanh(x @ params[f"b{i}/one/kernel"])
                with jax.named_scope("two"):
                    z = y @ params[f"b{i}/two/kernel"]
                x = z + (x if i == 0 else y)
        return x

    emission = _emitted(run, params, _arrays({"x": (2, 6)}, seed + 5)["x"])
    assert "residual:" not in emission.source


def test_activations_inside_a_block_are_a_field() -> None:
    names = [f"stage{i}/{n}/kernel" for i in range(3) for n in ("up", "down")]
    params = _arrays(dict.fromkeys(names, (6, 6)), 4)
    functions = (jax.nn.gelu, jax.nn.silu, jax.nn.gelu)

    def run(params: Any, x: Any) -> Any:
        for i, act in enumerate(functions):
            with jax.named_scope(f"stage{i}"):
                with jax.named_scope("up"):
                    y = x @ params[f"stage{i}/up/kernel"]
                y = act(y) * 0.5
                with jax.named_scope("down"):
                    x = x + y @ params[f"stage{i}/down/kernel"]
        return x

    source = _emitted(run, params, _arrays({"x": (3, 6)}, 8)["x"]).source
    assert source.count("class Stage") == 1
    assert "self.activation(" in source
    assert re.findall(r"activation=jax\.nn\.(\w+)", source).count("silu") == 1


@pytest.mark.parametrize("windows", [(2, 0, 2), (0, 2, 0), (0, 0, 2)])
def test_layers_whose_mask_has_a_window_are_one_class(windows: tuple[int, ...]) -> None:
    names = [f"layer{i}/{n}/kernel" for i in range(3) for n in ("q", "k", "v", "out")]

    def run(params: Any, x: Any) -> Any:
        for i, window in enumerate(windows):
            with jax.named_scope(f"layer{i}"):
                parts, places = [], jnp.arange(x.shape[1])
                for n in ("q", "k", "v"):
                    with jax.named_scope(n):
                        parts.append(x @ params[f"layer{i}/{n}/kernel"])
                q, k, v = parts
                mask = places[:, None] >= places
                if window:
                    mask &= places[:, None] - places < window
                scores = jnp.where(mask, jnp.einsum("bqd,bkd->bqk", q, k), -1e9)
                y = jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), v)
                with jax.named_scope("out"):
                    x = x + y @ params[f"layer{i}/out/kernel"]
        return x

    params = _arrays(dict.fromkeys(names, (6, 6)), 4)
    emission = _emitted(run, params, _arrays({"x": (2, 5, 6)}, 8)["x"])
    assert emission.source.count("class Layer") == 1
    assert "local: bool = eqx.field(static=True)" in emission.source
    assert [layer.local for layer in emission.model.layers] == [n > 0 for n in windows]


_VALUES = np.array([-np.inf, -4, -3, -1e-30, 0, 2.5, 3, 3.5, np.inf, np.nan], np.float32)


@pytest.mark.parametrize("name", ["hard_silu", "hard_sigmoid"])
def test_hard_activations_have_their_names(name: str) -> None:
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.layers.Input((10,)), keras.layers.Activation(name)])
    module = invert.convert(model)
    emission = module.emit()
    assert f"jax.nn.{name}(" in emission.source
    x = np.stack([_VALUES, np.random.default_rng(2).normal(size=10).astype(np.float32) * 4])
    np.testing.assert_array_equal(emission.model(x), module(x))
    # TensorFlow divides by 6 where XLA multiplies.
    np.testing.assert_allclose(emission.model(x), np.asarray(model(x)), rtol=1e-6)
    # At the kinks, too.
    slopes = [jax.grad(lambda x, f=f: jnp.sum(f(x)))(x) for f in (emission.model, module)]
    np.testing.assert_array_equal(*slopes)


# The input, hidden and output features, and the stride, of each block.
_BOTTLENECKS = ((4, 3, 8, 1), (8, 3, 8, 1), (8, 3, 8, 2), (8, 5, 12, 1), (12, 5, 12, 2))


def test_blocks_whose_shortcut_is_a_convolution_or_a_subsampling_are_one_class() -> None:
    """The convolution takes what the others compute from the input, too."""
    shapes: dict[str, tuple[int, ...]] = {}
    for i, (c, hidden, out, _) in enumerate(_BOTTLENECKS):
        shapes |= {f"block{i}/norm/scale": (c,)}
        shapes |= {f"block{i}/shortcut/kernel": (1, 1, c, out)} if c != out else {}
        shapes |= {f"block{i}/one/kernel": (1, 1, c, hidden)}
        shapes |= {f"block{i}/two/kernel": (3, 3, hidden, out)}

    def run(params: Any, x: Any) -> Any:
        for i, (c, _, out, stride) in enumerate(_BOTTLENECKS):
            with jax.named_scope(f"block{i}"):
                with jax.named_scope("norm"):
                    y = x * params[f"block{i}/norm/scale"]
                y = short = jax.nn.relu(y)
                if c != out:
                    with jax.named_scope("shortcut"):
                        short = _conv(short, params[f"block{i}/shortcut/kernel"])
                else:
                    short = x
                    if stride > 1:
                        pooled = ((1, 1, 1, 1), (1, stride, stride, 1), "VALID")
                        short = lax.reduce_window(x, -jnp.inf, lax.max, *pooled)
                with jax.named_scope("one"):
                    y = jax.nn.relu(_conv(y, params[f"block{i}/one/kernel"]))
                with jax.named_scope("two"):
                    y = _conv(y, params[f"block{i}/two/kernel"], stride)
                x = short + y
        return x

    x = _arrays({"x": (2, 9, 9, 4)}, 1)["x"]
    emission = _emitted(run, _arrays(shapes, 6), x)
    assert [name for name in _classes(emission) if "Block" in name] == ["Block"]
    assert "shortcut = max_pool(shortcut, 1, self.strides)" in emission.source
    assert "if c_in != c_out" in emission.source


def _staged(
    count: int, stage: Callable[..., Any]
) -> tuple[Callable[..., Any], dict[str, np.ndarray]]:
    """Stages with a product `up` and one `down`, written with the function that computes these."""
    names = [f"stage{i}/{n}/kernel" for i in range(count) for n in ("up", "down")]
    params = _arrays(dict.fromkeys(names, (6, 6)), count)

    def run(params: Any, x: Any) -> Any:
        for i in range(count):

            def product(x: Any, name: str, place: int = i) -> Any:
                with jax.named_scope(name):
                    return x @ params[f"stage{place}/{name}/kernel"]

            with jax.named_scope(f"stage{i}"):
                x = stage(i, x, product)
        return x

    return run, params


def test_a_layer_of_another_kind_does_not_part_the_others() -> None:
    """The third one has its steps in another order."""

    def stage(i: int, x: Any, product: Any) -> Any:
        y = product(x, "up")
        y = product(jnp.sin(y) if i == 2 else jax.nn.gelu(y), "down")
        return x + y if i else y

    emission = _emitted(*_staged(4, stage), _arrays({"x": (3, 6)}, 8)["x"])
    stages = [name for name in _classes(emission) if name.startswith("Stage")]
    assert len(stages) == 2
    assert "if self.residual else" in emission.source


def test_an_activation_before_the_first_layer_is_an_option() -> None:
    def stage(i: int, x: Any, product: Any) -> Any:
        y = jnp.sin(product(jax.nn.relu(x) if i else x, "up"))
        return x + product(y, "down")

    source = _emitted(*_staged(3, stage), _arrays({"x": (3, 6)}, 8)["x"]).source
    assert source.count("class Stage") == 1
    assert "activation: Callable[[Array], Array] = jax.nn.identity" in source
    assert "self.up(self.activation(x))" in source


_FUNCTIONS = (jax.nn.relu, jax.nn.silu, jax.nn.gelu, jnp.tanh)


def _random_blocks(seed: int) -> tuple[Any, dict[str, np.ndarray], np.ndarray]:
    """Blocks that differ at random: steps, sizes, activations, and the order of a sum."""
    random = np.random.default_rng(seed)
    convolves, c = bool(random.random() < 0.5), int(random.integers(3, 7))
    side, plan, shapes = ((1, 1) if convolves else ()), [], {}
    for i in range(int(random.integers(2, 6))):
        expands, pads, swaps, closes = (bool(n < 0.5) for n in random.random(4))
        hidden = 2 * c if expands else c
        out = c if random.random() < 0.6 else int(random.integers(3, 7))
        shapes |= {f"b{i}/expand/kernel": (*side, c, hidden)} if expands else {}
        shapes[f"b{i}/mid/kernel"] = (*((3, 3) if convolves else ()), hidden, hidden)
        shapes[f"b{i}/mid/bias"] = (hidden,)
        shapes[f"b{i}/project/kernel"] = (*side, hidden, out)
        function = _FUNCTIONS[int(random.integers(4))]
        adds = bool(out == c and random.random() < 0.7)
        plan.append((expands, pads and convolves, function, adds, swaps, closes))
        c = out

    def layer(params: Any, x: Any, name: str, padding: str = "SAME") -> Any:
        kernel = params[f"{name}/kernel"]
        y = _conv(x, kernel, 1, padding) if convolves else x @ kernel
        bias = params.get(f"{name}/bias")
        return y if bias is None else y + bias

    def run(params: Any, x: Any) -> Any:
        for i, (expands, pads, function, adds, swaps, closes) in enumerate(plan):
            with jax.named_scope(f"b{i}"):
                y = x
                if expands:
                    with jax.named_scope("expand"):
                        y = function(layer(params, y, f"b{i}/expand"))
                y = jnp.pad(y, ((0, 0), (1, 1), (1, 1), (0, 0))) if pads else y
                with jax.named_scope("mid"):
                    y = layer(params, y, f"b{i}/mid", "VALID" if pads else "SAME")
                y = function(y)
                with jax.named_scope("project"):
                    y = layer(params, y, f"b{i}/project")
                y = (x + y if swaps else y + x) if adds else y
                x = jax.nn.relu(y) if closes else y
        return x

    first = next(iter(shapes.values()))[-2]
    shape = (2, 5, 5, first) if convolves else (2, first)
    return run, _arrays(shapes, seed), _arrays({"x": shape}, seed + 1)["x"]


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 40))]
)
def test_blocks_that_differ_at_random(seed: int) -> None:
    """Whatever becomes one class computes what each of its layers did."""
    _emitted(*_random_blocks(seed))


def test_blocks_of_flax_have_convolutions_with_their_normalizations() -> None:
    """Those of the shortcut have names of their own, `conv_proj` and `norm_proj`."""
    plan = [(4, 3, True), (8, 3, False), (8, 5, True), (12, 5, False)]
    shapes: dict[str, tuple[int, ...]] = {}
    pairs = [("Conv_0", "BatchNorm_0"), ("Conv_1", "BatchNorm_1"), ("conv_proj", "norm_proj")]
    for i, (c, hidden, projects) in enumerate(plan):
        out = 8 if i < 2 else 12
        sizes = [(c, hidden), (hidden, out), (c, out)]
        for (conv, norm), (n, m) in list(zip(pairs, sizes, strict=True))[: 2 + projects]:
            shapes[f"Bottleneck_{i}/{conv}/kernel"] = (3, 3, n, m)
            for field in ("scale", "bias", "mean", "var"):
                shapes[f"Bottleneck_{i}/{norm}/{field}"] = (m,)

    def pair(params: Any, x: Any, block: str, conv: str, norm: str) -> Any:
        with jax.named_scope(conv):
            x = _conv(x, params[f"{block}/{conv}/kernel"])
        with jax.named_scope(norm):
            scale, bias, mean, var = (
                params[f"{block}/{norm}/{n}"] for n in ("scale", "bias", "mean", "var")
            )
            return (x - mean) * (lax.rsqrt(var * var + 1e-5) * scale) + bias

    def run(params: Any, x: Any) -> Any:
        for i, (_, _, projects) in enumerate(plan):
            block = f"Bottleneck_{i}"
            with jax.named_scope(block):
                y = jax.nn.relu(pair(params, x, block, *pairs[0]))
                y = pair(params, y, block, *pairs[1])
                x = pair(params, x, block, *pairs[2]) if projects else x
                x = jax.nn.relu(x + y)
        return x

    x, params = _arrays({"x": (2, 6, 6, 4)}, 1)["x"], _arrays(shapes, 6)
    emission: Any = recovered(with_params(run, params, x, batch="batch", name="network")).emit()
    assert not emission.messages
    # With constant parameters, the compiler would round otherwise.
    np.testing.assert_array_equal(emission.model(x), jax.jit(run)(params, x))
    blocks = [name for name in _classes(emission) if "Block" in name or "Bottle" in name]
    assert blocks == ["ConvBlock", "Bottleneck"]
    assert "conv_proj: ConvBlock | None" in emission.source


def _attend(params: Any, name: str, x: Any, memory: Any, bias: Any = None) -> Any:
    """An attention of four heads, whose features are as many."""

    def dense(field: str, y: Any) -> Any:
        with jax.named_scope(field):
            return y @ params[f"{name}/{field}/kernel"]

    def split(y: Any) -> Any:
        return y.reshape(*y.shape[:2], 4, 4).swapaxes(1, 2)

    with jax.named_scope(name):
        query, key, value = (
            split(dense(field, y)) for field, y in (("q", x), ("k", memory), ("v", memory))
        )
        scores = query @ key.swapaxes(2, 3)
        weights = jax.nn.softmax(scores if bias is None else scores + bias)
        return dense("o", (weights @ value).swapaxes(1, 2).reshape(x.shape))


@pytest.mark.parametrize("biased", ["self", "cross"])
def test_attentions_with_and_without_a_bias_are_one_class(biased: str) -> None:
    """The one without it does not take the argument, which is `None` there."""
    every = ("self_0", "self_1", "cross_0", "cross_1")
    shapes = {f"{a}_attention/{n}/kernel": (16, 16) for a in every for n in "qkvo"}
    table = (1, 4, 5, 5 if biased == "self" else 9)
    params = _arrays({**shapes, "memory": (1, 9, 16), "table": table}, 6)
    params = {name: array / 2 for name, array in params.items()}  # so that gradients are small

    def run(params: Any, x: Any) -> Any:
        memory, bias = jnp.tanh(params["memory"] + x[:, :1]), params["table"] * 2
        for name in every:
            kind, _, _ = name.partition("_")
            own = bias if kind == biased else None
            x = x + _attend(params, f"{name}_attention", x, x if kind == "self" else memory, own)
        return x

    emission = _emitted(run, params, _arrays({"x": (2, 5, 16)}, 9)["x"])
    classes = _classes(emission)
    assert sum("Attention" in name for name in classes) == 1
    source = emission.source
    assert 'bias: Float[Array, "1 heads length memory_length"] | None = None' in source
    assert "        if bias is not None:\n            scores = scores + bias\n" in source
    assert "self.heads = heads" in source


def test_layers_and_residuals_do_not_follow_from_sizes_that_are_equal_by_chance() -> None:
    """A denoiser embeds the time in each block, not in the perceptron that makes the embedding."""
    shapes: dict[str, tuple[int, ...]] = {"time/fc1": (10, 18), "time/fc2": (18, 18)}
    for i in range(3):
        shapes |= {f"res{i}/{n}/kernel": (18, 18) for n in ("fc1", "emb", "fc2")}
    shapes = {n if "kernel" in n else f"{n}/kernel": s for n, s in shapes.items()}

    def dense(params: Any, name: str, x: Any) -> Any:
        with jax.named_scope(name.rpartition("/")[2]):
            return x @ params[f"{name}/kernel"]

    def run(params: Any, x: Any) -> Any:
        time = jnp.sin(x[:1, :10])
        with jax.named_scope("time"):
            time = dense(params, "time/fc2", jax.nn.silu(dense(params, "time/fc1", time)))
        for i in range(3):
            with jax.named_scope(f"res{i}"):
                y = dense(params, f"res{i}/fc1", x) + dense(params, f"res{i}/emb", time)
                x = x + dense(params, f"res{i}/fc2", jax.nn.silu(y))
        return x

    emission = _emitted(run, _arrays(shapes, 3), _arrays({"x": (3, 18)}, 4)["x"])
    assert "use_emb: bool" in emission.source and "dim == hidden" not in emission.source
    assert "self.residual = residual\n" in emission.source
