"""All recipes, the public ops, and the route of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from invert.primitives.tf import REGISTRY
from invert.tf.ops.node import Node
from tests.tf.ops.cases import Recipe
from tests.tf.ops.exceptions import EXCEPTIONS
from tests.tf.ops.recipes_array import ARRAY
from tests.tf.ops.recipes_more import MORE
from tests.tf.ops.recipes_nn import NN
from tests.tf.ops.recipes_other import OTHER
from tests.tf.ops.recipes_quantized import QUANTIZED
from tests.tf.ops.recipes_random import RANDOM
from tests.tf.ops.recipes_xla import XLA

TABLE: Mapping[str, list[Recipe]] = {**ARRAY, **NN, **OTHER, **QUANTIZED, **RANDOM, **XLA}
EVERY: Mapping[str, list[Recipe]] = {**TABLE, **MORE}

# Ops with a kernel for XLA on the CPU in TensorFlow 2.21, but for those that begin with "_".
PUBLIC_OPS = tuple(
    name
    for name in Path(__file__).with_name("xla_ops.txt").read_text("utf-8").split()
    if not name.startswith("_")
)


def route(op: str) -> str:
    """`"rule"` or `"none"`."""
    return "none" if REGISTRY.entry(Node(op, op, {})) is None else "rule"


TESTED_OPS = tuple(op for op in PUBLIC_OPS if op not in EXCEPTIONS)
# Ops that XLA does not compile.
OTHER_OPS = tuple(op for op in EVERY if op not in PUBLIC_OPS)


def summary() -> str:
    """How many public ops take which route, and which are left out, with reasons."""
    lines = [f"{len(PUBLIC_OPS)} public ops with an XLA kernel, {len(TESTED_OPS)} tested here:"]
    for name in ("rule", "none"):
        ops = [op for op in TESTED_OPS if route(op) == name]
        lines.append(f"  {name}: {len(ops)}" + ("" if name == "rule" else f" ({' '.join(ops)})"))
    lines.append(f"{len(OTHER_OPS)} ops that XLA does not compile are tested in the same way")
    reasons: dict[str, list[str]] = {}
    for op in PUBLIC_OPS:
        if op in EXCEPTIONS:
            reasons.setdefault(EXCEPTIONS[op], []).append(op)
    lines.append(f"{len(EXCEPTIONS)} exceptions:")
    lines += [f"  {reason}: {' '.join(ops)}" for reason, ops in reasons.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(summary())
