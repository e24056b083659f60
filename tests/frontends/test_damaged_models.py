"""Randomly damaged models: an error of this package, or a module with the model's values."""

from __future__ import annotations

import collections
import os
import random
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import tensorflow as tf

import invert
from tests.damaged_files import damaged_copies

keras = pytest.importorskip("keras")


def build(folder: Path) -> list[Path]:
    """A SavedModel with a table filled from an asset, and a `.keras` archive."""
    words = folder / "words.txt"
    words.write_text("first\nsecond\n")
    root = tf.Module()
    root.parts = {"v": tf.Variable([1.0, 2, 3]), "list": [tf.Variable(2.0)]}
    from_file = tf.lookup.TextFileInitializer(
        os.fspath(words), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE,
        tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER,
    )  # fmt: skip
    root.table = tf.lookup.StaticHashTable(from_file, -1)

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def call(x: tf.Tensor) -> tf.Tensor:
        place = tf.cast(root.table.lookup(tf.constant("second")), tf.float32)
        return tf.nn.softmax(x * root.parts["v"] + root.parts["list"][0] * place)

    root.call = call
    tf.saved_model.save(root, folder / "model")
    layers = [keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(2)]
    keras.Sequential([keras.Input((4,), batch_size=2), *layers]).save(folder / "model.keras")
    return [folder / "model", folder / "model.keras"]


def outcomes(models: list[Path], work: Path, seed: int, count: int) -> collections.Counter[str]:
    """How often a damaged copy was loaded, was refused, or did anything else."""
    draw = random.Random(seed)
    found: collections.Counter[str] = collections.Counter()
    copies = [work / model.name for model in models]
    damaged = [damaged_copies(*pair, draw) for pair in zip(models, copies, strict=True)]
    for i in range(count):
        copy = copies[i % len(models)]
        next(damaged[i % len(models)])
        try:
            result = compared(invert.load(copy), copy)
        except invert.InvertError as error:
            found[type(error).__name__] += 1
        except BaseException as error:  # what is looked for  # noqa: BLE001
            found[f"foreign: {type(error).__name__}: {str(error)[:300]}"] += 1
        else:
            found[result] += 1
    return found


def compared(module: invert.Module, copy: Path) -> str:
    """`"equal"`, `"WRONG"`, or `"not run"` if TensorFlow does not run the damaged model."""
    x = np.random.default_rng(0).standard_normal((2, 3 + (copy.suffix == ".keras")), np.float32)
    try:
        if copy.is_dir():
            root = tf.saved_model.load(copy)  # which holds the variables
            want = root.call(tf.constant(x))
        else:
            want = keras.saving.load_model(copy)(x)
    except Exception as error:  # noqa: BLE001  what TensorFlow cannot run says nothing
        return f"not run: {copy.suffix} {type(error).__name__}"
    wants, have = jax.tree.leaves(want), jax.tree.leaves(module(x))
    same = len(wants) == len(have) and all(
        np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
        for a, b in zip(wants, have, strict=True)
    )
    return "equal" if same else "WRONG"


def _check(tmp_path: Path, seed: int, count: int) -> None:
    work = tmp_path / "work"
    work.mkdir()
    found = outcomes(build(tmp_path), work, seed, count)
    assert not [k for k in found if k.startswith(("foreign", "WRONG"))], found
    assert found["equal"]
    assert found.total() == count


def test_a_few(tmp_path: Path) -> None:
    _check(tmp_path, seed=0, count=16)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
def test_many(tmp_path: Path, seed: int) -> None:
    _check(tmp_path, seed=seed, count=50)


if __name__ == "__main__":
    place = Path(sys.argv[3])
    (place / "work").mkdir(parents=True)
    print(outcomes(build(place), place / "work", int(sys.argv[1]), int(sys.argv[2])))
