"""Constants, attributes and locations decode exactly."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import invert
from invert._private.jax import lowered_module
from invert._private.mlir import ir, make_ir_context
from invert.stablehlo.ops import attributes as A
from invert.stablehlo.parse import entry_function, parse_module

BITS = {"i1": 1, "i2": 2, "ui2": 2, "i4": 4, "ui4": 4, "f4E2M1FN": 4, "f6E2M3FN": 6, "f6E3M2FN": 6}


def constant(type_text: str, literal: str, shape: tuple[int, ...]) -> np.ndarray:
    full = f"tensor<{''.join(f'{n}x' for n in shape)}{type_text}>"
    text = f"""func.func public @main() -> {full} {{
        %0 = stablehlo.constant dense<{literal}> : {full}
        return %0 : {full}
    }}"""
    module = parse_module(text, trusted=True)
    return A.constant(entry_function(module).regions[0].blocks[0].operations[0])


def raw_bytes(name: str, size: int, seed: int) -> np.ndarray:
    """Random bytes: every bit pattern of the type is valid, NaN payloads included."""
    raw = np.random.default_rng(seed).integers(
        0, 256, size * A.DTYPES[name].itemsize, dtype=np.uint8
    )
    return raw & ((1 << BITS.get(name, 8)) - 1)


def expected(name: str, raw: np.ndarray) -> np.ndarray:
    if name in ("i2", "i4"):
        bits = BITS[name]
        signed = raw.astype(np.int8)
        signed = np.where(signed >= 1 << (bits - 1), signed - (1 << bits), signed)
        return signed.astype(A.DTYPES[name])
    return raw.view(A.DTYPES[name])


def literal(name: str, raw: np.ndarray, shape: tuple[int, ...] | None = None) -> str:
    if name == "i1":  # MLIR packs the bits of its hex form, so spell it out
        return str(raw.astype(bool).reshape(raw.shape if shape is None else shape).tolist()).lower()
    return f'"0x{raw.tobytes().hex()}"'


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("name", sorted(A.DTYPES))
@pytest.mark.parametrize("shape", [(3,), (2, 5), (10, 10), (101,), (3, 7, 11)], ids=str)
def test_random_bits(name: str, shape: tuple[int, ...]) -> None:
    raw = raw_bytes(name, int(np.prod(shape)), seed=len(shape))
    got = constant(name, literal(name, raw, shape), shape)
    assert_same_bits(got, expected(name, raw).reshape(shape))
    assert not got.flags.writeable


@pytest.mark.parametrize("name", sorted(A.DTYPES))
@pytest.mark.parametrize("shape", [(0,), (2, 0)], ids=str)
def test_no_elements(name: str, shape: tuple[int, ...]) -> None:
    assert_same_bits(constant(name, "", shape), np.empty(shape, A.DTYPES[name]))


@pytest.mark.parametrize("name", sorted(A.DTYPES))
@pytest.mark.parametrize("seed", range(8))
def test_scalar_and_splat(name: str, seed: int) -> None:
    raw = raw_bytes(name, 1, seed)
    want = expected(name, raw)
    assert_same_bits(constant(name, literal(name, raw, ()), ()), want.reshape(()))
    assert_same_bits(
        constant(name, literal(name, np.tile(raw, 6), (2, 3)), (2, 3)), np.tile(want, (2, 3))
    )


@pytest.mark.parametrize("name", sorted(A.DTYPES))
@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)], ids=str)
def test_empty(name: str, shape: tuple[int, ...]) -> None:
    assert_same_bits(constant(name, "", shape), np.empty(shape, A.DTYPES[name]))


@pytest.mark.parametrize(
    "name",
    sorted(n for n in A.DTYPES if A.DTYPES[n].itemsize == 1 and n not in ("i1", "i8", "ui8")),
)
def test_every_bit_pattern(name: str) -> None:
    raw = np.arange(1 << BITS.get(name, 8), dtype=np.uint8)
    for part in np.array_split(raw, 4):  # at most 64 elements: printed as decimals
        got = constant(name, literal(name, part), part.shape)
        assert_same_bits(got, expected(name, part))


@pytest.mark.parametrize("name", ["bf16", "f16", "f32", "f64", "complex<f32>", "complex<f64>"])
def test_special_values(name: str) -> None:
    dtype = A.DTYPES[name]
    real = np.dtype(dtype.type(0).real.dtype) if dtype.kind == "c" else dtype
    info = ml_dtypes.finfo(real)
    values = [0.0, -0.0, np.inf, -np.inf, np.nan, float(info.smallest_subnormal)]
    values += [float(info.max), float(info.tiny), 1.0, 0.1]
    want = np.array(values, real).view(dtype) if dtype.kind == "c" else np.array(values, dtype)
    assert_same_bits(constant(name, literal(name, want.view(np.uint8)), want.shape), want)


def test_a_huge_splat_takes_no_memory() -> None:
    shape = (1_000_000, 1_000_000)
    for name, text in (("f32", "1.0"), ("bf16", "1.0"), ("complex<f32>", "(1.0, 2.0)")):
        got = constant(name, text, shape)
        assert got.shape == shape
        assert got.strides == (0, 0)
        assert got[3, 4] == (1 + 2j if name.startswith("complex") else 1)


def test_big_constants_are_views() -> None:
    got = constant("f32", literal("f32", raw_bytes("f32", 5000, 0)), (5000,))
    assert not got.flags.owndata


@pytest.mark.parametrize("name", ["f32", "bf16", "complex<f64>", "i4", "i8"])
def test_resources(name: str) -> None:
    raw = raw_bytes(name, 6, 1)
    tensor = f"tensor<2x3x{name}>"
    text = f"""func.func public @main() -> {tensor} {{
        %0 = stablehlo.constant dense_resource<blob> : {tensor}
        return %0 : {tensor}
    }}
    {{-# dialect_resources: {{ builtin: {{ blob: "0x08000000{raw.tobytes().hex()}" }} }} #-}}"""
    module = parse_module(text, trusted=True)
    op = entry_function(module).regions[0].blocks[0].operations[0]
    assert_same_bits(A.constant(op), expected(name, raw).reshape(2, 3))
    short = parse_module(text.replace("2x3x", "2x4x"), trusted=True)
    with pytest.raises(invert.MalformedModelError, match="instead of"):
        A.constant(entry_function(short).regions[0].blocks[0].operations[0])


def test_a_resource_that_is_missing() -> None:
    module = parse_module("""func.func public @main() -> tensor<2xf32> {
        %0 = stablehlo.constant dense_resource<blob> : tensor<2xf32>
        return %0 : tensor<2xf32>
    }""")
    op = entry_function(module).regions[0].blocks[0].operations[0]
    with pytest.raises(invert.MalformedModelError, match="does not hold its data"):
        A.constant(op)


def test_exported_constants() -> None:
    values = [
        np.arange(300, dtype=np.float32),
        np.exp(1j * np.arange(20)).astype(np.complex64),
        np.arange(130).astype(ml_dtypes.bfloat16),
        np.arange(-8, 8).astype(ml_dtypes.int4),
    ]
    module = lowered_module(lambda: [jnp.asarray(v) for v in values])
    ops = entry_function(module).regions[0].blocks[0].operations
    got = [A.constant(op) for op in ops if op.operation.name == "stablehlo.constant"]
    for want in values:
        assert any(g.dtype == want.dtype and g.tobytes() == want.tobytes() for g in got), want.dtype


# --- Types ----------------------------------------------------------------------------------------


def test_types() -> None:
    with make_ir_context():
        parse = ir.Type.parse
        assert A.aval(parse("tensor<2x3xbf16>")) == jax.ShapeDtypeStruct((2, 3), jnp.bfloat16)
        assert A.shape_of(parse("tensor<?x3xf32>")) == (None, 3)
        assert A.is_token(parse("!stablehlo.token"))
        assert not A.is_token(parse("tensor<f32>"))
        assert A.is_tuple(parse("tuple<tensor<f32>, tensor<i1>>"))
        assert [str(t) for t in A.tuple_types(parse("tuple<f32, i1>"))] == ["f32", "i1"]
        for text in ("tensor<?xf32>", "tensor<2xindex>", "!stablehlo.token", "tensor<*xf32>"):
            with pytest.raises(A.UnsupportedType) as caught:
                A.aval(parse(text))
            assert isinstance(caught.value, invert.UnsupportedOpError)
            assert len(caught.value.problems) == 1


def test_quantized_types_are_refused() -> None:
    tensor = "tensor<2x!quant.uniform<i8:f32, 1.0:0>>"
    with pytest.raises(invert.UnsupportedOpError, match="quantized"):  # by the reader or by `aval`
        module = parse_module(f"func.func public @main(%a: {tensor}) {{ return }}", trusted=True)
        A.aval(entry_function(module).regions[0].blocks[0].arguments[0].type)


# --- Attributes -----------------------------------------------------------------------------------


def attribute(fn, *avals: jax.ShapeDtypeStruct, op: str, name: str):
    found = []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if operation.name == op:
            found.append(operation.attributes[name])
        return ir.WalkResult.ADVANCE

    module = lowered_module(fn, *avals)
    module.operation.walk(visit)
    assert found, str(module)
    return found[0]


F32 = jax.ShapeDtypeStruct((4, 5, 6), jnp.float32)
IMAGE = jax.ShapeDtypeStruct((2, 8, 9, 3), jnp.float32)
KERNEL = jax.ShapeDtypeStruct((3, 3, 3, 4), jnp.float32)


def test_dot_attributes() -> None:
    def fn(x):
        return lax.dot_general(x, x, (((2,), (2,)), ((0,), (0,))), precision="highest")

    dims = attribute(fn, F32, op="stablehlo.dot_general", name="dot_dimension_numbers")
    assert A.dot_dims(dims) == A.DotDims((0,), (0,), (2,), (2,))
    precision = attribute(fn, F32, op="stablehlo.dot_general", name="precision_config")
    assert A.enum_names(precision) == ("HIGHEST", "HIGHEST")


def test_dot_algorithm() -> None:
    def fn(x):
        return lax.dot_general(x, x, (((2,), (2,)), ((0,), (0,))), precision="BF16_BF16_F32_X3")

    bf16, f32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
    algorithm = attribute(fn, F32, op="stablehlo.dot_general", name="algorithm")
    assert A.dot_algorithm(algorithm) == A.Algorithm(bf16, bf16, f32, 1, 1, 3, False)


def test_conv_attributes() -> None:
    def fn(x, k):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, k, (2, 1), [(1, 2), (0, 0)], dimension_numbers=numbers)

    def get(name: str):
        return attribute(fn, IMAGE, KERNEL, op="stablehlo.convolution", name=name)

    assert A.conv_dims(get("dimension_numbers")) == A.ConvDims(
        0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2)
    )
    assert A.dense_ints(get("window_strides")) == (2, 1)
    assert A.dense_int_rows(get("padding")) == ((1, 2), (0, 0))
    assert A.integer(get("feature_group_count")) == 1


