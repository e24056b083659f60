"""Constructors as a person would write them: lists, arguments and names, of models by Keras."""

from __future__ import annotations

import ast
import types
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest

import invert
from invert.emission.constructors.repeats import Parameters, items_of, tuple_of
from invert.emission.constructors.stages import rules
from invert.emission.layers.proportions import factor
from invert.emission.python import syntax
from invert.emission.python.naming import spelled

layers: Any = keras.layers


def _emitted(model: Any, *sizes: int) -> str:
    """The source of a model, whose module computes what the original does."""
    module = invert.convert(model)
    emission = module.emit(loader=False)
    assert not emission.messages
    x = np.random.default_rng(7).normal(size=(3, *sizes)).astype(np.float32)
    written: Any = emission.model
    assert np.array_equal(np.asarray(written(x)), np.asarray(module(x)))
    _check_defaults(emission.source)
    return emission.source


def _check_defaults(source: str) -> None:
    """Each default of a constructor is what some call leaves out."""
    tree = ast.parse(source)
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    for cls in (n for n in tree.body if isinstance(n, ast.ClassDef)):
        own = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == cls.name]
        for init in cls.body if own else ():
            if isinstance(init, ast.FunctionDef) and init.name == "__init__":
                given = zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)
                for name in (a.arg for a, default in given if default is not None):
                    assert any(name not in [k.arg for k in c.keywords] for c in own), name


def _tuple(*calls: str, names: Sequence[str] = ("a", "b"), taken: Sequence[str] = ()) -> str:
    """The text for a tuple of calls."""
    made = [syntax.template(f"{c[:-1]}, key=k)") for c in calls]
    found = tuple_of(made, [Parameters(names)] * len(made), {*taken})
    return syntax.text_of(found).replace("$next", "k")


def test_equal_layers_are_a_repetition() -> None:
    text = _tuple("A(1, 2)", *["A(2, 2)"] * 4)
    assert text == "(A(1, 2, key=k), *(A(2, 2, key=k) for _ in range(4)))"


def test_two_equal_layers_stay_two() -> None:
    text = _tuple("A(1, 2)", "A(2, 2)", "A(2, 2)", "B(3, 2)")
    assert text == "(A(1, 2, key=k), A(2, 2, key=k), A(2, 2, key=k), B(3, 2, key=k))"


@pytest.mark.parametrize(
    ("start", "step", "loop"),
    [(64, 32, "range(64, 288, 32)"), (18, -3, "range(18, -3, -3)"), (0, 1, "range(7)")],
)
def test_sizes_that_count_are_a_range(start: int, step: int, loop: str) -> None:
    sizes = [start + step * i for i in range(7)]
    text = _tuple(*(f"A({n}, 8)" for n in sizes))
    assert text == f"tuple((A(a, 8, key=k) for a in {loop}))"
    values: Any = eval(text, {"A": lambda a, b, key: (a, b), "k": 0})
    assert values == tuple((n, 8) for n in sizes)


def test_irregular_layers_are_a_table_if_that_is_shorter() -> None:
    names = ("a", "b", "y" * 40, "z" * 40)
    calls = [f"Layer({n}, {3 * n % 7}, {names[2]}=8, {names[3]}=9)" for n in (5, 3, 9, 2, 6)]
    text = _tuple(*calls, names=names)
    assert text.startswith("tuple((Layer(a, b, ")
    assert text.endswith("for a, b in ((5, 1), (3, 2), (9, 6), (2, 6), (6, 4))))")
    # Rows of many columns, far from their names, would be hard to read.
    wide = [f"Layer({names[2]}={n}, {names[3]}={n * n}, key=k)" for n in (5, 3, 9, 2, 6)]
    assert _tuple(*wide, names=()).startswith("(Layer(")


def test_a_loop_takes_no_name_that_is_an_argument() -> None:
    calls = [f"A({n}, b)" for n in range(1, 9)]
    assert _tuple(*calls) == "tuple((A(a, b, key=k) for a in range(1, 9)))"
    assert _tuple(*calls, taken=["a"]).startswith("(A(1, b")


def test_a_loop_over_features_has_a_name_beside_those_of_arguments() -> None:
    calls = [f"A({n}, c_out)" for n in range(64, 256, 32)]
    text = _tuple(*calls, names=("c_in", "c_out"), taken=["c_in"])
    assert text == "tuple((A(width, c_out, key=k) for width in range(64, 256, 32)))"


def test_types_of_numbers_are_kept() -> None:
    """`1 == True`, but a flag is no size that counts."""
    assert "range" not in _tuple("A(False, 2)", "A(True, 2)", "A(2, 2)", "A(3, 2)")


