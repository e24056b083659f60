"""Saved modules with random damage: either the same module or an error of invert."""

from __future__ import annotations

import collections
import random
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import invert
from invert.modules.save import arrays_of
from tests.damaged_files import ANYWHERE, damaged, number

DAMAGES = (*ANYWHERE, number, number)


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
            path.write_bytes(damaged(data, draw, kinds=DAMAGES))
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


@pytest.mark.parametrize(
    ("whole", "damage"),
    [("tree_unflatten", "tree_unfl"), ("file.get_tensor(name)", "fil.get_tensor(name)")],
)
def test_damaged_code_is_named(tmp_path: Path, whole: str, damage: str) -> None:
    code = build(tmp_path) / "model.py"
    text = code.read_text()
    assert whole in text
    code.write_text(text.replace(whole, damage))
    with pytest.raises(invert.MalformedModelError, match=r"model\.py cannot be loaded"):
        invert.load(code.parent)


def test_a_damaged_page_is_shown(tmp_path: Path) -> None:
    package = build(tmp_path)
    (package / "README.md").write_bytes(b"\xff\xfe")
    assert arrays_of(invert.load(package))
