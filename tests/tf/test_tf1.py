"""Graphs of TensorFlow 1: sessions, reference variables, `Switch` and `Merge`, frames."""

from __future__ import annotations

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import function

import invert

v1 = tf.compat.v1
X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


@pytest.fixture(params=[False, True], ids=["frames", "functions"], autouse=True)
def control_flow(request):
    """Both ways TensorFlow builds loops and branches."""
    (v1.enable_control_flow_v2 if request.param else v1.disable_control_flow_v2)()
    yield request.param
    v1.enable_control_flow_v2()


def graph(fn, gradient=False):
    """A frozen graph from `x` to `out`, and its value at `X`."""
    g = tf.Graph()
    with g.as_default(), v1.Session(graph=g) as session:
        x = v1.placeholder(tf.float32, [4, 6], name="x")
        y = fn(x)
        if gradient:
            (y,) = tf.gradients(tf.reduce_sum(y * y), [x])
        tf.identity(y, name="out")
        session.run(v1.global_variables_initializer())
        value = session.run("out:0", {x: X})
        return v1.graph_util.convert_variables_to_constants(
            session, g.as_graph_def(), ["out"]
        ), value


def _while(x):
    return v1.while_loop(
        lambda i, a: i < 3, lambda i, a: (i + 1, tf.tanh(a) + tf.cast(i, tf.float32)), [0, x]
    )[1]


def _cond(x):
    return v1.cond(tf.reduce_sum(x) > 0.0, lambda: x * 2.0, lambda: tf.sin(x) - 1.0)


def _constant_branches(x):
    return v1.cond(tf.reduce_sum(x) > 0.0, lambda: tf.constant(1.0), lambda: tf.constant(2.0)) * x


def _nested_cond(x):
    return v1.cond(tf.reduce_sum(x) > 0.0, lambda: _cond(x + 1.0), lambda: _cond(x - 1.0))


def _cond_in_loop(x):
    return v1.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, _cond(a) * 0.5), [0, x])[1]


def _loop_in_cond(x):
    return v1.cond(tf.reduce_sum(x) > 0.0, lambda: _while(x), lambda: x)


def _nested_loop(x):
    return v1.while_loop(lambda i, a: i < 2, lambda i, a: (i + 1, _while(a) * 0.5), [0, x])[1]


def _map(x):
    return tf.map_fn(lambda r: tf.sin(r) * 2.0, x)


def _scan(x):
    return tf.scan(lambda a, r: a * 0.5 + tf.tanh(r), x)


def _switch_case(x):
    index = tf.cast(tf.reduce_sum(x) > 0.0, tf.int32)
    return tf.switch_case(index, [lambda: tf.sin(x), lambda: tf.cos(x), lambda: x])


CASES = [
    _while, _cond, _constant_branches, _nested_cond, _cond_in_loop, _loop_in_cond, _nested_loop,
    _map, _scan, _switch_case,
]  # fmt: skip


SLOW = (_cond, _constant_branches, _nested_cond, _nested_loop, _scan, _switch_case)


@pytest.mark.parametrize(
    "fn",
    [pytest.param(f, marks=pytest.mark.slow) if f in SLOW else f for f in CASES],
    ids=lambda f: f.__name__,
)
def test_frozen_graph(fn):
    frozen, want = graph(fn)
    module = invert.convert_graphdef(frozen, ["x:0"], ["out:0"])
    np.testing.assert_allclose(module(X), want, rtol=2e-6, atol=1e-6)
    assert "while" not in module.report.primitives
    _, want = graph(fn, gradient=True)
    got = jax.grad(lambda x: jnp.sum(module(x) ** 2))(jnp.asarray(X))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("control_flow", [False], ids=["frames"], indirect=True)
