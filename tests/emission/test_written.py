"""What the text looks like: layers found by data flow, lists of layers, names, idioms."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert
from invert import emission as emission_room
from invert._private.jax import eval_jaxpr, open_jaxpr, trace_closed
from invert.ir import traced_form
from invert.ir.simplify import simplify
from tests.emission.models import ramp, recovered, with_params
from tests.emission.test_options import _arrays, _emitted


def _dense(rows: int, columns: int, start: float) -> dict[str, Any]:
    kernel = np.cos(ramp(rows, columns) + np.float32(start))
    return {"kernel": kernel, "bias": np.sin(ramp(columns) + np.float32(start))}


def _linear(p: Any, x: Any) -> Any:
    return x @ p["kernel"] + p["bias"]


def _norm(p: Any, x: Any) -> Any:
    mean = jnp.mean(x, axis=-1, keepdims=True)
    var = jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * p["scale"]


def _block(p: Any, x: Any) -> Any:
    y = _norm(p["norm"], x)
    query, key, value = (_linear(p["attention"][n], y) for n in ("query", "key", "value"))
    scores = jnp.einsum("bqd,bkd->bqk", query, key)
    x = x + jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), value)
    return x + _linear(p["down"], jax.nn.relu(_linear(p["up"], _norm(p["norm_2"], x))))


def _params() -> dict[str, Any]:
    def block(k: int) -> dict[str, Any]:
        names = enumerate(("query", "key", "value"))
        return {
            "norm": {"scale": ramp(4) + k},
            "attention": {n: _dense(4, 4, i + k) for i, n in names},
            "norm_2": {"scale": ramp(4) - k},
            "up": _dense(4, 6, 3 + k),
            "down": _dense(6, 4, 4 + k),
        }

    return {"blocks": [block(k) for k in range(3)], "head": _dense(4, 2, 9)}


def _network(p: Any, x: Any) -> Any:
    for block in p["blocks"]:
        x = _block(block, x)
    return _linear(p["head"], x)


def _written(apply: Any, params: Any, *args: Any) -> Any:
    return recovered(with_params(apply, params, *args, name="network"))


def test_the_data_flow_between_parameters_is_the_layer(tmp_path: Path) -> None:
    x = ramp(2, 3, 4)
    module = _written(_network, _params(), x)
    source, model = module.source, module.model
    assert len(model.blocks) == 3
    assert "    blocks: tuple[Block, ...]\n" in source
    assert "for block in self.blocks:\n            x = block(x)\n" in source
    (attention,) = re.findall(r"class Attention\(.*?\n\n\n", source, re.DOTALL)
    assert attention.count(": Linear") == 3
    assert np.array_equal(model(x), module(x))
    invert.save(module, tmp_path)
    loaded = invert.load(tmp_path)
    assert np.array_equal(loaded(x), module(x))


def test_names_describe_values() -> None:
    source = _written(_network, _params(), ramp(2, 3, 4)).source
    assert '"bqd,bkd->bqk"' in source
    assert "var = jnp.mean(" in source
    assert "context = weights @ value\n" in source and "x = x + context\n" in source


def _mlp(p: Any, x: Any) -> Any:
    return _linear(p["second"], jax.nn.gelu(_linear(p["first"], x)))


def test_sizes_and_classes_by_their_roles() -> None:
    sizes = {"tokens": (4, 6, 4), "channels": (4, 10, 4)}
    params = {
        k: {"first": _dense(a, b, i), "second": _dense(b, c, i + 1)}
        for i, (k, (a, b, c)) in enumerate(sizes.items())
    }
    params["tower"] = {"first": _dense(4, 7, 5), "second": _dense(7, 3, 6)}

    def mixer(p: Any, x: Any) -> Any:
        x = x + _mlp(p["tokens"], x.T).T
        return _mlp(p["tower"], x + _mlp(p["channels"], x))

    module = _written(mixer, params, ramp(4, 4))
    source = module.source
    # Neither `Tokens` nor `Tower`: what they share is what they compute.
    assert re.findall(r"class (\w+)\(", source)[:2] == ["Linear", "MLP"]
    assert re.search(r"self.tokens = MLP\((\w+), \w+, \1, key=", source)
    assert re.search(r"self.tower = MLP\(\w+, \w+, n_out, key=", source)
    assert "def __init__(self, n_in: int, hidden: int, n_out: int, *, key: PRNGKeyArray)" in source
    x = np.cos(ramp(4, 4))
    assert np.array_equal(module.model(x), module(x))


def test_a_result_has_the_name_of_its_layer() -> None:
    params = {f"conv_{i}": _dense(4, 4, i) for i in range(3)}

    def skips(p: Any, x: Any) -> Any:
        a = _linear(p["conv_0"], x)
        b = _linear(p["conv_1"], jnp.tanh(a))
        c = _linear(p["conv_2"], jnp.sin(b) * a)
        return (c - b) * a + jnp.cos(c) * b

    source = _written(skips, params, ramp(5, 4)).source
    named = re.findall(r"^ +(\w+) = .*self\.(conv_\d)\(", source, re.MULTILINE)
    assert len(named) == 3
    assert all(local == field for local, field in named)
    assert not re.search(r"^ +conv_\d = (?!.*self\.conv_\d\()", source.split("__call__")[-1], re.M)


def test_tables_that_are_read_and_called_are_one_class() -> None:
    params = {"tok": {"embedding": np.cos(ramp(7, 4))}, "pos": {"embedding": np.sin(ramp(5, 4))}}

    def tied(p: Any, ids: Any) -> Any:
        with jax.named_scope("pos"):
            positions = jnp.take(p["pos"]["embedding"], jnp.arange(ids.shape[1]), axis=0)
        x = jnp.tanh(jnp.take(p["tok"]["embedding"], ids, axis=0) + positions)
        return x @ p["tok"]["embedding"].T

    ids = np.array([[1, 2, 6]], np.int32)
    module = _written(tied, params, ids)
    assert "class Embedding(" in module.source
    assert "self.tok = Embedding(vocab_size, dim, key=" in module.source
    assert "self.pos = Embedding(max_length, dim, key=" in module.source
    assert np.array_equal(module.model(ids), module(ids))


@pytest.mark.slow
def test_kernels_of_heads_start_at_the_scale_of_their_inputs() -> None:
    params = {"query": np.cos(ramp(64, 4, 8)), "out": np.sin(ramp(4, 8, 64)), "pos": ramp(3, 64)}

    def heads(p: Any, x: Any) -> Any:
        y = jnp.tensordot(x + p["pos"], p["query"], axes=1)
        return jnp.tensordot(jnp.tanh(y), p["out"], axes=2)

    module = _written(heads, params, np.cos(ramp(2, 3, 64)))
    fresh = type(module.model)(key=jax.random.key(0))
    assert np.std(fresh.query) == pytest.approx(1 / 8, rel=0.05)
    assert np.std(fresh.out) == pytest.approx(1 / 32**0.5, rel=0.05)
    assert np.std(fresh.pos) == pytest.approx(0.01, rel=0.2)


def test_a_layer_used_from_two_places_is_not_cut() -> None:
    # The table is used first and last: what lies between is not its layer.
    params = {"table": {"rows": np.cos(ramp(5, 4))}, "middle": _dense(4, 4, 1)}

    def tied(p: Any, x: Any) -> Any:
        y = jnp.tanh(_linear(p["middle"], x @ p["table"]["rows"]))
        return y @ p["table"]["rows"].T

    x = ramp(3, 5)
    module = _written(tied, params, x)
    assert np.array_equal(module.model(x), module(x))
    assert module.model.middle.kernel.shape == (4, 4)
    assert module.model.table.rows.shape == (5, 4)


def test_idioms() -> None:
    table, mask, x = np.cos(ramp(7, 3)), np.array([[True], [False]]), ramp(2, 4)

    def program(i: Any, x: Any) -> Any:
        rows = jnp.asarray(table).at[i].get(mode="clip")
        chosen = jax.lax.select(jnp.broadcast_to(mask, x.shape), x, jnp.full(x.shape, -1e9))
        return rows, chosen, jax.lax.rev(x, (1,)), jax.lax.pad(x, 0.0, ((1, 0, 0), (0, 2, 0)))

    exported = jax.export.export(jax.jit(program))(np.array([1, 9, -1]), x)
    source = invert.from_exported(exported).source
    assert '.get(mode="clip")' in source
    assert re.search(r"jnp\.where\(\w+(\.\w+)?, \w+, -1e9\)", source)
    assert "[:, ::-1]" in source
    assert "jnp.pad(" in source
    assert "lax." not in source.partition("class ")[2].partition("\n\n\n")[0]


def test_the_normal_form_knows_wrappers_and_axes_of_size_one() -> None:
    aval = jax.ShapeDtypeStruct((4, 3), jnp.float32)
    pairs = (
        (
            lambda x: jnp.where(x > 0, x, -1e9),
            lambda x: jax.lax.select(x > 0, x, jnp.full((4, 3), -1e9, jnp.float32)),
        ),
        (lambda x: jnp.sum(x, 1, keepdims=True), lambda x: jnp.sum(x, 1).reshape(4, 1)),
        (lambda x: x, lambda x: jnp.squeeze(x[:, None], 1)),
        (lambda x: jnp.flip(x, 0), lambda x: x[::-1]),
        (lambda x: x * 2.0 + x * 2.0, lambda x: (lambda y: y + y)(x * 2.0)),
    )
    for one, two in pairs:
        a, b = trace_closed(one, aval), trace_closed(two, aval)
        assert traced_form.difference(a, b) is None
    other = trace_closed(lambda x: jnp.where(x > 0, x, -1e8), aval)
    assert traced_form.difference(trace_closed(pairs[0][0], aval), other) is not None


def test_one_operand_of_a_loop_under_two_names() -> None:
    def body(p: Any, q: Any, xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            return c + jnp.tanh(p) * jnp.tanh(q) + x, c * jnp.tanh(q)

        return jax.lax.scan(step, jnp.zeros(3), xs)

    a, xs = ramp(3), ramp(4, 3)
    twice = trace_closed(body, a, a, xs)
    named = trace_closed(lambda a, xs: eval_jaxpr(open_jaxpr(twice), [a, a, xs]), a, xs)
    once = trace_closed(lambda a, xs: body(a, a, xs), a, xs)
    assert traced_form.difference(named, once) is None


def _loop(step: Any, x: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, step(s[1])), (0, x))[1]


@pytest.mark.parametrize(
    "run",
    [
        lambda step, x: lax.scan(lambda x, i: (step(x) * i, x), x, jnp.arange(4.0)),
        _loop,
        lambda step, x: lax.cond(jnp.sum(x) > 0, step, lambda x: step(x) + 1, x),
        lambda step, x: _loop(lambda x: _loop(step, x), x),
    ],
)
def test_a_number_that_is_closed_over_is_computed_with(run: Any) -> None:
    """A solver's direction of time, say, which JAX converts in each step of the export."""

    def f(x: Any) -> Any:
        sign = jnp.where(np.float32(0.5) < np.float32(0), 1, -1)
        return run(lambda x: x + jnp.sin(x) * sign.astype(jnp.float32), x)

    x = np.linspace(-1, 1, 6, dtype=np.float32)
    module = invert.from_exported(jax.export.export(jax.jit(f))(x))
    jax.tree.map(np.testing.assert_array_equal, module.model(x), jax.jit(f)(x))


