"""Any jaxpr as text that traces to it, on JAX's own test cases of its primitives."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert
from invert import EmissionError
from invert._private.jax import open_jaxpr, trace_closed
from invert.emission.expressions.proof import Prover
from invert.emission.file import LINE_LENGTH, File, headed
from invert.emission.python import load, syntax
from invert.emission.sizes.program import Program
from invert.ir import jaxprs, traced_form
from invert.ir.types import ShapedArray, Var
from tests.harness_cases import Case, harnesses, sample

SAMPLE = frozenset(sample(200))

# Cases whose jaxpr no public function gives, and why. None of them comes out of raising.
NOT_PUBLIC = {
    "iota_2x32_shape": "a private primitive, which lowering takes apart",
    "device_put_devices": "a device is an object of one process, and leaves nothing when lowered",
}


def written(closed: Any, *, plain: bool = False, wide: bool = False) -> str:
    """The text of a program as one function."""
    closed = traced_form.strong(closed)
    prover = Prover((True,) if wide else (True, False))
    file = File(Program(open_jaxpr(closed)), prover, plain=plain)
    file.define(file.function(closed, "program"), "program")
    return headed(file.text(), ["A program."])


def traced(text: str, closed: Any, wide: bool) -> list[Any]:
    """What the text traces to, under each setting of `jax_enable_x64` it may run under."""
    module = load.module_of(text, "emitted_in_test")
    avals = [v.aval for v in open_jaxpr(closed).invars]
    found = []
    for setting in (True,) if wide else (False, True):
        with jax.enable_x64(setting):
            found.append(trace_closed(module.program, *avals))
    return found


@pytest.mark.parametrize(
    ("text", "count"),
    [("jnp.sin(a)", 1), ("jnp.arange(3) + jnp.size(a)", 2), ("a @ jnp.ones((2, 2))", 1)],
)
def test_only_wide_types_need_both_settings(text: str, count: int) -> None:
    expression = ast.parse(text, mode="eval").body
    aval = jax.ShapeDtypeStruct((3,), np.float32)
    assert len(list(Prover().traces(expression, ["a"], [aval]))) == count


def over_tokens(text: str) -> ast.expr:
    """An expression whose operands `_a` and `_b` are the tokens `$a` and `$b`."""
    expression = ast.parse(text, mode="eval").body
    for node in ast.walk(expression):
        if isinstance(node, ast.Name):
            node.id = node.id.replace("_", "$")
    return expression


@pytest.mark.parametrize(
    ("shape", "dtype", "weak", "holds"),
    [
        ((3,), np.float32, False, True),
        ((3,), np.float32, True, False),
        ((3, 1), np.float32, False, False),
        ((3,), np.float16, False, False),
    ],
)
def test_an_expression_has_the_type_of_the_result(
    shape: tuple[int, ...], dtype: Any, weak: bool, holds: bool
) -> None:
    """A weak type, too, would change what JAX makes of later operations."""
    jaxpr = jax.make_jaxpr(jnp.sin)(np.ones(3, np.float32)).jaxpr
    outs = [Var(ShapedArray(shape, np.dtype(dtype), weak_type=weak))]
    eqns = [eqn.replace(outvars=outs) for eqn in jaxpr.eqns]
    operands = {"$a": jaxpr.invars[0]}
    assert Prover().holds(over_tokens("jnp.sin(_a)"), operands, eqns, outs) == holds


def test_an_expression_of_some_operands_is_not_one_of_more() -> None:
    """An operand that the expression lacks is not a value of the equations."""
    jaxpr = jax.make_jaxpr(lambda x, y: jnp.sin(x) + y)(*np.ones((2, 3), np.float32)).jaxpr
    operands = dict(zip(("$a", "$b"), jaxpr.invars, strict=True))
    for text, holds in [("jnp.sin(_a) + _b", True), ("jnp.sin(_a) + _a", False)]:
        expression = over_tokens(text)
        assert Prover().holds(expression, operands, jaxpr.eqns, jaxpr.outvars) == holds


def assert_round_trip(closed: Any, *, plain: bool = False) -> str:
    wide = jaxprs.has_wide_types(open_jaxpr(closed))
    text = written(closed, plain=plain, wide=wide)
    for again in traced(text, closed, wide):
        assert traced_form.difference(again, closed) is None, text
    assert max(map(len, text.splitlines())) <= LINE_LENGTH
    return text


def _marks(name: str) -> list[pytest.MarkDecorator]:
    return [] if name in SAMPLE else [pytest.mark.slow]


# As the original has it.
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.drawn(160)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=_marks(name), id=name) for name in sorted(harnesses())]
)
def test_case(name: str) -> None:
    case = Case(name)
    try:
        closed = jax.make_jaxpr(case)(*case.args)
    except Exception as error:  # noqa: BLE001  JAX's own failure says nothing about ours
        pytest.skip(f"JAX itself fails: {type(error).__name__}")
    reason = next((r for n, r in NOT_PUBLIC.items() if name.startswith(n)), None)
    if reason is None:
        assert_round_trip(closed)
        return
    with pytest.raises((EmissionError, AssertionError)):
        assert_round_trip(closed)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _bf16(x):
    return x * jnp.bfloat16(1.1) + jnp.asarray(0.3, jnp.bfloat16)


def _loop(x):
    y = x[0] * 2

    def step(carry, row):
        a, b = carry
        return (a + row * y, b - a), (a * b, lax.cond(a[0] > 0, lambda: a, lambda: -b))

    return lax.scan(step, (x[0], x[1]), x, reverse=True)


def _search(x):
    return lax.while_loop(lambda s: s[0] < x.sum(), lambda s: (s[0] + 1, s[1] * x), (0.0, x))


def _switch(i, x):
    return lax.switch(i, [lambda x: x, lambda x: x * 2, lambda x: x @ x], x)


@jax.custom_jvp
def _doubled(x):
    return x * 2


@_doubled.defjvp
def _(primals, tangents):
    return _doubled(primals[0]), tangents[0] * jnp.cos(primals[0])


@jax.custom_vjp
def _clipped(x, i):
    return x[i]


_clipped.defvjp(
    lambda x, i: (x[i], (x, i)),
    lambda res, ct: (jnp.zeros_like(res[0]).at[res[1]].set(jnp.clip(ct, -1, 1)), None),
)


@jax.jit
def _named(x):
    return jnp.tanh(x) + 1


def _random(key):
    a, b = jax.random.split(key)
    return jax.random.normal(a, (3,), jnp.float32) + jax.random.uniform(b, (3,), jnp.float32)


def _solved(a, x):
    def step(carry, row):
        return jnp.linalg.solve(row, carry), jnp.linalg.solve(row + a, carry)

    return lax.scan(step, x, a)


def _symmetric(a, x):
    return lax.custom_linear_solve(lambda v: a @ v, x, lambda _, v: v @ a, symmetric=True)


def _constrained(x):
    axis = jax.sharding.AxisType.Auto
    mesh = jax.sharding.AbstractMesh((2, 4), ("x", "y"), axis_types=(axis, axis))
    whole = jax.sharding.PartitionSpec(("x", "y"), jax.sharding.PartitionSpec.UNCONSTRAINED)
    spec = jax.sharding.PartitionSpec("x", None)
    for one in (whole, spec):
        x = lax.with_sharding_constraint(jnp.sin(x), jax.sharding.NamedSharding(mesh, one))
    return x


def _weak(x):
    return jnp.broadcast_to(jnp.asarray(2.0), x.shape) * x


PROGRAMS = {
    "constants": (lambda x: x * np.float32(0.1) + np.float32(-0.0) - np.float32(np.nan), f32(2)),
    "bfloat16": (_bf16, jax.ShapeDtypeStruct((3,), jnp.bfloat16)),
    "complex": (lambda x: x * (1 + 2j) + lax.complex(1.5, -0.0), f32(2)),
    "scan": (_loop, f32(3, 2)),
    "while": (_search, f32(3)),
    "switch": (_switch, jax.ShapeDtypeStruct((), jnp.int32), f32(2, 2)),
    "fori": (lambda x: lax.fori_loop(0, x.shape[0], lambda i, a: a + x[i], x[0]), f32(4, 2)),
    "custom_jvp": (lambda x: _doubled(x) + _doubled(x * 3), f32(3)),
    "custom_vjp": (lambda x, i: _clipped(x, i) * 2, f32(3), jax.ShapeDtypeStruct((), jnp.int32)),
    "library": (lambda x: jax.nn.relu(x) + jax.nn.log_softmax(jax.nn.silu(x), 0), f32(3, 4)),
    "called_twice": (lambda x: _named(_named(x)), f32(3)),
    "solve": (jnp.linalg.solve, f32(3, 3), f32(3, 2)),
    "solve_in_a_loop": (_solved, f32(2, 3, 3), f32(3, 3)),
    "gradient_of_solve": (jax.grad(lambda a, x: jnp.linalg.solve(a, x).sum()), f32(3, 3), f32(3)),
    "symmetric_solve": (_symmetric, f32(3, 3), f32(3)),
    "scatter": (lambda x, i: x.at[i].apply(jnp.sin), f32(5), jax.ShapeDtypeStruct((2,), jnp.int32)),
    "platforms": (
        lambda x: lax.platform_dependent(x, cpu=jnp.sin, cuda=jnp.cos, default=jnp.tan), f32(3)
    ),
    "tolerance": (lambda x: lax.exp(x, accuracy=lax.Tolerance(rtol=0.5, ulps=0)), f32(3)),
    "weak": (_weak, f32(3)),
    "seed": (lambda i: jax.random.key_data(jax.random.key(i)), jax.ShapeDtypeStruct((), jnp.int32)),
    "cloned": (jax.random.clone, jax.eval_shape(lambda: jax.random.key(0))),
    "mesh": (_constrained, f32(4, 4)),
    "keys": (_random, jax.eval_shape(lambda: jax.random.key(0))),
    "indexing": (lambda x: x[1:, 0] + x[:-1, ::3][:, 0] + x[0, 0] + x[1:, None].sum(1), f32(4, 3)),
    "one_use_of_many": (lambda x: lax.top_k(x, 2)[1], f32(4)),
    "split_in_one": (lambda x: lax.split(x, (4,))[0] + 1, f32(4)),
    "large_unsigned": (
        lambda x: (x ^ np.uint32(2166136261)) * np.uint32(2**31), jax.ShapeDtypeStruct((3,), "u4")
    ),
    "nothing": (lambda x: (), f32(4)),
    "unused_and_given_back": (lambda x, y: (y, y, 3.0), f32(4), f32(2)),
}  # fmt: skip


@pytest.mark.parametrize("plain", [False, True], ids=["nice", "plain"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, plain: bool) -> None:
    function, *avals = PROGRAMS[name]
    assert_round_trip(jax.make_jaxpr(function)(*avals), plain=plain)


def text_of(function: Any, *avals: Any) -> str:
    return assert_round_trip(jax.make_jaxpr(function)(*avals))


def test_sums_of_cotangents_in_a_rule() -> None:
    @jax.custom_vjp
    def f(x):
        return x * jnp.sin(x)

    f.defvjp(lambda x: (f(x), x), lambda x, g: jax.vjp(lambda y: 3 * y * jnp.sin(y), x)[1](g))
    assert "bind(" not in text_of(lambda x: f(x), f32(3))


def test_expressions_are_idiomatic() -> None:
    def dense(x, w, b):
        return jax.nn.softmax(jax.nn.relu(x @ w + b)) - jnp.mean(x, axis=-1, keepdims=True)

    text = text_of(dense, f32(2, 3), f32(3, 3), f32(3))
    assert "softmax = jax.nn.softmax(jax.nn.relu(x @ y + z))" in text
    assert "return softmax - jnp.mean(x, axis=-1, keepdims=True)" in text


def test_a_function_is_written_once() -> None:
    text = text_of(*PROGRAMS["called_twice"])
    assert text.count("@jax.jit") == 1
    assert "return named(named(x))" in text


def test_rules_are_written() -> None:
    text = text_of(*PROGRAMS["custom_jvp"])
    assert text.count("@jax.custom_jvp") == 1
    assert "def doubled_jvp(primals, tangents)" in text
    assert "doubled.defjvp" in text


def test_derivatives_of_rules() -> None:
    function, *avals = PROGRAMS["custom_vjp"]
    text = text_of(function, *avals)
    module = load.module_of(text, "emitted_in_test")
    x, i = jnp.arange(3.0), jnp.int32(1)
    want = jax.grad(lambda x: 5 * function(x, i))(x)
    assert np.array_equal(jax.grad(lambda x: 5 * module.program(x, i))(x), want)
    assert want[1] == 1.0


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
@jax.jit
def _power(n: Any, x: Any) -> Any:
    return x**n


@_power.defjvp
@jax.jit
def _power_jvp(n: Any, primals: Any, tangents: Any) -> Any:
    # The inner call's rule closes over `n`, a value of the trace of this `jit`.
    return _power(n, *primals), n * _power(n - 1, *primals) * tangents[0]


def test_a_rule_that_calls_its_function_with_a_value_of_its_own() -> None:
    text = text_of(lambda x: _power(3, x), f32(4))
    module = load.module_of(text, "emitted_in_test")
    x = jnp.arange(4.0) - 1.5
    slope = jax.grad(lambda x: module.program(x).sum())
    assert np.array_equal(slope(x), jax.grad(lambda x: _power(3, x).sum())(x))
    # JAX has no second derivative of the traced program either.
    program = jax.make_jaxpr(lambda x: _power(3, x))(x)
    second = jax.grad(jax.grad(lambda x: jax.core.eval_jaxpr(open_jaxpr(program), [], x)[0].sum()))
    with pytest.raises(Exception, match=r"[Tt]race"):
        second(x)
    with pytest.raises(LookupError, match="a trace that has ended"):
        jax.grad(lambda x: slope(x).sum())(x)


def test_an_idiom_is_not_used_where_it_is_another_program() -> None:
    # `jnp.sum` of float16 adds in float32, which the reduction here does not.
    x = jax.ShapeDtypeStruct((4,), jnp.float16)
    text = text_of(lambda x: lax.reduce_sum_p.bind(x, axes=(0,), out_sharding=None), x)
    assert "jnp.sum" not in text


def test_an_operand_that_an_idiom_would_also_make() -> None:
    def f(mask: Any, x: Any) -> Any:
        wide = lax.broadcast_in_dim(x, (3,), ())
        return lax.select_n(mask, wide, wide)

    mask, x = jax.ShapeDtypeStruct((3,), bool), jax.ShapeDtypeStruct((), np.float32)
    assert_round_trip(jax.make_jaxpr(f)(mask, x))


def test_a_rule_that_closes_over_a_value_is_written_or_refused() -> None:
    # In jax 0.10 the rule of `expn` is a closure over its order, of which a trace leaves nothing.
    closed = jax.make_jaxpr(jax.scipy.special.exp1)(f32(3))
    try:
        assert_round_trip(closed)
    except EmissionError as error:
        assert "a value of an outer trace" in str(error)


def test_a_loop_with_a_batched_condition() -> None:
    def double(x: Any, factor: Any) -> Any:
        return lax.while_loop(lambda x: x < 9, lambda x: factor * x, x)

    closed = jax.make_jaxpr(jax.vmap(double))(f32(3), f32(3))
    assert open_jaxpr(closed.eqns[-1].params["cond_jaxpr"]).outvars[0].aval.shape == (3,)
    assert_round_trip(closed)


@pytest.mark.parametrize("value", [np.int64(3), np.int64(-3), np.float32(0.5), np.bool_(True)])
def test_numbers_of_numpy_are_literals(value: np.generic) -> None:
    literal = syntax.number(value)
    inner = literal.operand if isinstance(literal, ast.UnaryOp) else literal
    assert isinstance(inner, ast.Constant)
    assert type(inner.value) in (int, float, bool)
    assert ast.literal_eval(literal) == value


_SPELLED: tuple[tuple[Callable[..., Any], str], ...] = (
    (lambda x: jax.nn.leaky_relu(x, 0.2), "return jax.nn.leaky_relu(x, 0.2)"),
    (lambda x: jax.nn.elu(x, 0.5), "return jax.nn.elu(x, 0.5)"),
    (lambda x: x % 2.0, "return x % 2.0"),
    (lambda x: x // 3.0, "return x // 3.0"),
    (lambda x: jnp.tile(x, (1, 2)), "return jnp.tile(x, (1, 2))"),
    (lambda x: jnp.where(jnp.isnan(x), 0.0, x), "return jnp.where(jnp.isnan(x), 0.0, x)"),
    (lambda x: x + jnp.eye(4), "return x + jnp.eye(4, dtype=jnp.float32)"),
    (lambda x: x[:, ::-1], "return x[:, ::-1]"),
    (lambda x: jnp.roll(x, -1, axis=1), "return jnp.roll(x, -1, axis=-1)"),
    (lambda x: x.at[0, 3].add(3.0), "return x.at[0, 3].add(3.0)"),
)


@pytest.mark.parametrize(("function", "text"), _SPELLED, ids=[t for _, t in _SPELLED])
@pytest.mark.parametrize("rows", [4, "n"])
def test_functions_and_operators_by_their_names(
    function: Callable[..., Any], text: str, rows: int | str
) -> None:
    """Equal in values and derivatives too, at numbers that are not finite."""
    x = jnp.asarray([[0.0, -1.5, 2.0, 3.0], [np.nan, np.inf, -np.inf, -0.0]] * 2, jnp.float32)
    if rows == "n" and "eye" in text:
        pytest.skip("of four rows")
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape(f"{rows}, 4"), jnp.float32)
    emission = invert.from_exported(jax.export.export(jax.jit(function))(spec)).emit(loader=False)
    assert text in emission.source, emission.source
    model: Any = emission.model
    np.testing.assert_array_equal(model(x), jax.jit(function)(x))
    one, other = (jax.jit(jax.grad(lambda x, f=f: jnp.sum(f(x))))(x) for f in (model, function))
    np.testing.assert_array_equal(one, other)


def test_parts_of_a_second_split_have_a_letter_of_their_own() -> None:
    def function(x: Any, w: Any) -> Any:
        a, b = jnp.split(x, 2, axis=-1)
        s, t = jnp.split(a @ w, 2, axis=-1)
        return jnp.concatenate([b * jnp.exp(s) + t, a], axis=-1)

    specs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((3, 4), (2, 4))]
    exported = jax.export.export(jax.jit(function))(*specs)
    source = invert.from_exported(exported).emit(loader=False).source
    assert "x1, x2 = jnp.split" in source
    assert "y1, y2 = jnp.split" in source
    assert "_2" not in source
