"""The walk of `docs/architecture.md`: its steps in order, none calling back up."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import invert
from tests.test_architecture import PACKAGE, PAGE, ROOMS

# A function or class: its file without the suffix, and its name there.
Step = tuple[str, str]

_WALK = PAGE[PAGE.index("### A walk") : PAGE.index("## Front ends")]
STEPS: list[Step] = [
    (file, name)
    for file, name in re.findall(r"`([\w/]+)\.(\w+(?:\.\w+)?)`", _WALK)
    if (PACKAGE / f"{file}.py").exists()
]


def _floor(step: Step) -> int:
    folder = step[0].rpartition("/")[0]
    return ROOMS.index(f"{folder}/" if folder else f"{step[0]}.py")


def _step(frame: FrameType) -> Step | None:
    """The step that runs in a frame: its function, or the construction of its class.

    Functions inside a step, and methods, may run later, since they are passed down.
    """
    code = frame.f_code
    if not code.co_filename.startswith(f"{PACKAGE}/"):
        return None
    file = code.co_filename[len(f"{PACKAGE}/") : -len(".py")]
    step = file, code.co_qualname.removesuffix(".__init__")
    # The body of a class runs too, once.
    return step if step in STEPS and code.co_flags & inspect.CO_OPTIMIZED else None


def _is_back(step: Step, caller: Step) -> bool:
    """Whether a step lies before and above the one that calls it."""
    return STEPS.index(step) < STEPS.index(caller) and _floor(step) < _floor(caller)


def walked(call: Callable[[], object]) -> tuple[list[Step], set[tuple[Step, Step]]]:
    """The steps in the order of their first calls, and the calls back up."""
    first: dict[Step, None] = {}
    back: set[tuple[Step, Step]] = set()

    def on_event(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or (step := _step(frame)) is None:
            return
        first.setdefault(step)
        outer, caller = frame.f_back, None
        while outer is not None and caller is None:
            outer, caller = outer.f_back, _step(outer)
        if caller is not None and _is_back(step, caller):
            back.add((caller, step))

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        call()
    finally:
        sys.setprofile(before)
    return list(first), back


def _served() -> Any:
    """A TensorFlow function with TensorFlow ops, a StableHLO module and a custom gradient."""
    tf = pytest.importorskip("tensorflow")
    from jax.experimental import jax2tf

    @tf.custom_gradient
    def clipped(x: Any) -> Any:
        return tf.sin(x), lambda dy: tf.clip_by_value(dy, -1.0, 1.0)

    soft = jax2tf.convert(lambda x: jnp.sum(jax.nn.softmax(x)))
    return tf.function(lambda x: soft(clipped(tf.matmul(x, x))), autograph=False)


def test_roundtrip_takes_the_steps_of_the_page_in_order() -> None:
    x = np.eye(4, dtype=np.float32)

    def call(served: Any) -> None:
        module = invert.roundtrip(served, x)
        module(x)
        assert module.source

    call(_served())  # imports what is imported on first use
    served = _served()
    steps, back = walked(lambda: call(served))
    assert steps == STEPS
    assert not back


def test_a_call_back_up_is_found() -> None:
    recover, certify = ("_pipeline", "recover"), ("_verify", "certify")
    assert _is_back(recover, certify)
    assert not _is_back(certify, recover)
    # A later step may use what lies below it.
    assert not _is_back(("stablehlo/ops/interpreter", "Context.run"), certify)
