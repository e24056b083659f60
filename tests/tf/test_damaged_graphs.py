"""Damaged and hostile graphs: refused by name, or converted with TensorFlow's values."""

from __future__ import annotations

import dataclasses
import functools
import re

import jax
import numpy as np
import pytest
import tensorflow as tf

import invert
from invert._errors import DefectError, plain
from invert.tf.fallback import kernels_in_child
from tests.tf.graph_mutants import Source, damaged_bytes, mutant, sources

v1 = tf.compat.v1
PLAIN = invert.Config(patterns=False, verify=False)


def _converted(source: Source, graph: object) -> invert.Module | None:
    """The module of a damaged graph; `None` if it is refused with the right error."""
    try:
        return invert.convert_graphdef(graph, source.inputs, source.outputs, config=PLAIN)
    except invert.InvertError as error:
        assert str(error)
        return None


def _values(
    source: Source, graph: object, results: list[jax.ShapeDtypeStruct]
) -> list[np.ndarray] | None:
    """TensorFlow's results, computed in a child process; `None` if there are none."""
    whole = v1.GraphDef()
    whole.CopyFrom(graph)
    for name, value in zip(source.inputs, source.values, strict=True):
        for node in whole.node:
            if node.name == name.split(":")[0]:
                node.Clear()
                node.name, node.op = name.split(":")[0], "Const"
                node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
                node.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
    last = whole.node.add(name="the/results", op="IdentityN", input=source.outputs)
    types = [tf.as_dtype(r.dtype).as_datatype_enum for r in results]
    last.attr["T"].list.type.extend(types)
    try:
        return kernels_in_child.read_results(kernels_in_child.ask(whole))
    except kernels_in_child.KernelError:
        return None


@pytest.mark.parametrize("number", range(len(sources())), ids=[s.name for s in sources()])
def test_the_graphs_themselves_convert(number):
    source = sources()[number]
    assert _converted(source, source.graph) is not None


def test_damaged_structure():
    assert sum(_converted(*mutant(0, n)) is not None for n in range(120)) > 5


def test_damaged_bytes():
    assert sum(_converted(*damaged_bytes(0, n)) is None for n in range(60)) > 5


@pytest.mark.slow
@pytest.mark.parametrize("part", range(30))
def test_damaged_structure_against_tensorflow(part, monkeypatch):
    monkeypatch.setattr(kernels_in_child, "_SECONDS", 10.0)
    compared = 0
    for n in range(100 * part, 100 * part + 100):
        source, graph = mutant(1, n)
        if (module := _converted(source, graph)) is None:
            continue
        try:
            results = jax.tree_util.tree_leaves(jax.eval_shape(module, *source.values))
        except invert.SignatureError:  # what is damaged is the shape of an argument
            continue
        # First, since only the child is stopped at a loop that never ends or an array too large.
        if (want := _values(source, graph, results)) is None:
            continue
        got = [np.asarray(x) for x in jax.tree_util.tree_leaves(module(*source.values))]
        compared += 1
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=2e-5, atol=1e-5, err_msg=f"mutant {n}")
    assert compared > 1


# -- one damage each, and what the error says


@functools.cache
def _simple() -> object:
    with tf.Graph().as_default() as g:
        x = v1.placeholder(tf.float32, [2, 3], name="x")
        y = tf.reduce_sum(tf.concat([x, x], 1), 0, name="sum")
        tf.identity(tf.split(y, 2, name="parts")[1], name="out")
    return g.as_graph_def()


def _refusal(change):
    graph = v1.GraphDef()
    graph.CopyFrom(_simple())
    change({n.name: n for n in graph.node})
    with pytest.raises(invert.MalformedModelError) as error:
        invert.convert_graphdef(graph, ["x:0"], ["out:0"])
    return str(error.value)


