"""Classes take their sizes as arguments, also those that all layers of a program share."""

from __future__ import annotations

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert
from tests.emission.models import ramp


def _emitted(run: Any, params: dict[str, np.ndarray], *args: np.ndarray) -> invert.Emission:
    """The text of a layer with another one behind it, which computes the same."""
    given = [f"x{i}" for i in range(len(args))]
    count = len(params)
    scope = next(iter(params)).partition("/")[0]
    shape = jax.eval_shape(run, *params.values(), *args).shape
    params = {**params, "last/table": ramp(3, shape[-1])}

    def whole(*values: Any) -> Any:
        with jax.named_scope(scope):
            y = run(*values[:count], *values[count + 1 :])
        with jax.named_scope("last"):
            return jnp.sin(y * values[count][0]) + values[count][1]

    lowered = jax.jit(whole).lower(*params.values(), *args)
    module = invert.from_stablehlo(lowered, params=params, names=[*params, *given])
    emission = module.emit(loader=False)
    assert not emission.messages
    model: Any = emission.model
    assert np.array_equal(model(*args), module(*args))
    return emission


def _arrays(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {name.replace("__", "/"): ramp(*shape) for name, shape in shapes.items()}


def _class(emission: invert.Emission, name: str) -> str:
    found = re.search(rf"class {name}\(.*?(?=\n\n\n|\Z)", emission.source, re.DOTALL)
    assert found is not None, emission.source
    return found[0]


def _at(emission: invert.Emission, name: str, *sizes: int, **options: Any) -> Any:
    """A class of the text at sizes that the program does not have."""
    space: Any = emission.namespace
    return getattr(space, name)(*sizes, **options, key=jax.random.key(0))


@pytest.mark.parametrize("size", [4, 7])
def test_a_matrix_of_one_size_takes_it(size: int) -> None:
    # Rows and columns are arguments of their own even if they are equal.
    params = _arrays(head__kernel=(size, size), head__bias=(size,))
    emission = _emitted(lambda w, b, x: jnp.tanh(x @ w + b), params, ramp(size, size))
    assert 'kernel: Float[Array, "n_in n_out"]' in emission.source
    assert 'bias: Float[Array, "n_out"]' in emission.source
    # The batch is the same number by chance: the layer takes any.
    assert 'x: Float[Array, "batch n_in"]' in emission.source
    assert f"n_in: int = {size}, dim: int = {size}" in emission.source
    assert "self.head = Linear(n_in, dim, key=" in emission.source
    assert "jnp.tanh(self.head(x0))" in emission.source
    assert _at(emission, "Linear", 3, 5)(ramp(2, 3)).shape == (2, 5)


def test_a_kernel_takes_its_side_and_channels() -> None:
    def run(kernel: Any, x: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=dims)

    emission = _emitted(run, _arrays(stem__kernel=(3, 3, 2, 4)), ramp(1, 9, 9, 2))
    assert "self.stem = Conv(c_in, dim, kernel_size=3, key=" in emission.source
    assert '-> Float[Array, "1 h_out w_out c_out"]' in emission.source
    assert _at(emission, "Conv", 3, 2, kernel_size=5)(ramp(1, 9, 9, 3)).shape == (1, 5, 5, 2)


@pytest.mark.parametrize(
    ("groups", "features", "kernel"),
    [(6, 6, "kh kw 1 c"), (2, 6, "kh kw 3 6"), (6, 12, "kh kw 1 12")],
)
def test_groups_of_channels_stay_numbers(groups: int, features: int, kernel: str) -> None:
    """Unless each channel has one kernel of its own."""

    def run(kernel: Any, x: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=dims, feature_group_count=groups
        )

    params = _arrays(stem__kernel=(3, 3, 6 // groups, features))
    emission = _emitted(run, params, ramp(1, 5, 5, 6))
    assert f'kernel: Float[Array, "{kernel}"]' in emission.source


_IMAGES = ("NHWC", "HWIO", "NHWC")


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_images_of_layers_with_windows_have_any_size(padding: str, stride: int) -> None:
    """Sizes of the results follow from those of the images."""

    def run(kernel: Any, x: Any) -> Any:
        strides = (stride, stride)
        x = lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=_IMAGES)
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), padding)

    emission = _emitted(run, _arrays(stem__kernel=(3, 3, 2, 6)), ramp(1, 15, 13, 2))
    assert 'x: Float[Array, "1 h w c_in"]' in emission.source
    options = {"strides": stride} if stride > 1 else {}
    layer = _at(emission, "Conv", 2, 6, kernel_size=3, **options)
    x = ramp(1, 11, 22, 2)
    assert np.array_equal(layer(x), run(layer.kernel, x))


