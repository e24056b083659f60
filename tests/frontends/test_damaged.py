"""Damaged and hostile files: refused with an error, or converted correctly."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.export import serialization
from jax._src.export import serialization_generated as schema

import invert
from invert.stablehlo.ops.registry import REGISTRY, Entry

ROOT = Path(__file__).parents[2]
T = "tensor<4xf32>"


def sweep(seed: int, first: int, last: int, forms: str = "FORMS") -> None:
    """Runs in a separate process, since the damage may crash it."""
    code = (
        "from tests.frontends.damage import FORMS, sweep\n"
        f"print(sweep({seed}, {first}, {last}, forms={forms}))"
    )
    path = [str(ROOT), *(p for p in sys.path if p)]
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        check=False,
    )
    assert result.returncode == 0, f"exit code {result.returncode}: {result.stderr[-3000:]}"
    assert "refused" in result.stdout
    assert "equal" in result.stdout


@pytest.mark.slow
def test_damaged_files() -> None:
    sweep(1, 0, 120)


@pytest.mark.slow
def test_damaged_modules_of_open_sizes() -> None:
    sweep(1, 0, 12, '["open"]')


@pytest.mark.slow
@pytest.mark.parametrize("part", range(50))
def test_a_thousand_damaged_modules_of_open_sizes(part: int) -> None:
    sweep(2, 20 * part, 20 * (part + 1), '["open"]')


@pytest.mark.slow
@pytest.mark.parametrize("part", range(100))
def test_ten_thousand_damaged_files(part: int) -> None:
    sweep(2, 100 * part, 100 * (part + 1))


# --- Names ----------------------------------------------------------------------------------------


def module(body: str, rest: str = "") -> str:
    return (
        f"module {{ {rest} func.func public @main(%a: {T}) -> {T} {{ {body} return %a : {T} }} }}"
    )


@pytest.mark.parametrize(
    "text",
    [
        module(f'%0 = stablehlo.custom_call @"\\FF"(%a) : ({T}) -> {T}'),
        module(f'%0 = stablehlo.custom_call @x(%a) {{config = "\\C3"}} : ({T}) -> {T}'),
        module(f'%0 = stablehlo.custom_call @x(%a) {{"\\FF" = 1 : i32}} : ({T}) -> {T}'),
        module(f'%0 = stablehlo.custom_call @x(%a) {{a = [{{b = "\\FF"}}]}} : ({T}) -> {T}'),
        module("", 'sdy.mesh @mesh = <["\\FF"=2]>'),
        module("", 'func.func private @"f\\80"() { return }'),
        module(f'%0 = stablehlo.sine %a : {T} loc("\\E2\\82"("a.py":1:1))'),
    ],
)
def test_names_that_are_not_utf8(text: str) -> None:
    with pytest.raises(invert.MalformedModelError, match="not UTF-8"):
        invert.from_stablehlo(text)


def test_names_of_other_alphabets() -> None:
    text = module(f'%0 = stablehlo.sine %a : {T} loc("Größe/\\\\C3"("a.py":1:1))')
    assert np.array_equal(invert.from_stablehlo(text)(np.ones(4, np.float32)), np.ones(4))


def test_names_that_look_like_hints() -> None:
    names = "mul;", "add;0#x;#", "broadcast_in_dim#1", "constant;1#"
    for name in names:
        text = module(f'%0 = stablehlo.add %a, %a : {T} loc("f/{name}"("a.py":1:1))')
        text = text.replace("return %a", "return %0")
        assert np.array_equal(invert.from_stablehlo(text)(np.ones(4, np.float32)), np.full(4, 2))


def test_complex_attribute_of_a_composite() -> None:
    text = module(
        f'%0 = stablehlo.composite "x.y" %a {{composite_attributes = '
        f"{{k = dense<(1.0,2.0)> : tensor<2xcomplex<f32>>}}, decomposition = @g}} : ({T}) -> {T}",
        f"func.func private @g(%a: {T}) -> {T} {{ return %a : {T} }}",
    )
    with pytest.raises(invert.UnsupportedOpError, match=r"stablehlo\.composite: .*'k' of a type"):
        invert.from_stablehlo(text)


@pytest.mark.parametrize("value", ['"size"', "3 : i32"])
def test_arguments_that_are_not_the_platform(value: str) -> None:
    text = f"func.func public @main(%a: {T} {{jax.global_constant = {value}}}) -> {T} {{"
    x = np.arange(4, dtype=np.float32)
    assert np.array_equal(invert.from_stablehlo(f"{text} return %a : {T} }}")(x), x)


def test_operands_of_shapes_that_a_custom_call_lacks() -> None:
    text = module(
        "%0 = stablehlo.custom_call @x(%a) {indices_of_shape_operands = dense<[7]> : "
        f"tensor<1xi64>}} : ({T}) -> {T}"
    )
    with pytest.raises(invert.MalformedModelError, match="operand 7"):
        invert.from_stablehlo(text)


def test_a_condition_that_makes_an_open_size_a_number() -> None:
    """Each of the other conditions on this size is then met or not; none remains."""
    kind, number = "tensor<?x?xf32>", "tensor<i32>"
    checks = "".join(
        f"""
        %n{i} = stablehlo.constant dense<{n}> : {number}
        %ok{i} = stablehlo.compare {sign}, %size, %n{i} : ({number}, {number}) -> tensor<i1>
        stablehlo.custom_call @shape_assertion(%ok{i}, %size) {{
            error_message = "found {{0}}", has_side_effect = true
        }} : (tensor<i1>, {number}) -> ()
        """
        for i, (sign, n) in enumerate((("GE", 2), ("EQ", 4), ("LE", 9)))
    )
    found = invert.from_stablehlo(f"""
        func.func public @main(%x: {kind}) -> {kind} {{
            %size = stablehlo.get_dimension_size %x, dim = 1 : ({kind}) -> {number}
            {checks}
            %y = stablehlo.sine %x : {kind}
            return %y : {kind}
        }}
    """)
    x = np.linspace(0, 1, 8, dtype=np.float32).reshape(2, 4)
    for run in (found, found.model):
        assert np.array_equal(run(x), jax.jit(jnp.sin)(x))
    assert "4 == 4" not in str(found.report.certificate)
    with pytest.raises(invert.SignatureError):
        found(x.reshape(4, 2))


@pytest.mark.parametrize(
    ("left", "right", "met"),
    [
        # The size on the left is on the right too.
        ("b", "maximum b c", True),
        ("b", "minimum b three, add 0 c, subtract 1 two", True),
        ("b", "divide b two, add 0 two", True),
        # No sizes satisfy these, which JAX finds out when it compares sizes.
        ("divide c two, multiply 0 c", "zero", False),
        ("minimum b c, add 0 three", "zero", False),
        # JAX takes equations of single terms only.
        ("maximum b three, add 0 c", "sum", True),
    ],
)
def test_conditions_that_jax_cannot_handle(left: str, right: str, met: bool) -> None:
    kind, number = "tensor<?x?xf32>", "tensor<i32>"
    lines = [f"%{n} = stablehlo.constant dense<{i}> : {number}" for n, i in NUMBERS.items()]
    sides = []
    for side in (left, right):
        *computed, last = side.split(", ")
        for i, words in enumerate([*computed, last] if " " in last else []):
            op, a, b = words.split()
            lines.append(f"%{i} = stablehlo.{op} %{a}, %{b} : {number}")
            last = str(i)
        sides.append(last)
    for relation, a, b in (("GE", "c", "two"), ("EQ", *sides)):
        lines += [
            f"%ok_{a} = stablehlo.compare {relation}, %{a}, %{b} : "
            f"({number}, {number}) -> tensor<i1>",
            f"stablehlo.custom_call @shape_assertion(%ok_{a}) {{ "
            'error_message = "these are refused", has_side_effect = true } : (tensor<i1>) -> ()',
        ]
    row = "tensor<?xf32>"
    for name, size in zip(("ones", "more"), sides, strict=True):
        lines += [
            f"%s_{name} = stablehlo.reshape %{size} : ({number}) -> tensor<1xi32>",
            f"%{name} = stablehlo.dynamic_broadcast_in_dim %one, %s_{name}, dims = [] : "
            f"(tensor<f32>, tensor<1xi32>) -> {row}",
        ]
    text = f"""
        func.func public @main(%x: {kind}) -> ({kind}, {row}) {{
            %one = stablehlo.constant dense<1.0> : tensor<f32>
            %b = stablehlo.get_dimension_size %x, dim = 0 : ({kind}) -> {number}
            %c = stablehlo.get_dimension_size %x, dim = 1 : ({kind}) -> {number}
            %sum = stablehlo.add %b, %c : {number}
            {" ".join(lines)}
            %twice = stablehlo.add %x, %x : {kind}
            %twos = stablehlo.add %ones, %more : {row}
            return %twice, %twos : {kind}, {row}
        }}"""
    found = invert.from_stablehlo(text)
    x = np.ones((4, 3), np.float32)
    if met:
        assert np.array_equal(found(x)[0], x + x)
        # No text holds for all sizes, so this one is written for those of the call.
        assert np.array_equal(found.model(x)[0], x + x)
    for wrong in (x[:1], x if not met else x[:2]):
        with pytest.raises(invert.InvertError, match="these are refused"):
            found(wrong)


NUMBERS = {"zero": 0, "two": 2, "three": 3}


# --- jax.export -----------------------------------------------------------------------------------


def exported(**kwargs: Any) -> jax.export.Exported:
    x = jax.ShapeDtypeStruct((3,), np.float32)
    n = jax.ShapeDtypeStruct((), np.int32)

    def function(x: Any, unused: Any, *, n: Any) -> Any:
        return {"y": x * n, "n": n}

    return jax.export.export(jax.jit(function), **kwargs)(x, x, n=n)


LEAF = jax.tree_util.tree_structure(0)
CONTRADICTIONS = {
    "module_kept_var_idx": [(), (0,), (0, 1, 2), (2, 0), (0, 0), (0, 7), (-1, 2), (1, 2, 3)],
    "in_avals": [(), exported().in_avals[:2], exported().in_avals[::-1]],
    "out_avals": [(), exported().out_avals[:1], exported().out_avals[::-1]],
    "in_tree": [LEAF, jax.tree_util.tree_structure(((0, 0), {})), exported().out_tree],
    "out_tree": [LEAF, exported().in_tree],
    "platforms": [(), ("cpu", "cpu")],
    "nr_devices": [0],
    "calling_convention_version": [0, 1, 1000],
}


@pytest.mark.parametrize(
    ("field", "value"), [(f, v) for f, values in CONTRADICTIONS.items() for v in values]
)
def test_artifacts_that_contradict_themselves(field: str, value: Any) -> None:
    damaged = dataclasses.replace(exported(), **{field: value})
    with pytest.raises(invert.MalformedModelError, match="contradicts its module"):
        invert.from_exported(damaged)


def test_contradictions_are_reported_together() -> None:
    damaged = dataclasses.replace(exported(), nr_devices=0, in_tree=LEAF, out_avals=())
    with pytest.raises(invert.MalformedModelError, match=r"devices.*0 results.*tree.*leaves"):
        invert.from_exported(damaged)


@pytest.mark.parametrize("levels", [2, 40])
def test_a_tree_whose_nodes_share_their_children(
    levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shared(builder: Any, tree: Any) -> int:
        schema.PyTreeDefStart(builder)
        schema.PyTreeDefAddKind(builder, schema.PyTreeDefKind.tuple)
        node = schema.PyTreeDefEnd(builder)
        for _ in range(levels):
            schema.PyTreeDefStartChildrenVector(builder, 2)
            builder.PrependUOffsetTRelative(node)
            builder.PrependUOffsetTRelative(node)
            children = builder.EndVector()
            schema.PyTreeDefStart(builder)
            schema.PyTreeDefAddKind(builder, schema.PyTreeDefKind.tuple)
            schema.PyTreeDefAddChildren(builder, children)
            node = schema.PyTreeDefEnd(builder)
        return node

    whole = exported()
    monkeypatch.setattr(serialization, "_serialize_pytreedef", shared)
    damaged = bytes(whole.serialize())
    reason = "share others so often" if levels > 2 else "not a serialized"
    with pytest.raises(invert.MalformedModelError, match=reason):
        invert.from_exported(damaged)


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ("a^1000000000", r"a power of 1000\.\.\."),
        ("+".join(f"a{i}" for i in range(30_000)), "an expression of 198889 characters"),
        ("*".join(["9^999"] * 6), "Exceeds the limit"),
    ],
)
def test_sizes_that_take_long_to_read(
    size: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, whole = serialization._serialize_aval, exported()

    def other(builder: Any, aval: Any) -> int:
        own = {"shape": (size,), "dtype": aval.dtype, "memory_space": aval.memory_space}
        return plain(builder, types.SimpleNamespace(**own))

    monkeypatch.setattr(serialization, "_serialize_aval", other)
    damaged = bytes(whole.serialize())
    with pytest.raises(invert.MalformedModelError, match=reason):
        invert.from_exported(damaged)


def test_artifacts_with_several_platforms() -> None:
    x, n = np.ones(3, np.float32), np.int32(2)
    for artifact in (exported(), exported(platforms=["cpu", "tpu"])):
        assert np.array_equal(invert.from_exported(artifact)(x, x, n=n)["y"], x * 2)


# --- Calls ----------------------------------------------------------------------------------------


def chain(depth: int, *, twice: bool = False) -> str:
    """Functions that each call the next one, once or twice."""
    functions = [f"func.func private @f0(%a: {T}) -> {T} {{ return %a : {T} }}"]
    for i in range(1, depth):
        again = (
            f"%1 = call @f{i - 1}(%0) : ({T}) -> {T}" if twice else f"%1 = stablehlo.sine %0 : {T}"
        )
        functions.append(
            f"func.func private @f{i}(%a: {T}) -> {T} {{"
            f"%0 = call @f{i - 1}(%a) : ({T}) -> {T}\n{again}\nreturn %1 : {T} }}"
        )
    last = f"%0 = call @f{depth - 1}(%a) : ({T}) -> {T}\nreturn %0 : {T}"
    return "\n".join([*functions, f"func.func public @main(%a: {T}) -> {T} {{ {last} }}"])


def test_functions_that_call_each_other_twice() -> None:
    start = time.perf_counter()
    recovered = invert.from_stablehlo(chain(24, twice=True))
    assert recovered.report.certificate.kind == "exact"
    assert recovered.source
    assert time.perf_counter() - start < 60  # 2^24 calls would take days


@pytest.mark.parametrize("depth", [400, 3000])
def test_calls_nested_too_deep(depth: int) -> None:
    with pytest.raises(invert.UnsupportedOpError, match="recursion limit"):
        invert.from_stablehlo(chain(depth))


def test_calls_that_never_end() -> None:
    a, b = (
        f"func.func private @{one}(%a: {T}) -> {T} {{"
        f"%0 = call @{two}(%a) : ({T}) -> {T} return %0 : {T} }}"
        for one, two in ("ab", "ba")
    )
    with pytest.raises(invert.UnsupportedOpError, match="calls itself"):
        invert.from_stablehlo(module(f"%0 = call @a(%a) : ({T}) -> {T}", a + b))


def test_functions_without_a_body() -> None:
    with pytest.raises(invert.UnsupportedOpError, match=r"@e, called by @main, has no body"):
        invert.from_stablehlo(
            module(f"%0 = call @e(%a) : ({T}) -> {T}", f"func.func private @e({T}) -> {T}")
        )


@pytest.mark.slow
def test_an_entry_without_a_body() -> None:
    sweep(7, 480, 500)  # the 495th


def test_a_defect_of_a_rule_is_not_the_fault_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(ctx: Any, op: Any, operands: Any) -> Any:
        return {}[op.name]

    text = f"func.func @main(%a: {T}) -> {T} {{ %0 = stablehlo.sine %a : {T} return %0 : {T} }}"
    monkeypatch.setitem(REGISTRY._entries, "stablehlo.sine", Entry(broken))
    with pytest.raises(KeyError):
        invert.from_stablehlo(text)


def test_a_function_called_with_the_platform_and_with_another_number() -> None:
    i = "tensor<i32>"
    text = f"""
    func.func private @pick(%i: {i}, %x: {T}) -> {T} {{
      %0 = "stablehlo.case"(%i) ({{ stablehlo.return %x : {T} }}, {{
        %1 = stablehlo.negate %x : {T}
        stablehlo.return %1 : {T} }}) : ({i}) -> {T}
      return %0 : {T}
    }}
    func.func public @main(%p: {i} {{jax.global_constant = "_platform_index"}}, %i: {i},
        %x: {T}) -> ({T}, {T}) {{
      %0 = call @pick(%p, %x) : ({i}, {T}) -> {T}
      %1 = call @pick(%i, %x) : ({i}, {T}) -> {T}
      return %0, %1 : {T}, {T}
    }}"""
    x = np.arange(4, dtype=np.float32)
    recovered = invert.from_stablehlo(text)
    one, two = recovered(jnp.int32(1), x)
    assert np.array_equal(one, x)
    assert np.array_equal(two, -x)


def test_names_of_many_scopes() -> None:
    """Their scopes would become modules inside of modules, in quadratic time and memory."""
    path = "/".join(["a"] * 20_000)
    text = module(f'%0 = stablehlo.sine %a : {T} loc("{path}"("a.py":1:1))')
    start = time.process_time()
    assert "sin" in invert.from_stablehlo(text.replace("return %a", "return %0")).source
    assert time.process_time() - start < 20


@pytest.mark.parametrize("num_keys", [1, 300])
def test_sorts_of_many_arrays(num_keys: int) -> None:
    """The comparator tells how many keys there are; no other number is tried."""
    xs = [jax.ShapeDtypeStruct((2,), np.float32)] * 300
    lowered = jax.jit(lambda *xs: jax.lax.sort(xs, num_keys=num_keys)).lower(*xs)
    start = time.process_time()
    recovered = invert.from_stablehlo(lowered)
    assert time.process_time() - start < 30  # one comparator for each number of keys took minutes
    (sort,) = recovered.jaxpr.eqns
    assert sort.params["num_keys"] == num_keys


def test_a_sort_is_one_program_for_all_lengths() -> None:
    counts = []
    for n in (8, 100_000):
        row = f"tensor<{n}xf32>"
        recovered = invert.from_stablehlo(f"""
        func.func public @main(%a: {row}) -> {row} {{
          %0 = "stablehlo.sort"(%a) ({{ ^bb0(%x: tensor<f32>, %y: tensor<f32>):
            %p = stablehlo.multiply %x, %y : tensor<f32>
            %q = stablehlo.compare LT, %p, %x : (tensor<f32>, tensor<f32>) -> tensor<i1>
            stablehlo.return %q : tensor<i1> }}) {{dimension = 0 : i64}} : ({row}) -> {row}
          return %0 : {row}
        }}""")
        counts.append(sum(recovered.report.primitives.values()))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('"one"', 'is "one", not an integer'),
        ('loc("a")', "'mhlo.num_partitions' of the module is damaged"),
    ],
)
def test_attributes_of_another_type(value: str, reason: str) -> None:
    """MLIR verifies only attributes that the definition of an op has."""
    text = f"""module attributes {{mhlo.num_partitions = {value}}} {{
      func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {{
        return %x : tensor<2xf32>
      }}
    }}"""
    with pytest.raises(invert.MalformedModelError, match=reason):
        invert.from_stablehlo(text)


# --- Calls that double ----------------------------------------------------------------------------

_SUMMED = f"%0 = stablehlo.add %a, %b : {T}\nreturn %0 : {T}"
_OF_TWO = f"({T}, {T}) -> {T}"


def doubling(leaf: str, calls: str, depth: int = 40) -> str:
    """A program of functions of two arguments, whose `calls` are of the next one, `@next`."""
    parameters = f"(%a: {T}, %b: {T}) -> {T}"
    functions = [f"func.func private @f0{parameters} {{ {leaf} }}"]
    for i in range(1, depth):
        body = calls.replace("@next", f"@f{i - 1}").replace("@number", f"{i}.0")
        functions.append(f"func.func private @f{i}{parameters} {{ {body} }}")
    last = f"%0 = call @f{depth - 1}(%a, %b) : {_OF_TWO}\nreturn %0 : {T}"
    return "\n".join([*functions, f"func.func public @main{parameters} {{ {last} }}"])


def _calls(one: str, two: str) -> str:
    return (
        f"%c = stablehlo.constant dense<@number> : {T}\n%d = stablehlo.add %b, %c : {T}\n"
        f"%0 = call @next({one}) : {_OF_TWO}\n%1 = call @next({two}) : {_OF_TWO}\nreturn %1 : {T}"
    )


_RUNNING_SUM = f"""%z = stablehlo.constant dense<0.0> : tensor<f32>
%0 = "stablehlo.reduce_window"(%a, %z) ({{
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %s = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %s : tensor<f32>
}}) {{window_dimensions = array<i64: 4>, padding = dense<[[3, 0]]> : tensor<1x2xi64>}}
  : ({T}, tensor<f32>) -> {T}
