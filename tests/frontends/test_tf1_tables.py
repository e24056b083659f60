"""Hash tables that TensorFlow 1 graphs create and fill when loaded."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
import tensorflow as tf

import invert
from invert.frontends.tables import Filled
from invert.protos.messages import message
from invert.protos.types import NodeDef

v1 = tf.compat.v1
NUMBERS = np.array([0, 1, 3], np.int64)


def saved(path: Path, *, filled: bool = True) -> str:
    """A model with a table of constants, filled on loading if requested."""
    with tf.Graph().as_default():
        x = v1.placeholder(tf.int64, [None], "x")
        pairs = tf.lookup.KeyValueTensorInitializer(
            np.array([3, 1, 2], np.int64), np.array([30, 10, 20], np.int64)
        )
        y = tf.lookup.StaticHashTable(pairs, -1).lookup(x)
        with v1.Session() as session:
            builder = v1.saved_model.Builder(str(path))
            signature = v1.saved_model.predict_signature_def({"x": x}, {"y": y})
            builder.add_meta_graph_and_variables(
                session,
                ["serve"],
                signature_def_map={"serving_default": signature},
                main_op=v1.tables_initializer() if filled else None,
            )
            builder.save()
    return str(path)


def test_constants_fill_a_table(tmp_path: Path) -> None:
    module = invert.load(saved(tmp_path / "m"))
    with jax.enable_x64(True):
        np.testing.assert_array_equal(module(x=NUMBERS)["y"], [-1, 10, 30])


def test_a_file_of_the_model_fills_a_table(tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocabulary.txt"
    vocabulary.write_text("30\n10\n20\n")
    with tf.Graph().as_default():
        x = v1.placeholder(tf.int64, [None], "x")
        lines = tf.lookup.TextFileInitializer(
            str(vocabulary),
            tf.int64,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        )
        y = tf.lookup.StaticHashTable(lines, -1).lookup(x)
        with v1.Session() as session:
            builder = v1.saved_model.Builder(str(tmp_path / "m"))
            builder.add_meta_graph_and_variables(
                session,
                ["serve"],
                signature_def_map={
                    "serving_default": v1.saved_model.predict_signature_def({"x": x}, {"y": y})
                },
                main_op=v1.tables_initializer(),
                assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
            )
            builder.save()
    vocabulary.unlink()
    module = invert.load(tmp_path / "m")
    with jax.enable_x64(True):
        np.testing.assert_array_equal(module(x=np.array([20, 30, 3], np.int64))["y"], [2, 0, -1])


def test_a_table_that_nothing_fills_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        invert.UnsupportedOpError, match="HashTableV2: creates a table that nothing"
    ):
        invert.load(saved(tmp_path / "m", filled=False))


def test_a_table_may_hold_nan() -> None:
    keys, values = np.array([1, 2]), np.array([np.nan, 1.0], np.float32)
    np.testing.assert_array_equal(Filled(pair=(keys, values)).content(9, 1)[1], values)


@pytest.mark.parametrize("line", [b"9" * 30, b"1" * 1_000_000], ids=len)
def test_lines_that_are_no_numbers_of_the_type(line: bytes, tmp_path: Path) -> None:
    file = tmp_path / "numbers.txt"
    file.write_bytes(b"1\n" * 1_000_000 + line)
    attrs = message(NodeDef)().attr
    attrs["key_index"].i, attrs["value_index"].i = -2, -1
    with pytest.raises(invert.MalformedModelError, match=r"numbers\.txt: .* not of type int64"):
        Filled(file=file, attrs=attrs).content(9, 9)