@pytest.mark.parametrize("size", [9, 12])
def test_images_are_padded_at_any_size(size: int) -> None:
    def run(kernel: Any, x: Any) -> Any:
        x = jnp.sin(jnp.pad(x, ((0, 0), (1, 2), (0, 3), (0, 0))))
        return lax.conv_general_dilated(x, kernel, (2, 2), "VALID", dimension_numbers=_IMAGES)

    emission = _emitted(run, _arrays(stem__kernel=(3, 3, 2, 6)), ramp(1, 15, 13, 2))
    layer = _at(emission, "Conv", 2, 6, kernel_size=3, strides=2)
    x = ramp(1, size, 8, 2)
    assert np.array_equal(layer(x), run(layer.kernel, x))


def test_a_convolution_that_enlarges_takes_images_of_any_size() -> None:
    def run(kernel: Any, x: Any) -> Any:
        return lax.conv_transpose(x, kernel, (2, 2), "SAME", dimension_numbers=_IMAGES)

    emission = _emitted(run, _arrays(stem__kernel=(3, 3, 2, 6)), ramp(1, 5, 4, 2))
    assert 'x: Float[Array, "1 h w c_in"]' in emission.source
    layer = _at(emission, "ConvTranspose", 2, 6, kernel_size=3, strides=2)
    x = ramp(1, 7, 9, 2)
    assert np.array_equal(layer(x), run(layer.kernel, x))


def test_a_size_that_a_matrix_needs_stays_a_number() -> None:
    def run(kernel: Any, matrix: Any, x: Any) -> Any:
        x = lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=_IMAGES)
        return x.reshape(2, -1) @ matrix

    params = _arrays(stem__kernel=(3, 3, 2, 6), stem__matrix=(4 * 3 * 6, 5))
    source = _emitted(run, params, ramp(2, 7, 6, 2)).source
    assert re.search(r'x: Float\[Array, "(2|batch) 7 6 (c_in|2)"\]', source)


def _attention(scale: float) -> Any:
    def run(qkv: Any, out: Any, x: Any) -> Any:
        with jax.named_scope("qkv"):
            x = x @ qkv
        query, key, value = jnp.split(x, 3, axis=-1)

        def heads(y: Any) -> Any:
            return jnp.swapaxes(y.reshape(*y.shape[:2], 3, -1), 1, 2)

        scores = heads(query) @ jnp.swapaxes(heads(key), 2, 3) * scale
        mixed = jax.nn.softmax(scores) @ heads(value)
        mixed = jnp.swapaxes(mixed, 1, 2).reshape(*x.shape[:2], -1)
        with jax.named_scope("out"):
            return mixed @ out

    return run


def _mixer(scale: float, length: int) -> invert.Emission:
    params = _arrays(mixer__qkv__kernel=(21, 63), mixer__out__kernel=(21, 21))
    return _emitted(_attention(scale), params, ramp(2, length, 21) / 9)


def test_inner_sizes_follow_from_the_layers_sizes() -> None:
    emission = _mixer(0.3, 5)
    text = _class(emission, "Attention")
    assert "def __init__(self, dim: int, *, heads: int, key: PRNGKeyArray)" in text
    assert "self.qkv = Linear(dim, 3 * dim, key=" in text
    assert "reshape(batch, length, self.heads, dim // self.heads)" in text
    assert "self.mixer = Attention(dim, heads=heads, key=" in emission.source
    assert "dim: int = 21, heads: int = 3, key" in emission.source
    assert _at(emission, "Attention", 12, heads=4)(ramp(3, 6, 12)).shape == (3, 6, 12)