@pytest.mark.parametrize("first", [0, 1])
def test_the_number_of_the_input_that_a_merge_passes_on(first, control_flow):
    with tf.Graph().as_default() as g:
        x = v1.placeholder(tf.float32, [3], name="x")
        sides = tf.raw_ops.Switch(data=x, pred=tf.reduce_sum(x) > 0)
        values = [2 * sides.output_false, sides.output_true + 1]
        merged = tf.raw_ops.Merge(inputs=values if first == 0 else values[::-1], name="merge")
        tf.add(merged.output, 10 * tf.cast(merged.value_index, tf.float32), name="out")
    module = invert.convert_graphdef(g.as_graph_def(), ["x:0"], ["out:0", "merge:1"])
    for x in (np.float32([1, 2, 3]), np.float32([-1, -2, -3])):
        with v1.Session(graph=g) as session:
            want = session.run(["out:0", "merge:1"], {"x:0": x})
        for a, b in zip(module(x), want, strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype


@pytest.mark.parametrize("control_flow", [False], ids=["frames"], indirect=True)
def test_a_merge_of_three_values_is_named(control_flow):
    with tf.Graph().as_default() as g:
        x = v1.placeholder(tf.float32, [3], name="x")
        outer = tf.raw_ops.Switch(data=x, pred=tf.reduce_sum(x) > 0)
        inner = tf.raw_ops.Switch(data=outer.output_true, pred=outer.output_true[0] > 1)
        values = [outer.output_false, 2 * inner.output_false, inner.output_true]
        tf.identity(tf.raw_ops.Merge(inputs=values, name="merge").output, name="out")
    with pytest.raises(invert.UnsupportedOpError, match=r"merges 3 values.*'merge'"):
        invert.convert_graphdef(g.as_graph_def(), ["x:0"], ["out:0"])(X)


@pytest.mark.parametrize("control_flow", [False], ids=["frames"], indirect=True)
def test_the_number_of_a_step_of_a_loop_is_named(control_flow):
    frozen, _ = graph(_while)
    (body,) = [n for n in frozen.node if n.op == "NextIteration" and n.attr["T"].type == 1]
    merge = next(n.name for n in frozen.node if n.op == "Merge" and body.name in n.input)
    step = frozen.node.add(name="step", op="Cast", input=[f"{merge}:1"])
    step.attr["SrcT"].type, step.attr["DstT"].type = 3, 1
    sum_ = frozen.node.add(name="sum", op="AddV2", input=[body.input[0], "step"])
    sum_.attr["T"].type = 1
    body.input[0] = "sum"
    with pytest.raises(invert.UnsupportedOpError, match=f"in which step a loop is.*{merge}"):
        invert.convert_graphdef(frozen, ["x:0"], ["out:0"])(X)


@pytest.mark.parametrize(
    "fn",
    [_map, *(pytest.param(f, marks=pytest.mark.slow) for f in (_while, _cond, _scan))],
    ids=lambda f: f.__name__,
)
def test_gradient_graph(fn):
    frozen, want = graph(fn, gradient=True)
    module = invert.convert_graphdef(frozen, ["x:0"], ["out:0"])
    np.testing.assert_allclose(module(X), want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
def test_saved_model(resource, tmp_path):
    with tf.Graph().as_default() as g, v1.Session(graph=g) as session:
        x = v1.placeholder(tf.float32, [None, 6], name="x")
        start = np.full((6, 3), 0.5, np.float32)
        kernel = v1.get_variable("scope/w", initializer=start, use_resource=resource)
        y = _cond(_while(x @ kernel))
        session.run(v1.global_variables_initializer())
        want = session.run(y, {x: X})
        v1.saved_model.simple_save(session, str(tmp_path / "m"), {"x": x}, {"y": y})
    module = invert.load(tmp_path / "m")
    np.testing.assert_allclose(module(x=X)["y"], want, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(module.params["scope"]["w"], start)


def test_assignments_in_a_graph():
    g = tf.Graph()
    with g.as_default():
        x = v1.placeholder(tf.float32, [4, 6], name="x")
        count = v1.get_variable("count", initializer=1.0, use_resource=False)
        with tf.control_dependencies([v1.assign_add(count, tf.reduce_sum(x))]):
            tf.identity(count.read_value() * 2.0, name="out")
    module = invert.convert_graphdef(
        g.as_graph_def(), {"x": "x"}, {"y": "out"}, variables={"count": np.asarray(1.0, np.float32)}
    )
    out, state = module(X, eqx.nn.State(module))
    np.testing.assert_allclose(out["y"], 2 * (1 + X.sum()), rtol=1e-5, atol=1e-6)
    out, state = module(X, state)
    np.testing.assert_allclose(out["y"], 2 * (1 + 2 * X.sum()), rtol=1e-5, atol=1e-6)


def _updated_in_branch(x, mean, count):
    """An assignment that only a control edge reaches."""

    def update():
        new = 0.9 * mean.read_value() + 0.1 * tf.reduce_mean(x, 0)
        with tf.control_dependencies([v1.assign(mean, new)]):
            return x - new

    return v1.cond(tf.reduce_sum(x) > 0.0, update, lambda: x - mean.read_value())


def _updates_of_branch(x, mean, count):
    """A branch that returns no value, as with `UPDATE_OPS`, and a read after it."""
    update = v1.cond(
        tf.reduce_sum(x) > 0.0,
        lambda: v1.group(v1.assign_add(mean, tf.reduce_mean(x, 0))),
        lambda: v1.no_op(),
    )
    with tf.control_dependencies([update]):
        return x - mean.read_value()


def _result_of_assignment(x, mean, count):
    """A branch after an assignment of the graph around it, and a branch in it."""
    with tf.control_dependencies([v1.assign_add(count, 1.0)]):
        new = v1.cond(
            tf.reduce_sum(x) > 0.0,
            lambda: v1.assign(mean, mean.read_value() + count.read_value()),
            lambda: v1.cond(
                count.read_value() > 1.5,
                lambda: v1.assign_sub(mean, tf.ones(6)),
                mean.read_value,
            ),
        )
    return x - new


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize(
    "build",
    [_updated_in_branch, _updates_of_branch, _result_of_assignment],
    ids=lambda f: f.__name__,
)
def test_assignments_in_a_branch(build, resource, control_flow, tmp_path):
    if control_flow and not resource:
        pytest.skip("TensorFlow passes no references to functions")
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, X.shape, name="x")
        mean = v1.get_variable("mean", initializer=np.ones(6, np.float32), use_resource=resource)
        count = v1.get_variable("count", initializer=1.0, use_resource=resource)
        y = build(x, mean, count)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(tmp_path / "m"), {"x": x}, {"y": y})
        feeds = [np.abs(X), -np.abs(X), np.abs(X)]
        after = mean.read_value()
        want = [(session.run(y, {x: f}), session.run(after)) for f in feeds]
    module = invert.load(tmp_path / "m")
    state = eqx.nn.State(module)
    for feed, (value, new) in zip(feeds, want, strict=True):
        out, state = module(state, x=feed)
        np.testing.assert_allclose(out["y"], value, rtol=1e-5, atol=1e-6)
        [kept] = [v for v in jax.tree.leaves(state) if v.shape == (6,)]
        np.testing.assert_allclose(kept, new, rtol=1e-5, atol=1e-6)


def _read_before(x, count):
    """TensorFlow's read of a reference shares its memory."""
    old = tf.identity(count)
    with tf.control_dependencies([v1.assign(count, count * 2.0)]):
        return x + old


def _read_after(x, count):
    with tf.control_dependencies([v1.assign_add(count, 3.0)]):
        return x + count


def _read_often(x, count):
    with tf.control_dependencies([v1.assign(count, count * 2.0)]):
        more = v1.assign_add(count, tf.reduce_sum(x))
    with tf.control_dependencies([more]):
        return x + v1.assign(count, count * count)


def _returned(x, count):
    return v1.assign(count, count + tf.reduce_sum(x))


@pytest.mark.parametrize(
    "build", [_read_before, _read_after, _read_often, _returned], ids=lambda f: f.__name__
)
def test_a_reference_is_read_where_its_value_is_used(build, tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, X.shape, name="x")
        count = v1.get_variable("count", initializer=1.5, use_resource=False)
        y = build(x, count)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(tmp_path / "m"), {"x": x}, {"y": y})
        want = [session.run(y, {x: X / k}) for k in (1, 2)]
    module = invert.load(tmp_path / "m")
    state = eqx.nn.State(module)
    for k, value in zip((1, 2), want, strict=True):
        out, state = module(state, x=X / k)
        np.testing.assert_allclose(out["y"], value, rtol=1e-5, atol=1e-6)