def test_gather_and_scatter_attributes() -> None:
    index = jax.ShapeDtypeStruct((7,), jnp.int32)
    gather = attribute(
        lambda x, i: x[i], F32, index, op="stablehlo.gather", name="dimension_numbers"
    )
    assert A.gather_dims(gather) == A.GatherDims((1, 2), (0,), (), (), (0,), 1)
    scatter = attribute(
        lambda x, i: x.at[i].add(1.0),
        F32,
        index,
        op="stablehlo.scatter",
        name="scatter_dimension_numbers",
    )
    assert A.scatter_dims(scatter) == A.ScatterDims((1, 2), (0,), (), (), (0,), 1)


def test_enums() -> None:
    direction = attribute(lambda x: x > x, F32, op="stablehlo.compare", name="comparison_direction")
    assert A.enum_name(direction) == "GT"
    kind = attribute(lambda x: x > x, F32, op="stablehlo.compare", name="compare_type")
    assert A.enum_name(kind) == "FLOAT"
    fft = attribute(jnp.fft.rfft, F32, op="stablehlo.fft", name="fft_type")
    assert A.enum_name(fft) == "RFFT"


def test_attributes_without_a_lowering() -> None:
    with make_ir_context():
        parse = ir.Attribute.parse
        accuracy = "atol = 1.5, rtol = 0.5, ulps = 7, mode = #stablehlo.result_accuracy_mode"
        got = A.result_accuracy(parse(f"#stablehlo.result_accuracy<{accuracy}<TOLERANCE>>"))
        assert got == A.Accuracy(1.5, 0.5, 7, "TOLERANCE")
        for text in ("transpose ADJOINT", "rng_algorithm THREE_FRY", "rng_distribution UNIFORM"):
            assert A.enum_name(parse(f"#stablehlo<{text}>")) == text.split()[1]
        assert A.dense_ints(parse("array<i64: 1, -2, 3>")) == (1, -2, 3)
        assert A.dense_ints(parse("dense<[[1, 2], [3, 4]]> : tensor<2x2xi64>")) == (1, 2, 3, 4)
        assert A.dense_bools(parse("array<i1: true, false>")) == (True, False)
        assert A.dense_bools(parse("dense<[true, false]> : tensor<2xi1>")) == (True, False)
        assert A.string(parse('"a\\22b"')) == 'a"b'
        assert A.string_bytes(parse('"\\FF\\00"')) == b"\xff\0"
        assert A.integer(parse("-3 : i64")) == -3
        assert A.real(parse("1.5 : f32")) == 1.5
        assert A.boolean(parse("true")) is True
        assert A.symbol_name(parse("@f")) == "f"
        assert A.symbol_name(parse("@m::@f")) == "f"


