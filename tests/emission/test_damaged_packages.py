"""Saved modules with random damage: either the same module or an error of invert."""

from __future__ import annotations

import collections
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import invert
from invert.modules.save import arrays_of


def build(folder: Path) -> Path:
    """A package of several shards, with arrays of one type and shape and of a rare type."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(6, 6)).astype(np.float32) for _ in range(4)]
    bias = rng.normal(size=6).astype(jnp.bfloat16)
    scale = rng.normal(size=6).astype(jnp.float8_e4m3fn)
    table = np.arange(12, dtype=np.int32).reshape(6, 2)

    def model(x: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
        for w in weights:
            x = jnp.tanh(x @ w)
        return x * scale.astype(np.float32) + bias, jnp.asarray(table)[i]

    x, i = jax.ShapeDtypeStruct((2, 6), np.float32), jax.ShapeDtypeStruct((), np.int32)
    module = invert.from_stablehlo(jax.jit(model).lower(x, i))
    invert.save(module, folder / "package", max_shard_size=300)
    return folder / "package"


def _cut(data: bytes, draw: random.Random, places: range) -> bytes:
    return data[: draw.choice(places)]


def _insert(data: bytes, draw: random.Random, places: range) -> bytes:
    at = draw.choice(places)
    return data[:at] + draw.randbytes(draw.randrange(1, 20)) + data[at:]


def _delete(data: bytes, draw: random.Random, places: range) -> bytes:
    at = draw.choice(places)
    return data[:at] + data[at + draw.randrange(1, 20) :]


def _copy(data: bytes, draw: random.Random, places: range) -> bytes:
    at, source, size = draw.choice(places), draw.choice(places), draw.randrange(1, 20)
    return data[:at] + data[source : source + size] + data[at + size :]


def _change(data: bytes, draw: random.Random, places: range) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randrange(1, 4)):
        changed[draw.choice(places)] = draw.randrange(256)
    return bytes(changed)


def _digit(data: bytes, draw: random.Random, places: range) -> bytes:
    """A number or a letter becomes another."""
    at = draw.choice([i for i in places if data[i : i + 1].isalnum()] or places)
    new = draw.choice(b"0123456789" if data[at : at + 1].isdigit() else b"abefimnotx_")
    return data[:at] + bytes([new]) + data[at + 1 :]


_DAMAGES: list[Callable[[bytes, random.Random, range], bytes]]
_DAMAGES = [_cut, _insert, _delete, _copy, _change, _digit, _digit]


def _places(path: Path, data: bytes) -> range:
    """All of a file but the bytes of its arrays, for which there is no check."""
    if path.suffix != ".safetensors":
        return range(len(data))
    return range(8 + int.from_bytes(data[:8], "little"))


def outcomes(package: Path, work: Path, seed: int, count: int) -> collections.Counter[str]:
    """How often a damaged copy was the same module, refused, or anything else."""
    draw = random.Random(seed)
    found: collections.Counter[str] = collections.Counter()
    whole = arrays_of(invert.load(package))
    files = sorted(p.name for p in package.iterdir() if p.suffix in (".safetensors", ".json"))
    assert len(files) > 3
    for i in range(count):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(package, work)
        path = work / files[i % len(files)]
        data = path.read_bytes()
        if draw.random() < 0.03:
            path.unlink()
        else:
            damage = draw.choice(_DAMAGES)
            path.write_bytes(damage(data, draw, _places(path, data)))
        try:
            loaded = arrays_of(invert.load(work))
        except invert.InvertError as error:
            assert str(error)
            found[f"refused by {type(error).__name__}"] += 1
            continue
        except Exception as error:  # noqa: BLE001  what is looked for
            found[f"foreign {i}: {type(error).__name__}: {str(error)[:200]}"] += 1
            continue
        same = loaded.keys() == whole.keys() and all(
            loaded[n].dtype == whole[n].dtype and np.array_equal(loaded[n], whole[n]) for n in whole
        )
        found["same" if same else f"other {i}: {path.name}"] += 1
    return found


def _check(folder: Path, seed: int, count: int) -> None:
    found = outcomes(build(folder), folder / "work", seed, count)
    assert found.keys() <= {"same", "refused by MalformedModelError"}, found
    assert all(found.values())
    assert len(found) == 2


def test_a_few(tmp_path: Path) -> None:
    _check(tmp_path, seed=0, count=40)


@pytest.mark.slow
def test_many(tmp_path: Path) -> None:
    _check(tmp_path, seed=1, count=1000)