def test_a_reference_is_read_before_updates_that_nothing_waits_for(tmp_path):
    """TensorFlow's order depends on its threads."""
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, X.shape, name="x")
        count = v1.get_variable("count", initializer=1.5, use_resource=False)
        new = v1.assign_add(count, 2.0)
        y = x * count
        session.run(v1.global_variables_initializer())
        outputs = {"y": y, "new": tf.identity(new)}
        v1.saved_model.simple_save(session, str(tmp_path / "m"), {"x": x}, outputs)
    module = invert.load(tmp_path / "m")
    out, _ = module(eqx.nn.State(module), x=X)
    np.testing.assert_allclose(out["y"], X * 1.5)
    assert out["new"] == 3.5


def _split(x):
    first, second = tf.split(x, 2)
    best = tf.argmax(first + 1.0, axis=1)
    outputs = {"y": first * 2.0 - second, "best": best + 1, "second": second}
    return (first, second, best), outputs


def _looped(x):
    index, total = v1.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2.0), [0, x])
    return (index, total), {"i": index * 2, "y": total + 1.0}


def _parsed(x):
    """As the alternative receivers of an Estimator: the features, without the examples."""
    examples = v1.placeholder(tf.string, [None], name="examples")
    kinds = {"a": v1.FixedLenFeature([6], tf.float32), "b": v1.FixedLenFeature([6], tf.float32)}
    features = v1.io.parse_example(examples, {**kinds, "c": v1.FixedLenFeature([], tf.string)})
    return (features["a"], features["b"]), {"y": features["a"] - features["b"] * x}