def _set(node, key, **value):
    return lambda nodes: nodes[node].attr[key].CopyFrom(v1.AttrValue(**value))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda n: n["sum"].attr.pop("T"), r"tf.Sum: lacks the attribute 'T' \(at node 'sum'\)"),
        (_set("sum", "T", i=3), "tf.Sum: has an attribute 'T' that is not of the type type"),
        (_set("sum", "T", type=77), "'T' that is 77, which is not a type"),
        (_set("sum", "T", type=10), "'T' that is bool, which the op does not allow"),
        (_set("sum", "T", type=2), "tf.Sum: takes float64 as input 0, but 'concat' is float32"),
        (_set("parts", "num_split", i=0), "'num_split' that is 0, which is less than 1"),
        (_set("parts", "num_split", i=1), "'parts:1', which is not among the outputs of 'parts'"),
        (lambda n: n["sum"].input.pop(), "has 1 inputs, but the op takes 2"),
        (lambda n: n["out"].input.__setitem__(0, "parts:x"), "'parts:x'"),
        (lambda n: setattr(n["sum"], "name", "other"), "'sum', which the graph does not have"),
        (lambda n: setattr(n["sum"], "name", "concat"), "tf.Sum: has the name of another node"),
    ],
)
def test_one_damage(change, match):
    assert re.search(match, _refusal(change))


def test_all_damage_at_once():
    def change(nodes):
        nodes["sum"].attr.pop("T")
        nodes["parts"].attr.pop("T")

    assert re.search(r"(?s)tf.Sum: lacks.*tf.Split: lacks", _refusal(change))


def test_attributes_that_the_op_lets_be_omitted():
    graph = v1.GraphDef()
    graph.CopyFrom(_simple())
    for node in graph.node:
        node.attr.pop("keep_dims", None)
        node.attr.pop("Tidx", None)
    before = graph.SerializeToString(deterministic=True)
    module = invert.convert_graphdef(graph, ["x:0"], ["out:0"])
    np.testing.assert_array_equal(module(np.ones((2, 3), np.float32)), [2.0, 2.0, 2.0])
    assert graph.SerializeToString(deterministic=True) == before


def _index_error(ctx, node, values):
    raise IndexError("of a rule")


def _type_error(ctx, node, values):
    plain(3)  # fails in the code of the package


@pytest.mark.parametrize(
    "fails, error, match",
    [(_index_error, IndexError, "of a rule"), (_type_error, DefectError, "TypeError in invert")],
)
def test_ranks_that_do_not_fit_and_defects(monkeypatch, fails, error, match):
    """TensorFlow's shape functions tell whether the graph or a rule is at fault."""
    with tf.Graph().as_default() as g:
        x = v1.placeholder(tf.float32, [2, 8, 8, 3], name="x")
        tf.identity(tf.image.resize(x, [4, 4]), name="out")
    graph = g.as_graph_def()
    for refuses in (False, True):
        if refuses:
            (node,) = (n for n in graph.node if n.name == "x")
            del node.attr["shape"].shape.dim[0]
        monkeypatch.setattr(kernels_in_child, "ask", _asked(refuses))
        _break_resize(monkeypatch, fails)
        expected = invert.UnsupportedOpError if refuses else error
        with pytest.raises(expected, match="rank 4" if refuses else match):
            invert.convert_graphdef(graph, ["x:0"], ["out:0"])


def _asked(refuses):
    def ask(graph):
        if refuses:
            raise kernels_in_child.KernelError("Shape must be rank 4 but is rank 3")
        return b""

    return ask


def _break_resize(monkeypatch, fails):
    from invert.primitives.tf import REGISTRY

    whole = REGISTRY.entry

    def entry(node):
        found = whole(node)
        return dataclasses.replace(found, call=fails) if node.op == "ResizeBilinear" else found

    monkeypatch.setattr(REGISTRY, "entry", entry)


# -- large and deep


def _with_constant(shape, fn, dtype=tf.float32):
    """A graph of an argument and a constant filled with one value."""
    with tf.Graph().as_default() as g:
        x = v1.placeholder(tf.float32, [2], name="x")
        # Of a shape that TensorFlow does not see while it builds the graph.
        large = v1.placeholder(dtype, shape if dtype == tf.float32 else [None], name="large")
        tf.identity(fn(x, large), name="out")
    graph = g.as_graph_def()
    (node,) = (n for n in graph.node if n.name == "large")
    node.op = "Const"
    node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
    tensor = node.attr["value"].tensor
    tensor.dtype = tf.as_dtype(dtype).as_datatype_enum
    (tensor.float_val if dtype == tf.float32 else tensor.int_val).append(2)
    node.attr["value"].tensor.tensor_shape.CopyFrom(node.attr["shape"].shape)
    del node.attr["shape"]
    return graph


