"""Checkpoints: every kind of value, parts and shards, and damaged files."""

from __future__ import annotations

import itertools
import random
import shutil
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from invert import MalformedModelError
from invert.checkpoint.bundle import Checkpoint, _slice_key
from invert.checkpoint.checksum import crc32c, masked
from invert.checkpoint.snappy import decompress
from invert.checkpoint.table import read_table
from invert.protos import messages
from invert.protos.tensors import decode_tensor
from invert.protos.types import BundleEntryProto, BundleHeaderProto, TensorProto
from tests.damaged_files import damaged_copies

BIG = np.random.default_rng(0).random((300, 20)).astype(np.float32)
VALUES: dict[str, Any] = {
    "a/b": np.arange(12, dtype=np.float32).reshape(3, 4),
    "texts": np.array([[b"ab", b""], [b"x" * 300, b"\xff"]], object),
    "scalar": np.int64(5),
    "empty": np.zeros((0, 3), np.int8),
    "bfloat16": np.ones(3).astype(tf.bfloat16.as_numpy_dtype),
    "bool": np.array([True, False]),
    "complex": np.array([1 + 2j]),
}


def opened(prefix: Path) -> Checkpoint:
    def shard(number: int, count: int) -> Path | None:
        file = Path(f"{prefix}.data-{number:05d}-of-{count:05d}")
        return file if file.exists() else None

    return Checkpoint(Path(f"{prefix}.index"), shard)


def write(prefix: Path, values: dict[str, Any], parts: list[str] | None = None) -> None:
    tensors = [
        tf.constant(v, tf.string if np.asarray(v).dtype.kind == "O" else None)
        for v in values.values()
    ]
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=[k.partition("#")[0] for k in values],
        shape_and_slices=parts or [""] * len(values),
        tensors=tensors,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    write(path / "values", VALUES)
    parts = {"part#0": BIG[:100], "part#1": BIG[100:170], "part#2": BIG[170:]}
    write(path / "parts", parts, ["300 20 0,100:-", "300 20 100,70:-", "300 20 170,130:0,20"])
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[str(path / "values"), str(path / "parts")],
        destination_prefix=str(path / "merged"),
        delete_old_dirs=False,
    )
    write(path / "values", VALUES)  # merging moved them
    return path


def _by_bits(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (state & 1) * 0x82F63B78
    return state ^ 0xFFFFFFFF


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000, 32768, 32769, 65536, 70_001])
def test_the_checksum_equals_a_bitwise_one(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert crc32c(data) == _by_bits(data)


def test_the_checksum_follows_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0
    data = random.Random(0).randbytes(300_001)
    assert crc32c(data) == crc32c(data[1000:], crc32c(data[:1000]))


def test_values_of_every_kind(folder: Path) -> None:
    found = opened(folder / "merged")
    assert set(found) == {*VALUES, "part"} and "part" in found and "other" not in found
    for key, want in VALUES.items():
        got = found.value(key)
        assert got.shape == np.shape(want) and got.dtype == np.asarray(want).dtype
        assert (got == want).all()
    np.testing.assert_array_equal(found.value("part"), BIG)  # of parts in another shard
    np.testing.assert_array_equal(found.value("part", [(100, 50), None]), BIG[100:150])
    with pytest.raises(MalformedModelError, match="'other'"):
        found.value("other")
    with pytest.raises(MalformedModelError, match="no part"):
        found.value("part", [(290, 20), None])


def test_values_are_views_of_their_file(folder: Path) -> None:
    value = opened(folder / "values").value("a/b")
    assert not value.flags.owndata and not value.flags.writeable


def test_a_long_index_has_several_blocks(tmp_path: Path) -> None:
    values = {f"layer/{i:04d}/kernel": np.float32(i) for i in range(3000)}
    write(tmp_path / "many", values)
    found = opened(tmp_path / "many")
    assert len(list(found)) == 3000
    assert all(found.value(k) == v for k, v in values.items())


def test_missing_shards_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "merged.index").write_bytes((folder / "merged.index").read_bytes())
    with pytest.raises(MalformedModelError, match="shard 0 of 2, which is missing"):
        opened(tmp_path / "merged").value("a/b")


def damage(folder: Path, work: Path, seed: int, count: int) -> int:
    """Damage one file of a copy at a time; return how often a value was refused."""
    merged = work / "merged"
    merged.mkdir()
    for file in folder.glob("merged*"):
        shutil.copy(file, merged)
    copy, draw = work / "copy", random.Random(seed)
    wants = {**VALUES, "part": BIG}
    refused = 0
    for file in itertools.islice(damaged_copies(merged, copy, draw), count):
        try:
            found = opened(copy / "merged")
        except MalformedModelError:
            refused += 1
            continue
        for key, want in wants.items():
            try:
                got = found.value(key)
            except MalformedModelError:
                refused += 1
            else:
                assert got.shape == np.shape(want) and (got == want).all(), (file, key)
    return refused


