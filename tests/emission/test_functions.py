"""Functions of a text: steps that methods repeat, and classes without fields."""

from __future__ import annotations

import ast
import re
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert
from invert.emission.functions import empty_classes, repeated_steps
from tests.emission.models import recovered, with_params
from tests.emission.test_options import _arrays, _emitted

_HEADS, _SIZE, _LENGTH, _DIM = 2, 4, 6, 8


def _rotated(x: Any) -> Any:
    angles = jnp.arange(_LENGTH)[:, None] / 100 ** (jnp.arange(0, _SIZE, 2) / _SIZE)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    even, odd = x[..., ::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)


def _normalized(x: Any, scale: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-5) * scale


def _decoder(params: Any, x: Any) -> Any:
    for i in range(2):
        own = {n: params[f"layers/{i}/{n}"] for n in ("first", "second", "q", "k", "v", "up")}
        y = _normalized(x, own["first"])
        q, k, v = ((y @ own[n]).reshape(-1, _LENGTH, _HEADS, _SIZE) for n in "qkv")
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", _rotated(q), _rotated(k)))
        x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
        x = x + jax.nn.silu(_normalized(x, own["second"]) @ own["up"])
    return _normalized(x, params["norm"])


def test_rotations_and_normalizations_are_functions() -> None:
    shapes: dict[str, tuple[int, ...]] = {"norm": (_DIM,)}
    for i in range(2):
        own = {"first": (_DIM,), "second": (_DIM,), **dict.fromkeys("qkv", (_DIM, _DIM))}
        shapes |= {f"layers/{i}/{n}": s for n, s in (own | {"up": (_DIM, _DIM)}).items()}
    x = _arrays({"x": (2, _LENGTH, _DIM)}, 1)["x"]
    source = _emitted(_decoder, _arrays(shapes, 0), x).source
    assert len(re.findall(r"def rope\(\w: Array\) -> Array:", source)) == 1
    assert source.count("def rms_norm(x: Array, ") == 1
    # Of queries and keys in one class; of both norms of a layer, and that of the model.
    assert source.count("rope(") == 3
    assert source.count("rms_norm(") == 4
    assert source.count("jnp.cos(") == source.count("lax.rsqrt(") == 1
    assert "angles = " in source
    assert "even * cos - odd * sin" in source


def _open_rotated(x: Any) -> Any:
    _, length, _, size = x.shape
    angles = jnp.arange(length)[:, None] / 100 ** (jnp.arange(0, size, 2) / size)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    even, odd = x[..., ::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)


def _block(params: Any, x: Any) -> Any:
    for i in range(2):
        own = {n: params[f"layers/{i}/{n}"] for n in ("q", "k", "v", "out", "up", "down")}
        q, k, v = ((x @ own[n]).reshape(*x.shape[:2], 4, 8) for n in "qkv")
        q, k = _open_rotated(q), _open_rotated(k)
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(8))
        x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ own["out"]
        x = x + jax.nn.silu(x @ own["up"]) @ own["down"]
    return x


def test_a_block_of_matrices_has_sizes_as_arguments() -> None:
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(2):
        own = dict.fromkeys(("q", "k", "v", "out"), (32, 32)) | {"up": (32, 64), "down": (64, 32)}
        shapes |= {f"layers/{i}/{n}": s for n, s in own.items()}
    x = _arrays({"x": (2, 12, 32)}, 1)["x"]
    emission = _emitted(_block, {n: a / 4 for n, a in _arrays(shapes, 0).items()}, x)
    source = emission.source
    assert 'q: Float[Array, "dim dim"]' in source
    assert 'up: Float[Array, "dim hidden"]' in source
    assert "def __init__(self, dim: int, hidden: int, *, heads: int, key: PRNGKeyArray):" in source
    # Functions read all their sizes from their array.
    assert "batch, length, heads, head_dim = " in source
    assert "jnp.arange(head_dim // 2" in source
    assert "(dim // self.heads) ** 0.5" in source
    layer = next(
        getattr(emission.namespace, n) for n in ("Layer", "Block") if f"class {n}(" in source
    )
    other = layer(24, 20, heads=2, key=jax.random.key(0))
    assert other(jnp.ones((3, 5, 24))).shape == (3, 5, 24)