def test_ones_that_a_loop_closes_over_are_no_divisor() -> None:
    def f(x: Any) -> Any:  # the likelihood of a hidden Markov model
        mean, scale = jnp.arange(3.0), jnp.ones(3)
        return lax.scan(lambda c, a: (c + ((a[:, None] - mean) / scale) ** 2, c), x, x.T[..., :2])

    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    module = invert.from_exported(jax.export.export(jax.jit(f))(x))
    assert " / " not in module.emit(loader=False).source
    jax.tree.map(np.testing.assert_array_equal, module.model(x), jax.jit(f)(x))


def _simplified(fn: Any, *avals: Any) -> Any:
    return open_jaxpr(simplify(trace_closed(fn, *avals)))


def test_products_of_flattened_rows() -> None:
    def flat(x: Any, w: Any) -> Any:
        return (x.reshape(6, 4) @ w.reshape(4, 10)).reshape(2, 3, 5, 2)

    x, w = ramp(2, 3, 4), np.cos(ramp(4, 5, 2))
    jaxpr = _simplified(flat, x, w)
    assert [e.primitive.name for e in jaxpr.eqns] == ["dot_general"]
    results = jax.jit(lambda *a: eval_jaxpr(jaxpr, a))(x, w)
    assert np.array_equal(results[0], jax.jit(flat)(x, w))