def test_multiples_of_many_sizes_are_not_a_coincidence() -> None:
    assert factor((256, 512, 1024), (64, 128, 256)) == 4
    assert factor((256, 512, 512), (64, 128, 128)) is None  # two sizes
    assert factor((256, 512, 1025), (64, 128, 256)) is None
    assert factor((2, 4, 8), (1, 2, 4)) is None  # twice as many is what networks are made of
    assert factor((4, 8), (1, 2, 4)) is None


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("Resnet50v2", "ResNet50V2"), ("Efficientnetb0", "EfficientNetB0"), ("Vgg16", "VGG16"),
     ("LstmCell", "LSTMCell"), ("Vitamin", "Vitamin"), ("Albert", "Albert"), ("Gpt", "GPT"),
     ("ConvnextTinyStem", "ConvNeXtTinyStem"), ("Unets", "Unets")],
)  # fmt: skip
def test_classes_are_spelled_as_the_field_spells_them(name: str, wanted: str) -> None:
    assert spelled(name) == wanted


def _bottlenecks(widths: Sequence[int], depth: int) -> Any:
    """Stages of blocks, of which each has four times as many features as inside."""
    x = given = keras.Input((16, 16, 5))
    for k, width in enumerate(widths):
        for i in range(depth):
            name = f"stage{k}_block{i}"
            strides = 2 if k and not i else 1
            y = layers.Conv2D(width, 1, strides=strides, activation="relu", name=f"{name}_a")(x)
            y = layers.Conv2D(width, 3, padding="same", activation="relu", name=f"{name}_b")(y)
            y = layers.Conv2D(4 * width, 1, name=f"{name}_c")(y)
            if not i:
                x = layers.Conv2D(4 * width, 1, strides=strides, name=f"{name}_shortcut")(x)
            x = layers.ReLU(name=f"{name}_out")(x + y)
    return keras.Model(given, layers.GlobalAveragePooling2D()(x), name="widenet")


def test_stages_are_lists_and_their_widths_follow() -> None:
    source = _emitted(_bottlenecks((3, 6, 7, 9), 5), 16, 16, 5)
    assert source.count("4 * hidden") >= 2 and "c_out: int" in source
    block = source[source.index("class Block(") :]
    constructor = block[: block.index("def __call__")]
    assert "c_out" not in constructor
    assert "first = Block(c_in, hidden, strides=strides, key=keys[0])" in source
    assert "return first, *(Block(4 * hidden, hidden, key=k) for k in keys[1:])" in source
    for stage in (
        "(c_in, 3, strides=1,",
        "(12, 6, strides=2,",
        "(24, 7, strides=2,",
        "(28, 9, str",
    ):
        assert source.count(f"stage{stage}") == 1
    assert "keys = jax.random.split(key, 4)" in source
    assert "            for block in blocks:\n                x = block(x)\n" in source


def _mobile(kernels: Sequence[int], strides: Sequence[int], size: int | None = 32) -> Any:
    """Blocks that pad their images as `MobileNetV3` does."""
    x = given = keras.Input((size, size, 4))
    for i, (kernel, stride) in enumerate(zip(kernels, strides, strict=True)):
        half = kernel // 2
        y = layers.Conv2D(6 + i, 1, activation="relu", name=f"block_{i}_expand")(x)
        if stride == 2:
            y = layers.ZeroPadding2D(((half - 1, half),) * 2, name=f"block_{i}_pad")(y)
        padding = "same" if stride == 1 else "valid"
        y = layers.DepthwiseConv2D(
            kernel, stride, padding, use_bias=False, name=f"block_{i}_depthwise"
        )(y)
        x = layers.Conv2D(5 + i, 1, name=f"block_{i}_project")(y)
    return keras.Model(given, x, name="mobile")


@pytest.mark.parametrize("kernels", [(3, 3, 5, 3, 5), (3, 3, 3, 3, 3)])
def test_paddings_follow_from_strides_and_kernels(kernels: Sequence[int]) -> None:
    # At some sizes they are others than those of "SAME".
    source = _emitted(_mobile(kernels, (2, 1, 2, 2, 1), None), 33, 20, 4)
    several = len(set(kernels)) > 1
    value = "((half - 1, half), (half - 1, half))" if several else "((0, 1), (0, 1))"
    assert f'self.padding = "SAME" if strides == 1 else {value}' in source
    assert "jnp.pad(" not in source and "pad_width" not in source


def test_paddings_that_the_convolution_has_by_name_are_named() -> None:
    source = _emitted(_mobile((3, 3, 5), (2, 1, 2)), 32, 32, 4)
    assert '"SAME", dimension_numbers' in source and "padding" not in source