def _looked_up(params: Any, ids: Any) -> Any:
    x = params["word/weight"][ids] + params["position/weight"][: ids.shape[1]]
    x = x + params["kind/weight"][ids % 3]
    x = jnp.tanh(x @ params["block/dense/weight"].T + params["block/dense/bias"])
    y = x @ params["head/dense/weight"].T + params["head/dense/bias"]
    return jax.nn.relu(y) @ params["word/weight"].T


def test_tables_are_read_where_rows_are_added_and_called_where_looked_up() -> None:
    shapes = {
        "word/weight": (20, 8), "kind/weight": (3, 8), "position/weight": (16, 8),
        "block/dense/weight": (8, 8), "block/dense/bias": (8,),
        "head/dense/weight": (8, 8), "head/dense/bias": (8,),
    }  # fmt: skip
    ids = np.random.default_rng(0).integers(0, 20, (2, 5))
    params = _arrays(shapes, 0)
    emission = recovered(with_params(_looked_up, params, ids, batch="batch", name="net")).emit()
    assert not emission.messages
    model: Any = emission.model
    for values in (ids, ids[:1]):
        np.testing.assert_array_equal(model(values), jax.jit(_looked_up)(params, values))
    source = emission.source
    assert "self.word(" in source
    assert "self.position.weight[:5]" in source
    assert source.count("class Embedding(") == 1
    assert 'x: Int[Array, "*batch"]' in source
    # A layer that only holds another one is that one.
    assert "block: Linear" in source
    assert "head: Linear" in source
    assert "dense" not in source


def _rewritten(text: str) -> str:
    definitions = ast.parse(text).body
    repeated_steps.rewrite(definitions)
    return ast.unparse(ast.Module(definitions, []))


_CONV = (
    'lax.conv_general_dilated({}, {}, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))'
)


@pytest.mark.parametrize("first", ["", "jnp.tanh(x)", "x - jnp.mean(x, axis=-1, keepdims=True)"])
def test_only_what_the_name_says_is_a_function(first: str) -> None:
    def cls(name: str) -> str:
        return f"""
class {name}:
    def __call__(self, x):
        y = {first or "self.dense(x)"}
        s = jnp.mean(jnp.square(y), axis=-1, keepdims=True)
        return y * lax.rsqrt(s + 1e-05) * self.scale
"""

    before, found, function = _rewritten("".join(map(cls, "ABCD"))).partition("def rms_norm(")
    assert bool(found) == ("jnp.mean" not in first)
    # What comes before is an argument.
    assert "tanh" not in function.partition("class A")[0]
    assert before == "" or not found


def test_a_value_that_is_needed_elsewhere_is_an_argument() -> None:
    """The flipped kernel `w` of both convolutions is a result too, under the name it had before."""
    source = _rewritten(f"""
class A:
    def __call__(self, x, w, u):
        w = lax.rev(lax.rev(w, (0,)), (1,))
        y = {_CONV.format("x", "w")}
        u = lax.rev(lax.rev(u, (0,)), (1,))
        z = {_CONV.format("y", "u")}
        y = {_CONV.format("z", "w")}
        z = {_CONV.format("y", "u")}
        return w, u, y, z
""")
    method = source.split("class A")[1]
    assert method.count("lax.rev") == 4
    for call in ("y = conv(x, w)", "z = conv(y, u)", "y = conv(z, w)"):
        assert call in method
    assert source.split("class A")[0].count("lax.rev") == 0


def test_strides_of_a_convolution_are_an_argument_where_they_differ() -> None:
    def method(*strides: int) -> str:
        call = _CONV.format("x", "w")
        lines = [f"y_{i} = {call.replace('(1, 1)', f'({s}, {s})')}" for i, s in enumerate(strides)]
        head = ["class A:", "    def __call__(self, x, w):"]
        return "\n        ".join(["\n".join(head), *lines, "return y_0, y_1, y_2, y_3", ""])

    source = _rewritten(method(1, 2, 1, 2))
    assert "def conv(x: Array, kernel: Array, strides: tuple[int, ...]) -> Array:" in source
    assert source.count("conv(x, w, (1, 1))") == source.count("conv(x, w, (2, 2))") == 2
    alike = _rewritten(method(2, 2, 2, 2))
    assert "def conv(x: Array, kernel: Array) -> Array:" in alike
    assert alike.count("(2, 2)") == 1 and alike.count("conv(x, w)") == 4


