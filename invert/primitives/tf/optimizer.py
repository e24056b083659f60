"""Optimizer ops, which update a variable and its slots in place: a table first.

Each row gives rise to four ops: for resources and for the reference variables of TensorFlow 1, and
for gradients of the whole variable and of some of its rows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.variables import assign, current
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import REGISTRY, Entry
from invert.tf.numerics import optimizers as steps
from invert.tf.ops.node import Node
from invert.tf.values.constants import array


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """One optimizer.

    **Arguments:**

    - `slots`: how many inputs are variables; they come first.
    - `inputs`: names of the other inputs of the dense op, in order.
    - `step`: the update, see `tf.numerics.optimizers`.
    - `flag`: name of an attribute of the op that the update takes, with its default.
    - `sparse`: whether there is an op for gradients of rows.
    """

    slots: int
    inputs: str
    step: Callable[..., tuple[Any, ...]]
    flag: tuple[str, bool] | None = None
    sparse: bool = False


NESTEROV = ("use_nesterov", False)
SLOTS = ("update_slots", True)
LINEAR = ("multiply_linear_by_lr", False)
BETAS = "lr beta1 beta2 epsilon grad"

OPTIMIZERS: dict[str, Optimizer] = {
    "AdaMax": Optimizer(3, f"beta1_power {BETAS}", steps.ada_max),
    "Adadelta": Optimizer(3, "lr rho epsilon grad", steps.adadelta, sparse=True),
    "Adagrad": Optimizer(2, "lr grad", steps.adagrad, SLOTS, True),
    "AdagradDA": Optimizer(3, "grad lr l1 l2 global_step", steps.adagrad_da, sparse=True),
    "AdagradV2": Optimizer(2, "lr epsilon grad", steps.adagrad_v2, SLOTS, True),
    "Adam": Optimizer(3, f"beta1_power beta2_power {BETAS}", steps.adam, NESTEROV),
    "AdamWithAmsgrad": Optimizer(4, f"beta1_power beta2_power {BETAS}", steps.adam_with_amsgrad),
    "AddSign": Optimizer(2, "lr alpha sign_decay beta grad", steps.add_sign),
    "CenteredRMSProp": Optimizer(
        4, "lr rho momentum epsilon grad", steps.centered_rms_prop, sparse=True
    ),
    "Ftrl": Optimizer(3, "grad lr l1 l2 lr_power", steps.ftrl, LINEAR, True),
    "FtrlV2": Optimizer(3, "grad lr l1 l2 l2_shrinkage lr_power", steps.ftrl, LINEAR, True),
    "GradientDescent": Optimizer(1, "lr grad", steps.gradient_descent),
    "KerasMomentum": Optimizer(2, "lr grad momentum", steps.keras_momentum, NESTEROV, True),
    "Momentum": Optimizer(2, "lr grad momentum", steps.momentum, NESTEROV, True),
    "PowerSign": Optimizer(2, "lr logbase sign_decay beta grad", steps.power_sign),
    "ProximalAdagrad": Optimizer(2, "lr l1 l2 grad", steps.proximal_adagrad, sparse=True),
    "ProximalGradientDescent": Optimizer(
        1, "lr l1 l2 grad", steps.proximal_gradient_descent, sparse=True
    ),
    "RMSProp": Optimizer(3, "lr rho momentum epsilon grad", steps.rms_prop, sparse=True),
}


def _apply(
    optimizer: Optimizer, sparse: bool, ctx: Context, node: Node, values: list[Any]
) -> list[Any]:
    handles = values[: optimizer.slots]
    names = optimizer.inputs.replace("grad", "grad indices") if sparse else optimizer.inputs
    given = dict(zip(names.split(), map(array, values[optimizer.slots :]), strict=True))
    grad, indices = given.pop("grad"), given.pop("indices", None)
    if optimizer.flag is not None:
        name, default = optimizer.flag
        given[name] = bool(node.attr(name, default))
    slots = tuple(current(ctx, h) for h in handles)
    step = functools.partial(optimizer.step, **given)
    new = step(slots, grad) if indices is None else _by_rows(step, slots, grad, indices)
    for handle, value in zip(handles, new, strict=True):
        assign(ctx, node, handle, value)
    # The ops on references return the reference to the variable.
    return [] if node.op.startswith("Resource") else [handles[0]]


def _by_rows(
    step: Callable[..., tuple[Any, ...]], slots: tuple[Any, ...], grad: Any, indices: Any
) -> tuple[Any, ...]:
    """Updates of rows. One that occurs twice is updated twice, as the CPU does one after the other.

    The first updates of all rows are made at once, then the second ones: as a rule there are none.
    """

    def once(chosen: Any, slots: tuple[Any, ...]) -> tuple[Any, ...]:
        old = tuple(s.at[indices].get(mode="clip", wrap_negative_indices=False) for s in slots)
        target = jnp.where(chosen, indices, np.asarray(slots[0].shape[0], indices.dtype))
        pairs = zip(slots, step(old, grad), strict=True)
        return tuple(
            s.at[target].set(n, mode="drop", wrap_negative_indices=False) for s, n in pairs
        )

    slots = tuple(jnp.asarray(s) for s in slots)
    if isinstance(indices, np.ndarray) and len(np.unique(indices)) == indices.size:
        return once(True, slots)
    turn = _turns(indices)
    rounds = jnp.max(turn, initial=-1) + 1
    return lax.fori_loop(0, rounds, lambda i, slots: once(turn == i, slots), slots)


def _turns(indices: Any) -> Any:
    """How often each index occurs before."""
    order = jnp.argsort(indices, stable=True)
    ordered = indices[order]
    new = jnp.concatenate([jnp.ones_like(order[:1], bool), ordered[1:] != ordered[:-1]])
    places = jnp.arange(indices.size, dtype=np.int32)
    start = lax.cummax(jnp.where(new, places, 0))
    return jnp.zeros_like(places).at[order].set(places - start, unique_indices=True)


for _name, _optimizer in OPTIMIZERS.items():
    for _sparse in (False, True) if _optimizer.sparse else (False,):
        _entry = Entry(functools.partial(_apply, _optimizer, _sparse))
        _op = f"SparseApply{_name}" if _sparse else f"Apply{_name}"
        REGISTRY.add(f"Resource{_op}", _entry)
        if _name not in ("AdamWithAmsgrad", "KerasMomentum"):  # newer than references
            REGISTRY.add(_op, _entry)
