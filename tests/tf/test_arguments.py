"""Arguments that do not fit, and the text of a module."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
import pytest
import tensorflow as tf

import invert

X = np.ones((2, 4), np.float32)
B = np.ones(3, np.float32)


def module(name: str = "f"):
    weight = tf.Variable(np.ones((4, 3), np.float32), name="weight")

    def fn(x, d):
        return {"y": x @ weight + d["b"]}

    fn.__name__ = name
    spec = [tf.TensorSpec([None, 4], name="x"), {"b": tf.TensorSpec([3])}]
    return invert.convert(tf.function(fn, input_signature=spec, autograph=False))


@pytest.mark.parametrize("name", ["f", "function", "_", "functions"])
def test_a_module_shows_its_signature_and_its_size(name: str) -> None:
    m = module(name)
    arguments = f"{name}(x: float32[batch,4], d: {{'b': float32[3]}})"
    certificate = "certificate: exact for every batch >= 1"
    text = f"<{arguments} -> {{'y': float32[batch,3]}}; {certificate}; 12 parameters in 1 array>"
    assert repr(m) == text
    m(X, {"b": B})
    assert repr(m) == text


def test_arguments_that_do_not_fit() -> None:
    m = module()
    np.testing.assert_allclose(m(tf.constant(X), {"b": tf.constant(B)})["y"], 5 * np.ones((2, 3)))
    with pytest.raises(invert.SignatureError, match=r"'d.c' was given, 'd.b' is missing"):
        m(X, {"c": B})
    with pytest.raises(
        invert.SignatureError, match=r"'d.more' was given. Call it as f\(x: float32\[\?,4\]"
    ):
        m(X, {"b": B, "more": B})
    wide = r"'x' has the dtype float64, expected float32; Config\(strict_dtypes=False\)"
    with pytest.raises(invert.SignatureError, match=wide):
        m(np.ones((2, 4)), {"b": B})
    with pytest.raises(
        invert.SignatureError, match=r"has the dtype complex64, expected float32\. Pass"
    ):
        m(X.astype(np.complex64), {"b": B})


def test_a_module_can_be_copied() -> None:
    m = module()
    m(X, {"b": B})
    other = copy.deepcopy(m)
    assert other.params["weight"] is not m.params["weight"]
    np.testing.assert_array_equal(other(X, {"b": B})["y"], m(X, {"b": B})["y"])


def test_rarely_used_parts_need_no_import() -> None:
    code = (
        "import sys, invert\n"
        "assert 'invert.testing' not in sys.modules and 'invert.compat.tf2jax' not in sys.modules\n"
        "invert.testing.assert_roundtrip, invert.compat.tf2jax.convert\n"
        "assert 'tensorflow' not in sys.modules and not hasattr(invert, 'nothing')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_an_error_shows_the_call_of_a_signature_with_a_state(tmp_path: Path) -> None:
    """Arguments of signatures go by name, after the state."""

    class Counter(tf.Module):
        def __init__(self) -> None:
            self.n = tf.Variable(0.0)

        @tf.function(input_signature=[tf.TensorSpec([None], name="x")], autograph=False)
        def __call__(self, x: Any) -> Any:
            return self.n.assign_add(1.0) * x

    tf.saved_model.save(counter := Counter(), tmp_path, signatures=counter.__call__)
    module = invert.load(tmp_path, signature="serving_default")
    call = "serving_default(state, *, x: float32[?])"
    with pytest.raises(invert.SignatureError, match=re.escape(call)):
        module(np.ones(2, np.float32))
    results, _ = module(eqx.nn.State(module), x=np.ones(2, np.float32))
    np.testing.assert_array_equal(results["output_0"], [1, 1])