def test_numbers_are_sizes_only_where_arrays_are_reshaped() -> None:
    """Two heads are not the stride, and the heads of queries and keys share one function."""

    def cls(name: str, heads: int) -> str:
        return f"""
class {name}:
    def __call__(self, x, cos, sin):
        x = self.dense(x).reshape(5, {heads}, 4)
        even = x[..., ::2]
        odd = x[..., 1::2]
        y = jnp.stack([even * jnp.cos(cos), odd * jnp.sin(sin)], axis=-1)
        return y.reshape(5, {heads}, 4)
"""

    source = _rewritten(cls("A", 2) + cls("B", 4) + cls("C", 2))
    assert source.count("def rope(") == 1
    assert source.count("rope(") == 4
    assert "x[..., 1::2]" in source
    assert "n, n_2, n_3 = x.shape" in source
    assert "y.reshape(n, n_2, n_3)" in source


def test_other_numbers_that_differ_are_not_sizes() -> None:
    def cls(name: str, size: int) -> str:
        return f"""
class {name}:
    def __call__(self, x):
        x = self.dense(x).reshape(5, 8)
        y = jnp.stack([jnp.cos(x), jnp.sin(x)], axis=-1)
        return y.reshape(5, {size}, {16 // size})
"""

    assert "def rope(" not in _rewritten(cls("A", 2) + cls("B", 4) + cls("C", 8))


def test_an_argument_that_has_another_value_by_then_stays() -> None:
    """In the second place, `x` changes between the normalization's use of it and its end."""
    text = """
class A:
    def __call__(self, x, a):
        s = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
        y = x * lax.rsqrt(s + 1e-05) * a
        t = jnp.mean(jnp.square(y), axis=-1, keepdims=True)
        u = y * lax.rsqrt(t + 1e-05)
        y = jnp.tanh(u)
        v = u * a
        return y + v
"""
    assert _rewritten(text) == ast.unparse(ast.parse(text))


def test_shared_values_are_compared_once() -> None:
    """Each line uses the last one twice, so that the expression has 2^60 nodes."""
    lines = ["y = jnp.cos(x) + jnp.sin(x)"] + ["y = y * y + jnp.cos(y)"] * 60
    lines.append("y = jnp.stack([y, y])")
    body = "\n        ".join([*lines, "return y"])
    cls = f"class {{}}:\n    def __call__(self, x):\n        {body}\n"
    source = _rewritten(cls.format("A") + cls.format("B"))
    assert source.count("rope(") == 3


def test_a_class_without_fields_is_a_function() -> None:
    text = """
class Attention(eqx.Module):
    def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b d"]:
        return jax.nn.softmax(x)

class Scale(eqx.Module):
    factor: float = eqx.field(static=True)
    def __call__(self, x):
        return self.factor * x

class Model(eqx.Module):
    attention: Attention
    scale: Scale
    layers: tuple[Norm, ...]
    def __init__(self):
        self.attention = Attention()
        self.scale = Scale()
    def __call__(self, x):
        return self.scale(self.attention(x))

class Norm(eqx.Module):
    def __call__(self, x):
        return x
"""
    definitions = ast.parse(text).body
    assert empty_classes.rewrite(definitions, "Model")
    source = ast.unparse(ast.Module(definitions, []))
    assert "def attention(x: Float[Array, 'b d']) -> Float[Array, 'b d']:" in source
    assert "return self.scale(attention(x))" in source
    assert "class Scale" in source  # it has an option
    assert "class Norm" in source  # one of a tuple
    assert "Attention" not in source


def test_a_function_has_no_name_of_a_local_variable() -> None:
    text = """
class Norm(eqx.Module):
    def __call__(self, x):
        return x / 2

class Model(eqx.Module):
    first: Norm
    kernel: Array
    def __init__(self):
        self.first = Norm()
        self.kernel = jnp.zeros(3)
    def __call__(self, x):
        norm = self.first(x)
        return norm @ self.kernel
"""
    definitions = ast.parse(text).body
    empty_classes.rewrite(definitions, "Model")
    assert "norm = apply_norm(x)" in ast.unparse(ast.Module(definitions, []))


@pytest.mark.parametrize("count", [2, 9])
def test_a_sum_of_many_values_is_no_layer(count: int) -> None:
    keras = pytest.importorskip("keras")
    given = keras.Input((5,))
    parts = [keras.layers.Dense(3, name=f"part{i}")(given) for i in range(count)]
    module = invert.convert(keras.Model(given, keras.layers.Add()(parts)))
    source = module.emit(loader=False).source
    assert "class Add" not in source
    assert "def add" not in source
    x = np.ones((2, 5), np.float32)
    model: Any = module.model
    np.testing.assert_array_equal(model(x), module(x))