# --- Locations ------------------------------------------------------------------------------------


def test_locations_of_jax() -> None:
    def fn(x):
        with jax.named_scope("block"):
            return lax.dot_general(x, x, (((2,), (2,)), ((0,), (0,))))

    module = lowered_module(fn, F32)
    ops = entry_function(module).regions[0].blocks[0].operations
    (loc,) = [op.location for op in ops if op.operation.name == "stablehlo.dot_general"]
    assert A.location_name(loc) == "jit(fn)/block/dot_general"
    file, _, line = A.location_text(loc).rpartition(":")
    assert file.endswith("test_constants.py")
    assert int(line) == fn.__code__.co_firstlineno + 2


@pytest.mark.parametrize(
    ("text", "name", "place"),
    [
        ("unknown", "", ""),
        ('"a.py":3:4', "", "a.py:3"),
        ('"max"', "max", "max"),
        ('callsite("jit(f)/add"("a.py":3:4) at "b.py":1:1)', "jit(f)/add", "a.py:3"),
        ('callsite("f"("a.py":3:4) at "g"("b.py":1:1))', "", "a.py:3"),
        ('fused[unknown, "jit(f)/add"("a.py":3:4)]', "jit(f)/add", "a.py:3"),
    ],
)
def test_location_forms(text: str, name: str, place: str) -> None:
    module = parse_module(f"func.func public @main() {{ return }} loc({text})", trusted=True)
    loc = entry_function(module).location
    assert A.location_name(loc) == name
    assert A.location_text(loc) == place