@pytest.mark.parametrize("shape", [[10**12], [10**6, 10**6]], ids=str)
def test_large_constants_take_no_memory(shape):
    graph = _with_constant(shape, lambda x, y: x + (y + 1.0)[(0,) * (len(shape) - 1)][:2])
    module = invert.convert_graphdef(graph, ["x:0"], ["out:0"])
    np.testing.assert_array_equal(module(np.ones(2, np.float32)), [4.0, 4.0])
    reduced = _with_constant(shape, lambda x, y: x * tf.reduce_max(y))
    invert.convert_graphdef(reduced, ["x:0"], ["out:0"])
    places = _with_constant(
        shape, lambda x, y: x + tf.cast(tf.shape(tf.where(y > 1))[1], tf.float32)
    )
    with pytest.raises(invert.UnsupportedOpError, match=r"tf\.Where"):
        invert.convert_graphdef(places, ["x:0"], ["out:0"])


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (
            lambda x, y: tf.reshape(x, y),
            r"tf\.Reshape: .*4294967296 numbers are given where at most",
        ),
        (lambda x, y: tf.fill(y, 1.0), r"tf\.Fill: .*4294967296 numbers are given where at most"),
        (
            lambda x, y: tf.raw_ops.Slice(input=x, begin=y, size=y),
            r"tf\.Slice: .*4294967296 numbers are given where at most",
        ),
        (
            lambda x, y: x + tf.cast(tf.unique(y).y[0], tf.float32),
            r"tf\.Unique: has constants of 34359738368 bytes, too many",
        ),
        (
            lambda x, y: tf.dynamic_stitch([y], [tf.cast(y, tf.float32)]),
            r"tf\.DynamicStitch: has indices of 17179869184 bytes, too many",
        ),
        (
            lambda x, y: tf.dynamic_stitch([[0, 2**31 - 2]], [x]),
            r"tf\.DynamicStitch: has a table of its rows of 17179869176 bytes",
        ),
        (lambda x, y: tf.dynamic_stitch([[-1, 0]], [x]), r"tf\.DynamicStitch: has the index -1"),
    ],
)
def test_large_constants_are_not_spelled_out(fn, reason):
    """Python's numbers, and tables at conversion, would take all memory."""
    graph = _with_constant([1 << 32], fn, tf.int32)
    with pytest.raises(invert.UnsupportedOpError, match=reason):
        invert.convert_graphdef(graph, ["x:0"], ["out:0"])


def test_repeated_constants_take_no_memory():
    graph = _with_constant(
        [1], lambda x, y: x + tf.cast(tf.tile(tf.constant([1, 2]), [2**30 - 1])[1:3], tf.float32)
    )
    module = invert.convert_graphdef(graph, ["x:0"], ["out:0"], config=PLAIN)
    out = jax.eval_shape(module, jax.ShapeDtypeStruct((2,), np.float32))
    assert out.shape == (2,)


def _calls(depth, times):
    """A chain of so many functions, each calling the next."""
    graph = v1.GraphDef()
    x = graph.node.add(name="x", op="Placeholder")
    x.attr["dtype"].type = 1
    x.attr["shape"].shape.SetInParent()

    def call(nodes, name, source, function):
        node = nodes.add(name=name, op="PartitionedCall", input=[source])
        node.attr["f"].func.name = function
        node.attr["Tin"].list.type.append(1)
        node.attr["Tout"].list.type.append(1)
        return f"{name}:output:0"

    for level in range(depth):
        function = graph.library.function.add()
        function.signature.name = f"f{level}"
        function.signature.input_arg.add(name="a", type=1)
        function.signature.output_arg.add(name="b", type=1)
        last = "a"
        if level + 1 < depth:
            for i in range(times):
                last = call(function.node_def, f"call{i}", last, f"f{level + 1}")
        else:
            function.node_def.add(name="t", op="Tanh", input=["a"]).attr["T"].type = 1
            last = "t:y:0"
        function.ret["b"] = last
    call(graph.node, "out", "x", "f0")
    return graph


def test_deep_calls():
    module = invert.convert_graphdef(_calls(60, 1), ["x:0"], ["out:0"])
    np.testing.assert_allclose(module(np.float32(1)), np.tanh(1), rtol=1e-6, atol=1e-6)
    with pytest.raises(invert.UnsupportedOpError, match="too deeply for Python's recursion limit"):
        invert.convert_graphdef(_calls(2000, 1), ["x:0"], ["out:0"])