%1 = stablehlo.add %0, %b : {T}
return %1 : {T}"""

_BRANCHES = f"""%c = stablehlo.constant dense<@number> : {T}
%p = stablehlo.compare LT, %a, %b : ({T}, {T}) -> tensor<4xi1>
%q = stablehlo.slice %p [0:1] : (tensor<4xi1>) -> tensor<1xi1>
%r = stablehlo.reshape %q : (tensor<1xi1>) -> tensor<i1>
%i = stablehlo.convert %r : (tensor<i1>) -> tensor<i32>
%0 = "stablehlo.case"(%i) ({{
  %1 = func.call @next(%a, %b) : {_OF_TWO}
  stablehlo.return %1 : {T}
}}, {{
  %2 = stablehlo.tanh %a : {T}
  %1 = func.call @next(%2, %c) : {_OF_TWO}
  stablehlo.return %1 : {T}
}}) : (tensor<i32>) -> {T}
return %0 : {T}"""

_SHARDED = f'%0 = sdy.sharding_constraint %a <@mesh, [{{"x"}}]> : {T}\nreturn %0 : {T}'


@pytest.mark.parametrize(
    ("leaf", "calls", "kind", "depth"),
    [
        (_SUMMED, _calls("%a, %a", "%b, %0"), "exact", 40),
        (_SUMMED, _calls("%b, %d", "%d, %0"), "exact", 40),
        (_SUMMED, _calls("%c, %c", "%a, %0"), "exact", 40),
        (_RUNNING_SUM, _calls("%a, %d", "%d, %0"), "unverified", 40),
        (_SHARDED, _calls("%a, %d", "%d, %0"), "exact", 40),
        (_SUMMED, _BRANCHES, "unverified", 24),
    ],
)
def test_functions_that_call_each_other_with_other_arguments(
    leaf: str, calls: str, kind: str, depth: int
) -> None:
    start = time.process_time()
    mesh = 'sdy.mesh @mesh = <["x"=4]>\n'
    recovered = invert.from_stablehlo(mesh + doubling(leaf, calls, depth))
    assert recovered.report.certificate.kind == kind
    assert recovered.source
    assert recovered.graph()
    assert time.process_time() - start < 60  # 2^24 calls would take days


def test_meshes_of_too_many_devices() -> None:
    constraint = f'%0 = sdy.sharding_constraint %a <@mesh, [{{"x"}}]> : {T}'
    text = module(constraint, f'sdy.mesh @mesh = <["x"={1 << 20}, "y"={1 << 12}]>')
    with pytest.raises(invert.MalformedModelError, match="more than 2147483647 devices: x="):
        invert.from_stablehlo(text)


def test_composites_that_call_each_other_twice() -> None:
    text = re.sub(
        r"call (@f\d+)\((%\w+)\)",
        r'stablehlo.composite "my.op" \2 {decomposition = \1}',
        chain(25, twice=True),
    )
    recovered = invert.from_stablehlo(text)
    with pytest.raises(invert.EmissionError, match="call each other too often to be traced"):
        _ = recovered.source


@pytest.mark.parametrize("op", ["remainder", "divide", "multiply", "add"])
def test_sizes_that_grow_with_each_op(op: str) -> None:
    number = "tensor<i32>"
    lines = [f"%0 = stablehlo.get_dimension_size %a, dim = 0 : (tensor<?xf32>) -> {number}"]
    for i in range(40):
        lines += [
            f"%c{i} = stablehlo.constant dense<{i + 2}> : {number}",
            f"%d{i} = stablehlo.{op} %{i}, %c{i} : {number}",
            f"%{i + 1} = stablehlo.multiply %{i}, %d{i} : {number}",
        ]
    lines += [
        f"%s = stablehlo.reshape %40 : ({number}) -> tensor<1xi32>",
        "%z = stablehlo.constant dense<0.0> : tensor<f32>",
        "%r = stablehlo.dynamic_broadcast_in_dim %z, %s, dims = []"
        " : (tensor<f32>, tensor<1xi32>) -> tensor<?xf32>",
        "return %r : tensor<?xf32>",
    ]
    body = "\n".join(lines)
    start = time.process_time()
    recovered = invert.from_stablehlo(
        f"func.func public @main(%a: tensor<?xf32>) -> tensor<?xf32> {{ {body} }}"
    )
    with pytest.raises(invert.SignatureError, match="a size is computed from data"):
        _ = recovered.source
    assert time.process_time() - start < 30