def _stages(lists: dict[str, Sequence[str]]) -> tuple[str, list[str]]:
    """The function and the calls for lists of calls; empty if there is no rule."""
    own = Parameters(("a", "b", "s"), {"s": syntax.number(1)})
    items = {}
    for field, calls in lists.items():
        made = [syntax.template(f"{c[:-1]}, key=k)") for c in calls]
        items[field] = items_of(made, [own] * len(made)) or []
    found = list(rules(items))
    if not found:
        return "", []
    ((fields, stages),) = found
    assert fields == list(lists)
    calls = [syntax.text_of(c).replace("$next", "k") for c in stages.calls("stage")]
    return syntax.text_of(stages.function("stage")), calls


def _run(function: str, calls: Sequence[str]) -> list[Any]:
    """The blocks that the calls make, with their keys."""
    split: Any = lambda key, n: [(key, i) for i in range(n)]  # noqa: E731
    jax = types.SimpleNamespace(random=types.SimpleNamespace(split=split))
    block: Any = lambda a, b, s=1, *, key: (a, b, s, key)  # noqa: E731
    space: dict[str, Any] = {"Block": block, "jax": jax, "PRNGKeyArray": Any, "k": "key"}
    exec(function, space)
    return [eval(call, space) for call in calls]


def _blocks(widths: Sequence[int], depths: Sequence[int], *, last: bool) -> dict[str, list[str]]:
    lists: dict[str, list[str]] = {}
    n_in = 5
    for k, (n, depth) in enumerate(zip(widths, depths, strict=True)):
        rows = [f"Block({n_in if not i else 4 * n}, {n})" for i in range(depth)]
        at = -1 if last else 0
        strides = 2 if k < len(widths) - 1 else 1
        rows[at] = f"{rows[at][:-1]}, s={strides})" if strides > 1 else rows[at]
        lists[f"stage{k}"], n_in = rows, 4 * n
    return lists


@pytest.mark.parametrize("last", [False, True])
def test_the_first_and_the_last_block_of_a_stage_differ(last: bool) -> None:
    lists = _blocks((3, 7, 8, 6), (3, 2, 6, 4), last=last)
    function, calls = _stages(lists)
    assert ("last = Block(4 * b, b, s=s" in function) == last
    assert calls[1] == "stage(12, 7, depth=2, s=2, key=k)"
    assert calls[3] == "stage(32, 6, depth=4, s=1, key=k)"
    made = _run(function, calls)
    for rows, blocks in zip(lists.values(), made, strict=True):
        wanted = [eval(row, {"Block": lambda a, b, s=1: (a, b, s)}) for row in rows]
        assert [b[:3] for b in blocks] == wanted
        assert len({b[3] for b in blocks}) == len(rows)  # no key is used twice


def test_few_stages_and_other_rules_stay_lists() -> None:
    lists = _blocks((3, 7, 8), (3, 3, 3), last=False)
    assert _stages(lists)[0]
    assert not _stages({k: v for k, v in lists.items() if k != "stage1"})[0]
    changed = {**lists, "stage1": [*lists["stage1"][:-1], "Block(28, 9)"]}
    assert not _stages(changed)[0]
    # Blocks that are all equal are a repetition.
    assert not _stages({f"stage{k}": [f"Block({k}, 3)"] * 4 for k in range(1, 5)})[0]


def _expanding(times: Sequence[int]) -> str:
    """The source of blocks whose inner sizes are multiples of their inputs."""
    x = given = keras.Input((4,))
    for i, (n, k) in enumerate(zip((4, 5, 6, 7, 9), times, strict=True)):
        y = layers.Dense(k * x.shape[-1], activation="relu", name=f"block_{i}_expand")(x)
        x = layers.Dense(n, name=f"block_{i}_project")(y)
    return _emitted(keras.Model(given, x, name="expanding"), 4)


def test_hidden_sizes_are_multiples_of_the_inputs() -> None:
    source = _expanding((1, 3, 3, 3, 3))
    assert "expansion: int = 3" in source and "hidden = expansion * n_in" in source
    assert source.count("expansion=1") == 1


def test_hidden_sizes_without_a_usual_multiple_are_arguments() -> None:
    source = _expanding((1, 3, 2, 3, 4))
    assert "hidden: int" in source and "expansion" not in source


def test_blocks_that_join_their_input_say_by_how_much_they_grow() -> None:
    x = given = keras.Input((8, 8, 6))
    for i in range(5):
        y = layers.Conv2D(7, 1, use_bias=False, name=f"block_{i}_a")(x)
        y = layers.BatchNormalization(name=f"block_{i}_bn")(y)
        y = layers.Conv2D(3, 3, padding="same", name=f"block_{i}_b")(layers.ReLU()(y))
        x = layers.Concatenate(name=f"block_{i}_join")([x, y])
    source = _emitted(keras.Model(given, x, name="dense"), 8, 8, 6)
    assert '"batch h w c_in+3"' in source


