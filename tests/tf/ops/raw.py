"""Cases of raw ops on given arrays: special values, shapes and settings of each op."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tf.ops.driver import Case, Outcome, run, units

COMMON = ("float32", "int32", "bool")


@dataclasses.dataclass(frozen=True, eq=False)
class Given(Case):
    """A case of one raw op, for one of these dtypes."""

    op: str = ""
    dtype: str = ""


def raw(
    op: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any] | None = None,
    *,
    rtol: float | None = None,
    atol: float = 0.0,
    grad: bool = True,
    grad_rtol: float = 32.0,
    grad_atol: float | None = None,
    reference: Callable[..., Sequence[np.ndarray]] | None = None,
    label: str = "",
) -> Given:
    """One call of a raw op.

    **Arguments:**

    - `op`: name in `tf.raw_ops`.
    - `inputs`: arrays that become arguments of the function; a list for an op that takes one.
    - `attrs`: attributes, and inputs that are constants in the graph.
    - `rtol`: how far values may be apart, in units of the machine epsilon of the dtype; `None`:
        bitwise (but for the sign of zeros). `atol`: the same, absolute.
    - `grad`: whether gradients are compared, in all inputs with a fraction.
    - `grad_rtol`, `grad_atol`: as `rtol` and `atol`, for gradients.
    - `reference`: used instead of TensorFlow, where another behaviour is wanted.
    - `label`: shown in messages.
    """
    attrs = attrs or {}
    arrays = tf.nest.flatten(dict(inputs))

    def call(*flat: Any) -> Any:
        named = tf.nest.pack_sequence_as(dict(inputs), list(flat))
        return getattr(tf.raw_ops, op)(**named, **{k: constants(v) for k, v in attrs.items()})

    def wanted(*_: Any) -> Any:
        assert reference is not None
        return list(reference(**inputs, **attrs))

    shapes = ", ".join(f"{k}={_short(v)}" for k, v in inputs.items())
    settings = ", ".join(f"{k}={_text(v)}" for k, v in attrs.items())
    # The widest kind among the inputs, which is that of the data if other inputs are indices.
    names = [x.dtype.name for x in arrays] or ["float32"]
    return Given(
        f"{op}({shapes}; {settings}) {label}",
        call,
        tuple(arrays),
        units(rtol, atol),
        units(grad_rtol, max(atol, 8.0) if grad_atol is None else grad_atol),
        grad=grad and reference is None,
        modes=("eager",),
        reference=None if reference is None else wanted,
        op=op,
        dtype=max(names, key=lambda n: ("int" not in n, n)),
    )


def constants(value: Any) -> Any:
    """Arrays as tensors of their own dtype; eager ops would narrow 64-bit integers."""
    if isinstance(value, np.ndarray | np.generic):
        return tf.constant(value)
    return [constants(v) for v in value] if isinstance(value, list) else value


def _short(v: Any) -> str:
    return f"{v.dtype}{v.shape}" if hasattr(v, "dtype") else str([_short(x) for x in v])


def _text(v: Any) -> str:
    return str(v).replace("\n", " ")[:60]


class Suite:
    """Cases of a family of ops: a few common dtypes always run, the others are slow."""

    def __init__(self, cases: Iterable[Given], few: int = 3):
        self.cases: dict[str, list[Given]] = {"common": [], "others": []}
        by_op: dict[str, list[Given]] = {}
        for case in cases:
            by_op.setdefault(case.op, []).append(case)
        for found in by_op.values():
            usual = [c for c in found if c.dtype in COMMON] or found
            chosen = usual[:: -(-len(usual) // few)]
            self.cases["common"] += chosen
            self.cases["others"] += [c for c in found if c not in chosen]
        self._ran: dict[str, list[Outcome]] = {}

    def test(self) -> Callable[[str, str], None]:
        """A test function, with parts and ops as parameters."""
        marks = {"common": (), "others": pytest.mark.slow}
        params = [
            pytest.param(part, op, marks=marks[part])
            for part, cases in self.cases.items()
            for op in dict.fromkeys(c.op for c in cases)
        ]

        @pytest.mark.parametrize(("part", "op"), params)
        def check(part: str, op: str) -> None:
            self._check(part, op)

        return check

    def _check(self, part: str, op: str) -> None:
        """Fail with every mistake in the cases of `op`."""
        if part not in self._ran:
            self._ran[part] = run(self.cases[part], module=True)
        places = [i for i, case in enumerate(self.cases[part]) if case.op == op]
        outcomes = [self._ran[part][i] for i in places]
        wrong = [text for outcome in outcomes for text in outcome.wrong]
        absent = [(o.case.name, o.absent) for o in outcomes if o.absent is not None]
        wrong += [f"{name}: {why}" for name, why in absent if why.refused]
        count = len(outcomes) - len(absent)
        assert not wrong, f"{len(wrong)} wrong, {count} cases:\n" + "\n".join(wrong[:10])
        if not count and part == "others":
            pytest.skip("TensorFlow has no kernel for these dtypes")
        assert count, f"TensorFlow ran no case of {op}: {absent[:5]}"