@pytest.mark.parametrize(
    ("build", "fed"),
    [
        *((_split, fed) for fed in [(0,), (1,), (2,), (0, 1), (0, 1, 2)]),
        *((_looped, fed) for fed in [(0,), (1,), (0, 1)]),
        (_parsed, (0, 1)),
    ],
)
def test_feeding_some_results_of_an_op(build, fed, tmp_path):
    rng = np.random.default_rng(1)
    with tf.Graph().as_default() as g, v1.Session() as session:
        x = v1.placeholder(tf.float32, [4, 6], name="x")
        tensors, outputs = build(x)
        inputs = {"x": x} | {f"t{i}": tensors[i] for i in fed}
        values = {
            k: rng.integers(9, size=[n or 4 for n in t.shape]).astype(t.dtype.as_numpy_dtype)
            for k, t in inputs.items()
        }
        want = session.run(outputs, {t: values[k] for k, t in inputs.items()})
        v1.saved_model.simple_save(session, str(tmp_path / "m"), inputs, outputs)
        names = [{k: t.name for k, t in tensors.items()} for tensors in (inputs, outputs)]
        frozen = g.as_graph_def(add_shapes=True)
    loaded = invert.load(tmp_path / "m")
    invert.save(loaded, tmp_path / "saved")
    converted = invert.convert_graphdef(frozen, *names)
    for module in (loaded, invert.load(tmp_path / "saved"), converted):
        have = module(**values)
        assert sorted(have) == sorted(want)
        for key in want:
            np.testing.assert_array_equal(have[key], want[key])


def test_an_input_that_two_arguments_name(tmp_path):
    """TensorFlow does not load it, either."""
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [3], name="x")
        v1.saved_model.simple_save(session, str(tmp_path / "m"), {"a": x, "b": x}, {"y": x * 2.0})
    with pytest.raises(invert.MalformedModelError, match="2 inputs are the tensor 'x:0'"):
        invert.load(tmp_path / "m")