def test_a_function_has_no_name_of_a_loop_variable() -> None:
    text = f"""
class A:
    def __call__(self, x, u, w):
        for conv in self.convs:
            x = conv(x)
        y = {_CONV.format("x", "u")}
        y = {_CONV.format("y", "w")}
        y = {_CONV.format("y", "u")}
        return {_CONV.format("y", "w")}
"""
    source = _rewritten(text)
    assert "def conv_2(" in source
    assert "conv_2(y, w)" in source


def test_two_names_of_one_value_stay() -> None:
    norm = "lax.rsqrt(jnp.mean(jnp.square({0}), axis=-1, keepdims=True) + 1e-05)"
    text = f"""
class A:
    def __call__(self, x, y):
        s = t = {norm.format("x")}
        u = x * s * self.a
        v = y * {norm.format("y")} * self.a
        return u + v + t
"""
    source = _rewritten(text)
    assert "s = t = " in source


_NODES = np.array([0.1, 0.25, 0.75], np.float32)


@jax.jit
def _at_nodes(x: Any, y: Any) -> Any:
    return jnp.sin(x[:, None] * _NODES) + jnp.cos(y[:, None] * _NODES)


def _with_a_rule(x: Any, y: Any) -> Any:
    total = jax.custom_vjp(_at_nodes)
    total.defvjp(
        lambda x, y: (_at_nodes(x, y), (x, y)),
        lambda kept, slope: (2 * (slope * _at_nodes(*kept)).sum(1), slope.sum(1)),
    )
    return total(x, y)


@pytest.mark.parametrize("function", [_at_nodes, _with_a_rule, lambda x, y: _at_nodes(y, x) * x[0]])
def test_a_constant_that_a_function_reads_twice_is_written_once(function: Any) -> None:
    x, y = np.array([[0.5, 0.0, np.nan, -3.0], [1.0, np.inf, 2.0, 7.0]], np.float32)
    emission = invert.from_exported(jax.export.export(jax.jit(function))(x, y)).emit()
    assert not emission.messages
    assert emission.source.count("0.75") == 1
    assert emission.source.count("constants") == 3
    model: Any = emission.model
    np.testing.assert_array_equal(jax.jit(model)(x, y), jax.jit(function)(x, y))
    slopes = (
        jax.grad(lambda x, y, f=f: jnp.sum(f(x, y)[..., 0]), (0, 1)) for f in (model, function)
    )
    own, original = (jax.jit(slope)(x, y) for slope in slopes)
    np.testing.assert_array_equal(own, original)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (jax.vmap(jnp.searchsorted), r"jax\.vmap\(jnp\.searchsorted\)\("),
        (
            jax.vmap(jnp.searchsorted, in_axes=(None, 0)),
            # In jax 0.12 this is the function itself.
            r"jax\.vmap\(jnp\.searchsorted, in_axes=\(None, 0\)\)\(|jnp\.searchsorted\(a, v\)",
        ),
    ],
    ids=["both", "one"],
)
def test_a_function_of_each_row_is_mapped(function: Any, text: str) -> None:
    table = np.sort(np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32))
    table = table if "in_axes" not in text else table[0]
    x = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    module = invert.from_exported(jax.export.export(jax.jit(function))(table, x))
    assert re.search(text, module.source), module.source
    for run in (module, module.model):
        np.testing.assert_array_equal(run(table, x), function(table, x))


def test_a_branch_for_kernels_does_not_hide_the_diagonal() -> None:
    """JAX writes a branch for kernels of TPUs inside, which exported programs do not have."""
    x = np.random.default_rng(0).normal(size=(4, 4))
    with jax.enable_x64(True):
        exported = jax.export.export(jax.jit(lambda x: jnp.diagonal(x) + jnp.diag(x)))(x)
        emission = invert.from_exported(exported).emit(loader=False)
        result = emission.model(x)
    assert not emission.messages and "jax.jit" not in emission.source
    assert "jnp.diagonal(x) + jnp.diag(x)" in emission.source
    np.testing.assert_array_equal(np.asarray(result), 2 * x.diagonal())