def test_rows_that_are_mixed_stay() -> None:
    def mixed(x: Any, w: Any) -> Any:
        return (x.reshape(4, 6) @ w).reshape(2, 2, 5)

    names = [e.primitive.name for e in _simplified(mixed, ramp(2, 3, 4), ramp(6, 5)).eqns]
    assert names == ["reshape", "dot_general", "reshape"]


def test_a_value_is_carried_once() -> None:
    def loop(x: Any, starts: tuple[float, float]) -> Any:
        def step(state: Any) -> Any:
            i, a, b, _ = state
            new = jnp.tanh(a * 0.5 + x)
            return i + 1, new, jnp.where(x > 0, new, b), new[None]

        first, second = (jnp.full(x.shape, s, x.dtype) for s in starts)
        last = jnp.full((1, *x.shape), starts[0], x.dtype)
        state = 0, first, second, last
        return jax.lax.while_loop(lambda s: s[0] < 3, step, state)[1:]

    x = ramp(3)
    for starts, carried in (((0.0, 0.0), 3), ((0.0, 1.0), 3)):
        jaxpr = _simplified(lambda x, s=starts: loop(x, s), x)
        (eqn,) = (e for e in jaxpr.eqns if e.primitive.name == "while")
        assert len(eqn.outvars) == carried
        for got, want in zip(eval_jaxpr(jaxpr, [x]), loop(x, starts), strict=True):
            assert np.array_equal(got, want)