def test_damaged_files_are_refused_or_read_correctly(folder: Path, tmp_path: Path) -> None:
    assert damage(folder, tmp_path, seed=0, count=150) > 100


@pytest.mark.slow
def test_many_damaged_files(folder: Path, tmp_path: Path) -> None:
    assert damage(folder, tmp_path, seed=1, count=5000) > 1000


def varint_of(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def compressed(data: bytes) -> bytes:
    """Compress data in Snappy's format: copies of every kind, long and short literals."""
    out, literal, place = bytearray(varint_of(len(data))), b"", 0

    def flush() -> None:
        if literal:
            count = len(literal) - 1
            short = count < 60
            out.extend(bytes([count << 2]) if short else b"\xf4" + struct.pack("<H", count))
            out.extend(literal)

    while place < len(data):
        size = min(64, len(data) - place)
        at = -1
        while size >= 4 and (at := data.rfind(data[place : place + size], 0, place)) < 0:
            size //= 2
        if at < 0 or size < 4:
            literal, place = literal + data[place : place + 1], place + 1
            continue
        flush()
        literal, offset = b"", place - at
        if size < 12 and offset < 2048:
            out.extend([1 | size - 4 << 2 | offset >> 8 << 5, offset & 255])
        elif place % 2:
            out.extend(bytes([2 | size - 1 << 2]) + struct.pack("<H", offset))
        else:
            out.extend(bytes([3 | size - 1 << 2]) + struct.pack("<I", offset))
        place += size
    flush()
    return bytes(out)


def table(
    entries: dict[bytes, bytes], kind: int = 0, compress: Callable[[bytes], bytes] = bytes
) -> bytes:
    """A table of one block whose header names a compression."""
    content = rows(sorted(entries.items()))
    data = block(compress(content) if kind else content, kind)
    return data + footer(len(data), [(0, len(data) - 5)])


def rows(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    content = b"".join(bytes([0, len(k), len(v)]) + k + v for k, v in items)
    return content + struct.pack("<II", 0, 1)


def block(content: bytes, kind: int = 0) -> bytes:
    checksum = masked(crc32c(content + bytes([kind])))
    return content + bytes([kind]) + struct.pack("<I", checksum)


def footer(start: int, places: list[tuple[int, int]]) -> bytes:
    """What follows the blocks at these places: their index, and where it is."""
    handles = [varint_of(offset) + varint_of(size) for offset, size in places]
    index = block(rows((bytes([i + 1]), handle) for i, handle in enumerate(handles)))
    place = b"\0\0" + varint_of(start) + varint_of(len(index) - 5)
    return index + place.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def test_the_work_is_that_of_the_file() -> None:
    """Each block is read once, and keys are not much longer than what is stored of them."""
    data = block(struct.pack("<I", 0))
    twice = data + footer(len(data), [(0, len(data) - 5)] * 2)
    with pytest.raises(MalformedModelError, match="overlaps the one before"):
        read_table(twice, "v")
    longer = b"\0" + varint_of(200) + b"\0" + b"k" * 200
    for i in range(2000):  # each key is the one before and one more byte
        longer += varint_of(200 + i) + b"\1\0k"
    data = block(longer + struct.pack("<II", 0, 1))
    with pytest.raises(MalformedModelError, match="the keys of a block have"):
        read_table(data + footer(len(data), [(0, len(data) - 5)]), "v")


@pytest.mark.parametrize(
    ("shape", "reason"),
    [([0, 1 << 40, 1 << 40], "is too large for any array"), ([1] * 65, "has 65 axes")],
)
def test_shapes_of_no_array(folder: Path, shape: list[int], reason: str) -> None:
    found = opened(folder / "merged")
    entry = messages.parse(BundleEntryProto, found._entries[b"empty"], "an entry")
    del entry.shape.dim[:]
    for n in shape:
        entry.shape.dim.add().size = n
    found._entries[b"empty"] = entry.SerializeToString()
    with pytest.raises(MalformedModelError, match=f"'empty' {reason}"):
        found.value("empty")
    constant = messages.message(TensorProto)(dtype=1, tensor_shape=entry.shape)
    with pytest.raises(MalformedModelError, match=reason):
        decode_tensor(constant)


@pytest.mark.parametrize(
    ("header", "kind", "message"),
    [
        ({"num_shards": 1}, 1, "block compressed by Snappy is damaged .*, at byte 0"),
        ({"num_shards": 1}, 7, "compressed in an unknown way"),
        ({"num_shards": 1, "endianness": 1}, 0, "another byte order"),
        ({"num_shards": 0}, 0, "declares 0 shards"),
        ({}, 0, "has no header"),
    ],
)
def test_unreadable_files_are_reported(
    tmp_path: Path, header: dict[str, int], kind: int, message: str
) -> None:
    proto = messages.message(BundleHeaderProto)(**header).SerializeToString()
    entries = {b"": proto} if header else {b"a": b""}
    (tmp_path / "v.index").write_bytes(table(entries, kind))
    with pytest.raises(MalformedModelError, match=message):
        opened(tmp_path / "v")


def _parts(folder: Path) -> tuple[Any, Any]:
    """A checkpoint, and the entry of its variable in parts."""
    found = opened(folder / "merged")
    return found, messages.parse(BundleEntryProto, found._entries[b"part"], "an entry")


def _assert_refused(found: Any, entry: Any, message: str) -> None:
    found._entries[b"part"] = entry.SerializeToString()
    with pytest.raises(MalformedModelError, match=message):
        found.value("part")


def test_parts_may_not_share_their_bytes(folder: Path, tmp_path: Path) -> None:
    """If many parts could name the same few bytes, they would fill the memory."""
    found, entry = _parts(folder)
    entry.shape.dim[0].size = 600
    for part in list(entry.slices):
        moved = entry.slices.add()
        moved.CopyFrom(part)
        moved.extent[0].start += 300
        key = _slice_key("part", [(e.start, e.length) if e.length else None for e in part.extent])
        again = [(e.start, e.length) if e.length else None for e in moved.extent]
        found._entries[_slice_key("part", again)] = found._entries[key]
    _assert_refused(found, entry, "has more elements")


def test_parts_may_not_leave_gaps(folder: Path) -> None:
    found, entry = _parts(folder)
    del entry.slices[1]
    _assert_refused(found, entry, "parts with 4600 of its 6000 elements")


def test_parts_may_not_overlap(folder: Path) -> None:
    """The last part is moved over the first, so that their elements are as many as before."""
    found, entry = _parts(folder)
    (moved,) = (part for part in entry.slices if part.extent[0].start == 170)
    columns = (0, 20) if moved.extent[1].length else None
    before, after = (_slice_key("part", [(start, 130), columns]) for start in (170, 0))
    found._entries[after] = found._entries[before]
    moved.extent[0].start = 0
    _assert_refused(found, entry, "has parts that overlap")


def test_compressed_blocks(tmp_path: Path) -> None:
    header = messages.message(BundleHeaderProto)(num_shards=1).SerializeToString()
    draw = random.Random(0)
    entries = {
        f"layer/{i:03}/kernel".encode(): b"kernel" * 3 + draw.randbytes(90) for i in range(9)
    }
    plain, packed = table({b"": header} | entries), table({b"": header} | entries, 1, compressed)
    assert len(packed) < len(plain)
    assert read_table(packed, "v") == read_table(plain, "v") == {b"": header} | entries
    (tmp_path / "v.index").write_bytes(packed)
    assert set(opened(tmp_path / "v")) == {k.decode() for k in entries}


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (b"\0", b""),
        (b"\x05\x10hello", b"hello"),
        (b"\x0a\x00a\x15\x01", b"a" * 10),  # a copy that reaches into what it makes
        (b"\x0a\x04ab\x1e\x02\0", b"ab" * 5),
        (b"\x05\x00a\x0f\x01\0\0\0", b"a" * 5),
        (b"\x46\xf0\x45" + b"x" * 70, b"x" * 70),  # a literal with a byte for its length
    ],
)
def test_snappy(data: bytes, content: bytes) -> None:
    assert decompress(data) == content


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "length at byte 0"),
        (b"\xff\xff\xff\xff\xff", "length at byte 0"),
        (b"\xff\xff\xff\xff\x0f\x00a", "cannot expand to"),
        (b"\x05\x10hel", "literal at byte 1"),
        (b"\x05\xf4\x10", "within the element at byte 1"),
        (b"\x05\x00a\x01\x02", "copy at byte 3 begins before"),
        (b"\x05\x00a\x01\x00", "copy at byte 3 begins before"),
        (b"\x02\x10hello", "beyond the 2 bytes"),
        (b"\x06\x10hello", "holds 5 bytes but declares 6"),
    ],
)
def test_damaged_snappy(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decompress(data)