def test_a_number_that_may_be_a_size_stays_one() -> None:
    # 7 is the size of a head: a scale by it would be another one at other sizes.
    assert "* (1 / (dim // self.heads))" in _class(_mixer(1 / 7, 5), "Attention")
    text = _class(_mixer(7.0, 5), "Attention")
    assert "def __init__(self, *, key: PRNGKeyArray)" in text
    assert "Linear(21, 63, key=" in text


def test_a_number_that_is_two_sizes_is_told_by_its_place_in_a_reshape() -> None:
    text = _class(_mixer(0.3, 7), "Attention")  # the length is 7, and so is the size of a head
    assert "Linear(dim, 3 * dim, key=" in text
    assert "reshape(batch, length, self.heads, dim // self.heads)" in text


def test_sizes_inside_are_named_after_layers() -> None:
    def run(a: Any, b: Any, c: Any, x: Any) -> Any:
        for name, w in (("one", a), ("two", b), ("three", c)):
            with jax.named_scope(name):
                x = jnp.tanh(x @ w)
        return x

    shapes = {"tower__one__kernel": (3, 5), "tower__two__kernel": (5, 7)}
    params = _arrays(**shapes, tower__three__kernel=(7, 4))
    emission = _emitted(run, params, ramp(2, 3))
    assert "self.one = Linear(n_in, hidden, key=" in emission.source
    assert "self.two = Linear(hidden, two_dim, key=" in emission.source
    assert "jnp.tanh(self.one(x))" in emission.source


def test_tables_share_a_class() -> None:
    def run(tokens: Any, positions: Any, x: Any) -> Any:
        with jax.named_scope("tok"):
            y = jnp.take(tokens, x, axis=0)
        with jax.named_scope("pos"):
            rows = jnp.take(positions, jnp.arange(x.shape[1]), axis=0)
        return y + rows

    params = _arrays(net__tok__embedding=(11, 6), net__pos__embedding=(9, 6))
    emission = _emitted(run, params, np.arange(8, dtype=np.int32).reshape(2, 4))
    assert re.findall(r"self.(\w+) = Embedding\(", emission.source) == ["tok", "pos"]


@pytest.mark.parametrize("start", [0, -1])
def test_positions_are_looked_up_as_tokens_are(start: int) -> None:
    """Tokens may count from the end. Positions never do, except where they begin below zero."""

    def run(tokens: Any, positions: Any, x: Any) -> Any:
        with jax.named_scope("tok"):
            y = jnp.take(tokens, lax.select(x < 0, x + 11, x), axis=0, mode="clip")
        i = jnp.arange(x.shape[1]) + start if start else jnp.arange(x.shape[1])
        with jax.named_scope("pos"):
            rows = jnp.take(positions, i, axis=0, mode="clip")
        return y + rows

    params = _arrays(net__tok__embedding=(11, 6), net__pos__embedding=(9, 6))
    ids = np.arange(8, dtype=np.int32).reshape(2, 4) - 4
    emission = _emitted(run, params, ids)
    assert ".at[x].get(mode=" in emission.source
    found = re.findall(r"self.(\w+) = Embedding\(", emission.source)
    assert found == (["tok", "pos"] if start == 0 else ["tok"])