def test_calls_that_double_at_each_level():
    module = invert.convert_graphdef(_calls(5, 2), ["x:0"], ["out:0"])
    assert module.report.primitives["tanh"] == 16
    with pytest.raises(invert.UnsupportedOpError, match="calls its functions so often"):
        invert.convert_graphdef(_calls(60, 2), ["x:0"], ["out:0"])


def _folded(build):
    with tf.Graph().as_default() as g:
        x = v1.placeholder(tf.float32, [2], name="x")
        tf.identity(x + tf.cast(tf.size(build()), tf.float32), name="out")
    return invert.convert_graphdef(g.as_graph_def(), ["x:0"], ["out:0"], config=PLAIN)


def _ngrams(words, widths, pad):
    splits = tf.constant([0, len(words)], tf.int64)
    return tf.raw_ops.StringNGrams(
        data=tf.constant(words), data_splits=splits, separator="x" * 1000, ngram_widths=widths,
        left_pad="p" * 1000, right_pad="q" * 1000, pad_width=pad, preserve_short_sequences=False,
    ).ngrams  # fmt: skip


def _joined() -> object:
    text = tf.constant("x" * 1000)
    for _ in range(30):
        text = tf.strings.join([text, text])
    return tf.strings.to_hash_bucket_fast(text, 7)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (_joined, r"StringJoin: has results, with those before it, of \d+ bytes"),
        (
            lambda: tf.strings.length(tf.gather(tf.constant(["x" * (1 << 20)]), [0] * 1000)),
            "GatherV2: cannot be computed at conversion: the results are too large",
        ),
        (
            lambda: tf.strings.length(tf.tile(tf.constant(["a"]), [1 << 28])),
            "Tile: cannot be computed at conversion: the results are too large",
        ),
        (
            lambda: _RAW.RaggedRange(starts=[0], limits=[1 << 30], deltas=[1]).rt_dense_values,
            "RaggedRange: cannot be computed at conversion: OOM when allocating",
        ),
    ],
)
def test_texts_and_ranges_that_take_all_memory(build, match):
    with tf.Graph().as_default() as g:
        x = v1.placeholder(tf.float32, [2], name="x")
        tf.identity(x + tf.cast(tf.reshape(build(), [-1])[0], tf.float32), name="out")
    with pytest.raises(invert.UnsupportedOpError, match=match):
        invert.convert_graphdef(g.as_graph_def(), ["x:0"], ["out:0"], config=PLAIN)


@pytest.mark.slow
def test_kernels_that_take_all_memory_or_crash():
    assert _folded(lambda: _ngrams(["a", "b", "c"], [2], 0))(np.zeros(2, np.float32))[0] == 2
    with pytest.raises(invert.UnsupportedOpError, match=r"tf\.StringNGrams.*ended its process"):
        _folded(lambda: _ngrams(["a" * 1000] * 1000, list(range(1, 900)), -1))
    assert _folded(lambda: _ngrams(["a", "b"], [2], 0))(np.zeros(2, np.float32))[0] == 1


