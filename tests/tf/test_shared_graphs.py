"""What a graph keeps between evaluations, and what threads share."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import invert
from invert.tf.control import while_loop
from invert.tf.control.branch_types import Static, key_of


def _nested(x: Any, rows: Any) -> Any:
    """Three nested loops, each of which starts with a number that becomes an array."""

    def loop(depth: int, rows: Any) -> Any:
        def body(i: Any, total: Any, rows: Any) -> Any:
            if depth > 1:
                inner, rows = loop(depth - 1, rows)
                total = tf.maximum(total, inner)
            else:
                total, rows = tf.maximum(total, tf.reduce_sum(rows)), rows * 0.5
            return i + 1, total, rows

        shapes = (tf.TensorShape([]), tf.TensorShape([]), tf.TensorShape([None]))
        start = (tf.constant(0), tf.constant(0.0), rows)
        _, total, rows = tf.while_loop(lambda i, *_: i < 2, body, start, shape_invariants=shapes)
        return total, rows

    return loop(3, rows)[0] + 0 * tf.reduce_sum(x)


def test_facts_found_by_loops_are_kept_for_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    traces: list[Any] = []

    class Counted(while_loop.TracedBranch):
        def __init__(self, *args: Any) -> None:
            traces.append(args)
            super().__init__(*args)

    monkeypatch.setattr(while_loop, "TracedBranch", Counted)
    x = np.float32([1, -2, 3, 4, -1])
    counts = []
    for rows in (lambda x: x, lambda x: tf.boolean_mask(x, x > 0)):
        f = tf.function(lambda x, rows=rows: _nested(x, rows(x)))
        traces.clear()
        module = invert.convert(f, tf.TensorSpec([5], tf.float32))
        counts.append(len(traces))
        np.testing.assert_allclose(module(x), f(x), rtol=1e-6, atol=1e-6)
    assert counts[0] == counts[1]


def test_large_static_values_are_distinguished() -> None:
    one = np.zeros(5000, np.int32)
    two = one.copy()
    two[2500] = 1
    assert str(one) == str(two)
    assert key_of(Static(one)) == key_of(Static(one.copy())) != key_of(Static(two))


def test_threads_evaluate_one_graph_together() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def f(x):
        s = tf.zeros_like(x)
        for i in tf.range(4):
            s += tf.sin(x) * tf.cast(i, tf.float32)
            if s[0] > 3.0:
                s = tf.reverse(s, [-1])
        return tf.concat([s, tf.reshape(x, tf.stack([tf.size(x)]))], 0)

    module = invert.convert(f)
    together = threading.Barrier(6)
    wrong: list[str] = []

    def work(n: int) -> None:
        x = np.linspace(-1, 1, n, dtype=np.float32)
        together.wait()
        try:
            np.testing.assert_allclose(module(x), f(x), rtol=1e-5, atol=1e-6)
        except Exception as error:  # noqa: BLE001  whatever it is, the test has to hear of it
            wrong.append(f"{n}: {error!r}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