@pytest.mark.parametrize("name", ["i64", "ui64"])
def test_operands_of_one_wide_number_are_values(name: str) -> None:
    """A splat operand is broadcast from a scalar that JAX accepts."""
    kind = f"tensor<2x{name}>"
    module = invert.from_stablehlo(
        f"""func.func public @main() -> {kind} {{
        %0 = stablehlo.constant dense<[1, 6]> : {kind}
        %1 = stablehlo.constant dense<3> : {kind}
        %2 = stablehlo.and %0, %1 : {kind}
        return %2 : {kind} }}"""
    )
    np.testing.assert_array_equal(module(), [1, 2])


@pytest.mark.parametrize("number", [np.nan, np.inf, -1e30, 300.0, -3.5, 2.5])
@pytest.mark.parametrize("dtype", ["ui8", "i32", "i64"])
def test_single_numbers_are_converted_as_xla_converts(number: float, dtype: str) -> None:
    """JAX folds these conversions by NumPy when it traces."""
    bits = f"0x{np.float32(number).view(np.uint32):08X}"
    module = invert.from_stablehlo(
        f"""func.func public @main(%x: tensor<{dtype}>) -> tensor<{dtype}> {{
        %0 = stablehlo.constant dense<{bits}> : tensor<f32>
        %1 = stablehlo.convert %0 : (tensor<f32>) -> tensor<{dtype}>
        %2 = stablehlo.add %1, %x : tensor<{dtype}>
        return %2 : tensor<{dtype}> }}"""
    )
    kind = np.dtype(dtype.replace("ui", "uint") if dtype[0] == "u" else dtype.replace("i", "int"))
    with jax.enable_x64(True):
        wanted = jax.jit(lambda x: lax.convert_element_type(x, kind))(np.float32(number))
        zero = np.zeros((), kind)
        for call in (module, module.model, jax.jit(module)):
            result = call(zero)
            assert result.dtype == kind
            np.testing.assert_array_equal(result, wanted)


def test_constants_are_converted_as_xla_converts() -> None:
    """NumPy has other integers for NaN and large numbers, and keeps subnormal ones."""
    module = invert.from_stablehlo(
        """func.func public @main() -> (tensor<4xi32>, tensor<4xf32>) {
        %0 = stablehlo.constant dense<[0x7FC00000, 1.0e30, -1.0e30, 2.5]> : tensor<4xf32>
        %1 = stablehlo.convert %0 : (tensor<4xf32>) -> tensor<4xi32>
        %2 = stablehlo.constant dense<[1.0e300, 1.0e-42, -1.0e300, 2.5]> : tensor<4xf64>
        %3 = stablehlo.convert %2 : (tensor<4xf64>) -> tensor<4xf32>
        return %1, %3 : tensor<4xi32>, tensor<4xf32> }"""
    )
    singles = np.array([np.nan, 1e30, -1e30, 2.5], np.float32)
    doubles = np.array([1e300, 1e-42, -1e300, 2.5])
    with jax.enable_x64(True):
        wanted = jax.jit(
            lambda x, y: (
                lax.convert_element_type(x, np.int32),
                lax.convert_element_type(y, np.float32),
            )
        )(singles, doubles)
    for result, value in zip(module(), wanted, strict=True):
        np.testing.assert_array_equal(result, value)
