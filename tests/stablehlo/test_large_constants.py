"""Large constants are held once, outside the module; large modules stay in their file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from invert import Config, MalformedModelError
from invert.ir.arrays import KnownBytes
from invert.protos import file_parts
from invert.protos.messages import message, parse
from invert.protos.types import GraphDef, SavedModel
from invert.stablehlo.parse import parse_module
from invert.stablehlo.program import Program

DTYPES = ["f4", "f8", "f2", "bfloat16", "i1", "i2", "i4", "i8", "u1", "u4", "bool", "c8"]


def values_of(dtype: str, shape: tuple[int, ...] = (300, 300)) -> np.ndarray:
    bits = np.random.default_rng(0).integers(0, 200, shape)
    return bits.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype))


def exported(*values: np.ndarray) -> bytes:
    with jax.enable_x64(True):
        arrays = [jnp.asarray(v) for v in values]
        return jax.export.export(jax.jit(lambda: arrays))().mlir_module_serialized


def results(program: Program) -> list[Any]:
    with jax.enable_x64(True):
        return [np.asarray(x) for x in jax.jit(lambda: program())()]


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_the_same(dtype: str) -> None:
    value = values_of(dtype)
    program = Program.from_bytes(exported(value), config=Config())
    (found,) = results(program)
    assert found.dtype == value.dtype
    assert found.tobytes() == value.tobytes()
    # What has no buffer that is as NumPy's stays in the module.
    apart = dtype not in ("bool", "c8")
    assert len(program.large) == apart
    assert len(str(program.module)) < 2000 or not apart


def test_equal_constants_are_held_once() -> None:
    known: KnownBytes = {}
    one, other = values_of("f4"), values_of("f4") + 1
    first = Program.from_bytes(exported(one, other), config=Config(), known=known)
    second = Program.from_bytes(exported(other, one, one * 2), config=Config(), known=known)
    assert second.large[0] is first.large[1]
    assert second.large[1] is first.large[0]
    assert len(known) == 3
    for want, found in zip((other, one, one * 2), results(second), strict=True):
        np.testing.assert_array_equal(found, want)


def test_small_and_repeated_constants_stay() -> None:
    values = [np.arange(6.0, dtype=np.float32), np.full((600, 600), 2.0, np.float32)]
    program = Program.from_bytes(exported(*values), config=Config())
    assert not program.large
    for want, found in zip(values, results(program), strict=True):
        np.testing.assert_array_equal(found, want)


_CLAIMS = """
func.func public @main() -> (tensor<2xf32>, tensor<150x150xf32>) {
  %0 = stablehlo.constant {invert.large = 0} dense<[1.0, 2.0]> : tensor<2xf32>
  %1 = stablehlo.constant {invert.large = 7} dense<"0xLARGE"> : tensor<150x150xf32>
  return %0, %1 : tensor<2xf32>, tensor<150x150xf32>
}
"""


def test_a_file_cannot_claim_to_be_cut() -> None:
    value = values_of("f4", (150, 150))
    text = _CLAIMS.replace("LARGE", value.tobytes().hex())
    small, large = results(Program.from_bytes(text, config=Config()))
    np.testing.assert_array_equal(small, [1.0, 2.0])
    np.testing.assert_array_equal(large, value)
    trusted = Program(parse_module(text, trusted=True), Config())
    with pytest.raises(MalformedModelError, match="are missing"):
        results(trusted)


# -- messages whose modules stay in their file


def graph(*sizes: int) -> Any:
    made = message(SavedModel)()
    meta = made.meta_graphs.add()
    for i, size in enumerate(sizes):
        nodes = meta.graph_def.node if i % 2 else meta.graph_def.library.function.add().node_def
        node = nodes.add(name=f"n{i}", op="XlaCallModule")
        node.attr["module"].s = bytes([i + 1]) * size
        node.attr["Sout"].type = i
        node.attr["other"].s = b"o" * size
    meta.meta_info_def.tags.append("serve")
    return made


def nodes_of(proto: Any) -> list[Any]:
    defined = proto.meta_graphs[0].graph_def
    return [*defined.node, *(n for f in defined.library.function for n in f.node_def)]


@pytest.mark.parametrize("sizes", [(3,), (70_000,), (70_000, 5, 9_000_000, 70_001, 200_000)])
def test_modules_stay_in_their_file(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    want = graph(*sizes)
    path = tmp_path / "graph.pb"
    path.write_bytes(want.SerializeToString())
    found, parts = file_parts.read_message(SavedModel, path)
    path.unlink()  # what is mapped stays
    left = 0
    for node in nodes_of(found):
        content = parts.get(node.attr["module"].s)
        left += isinstance(content, file_parts.FilePart)
        node.attr["module"].s = bytes(content)
    assert left == sum(n >= 1 << 16 for n in sizes)
    assert found == want


def test_parts_read_as_bytes(tmp_path: Path) -> None:
    path = tmp_path / "graph.pb"
    path.write_bytes(graph(100_000).SerializeToString())
    found, parts = file_parts.read_message(SavedModel, path)
    part = parts.get(nodes_of(found)[0].attr["module"].s)
    assert isinstance(part, file_parts.FilePart)
    whole = b"\x01" * 100_000
    assert (len(part), part[0], part[99_999]) == (100_000, 1, 1)
    assert part.part(99_990, 100_010) == whole[-10:]
    assert b"\x01\x01" in part
    assert b"o" not in part
    assert part.index(b"\x01", 50) == 50
    assert b"".join(part.chunks()) == whole
    with pytest.raises(IndexError):
        part[100_000]
    with pytest.raises(ValueError, match="not found"):
        part.index(b"o", 0)


@pytest.mark.parametrize("at", [2, 9, 40, 100_000, 200_500])
def test_damage_is_reported_by_its_place_in_the_whole(tmp_path: Path, at: int) -> None:
    data = graph(100_000, 100_000).SerializeToString()[:at]
    path = tmp_path / "graph.pb"
    path.write_bytes(data)
    with pytest.raises(MalformedModelError) as whole:
        parse(SavedModel, data, str(path))
    with pytest.raises(MalformedModelError) as mapped:
        file_parts.read_message(SavedModel, path)
    assert str(mapped.value) == str(whole.value)


def test_constants_of_a_graph_stay_in_its_bytes() -> None:
    want = message(GraphDef)()
    for nodes in (want.node, want.library.function.add().node_def):
        for i, size in enumerate((4_200_000, 70_000, 12)):
            node = nodes.add(name=f"n{i}", op="Const")
            node.attr["value"].tensor.dtype = 1
            node.attr["value"].tensor.tensor_content = bytes([i + 1]) * size
            node.attr["other"].s = b"o" * size
    found, parts = file_parts.own_graph(want.SerializeToString())
    nodes = [*found.node, *found.library.function[0].node_def]
    tensors = [n.attr["value"].tensor for n in nodes]
    contents = [parts.get(t.tensor_content) for t in tensors]
    assert [isinstance(c, file_parts.FilePart) for c in contents] == [True, True, False] * 2
    for tensor, content in zip(tensors, contents, strict=True):
        tensor.tensor_content = bytes(content)
    assert found == want
    # A shape function of TensorFlow gets zeros.
    again, parts = file_parts.own_graph(want.SerializeToString())
    parts.array(again.node[0].attr["value"].tensor.tensor_content, lambda d: np.frombuffer(d, "u1"))
    parts.leave_out(again.node)
    sizes = [len(n.attr["value"].tensor.tensor_content) for n in again.node]
    assert sizes == [0, 0, 12]
    with pytest.raises(MalformedModelError, match="the graph cannot be read as a GraphDef"):
        file_parts.own_graph(want.SerializeToString()[:-1])