def test_text_without_the_reader_of_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written and compared once, with and without."""
    x = ramp(2, 3, 4)
    module = _written(_network, _params(), x)
    written: list[object] = []
    emit = emission_room.emit.emit_methods
    monkeypatch.setattr(
        emission_room.emit, "emit_methods", lambda *a: written.append(a) or emit(*a)
    )
    emission: Any = module.emit(loader=False)
    assert "def " not in emission.source.partition("class Network")[2].partition("\n\n\n")[2]
    assert "safetensors" not in emission.source
    assert np.array_equal(emission.model(x), module(x))
    invert.save(emission.model, tmp_path / "package")
    text = (tmp_path / "package/model.py").read_text()
    assert text == module.source == module.emit().source and len(written) == 1
    assert emission.source == module.emit(loader=False).source != text
    again: Any = invert.load(tmp_path / "package")
    assert np.array_equal(again(x), module(x))


def test_a_convolution_of_two_arguments() -> None:
    """A model without fields has no options that its caller would have to give."""

    def conv(x: jax.Array, k: jax.Array) -> jax.Array:
        dims = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, k, (2, 2), "SAME", dimension_numbers=dims)

    args = ramp(2, 8, 8, 3), ramp(3, 3, 3, 4)
    module = invert.from_stablehlo(jax.jit(conv).lower(*args))
    emission = module.emit(loader=False)
    assert emission.messages == ()
    assert '"SAME"' in emission.source
    model: Any = emission.model
    assert np.array_equal(model(*args), conv(*map(jnp.asarray, args)))


def test_a_value_has_the_name_of_its_later_form() -> None:
    """`query = rope(query)`, and the only argument of a function is `x`."""

    def rope(x: jax.Array) -> jax.Array:
        size = x.shape[-1]
        exponents = jnp.arange(0, size, 2) / size
        angles = jnp.arange(x.shape[1])[:, None] * (1.0 / 1e4**exponents)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        even, odd = x[..., ::2], x[..., 1::2]
        pairs = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
        return pairs.reshape(x.shape)

    def attention(p: Any, x: jax.Array) -> jax.Array:
        query, key, value = (x @ p[name] for name in ("wq", "wk", "wv"))
        scores = jnp.einsum("bqd,bkd->bqk", rope(query), rope(key))
        return jax.nn.softmax(scores) @ value

    kernels = {name: np.sin(ramp(6, 6) + i) for i, name in enumerate(("wq", "wk", "wv"))}
    module = recovered(with_params(attention, kernels, ramp(2, 5, 6)))
    source = module.source
    assert "def rope(x: Array)" in source
    assert "query = rope(query)" in source or "query = rope(x @ self.wq)" in source
    assert not re.search(r"\by_\d", source)


def test_lists_of_the_author_are_lists_without_a_loop() -> None:
    params = {
        "layers": [_dense(4, 6, 0.0), _dense(6, 6, 1.0), _dense(6, 3, 2.0)],
        "tower": [_dense(4, 5, 3.0), _dense(5, 3, 4.0)],
    }

    def run(p: Any, x: Any) -> Any:
        first, second, last = p["layers"]
        y = jnp.sin(_linear(first, x))
        y = _linear(last, y + _linear(second, y) ** 2)
        return y * _linear(p["tower"][1], jnp.tanh(_linear(p["tower"][0], x)))

    module = recovered(with_params(run, params, ramp(2, 4)))
    source = module.emit(loader=False).source
    assert re.search(r"layers: tuple\[\w+, \w+, \w+\]", source)
    assert re.search(r"tower: tuple\[\w+, \.\.\.\]", source)
    assert "self.layers[2](" in source and "self.tower[1](" in source
    assert "depth" not in source


def test_lists_of_layers_of_different_classes() -> None:
    """They have the same primitives, but not the same text."""
    params = {"convs": [{"kernel": ramp(3, 3, 2, 4)}, {"kernel": ramp(3, 3, 4, 2)}]}

    def run(p: Any, x: Any) -> Any:
        first, last = (layer["kernel"] for layer in p["convs"])
        y = lax.conv_general_dilated(
            x, first, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        y = jnp.transpose(jnp.sin(y) + y, (0, 3, 1, 2))
        return lax.conv_general_dilated(
            y, last, (2, 2), "VALID", dimension_numbers=("NCHW", "HWIO", "NCHW")
        )

    emission = recovered(with_params(run, params, ramp(2, 9, 9, 2))).emit(loader=False)
    assert not emission.messages
    assert re.search(r"convs: tuple\[\w+, \w+\]", emission.source)
    assert "self.convs[1](" in emission.source


def test_constants_that_say_what_they_are() -> None:
    angles = np.arange(6.0)[:, None] * 0.3 ** np.arange(4)
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1).astype(np.float32)
    steps = (np.float32(-0.7) * np.arange(8, dtype=np.float32)).astype(np.float32)
    params = {"head": _dense(8, 3, 0.0)}

    def run(p: Any, x: Any) -> Any:
        return _linear(p["head"], (x + table) * jnp.exp(steps))

    emission = recovered(with_params(run, params, ramp(2, 6, 8))).emit(loader=False)
    assert "positional_encoding: " in emission.source
    assert "* jnp.arange(8, dtype=jnp.float32)" in emission.source
    other = recovered(with_params(lambda p, x: x + table**3 + p["w"], {"w": ramp(8)}, ramp(6, 8)))
    assert "positional_encoding" not in other.emit(loader=False).source


def test_the_last_place_of_an_axis() -> None:
    source = recovered(with_params(lambda p, x: x[:, 4] * p["w"], {"w": ramp(3)}, ramp(2, 5, 3)))
    assert "x[:, -1]" in source.emit(loader=False).source


def test_sequences_are_computed_where_they_are_used() -> None:
    half = (np.arange(4) / 4).astype(np.float32)
    steps = (np.float32(-0.7) * np.arange(8, dtype=np.float32)).astype(np.float32)
    params = {"head": _dense(8, 3, 0.0)}

    def run(p: Any, x: Any) -> Any:
        parts = [x * 10.0 ** jnp.asarray(half), x * 10.0 ** -jnp.asarray(half)]
        return _linear(p["head"], jnp.concatenate(parts, axis=-1) * jnp.exp(steps))

    source = recovered(with_params(run, params, ramp(2, 4))).emit(loader=False).source
    assert re.search(r"jnp\.arange\((\w+), dtype=jnp\.float32\) / \1\b", source)
    assert "jnp.exp(-0.7 * jnp.arange(" in source
    assert "def trainable" not in source
    # A product and a sum may be rounded at once, so that the constant stays one.
    added = with_params(lambda p, x: _linear(p["head"], x + steps), params, ramp(2, 8))
    assert ': Float[Array, "8"]' in recovered(added).emit(loader=False).source


@pytest.mark.parametrize(
    ("mask", "masked", "written"),
    [
        (np.tril(np.ones((6, 6), bool)), lambda s, m: jnp.where(m, s, -1e30),
         "jnp.tril(jnp.ones((length, length), jnp.bool_))"),
        (np.tril(np.ones((1, 6, 6), np.float32)), lambda s, m: s * m,
         "jnp.tril(jnp.ones((1, length, length), jnp.float32))"),
        (np.triu(np.full((6, 6), -np.inf, np.float32), 1), lambda s, m: s + m,
         "jnp.triu(jnp.full((length, length), -jnp.inf, jnp.float32), 1)"),
        (np.triu(np.ones((6, 6), bool)), lambda s, m: jnp.where(m, s, -1e30), ""),
    ],
)  # fmt: skip
def test_causal_masks_are_computed(mask: np.ndarray, masked: Any, written: str) -> None:
    names = ("query", "key", "value", "out")
    params = _arrays({f"{i}/{n}": (8, 8) for i in range(2) for n in names}, 0)

    def run(p: Any, x: Any) -> Any:
        for i in range(2):
            query, key, value = (x @ p[f"{i}/{n}"] for n in names[:3])
            weights = jax.nn.softmax(masked(jnp.einsum("bqd,bkd->bqk", query, key), mask))
            x = x + (weights @ value) @ p[f"{i}/out"]
        return x

    x = ramp(2, 6, 8)
    module = recovered(with_params(run, params, x))
    source = module.emit(loader=False).source
    assert written in source
    assert ("def trainable" in source) == (not written)
    model: Any = module.model
    np.testing.assert_array_equal(model(x), module(x))


def test_a_model_without_a_name_is_not_called_value() -> None:
    """Fields leave out what the name of the model says."""
    params = _arrays({"policy_head/w": (8, 3), "value_head/w": (8, 1)}, 0)

    def run(p: Any, x: Any) -> Any:
        x = jnp.tanh(x)
        return jax.nn.softmax(x @ p["policy_head/w"]), x @ p["value_head/w"]

    source = recovered(with_params(run, params, ramp(2, 8), name="__call__")).emit().source
    assert "value_head: " in source


def test_tiles_of_an_empty_array() -> None:
    exported = jax.export.export(jax.jit(lambda x: jnp.tile(x, (2, 1))))
    module = invert.from_exported(exported(jax.ShapeDtypeStruct((0, 3), jnp.float32)))
    model: Any = module.model
    assert model(np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_a_mapped_product_reads_from_the_input_to_the_features() -> None:
    """A layer of Equinox takes one example: `weight @ x` under `jax.vmap`, at two depths."""

    def run(p: Any, x: Any) -> Any:
        def layer(name: str, x: Any) -> Any:
            return p[f"{name}/weight"] @ x + p[f"{name}/bias"]

        x = jax.vmap(jax.vmap(lambda x: layer("first", x)))(x)
        y = jax.vmap(jax.vmap(lambda x: p["query/weight"] @ x))(x)
        return jax.vmap(lambda x: layer("last", x))(jnp.sum(y * y, axis=1))

    shapes = {
        "first/weight": (7, 6), "first/bias": (7,), "query/weight": (5, 7),
        "last/weight": (3, 5), "last/bias": (3,),
    }  # fmt: skip
    arrays = _arrays(shapes | {"x": (2, 4, 6)}, 0)
    x = arrays.pop("x")
    source = _emitted(run, arrays, x).source
    assert 'jnp.moveaxis(jnp.einsum("hd,bld->hbl", self.weight, x), 0, -1)' in source
    assert 'jnp.einsum("hd,bd->hb", self.weight, x).T' in source
    assert "jnp.transpose(" not in source


def test_an_index_is_not_a_memory() -> None:
    """The position at which a cache takes new keys makes a `key`, but is not attended to."""

    def run(p: Any, x: Any) -> Any:
        start = jnp.sum(x[:, 0, 0] > 9.0, dtype=jnp.int32)
        for i in range(2):
            key = lax.dynamic_update_slice(jnp.zeros((2, 8, 6)), x @ p[f"{i}/key"], (0, start, 0))
            scores = jnp.einsum("bqd,bkd->bqk", x @ p[f"{i}/query"], key)
            x = x + jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), key) @ p[f"{i}/out"]
        return x

    arrays = _arrays({f"{i}/{n}": (6, 6) for i in range(2) for n in ("key", "query", "out")}, 0)
    x = _arrays({"x": (2, 4, 6)}, 1)["x"]
    source = recovered(with_params(run, arrays, x, name="network")).emit().source
    assert "lax.dynamic_update_slice_in_dim(" in source
    assert "memory" not in source


def test_tables_of_any_numbers() -> None:
    """A rule holds a table with NaN, and one whose numbers differ only in the sign of zero."""
    holes = np.array([np.nan, *range(40)], np.float32)
    signs = np.where(np.arange(42) % 3 == 0, -0.0, np.float32(0))

    @jax.custom_vjp
    def f(x: Any) -> Any:
        return x * x

    f.defvjp(lambda x: (f(x), x), lambda x, c: (c + jnp.nansum(x * holes) + (x[0] + signs[1:]),))
    x = np.ones(41, np.float32)
    exported = jax.export.export(jax.jit(f))(x)
    module = invert.from_exported(exported.serialize(vjp_order=1))
    got, want = (jax.grad(lambda x, f=f: f(x).sum())(x) for f in (module.model, f))
    np.testing.assert_array_equal(got, want)


def test_a_library_call_whose_operands_were_folded() -> None:
    total = jax.jit(lambda x: jnp.nansum(x, -1) + 1)
    module = invert.from_exported(jax.export.export(total)(np.ones((5, 0), np.float32)))
    assert "def nansum():" in module.source


@pytest.mark.parametrize(
    ("dtype", "bits", "text"),
    [
        ("float32", np.uint32(0xFFC00000), "-jnp.nan"),
        ("float32", np.uint32(0x7FC00001), "np.uint32(2143289345).view(jnp.float32)"),
        ("bfloat16", np.uint16(0xFFC0), "-jnp.nan"),
        ("float8_e4m3fn", np.uint8(0xFF), "-jnp.nan"),
        ("float8_e8m0fnu", np.uint8(0xFF), "jnp.nan"),
    ],
)
def test_a_nan_with_a_sign_or_payload(dtype: str, bits: Any, text: str) -> None:
    number = bits.view(jnp.dtype(dtype))
    x = np.array([-1, 1]).astype(dtype)
    exported = jax.export.export(jax.jit(lambda x: jnp.where(x == 1, x, number)))(x)
    module: Any = invert.from_exported(exported)
    assert text in module.source
    assert np.asarray(module.model(x))[0].tobytes() == bits.tobytes()