_RAW = tf.raw_ops
_CLASSES = {"true_classes": [[1]], "num_true": 1, "num_sampled": 2, "unique": True}


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (
            lambda: _RAW.UniformCandidateSampler(**_CLASSES, range_max=2**31),
            "UniformCandidateSampler: has a table of its classes of 17179869184 bytes",
        ),
        (
            lambda: _RAW.FixedUnigramCandidateSampler(
                **_CLASSES, range_max=9, unigrams=[1.0] * 9, num_reserved_ids=2**29
            ),
            "FixedUnigramCandidateSampler: has a table of its classes",
        ),
        (
            lambda: _RAW.AllCandidateSampler(
                true_classes=[[1]], num_true=1, num_sampled=2**30, unique=True
            ),
            "AllCandidateSampler: has a table of its classes",
        ),
        (
            lambda: _RAW.Mfcc(
                spectrogram=v1.placeholder(tf.float32, [1, 5, 9]), sample_rate=16000,
                filterbank_channel_count=200_000, dct_coefficient_count=200_000,
            ),
            "Mfcc: has tables of its filters",
        ),
        (
            lambda: _RAW.AudioSpectrogram(
                input=v1.placeholder(tf.float32, [100, 1]), window_size=2**31 - 1, stride=1
            ),
            "AudioSpectrogram: has a table of its window",
        ),
        (
            lambda: _RAW.BandedTriangularSolve(
                matrix=v1.placeholder(tf.float32, [2, 60_000]),
                rhs=v1.placeholder(tf.float32, [60_000, 1]),
            ),
            "BandedTriangularSolve: has a table of its entries",
        ),
        (
            lambda: _RAW.TensorListLength(
                input_handle=_RAW.TensorListReserve(
                    element_shape=[4], num_elements=2**30, element_dtype=tf.float32
                )
            ),
            "TensorListReserve: has a list of elements",
        ),
        (lambda: tf.where(tf.fill([2**26], True)), "Where: has places of 536870912 bytes"),
        (lambda: tf.where(tf.fill([2**30], True)), "Where: .*depends on data"),
        (
            lambda: _RAW.ResizeArea(
                images=v1.placeholder(tf.float32, [1, 2**16, 2, 1]), size=[2**16, 2]
            ),
            "ResizeArea: has a table of its weights",
        ),
        (
            lambda: _RAW.FractionalMaxPool(
                value=v1.placeholder(tf.float32, [1, 2**20, 2, 1]),
                pooling_ratio=[1.0, 1.44, 1.0, 1.0], deterministic=True, seed=1,
            ),
            "FractionalMaxPool: has 728177 regions along an axis, of which at most 65536 work",
        ),
    ],
)  # fmt: skip
def test_tables_that_are_much_larger_than_the_graph(build, match):
    with tf.Graph().as_default() as g:
        result = build()
    first = result[-1] if isinstance(result, tuple) else result
    inputs = [op.outputs[0].name for op in g.get_operations() if op.type == "Placeholder"]
    with pytest.raises(invert.UnsupportedOpError, match=match):
        invert.convert_graphdef(g.as_graph_def(), inputs, [first.name], config=PLAIN)


@pytest.mark.parametrize("count", [2**17, 2**20])
def test_a_tensor_that_is_split_into_too_many(count):
    graph = v1.GraphDef()
    x = graph.node.add(name="x", op="Placeholder")
    x.attr["dtype"].type = 1
    x.attr["shape"].shape.dim.add(size=count)
    rows = graph.node.add(name="rows", op="Unpack", input=["x"])
    rows.attr["T"].type, rows.attr["num"].i = 1, count
    with pytest.raises(invert.UnsupportedOpError, match="or splits tensors into so many"):
        invert.convert_graphdef(graph, ["x:0"], ["rows:3"], config=PLAIN)


def test_diagonals_outside_of_the_matrix():
    with tf.Graph().as_default() as g:
        x, d = (v1.placeholder(tf.float32, shape) for shape in ([4, 4], [3, 4]))
        y = _RAW.MatrixSetDiagV3(input=x, diagonal=d, k=v1.placeholder(tf.int32, [2], "k"))
    graph = g.as_graph_def()
    (k,) = (node for node in graph.node if node.name == "k")
    k.op = "Const"
    k.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.int32([-(10**9), 10**9])))
    del k.attr["shape"]
    with pytest.raises(invert.UnsupportedOpError, match=r"diagonal -?1000000000 of a matrix"):
        invert.convert_graphdef(graph, [x.name, d.name], [y.name], config=PLAIN)


def test_a_band_of_a_large_matrix_takes_no_tables():
    with tf.Graph().as_default() as g:
        x, d = (v1.placeholder(tf.float32, shape) for shape in ([2**14, 2**14], [3, 2**14]))
        y = _RAW.MatrixSetDiagV3(input=x, diagonal=d, k=[-1, 1])
    module = invert.convert_graphdef(g.as_graph_def(), [x.name, d.name], [y.name], config=PLAIN)
    types = [jax.ShapeDtypeStruct(v.shape, np.float32) for v in (x, d)]
    assert all(np.size(c) < 1 << 20 for c in jax.make_jaxpr(module)(*types).consts)


def test_a_padded_constant_is_as_small_as_its_file():
    def padded(n):
        return _folded(lambda: tf.pad(tf.constant([1.0, 2, 3]), [[n, n]]))

    assert padded(2**29)(np.zeros(2, np.float32))[0] == 2**30 + 3
    assert padded(2)(np.zeros(2, np.float32))[0] == 7
