"""Private parts of `jax.export` artifacts."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import jax
import jax.export

from invert._private.jax import JAXPRS, AnyJaxpr, Value, closed_over


def stated_mesh(exported: jax.export.Exported) -> jax.sharding.AbstractMesh | None:
    """The mesh that an artifact names; `None` before serialization version 6."""
    named = [
        *(getattr(exported, "_in_named_shardings", None) or ()),
        *(getattr(exported, "_out_named_shardings", None) or ()),
    ]
    return next((s.mesh for s in named if s is not None), None)


def exported_program(exported: jax.export.Exported) -> AnyJaxpr | None:
    """The traced program, which an artifact of this process keeps for its gradient."""
    cells = getattr(exported._get_vjp, "__closure__", None) or ()
    programs = [c.cell_contents for c in cells if isinstance(c.cell_contents, JAXPRS)]
    return cast("AnyJaxpr", programs[0]) if len(programs) == 1 else None


def exported_of_gradient(gradient: Callable[..., object]) -> jax.export.Exported | None:
    """The artifact behind a gradient function that `jax2tf.convert` registered with TensorFlow."""
    found: Value = gradient
    for name in ("tape_grad_fn", "grad_fn", "impl"):
        found = closed_over(found, name)
    exported = getattr(found, "exported", None)
    return exported if isinstance(exported, jax.export.Exported) else None