def test_activations_of_few_calls_are_applied_there() -> None:
    x = given = keras.Input((4,))
    for i in range(3):
        x = layers.Dense(5 + i, activation="relu", name=f"dense_{i}")(x)
    model = keras.Model(given, layers.Dense(2, activation="softmax", name="head")(x), name="mlp")
    # With so many the layer has an activation.
    assert "self.head = Dense(hidden_2, n_out, activation=jax.nn.softmax" in _emitted(model, 4)
    x = layers.Dense(5, activation="relu", name="body")(given)
    model = keras.Model(given, layers.Dense(2, activation="softmax", name="head")(x), name="two")
    source = _emitted(model, 4)
    assert "jax.nn.softmax(self.head(jax.nn.relu(self.body(" in source
    assert "activation" not in source


def test_a_program_that_pads_without_strides_keeps_its_paddings() -> None:
    """Sums in the derivatives of convolutions without strides would round differently."""
    x = given = keras.Input((16, 16, 4))
    for i, stride in enumerate((1, 2, 1)):
        x = layers.ZeroPadding2D(1, name=f"block_{i}_pad")(x)
        x = layers.Conv2D(4, 3, strides=stride, name=f"block_{i}_conv")(x)
    source = _emitted(keras.Model(given, x, name="padded"), 16, 16, 4)
    assert source.count("jnp.pad(") >= 1 and '"VALID"' in source


def test_paddings_that_do_not_follow_are_arguments() -> None:
    """An image is padded by more than its kernel needs, in one of the blocks."""
    x = given = keras.Input((32, 32, 4))
    for i, (kernel, pad) in enumerate(((3, 1), (5, 3), (3, 0), (3, 2))):
        y = layers.ZeroPadding2D(pad, name=f"block_{i}_pad")(x) if pad else x
        y = layers.Conv2D(6, kernel, strides=2, activation="relu", name=f"block_{i}_conv")(y)
        x = layers.Conv2D(4, 1, name=f"block_{i}_project")(y)
    source = _emitted(keras.Model(given, x, name="padded"), 32, 32, 4)
    assert "padding=((3, 3), (3, 3))" in source and "half" not in source


def test_joined_values_are_named_after_their_branches() -> None:
    x = given = keras.Input((12, 12, 6))
    for _ in range(4):
        a = layers.Conv2D(2, 1, activation="relu")(x)
        b = layers.MaxPooling2D(3, 1, "same")(x)
        c = layers.Conv2D(2, 1, activation="relu")(x)
        c = layers.Concatenate()(
            [layers.Conv2D(2, (1, 3), padding="same")(c), layers.Conv2D(2, 3, padding="same")(c)]
        )
        x = layers.Concatenate()([a, b, c])
    source = _emitted(keras.Model(given, x), 12, 12, 6)
    assert "branch_pool = max_pool(x, " in source
    assert "branch2 = jnp.concatenate([" in source
    assert "joined" not in source and "max_pooling2d" not in source
    # All calls pad alike, so that the function does; it stands before the classes.
    assert "padding: str) -> Array:" not in source
    assert source.index("def max_pool(") < source.index("class ")


def test_fields_do_not_repeat_the_name_of_the_model() -> None:
    x = given = keras.Input((7,))
    for name in ("stem", "body", "head"):
        x = layers.Dense(4, activation="relu", name=f"wide_net_{name}")(x)
    source = _emitted(keras.Model(given, x, name="wide_net"), 7)
    assert "self.stem = Dense(n_in, " in source and "wide_net_" not in source


def test_fields_that_would_be_equal_keep_their_names() -> None:
    given = keras.Input((7,))
    x = layers.Dense(4, name="net_stem")(given)
    x = layers.Dense(4, name="stem")(layers.ReLU()(x))
    source = _emitted(keras.Model(given, x, name="net"), 7)
    assert "self.net_stem = " in source and "self.stem = " in source


def test_fields_repeat_neither_the_name_of_the_model_nor_that_of_their_block() -> None:
    """Names that begin with both lose both, with parameters and without."""
    x = given = keras.Input((7,))
    for stage, width in enumerate((4, 6)):
        for block in range(2):
            name = f"deep_net_stage_{stage}_block_{block}"
            y = layers.Dense(width, name=f"{name}_first")(x)
            y = layers.Activation("gelu", name=f"{name}_gelu")(y)
            y = layers.Dense(x.shape[-1], name=f"{name}_second")(y)
            x = layers.Add(name=f"{name}_add")([x, y])
        x = layers.Dense(width, name=f"deep_net_down_{stage}")(x)
    source = _emitted(keras.Model(given, x, name="deep_net"), 7)
    assert source.count("class Block(") == 1 and "block_0_gelu" not in source
    assert "stage_0_blocks: tuple[Block, ...]" in source
    assert "stage_1_blocks: tuple[Block, ...]" in source