def test_names_that_do_not_exist():
    frozen, _ = graph(_cond)
    with pytest.raises(invert.SignatureError, match="no node 'y:0'"):
        invert.convert_graphdef(frozen, ["y:0"], ["out:0"])
    with pytest.raises(invert.SignatureError, match="no node 'other:0', named among the outputs"):
        invert.convert_graphdef(frozen, ["x:0"], ["other:0"])
    for name in ("out:3", "out:-1", "out:y"):
        with pytest.raises(
            invert.SignatureError, match=f"'{name}'.* is not an output of node 'out'"
        ):
            invert.convert_graphdef(frozen, ["x:0"], [name])
    with pytest.raises(invert.SignatureError, match="inputs is 'x:0'"):
        invert.convert_graphdef(frozen, "x:0", ["out:0"])
    with pytest.raises(invert.SignatureError, match="'x:3', named among the inputs, is not an out"):
        invert.convert_graphdef(frozen, ["x:3"], ["out:0"])
    with pytest.raises(invert.SignatureError, match="'x:0' is fed twice"):
        invert.convert_graphdef(frozen, {"a": "x:0", "b": "x"}, ["out:0"])
    with pytest.raises(invert.SignatureError, match="`variables` is a int"):
        invert.convert_graphdef(frozen, ["x:0"], ["out:0"], variables=3)
    with pytest.raises(invert.SignatureError, match="outputs is None"):
        invert.convert_graphdef(frozen, ["x:0"], None)
    with pytest.raises(invert.MalformedModelError, match="cannot be read as a GraphDef"):
        invert.convert_graphdef(b"\xff\xff\xff", ["x:0"], ["out:0"])


def _frozen(build):
    """A graph of `out = build(x)`, and its value."""
    with tf.Graph().as_default() as g, v1.Session(graph=g) as session:
        x = v1.placeholder(tf.float32, X.shape, name="x")
        out = tf.identity(build(x), name="out")
        return g.as_graph_def(), session.run(out, {x: X})


_numbers = itertools.count()


def _defun(body, **options):
    return function.Defun(tf.float32, func_name=f"of_{next(_numbers)}", **options)(body)


def _sine(x):
    return _defun(lambda a: tf.sin(a))(x)


def _four(x):
    """Four results, not in the order of the function's result map."""
    inner = _defun(lambda a: (tf.sin(a), a + 1.0, tf.cos(a), a * 3.0))
    a, b, c, d = _defun(lambda a: inner(a))(x)
    return (a - b) * (c - d)


FUNCTIONS = {
    "several results": _four,
    "nested": lambda x: _defun(lambda a: _sine(a) * _sine(a + 1.0))(x),
    "branch": lambda x: _defun(_cond)(x),
    "loop": lambda x: _defun(_while)(x),
    "gradient": lambda x: tf.gradients(_defun(lambda a: tf.sin(a) * a)(x), x)[0],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_called_by_ops_of_their_name(name):
    frozen, want = _frozen(FUNCTIONS[name])
    module = invert.convert_graphdef(frozen, ["x:0"], ["out:0"])
    np.testing.assert_allclose(module(X), want, rtol=2e-6, atol=1e-6)
    assert module.report.certificate.kind == "exact"


def test_a_gradient_that_is_a_function():
    @function.Defun(tf.float32, tf.float32)
    def triple(a, dy):
        return dy * 3.0 * a

    sine = _defun(lambda a: tf.sin(a), grad_func=triple)
    frozen, want = _frozen(lambda x: tf.gradients(sine(x), x)[0])
    np.testing.assert_array_equal(want, 3 * X)
    module = invert.convert_graphdef(frozen, ["x:0"], ["out:0"])
    np.testing.assert_array_equal(module(X), want)
    frozen, _ = _frozen(sine)
    for kept, gradient in (("check", 3 * X), ("ignore", np.cos(X))):
        config = invert.Config(custom_gradients=kept)
        module = invert.convert_graphdef(frozen, ["x:0"], ["out:0"], config=config)
        found = jax.grad(lambda x, module=module: jnp.sum(module(x)))(X)
        np.testing.assert_allclose(found, gradient, rtol=1e-6, atol=1e-6)


def _inner(x):
    return v1.while_loop(lambda i, a: i < 2, lambda i, a: (i + 1, tf.sin(a) * 1.5), (0, x))[1]


def test_gradient_of_a_loop_in_a_loop(control_flow):
    def outer(x):
        y = v1.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, _inner(a)), (0, x))[1]
        return tf.gradients(y, x)[0]

    frozen, want = _frozen(outer)
    assert any(n.op == "StackPushV2" for n in frozen.node) is not control_flow
    module = invert.convert_graphdef(frozen, ["x:0"], ["out:0"])
    np.testing.assert_allclose(module(X), want, rtol=2e-5, atol=2e-6)


