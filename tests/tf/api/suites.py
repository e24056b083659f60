"""The public namespaces with their tables, missing names, and outcomes of the calls."""

from __future__ import annotations

import dataclasses
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import keras
import tensorflow as tf

from tests.tf.api.calls import Call, Table
from tests.tf.api.compare import Comparison, Part, run_together
from tests.tf.api.table_array import TOP
from tests.tf.api.table_image import IMAGE
from tests.tf.api.table_keras import (
    ACTIVATIONS,
    CONSTRAINTS,
    INITIALIZERS,
    LOSSES,
    REGULARIZERS,
    STRINGS,
)
from tests.tf.api.table_keras import RANDOM as KERAS_RANDOM
from tests.tf.api.table_keras_ops import KERAS_OPS
from tests.tf.api.table_linalg import EXPERIMENTAL, LINALG, OPERATOR_CALLS, SIGNAL
from tests.tf.api.table_math import BITWISE, MATH, QUANTIZATION
from tests.tf.api.table_metrics import GENERATOR, METRICS
from tests.tf.api.table_nn import EXPERIMENTAL as NN_EXPERIMENTAL
from tests.tf.api.table_nn import NN
from tests.tf.api.table_numpy import NUMPY
from tests.tf.api.table_random import EXPERIMENTAL as RANDOM_EXPERIMENTAL
from tests.tf.api.table_random import RANDOM
from tests.tf.api.table_segment import SEGMENT
from tests.tf.api.table_sparse import DISPATCHED, RAGGED, RAGGED_TENSOR, SETS, SPARSE, SPARSE_TENSOR


@dataclasses.dataclass(frozen=True)
class Suite:
    """A namespace: an object that holds functions, and the calls of each."""

    name: str
    module: Any
    table: Table

    # Whether the table has names of its own, and no functions of the namespace.
    free: bool = False

    def public(self) -> dict[str, Any]:
        """The public functions and classes by name."""
        if self.free:
            return {}
        found = {n: getattr(self.module, n) for n in dir(self.module) if not n.startswith("_")}
        return {n: f for n, f in found.items() if callable(f) and not inspect.ismodule(f)}

    def calls(self) -> Iterator[tuple[str, int, Call]]:
        for name, entry in self.table.items():
            if not isinstance(entry, str):
                for number, one in enumerate(entry):
                    yield name, number, one

    def function(self, name: str) -> Callable[..., Any]:
        return getattr(self.module, name, self.module)


SUITES: Mapping[str, Suite] = {
    s.name: s
    for s in (
        Suite("tf.math", tf.math, {**MATH, **SEGMENT}),
        Suite("tf.bitwise", tf.bitwise, BITWISE),
        Suite("tf.quantization", tf.quantization, QUANTIZATION),
        Suite("tf.linalg", tf.linalg, LINALG),
        Suite("tf.linalg.experimental", tf.linalg.experimental, EXPERIMENTAL),
        Suite("tf.linalg.LinearOperator", tf.linalg.LinearOperator, OPERATOR_CALLS, free=True),
        Suite("tf.signal", tf.signal, SIGNAL),
        Suite("tf.image", tf.image, IMAGE),
        Suite("tf.nn", tf.nn, NN),
        Suite("tf.nn.experimental", tf.nn.experimental, NN_EXPERIMENTAL),
        Suite("tf.random", tf.random, RANDOM),
        Suite("tf.random.experimental", tf.random.experimental, RANDOM_EXPERIMENTAL),
        Suite("tf.random.Generator", tf.random.Generator, GENERATOR),
        Suite("tf.sparse", tf.sparse, SPARSE),
        Suite("tf.SparseTensor", tf.SparseTensor, SPARSE_TENSOR),
        Suite("tf.ragged", tf.ragged, RAGGED),
        Suite("tf.RaggedTensor", tf.RaggedTensor, RAGGED_TENSOR),
        Suite("functions of ragged tensors", tf, DISPATCHED, free=True),
        Suite("tf.sets", tf.sets, SETS),
        Suite("tf", tf, TOP),
        Suite("tf.experimental.numpy", tf.experimental.numpy, NUMPY),
        Suite("tf.strings", tf.strings, STRINGS),
        Suite("keras.ops", keras.ops, KERAS_OPS),
        Suite("keras.losses", keras.losses, LOSSES),
        Suite("keras.metrics", keras.metrics, METRICS),
        Suite("keras.activations", keras.activations, ACTIVATIONS),
        Suite("keras.initializers", keras.initializers, INITIALIZERS),
        Suite("keras.regularizers", keras.regularizers, REGULARIZERS),
        Suite("keras.constraints", keras.constraints, CONSTRAINTS),
        Suite("keras.random", keras.random, KERAS_RANDOM),
    )
}