def test_layers_are_named_after_their_computation() -> None:
    def norm(scale: Any, shift: Any, x: Any) -> Any:
        mean = jnp.mean(x, axis=-1, keepdims=True)
        var = jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True)
        return (x - mean) * lax.rsqrt(var + 1e-5) * scale + shift

    def run(scale: Any, shift: Any, w: Any, own: Any, more: Any, x: Any) -> Any:
        with jax.named_scope("ln"):
            x = norm(scale, shift, x)
        with jax.named_scope("head"):
            x = x @ w
        with jax.named_scope("router"):  # two products
            return jnp.sort(x @ own, axis=-1) @ more

    shapes = {"net__ln__scale": (6,), "net__ln__bias": (6,), "net__head__kernel": (6, 5)}
    inner = {"net__router__first": (5, 3), "net__router__second": (3, 2)}
    emission = _emitted(run, _arrays(**shapes, **inner), ramp(3, 6))
    found = re.findall(r"^    (\w+): (\w+)$", _class(emission, "Net"), re.MULTILINE)
    assert dict(found) == {"ln": "LayerNorm", "head": "Linear", "router": "Router"}


def test_cells_keep_the_size_of_their_state() -> None:
    def run(w: Any, u: Any, x: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = jnp.tanh(x @ w + h @ u)
            return h, None

        return lax.scan(step, jnp.zeros((x.shape[1], 5)), x)[0]

    params = _arrays(cell__kernel=(3, 5), cell__recurrent_kernel=(5, 5))
    emission = _emitted(run, params, ramp(4, 2, 3))
    text = _class(emission, "Cell")
    assert "def __init__(self, n_in: int, hidden: int, *, key: PRNGKeyArray)" in text
    assert _at(emission, "Cell", 4, 6)(ramp(2, 6), ramp(2, 4)).shape == (2, 6)


def test_every_instance_has_the_shapes_of_the_original() -> None:
    emission = _mixer(0.3, 5)
    fresh = eqx.filter_eval_shape(type(emission.model), key=jax.random.key(0))
    shapes = [[a.shape for a in jax.tree_util.tree_leaves(m)] for m in (fresh, emission.model)]
    assert shapes[0] == shapes[1]


def test_heads_and_their_size_are_arguments() -> None:
    def run(query: Any, key: Any, out: Any, x: Any) -> Any:
        parts = []
        for name, w in (("query", query), ("key", key)):
            with jax.named_scope(name):
                parts.append(jnp.einsum("btn,nhd->bthd", x, w))
        # The exponent is the root of a quarter, but not that of four heads.
        scores = jnp.einsum("bqhd,bkhd->bhqk", *parts) * np.float32(6**-0.5)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), parts[1])
        with jax.named_scope("out"):
            return jnp.einsum("bthd,hdn->btn", mixed, out)

    shapes = {"net__query__kernel": (10, 4, 6), "net__key__kernel": (10, 4, 6)}
    params = _arrays(**shapes, net__out__kernel=(4, 6, 10))
    emission = _emitted(run, params, ramp(2, 3, 10) / 9)
    text = _class(emission, "Attention")
    assert "def __init__(self, dim: int, *, heads: int, head_dim: int, key: PRNGKeyArray)" in text
    assert "head_dim**0.5" in text
    net = _at(emission, "Attention", 8, heads=2, head_dim=5)
    assert net(ramp(2, 3, 8)).shape == (2, 3, 8)


def test_modules_that_only_hold_weights_share_a_class() -> None:
    """As the gates of a cell whose kernels Flax joins."""
    gates = ("hi", "hf", "hg")

    def run(*arrays: Any) -> Any:
        *weights, x = arrays
        kernels, biases = weights[::2], weights[1::2]
        with jax.named_scope("cell"):
            return jnp.tanh(x @ jnp.concatenate(kernels, -1) + jnp.concatenate(biases))

    shapes = {f"cell__{g}__{n}": s for g in gates for n, s in (("kernel", (6, 5)), ("bias", (5,)))}
    emission = _emitted(run, _arrays(**shapes), ramp(2, 6))
    text = _class(emission, "KernelAndBias")
    assert 'kernel: Float[Array, "n_in n_out"]' in text and 'bias: Float[Array, "n_out"]' in text
    assert "def __init__(self, n_in: int, n_out: int, *, key: PRNGKeyArray)" in text
    assert all(f"{gate}: KernelAndBias" in emission.source for gate in gates)
    assert _at(emission, "KernelAndBias", 3, 4).bias.shape == (4,)