def _deep_branch(a):
    def true():
        b = tf.exp(-a * a)
        return v1.cond(tf.reduce_sum(b) > 12, lambda: tf.sin(b) * tf.tanh(a * b), lambda: b * b)

    return v1.cond(tf.reduce_sum(a) > 0, true, lambda: tf.sin(tf.cos(a) * a) + a)


def _two_results(a):
    def true():
        b = tf.exp(-a * a)
        return b * a, tf.sin(b) * b

    one, two = v1.cond(tf.reduce_sum(a) > 0, true, lambda: (a * a, a - 1.0))
    return tf.tanh(one - two * one)


def _loop_in_branch(a):
    return v1.cond(tf.reduce_sum(a) > 0, lambda: _inner(a) * a, lambda: tf.cos(a) + 0.1)


BRANCHES = {
    "branch": _cond,
    "in a branch": _deep_branch,
    "two results": _two_results,
    "a loop in a branch": _loop_in_branch,
    "one after another": lambda a: tf.sin(_two_results(tf.tanh(_cond(a)))),
}


@pytest.mark.parametrize("name", BRANCHES)
@pytest.mark.drawn(3)
def test_gradient_of_a_branch_in_a_loop(name):
    def outer(x):
        step = BRANCHES[name]
        y = v1.while_loop(lambda i, a: i < 4, lambda i, a: (i + 1, step(a)), (0, x))[1]
        return tf.gradients(y, x)[0]

    frozen, want = _frozen(outer)
    module = invert.convert_graphdef(frozen, ["x:0"], ["out:0"])
    np.testing.assert_allclose(module(X), want, rtol=2e-5, atol=2e-6)


def test_inputs_whose_names_become_one():
    g = tf.Graph()
    with g.as_default():
        x, y = (v1.placeholder(tf.float32, [3], name=name) for name in ("a/x", "a_x"))
        tf.subtract(x, 2 * y, name="out")
    module = invert.convert_graphdef(g.as_graph_def(), ["a/x:0", "a_x:0"], ["out:0"])
    one, two = np.float32([1, 2, 3]), np.float32([4, 5, 7])
    assert np.array_equal(module(one, two), one - 2 * two)


def _recurrence(x):
    """Steps over a length that the graph leaves open, as `dynamic_rnn` makes them."""
    length = tf.shape(x)[0]
    taken = tf.TensorArray(tf.float32, length).unstack(x)

    def step(t, h, made):
        h = tf.tanh(taken.read(t) + 0.5 * h)
        return t + 1, h, made.write(t, h)

    start = (0, tf.zeros_like(x[0]), tf.TensorArray(tf.float32, length))
    return tf.while_loop(lambda t, *_: t < length, step, start)[2].stack()


def _grown(x):
    """An array that begins with one element for each row, and doubles."""
    length = tf.shape(x)[0]
    made = tf.TensorArray(tf.float32, length, dynamic_size=True, element_shape=[6])

    def step(t, made):
        return t + 1, made.write(t, x[t % length])

    return tf.while_loop(lambda t, _: t < 2 * length, step, (0, made))[1].stack()


def _of_open_length(build):
    with tf.Graph().as_default() as g, v1.Session(graph=g) as session:
        x = v1.placeholder(tf.float32, [None, 6], name="x")
        tf.identity(build(x), name="out")
        rows = [np.resize(X, (n, 6)) for n in (4, 1, 9)]
        return g.as_graph_def(), [(x_, session.run("out:0", {x: x_})) for x_ in rows]


def test_arrays_of_open_length_in_a_loop():
    frozen, cases = _of_open_length(_recurrence)
    module = invert.convert_graphdef(frozen, ["x:0"], ["out:0"])
    for x, want in cases:
        np.testing.assert_allclose(module(x), want, rtol=2e-6, atol=1e-6)
    assert "batch >= 1" in module.report.certificate.sizes
    assert "scan" in module.report.primitives


def test_an_array_that_outgrows_its_open_length_loses_nothing():
    frozen, cases = _of_open_length(_grown)
    module = invert.convert_graphdef(frozen, ["x:0"], ["out:0"])
    for x, want in cases:
        try:
            got = module(x)
        except invert.UnsupportedOpError as error:
            assert "number of its elements depends on data" in str(error)
        else:
            np.testing.assert_array_equal(got, want)