def missing() -> list[str]:
    """Public names without an entry; an alias of a function listed elsewhere counts as listed."""
    known = {
        id(getattr(s.module, name))
        for s in SUITES.values()
        for name in s.table
        if hasattr(s.module, name)
    }
    return [
        f"{s.name}.{name}"
        for s in SUITES.values()
        for name, function in s.public().items()
        if name not in s.table and id(function) not in known
    ]


def unknown() -> list[str]:
    """Entries for names that do not exist."""
    return [
        f"{s.name}.{name}"
        for s in SUITES.values()
        for name in s.table
        if not s.free and not hasattr(s.module, name)
    ]


@dataclasses.dataclass
class Outcome:
    """What became of a call.

    **Attributes:**

    - `problems`: what is wrong by aspect, `None` where nothing is; aspects that do not apply are
        left out.
    """

    label: str
    problems: dict[str, str | None] = dataclasses.field(default_factory=dict)


ASPECTS = ("value", "special", "open", "vmap", "dtype", "error")


def check(
    suite: Suite, chosen: Sequence[tuple[str, int, Call]], aspects: Sequence[str] = ASPECTS
) -> list[Outcome]:
    """Compares calls, as one program.

    **Arguments:**

    - `chosen`: names, numbers and calls.
    - `aspects`: what is compared; gradients are with the values.
    """
    outcomes, parts, places = [], [], []
    for name, number, one in chosen:
        outcome = Outcome(f"{suite.name}.{name} #{number}")
        outcomes.append(outcome)
        for aspect, make in _aspects(outcome.label, suite.function(name), one):
            if aspect.split()[0] not in aspects:
                continue
            try:
                with jax.enable_x64(True):
                    part = make()
            except Exception as error:  # noqa: BLE001  reported by the caller, all of them
                outcome.problems[aspect] = _said(error)
                continue
            parts.append(part)
            places.append((outcome, aspect))
    try:
        errors = run_together(parts)
    except Exception:  # noqa: BLE001  one of them does not compile
        errors = [_alone(part) for part in parts]
    for (outcome, aspect), part, error in zip(places, parts, errors, strict=True):
        outcome.problems[aspect] = None if error is None else _said(error)
        if part.slopes and error is None:
            outcome.problems["gradient"] = None
    return outcomes


def _alone(part: Part) -> Exception | None:
    try:
        return run_together([part])[0]
    except Exception as error:  # noqa: BLE001  reported by the caller, all of them
        return error


def _aspects(
    label: str, function: Callable[..., Any], one: Call
) -> Iterator[tuple[str, Callable[[], Part]]]:
    """The aspects that apply, by name, each with a function that makes its part."""
    if one.made is not None:
        yield "value", Comparison(label, one, function, *one.dtypes).updates
        return
    if one.error:
        yield "error", Comparison(label, one, function, one.dtypes[0]).refusal
        return
    first, *others = (Comparison(label, one, function, dtype) for dtype in one.dtypes)
    yield "value", lambda: first.values("gradient" not in one.without)
    for other in (first, *others) if one.special else ():
        yield f"special {other.dtype}", other.special
    if one.is_open and "open" not in one.without:
        yield "open", first.open_size
    if one.arguments and "vmap" not in one.without and "value" not in one.without:
        yield "vmap", first.batched
    for other in others:
        yield f"dtype {other.dtype}", other.values


def _said(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/invert/" in f.filename]
    place = f" [{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}]" if frames else ""
    return f"{type(error).__name__}{place}: " + "\n    ".join(lines[:14])