def test_a_function_without_a_name_is_written_in_place() -> None:
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    twice = jax.jit(lambda x: jnp.cos(x) * 3)

    def run(x: Any) -> Any:
        return jax.jit(lambda x: jnp.sin(x) * 2)(x) + twice(x) - twice(x + 1)

    module = invert.from_exported(jax.export.export(jax.jit(run))(x))
    source = module.emit(loader=False).source
    assert "jnp.sin(x) * 2.0 + lambda_2(x)" in source
    assert source.count("def lambda_") == source.count("jnp.cos(") == 1
    model: Any = module.model
    np.testing.assert_array_equal(model(x), module(x))


def _reversed(x: Any) -> Any:
    return jnp.sign(x)


def _in_scope(x: Any) -> Any:
    with jax.named_scope("soft_sign"):
        return x / (1 + jnp.abs(x)) * 2


def _long(x: Any) -> Any:
    return jnp.sum(jnp.tanh(x) * x + 1, axis=-1, keepdims=True) + x


@pytest.mark.parametrize(
    ("fn", "name"), [(_reversed, "custom_sign"), (_in_scope, "soft_sign"), (_long, "compute")]
)
def test_a_kept_rule_is_named_after_what_it_computes(fn: Any, name: str) -> None:
    rule = jax.custom_vjp(fn)
    rule.defvjp(lambda x: (fn(x), None), lambda _, g: (-g,))
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    module = invert.from_exported(jax.export.export(jax.jit(lambda x: rule(x)))(x))
    source = module.emit(loader=False).source
    assert f"def {name}(x):" in source and f"return {name}(x)" in source
    assert "(x,) = primals" in source and "(x_dot,) = tangents" in source
    model: Any = module.model
    np.testing.assert_array_equal(model(x), fn(x))
    np.testing.assert_array_equal(jax.grad(lambda x: model(x).sum())(x), -np.ones_like(x))


def test_scopes_that_jax_adds_name_nothing() -> None:
    def f(x: Any, i: Any) -> Any:
        def step(_: Any, x: Any) -> Any:
            return jnp.tanh(x @ x.T @ x) + x

        x = jax.lax.fori_loop(0, 4, step, x, unroll=True)
        return jax.lax.cond(i > 0, lambda: jnp.tanh(x) - jnp.abs(x) * 2, lambda: jnp.abs(x) + x**3)

    x = np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)
    module = invert.from_exported(jax.export.export(jax.jit(f))(x, np.int32(1)))
    source = module.emit(loader=False).source
    for name in ("closed_call", "eval_jaxpr", "branch_"):
        assert name not in source
    np.testing.assert_array_equal(module.model(x, np.int32(1)), jax.jit(f)(x, np.int32(1)))


def test_mapped_branches_take_integers_and_keys_as_they_are() -> None:
    def f(x: Any, n: Any, key: Any, i: Any) -> Any:
        def branches(x: Any, n: Any, key: Any, i: Any) -> Any:
            def drawn(x: Any, n: Any, key: Any) -> Any:
                return x + jax.random.uniform(key, x.shape)

            return jax.lax.switch(i, [lambda x, n, key: x * n, drawn], x, n, key)

        keys = jax.vmap(jax.random.wrap_key_data)(key)
        return jax.vmap(branches)(x, n, keys, i)

    keys = np.arange(8, dtype=np.uint32).reshape(4, 2)
    x, n = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2), np.arange(4, dtype=np.int32)
    args = x, n, keys, np.array([0, 1, 1, 0], np.int32)
    module: Any = invert.from_exported(jax.export.export(jax.jit(f))(*args))
    source = module.emit(loader=False).source
    assert not re.search(r"where\(.*, (\w+), \1\)", source)
    assert module.report.certificate.kind == "exact"
    for run in (module, module.model):
        np.testing.assert_array_equal(
            jax.jit(lambda *a, run=run: run(*a))(*args), jax.jit(f)(*args)
        )


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_function_named_as_one_of_the_library_takes_any_number(number: float) -> None:
    @jax.jit
    def var(x: Any, y: Any) -> Any:
        return jnp.sin(x) * y

    module = invert.from_exported(jax.export.export(jax.jit(lambda x: var(x, number)))(jnp.ones(3)))
    assert "ddof" not in module.source
    np.testing.assert_array_equal(module.model(jnp.ones(3)), jnp.sin(jnp.ones(3)) * number)
