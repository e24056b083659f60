"""Optimizer ops, which update a variable and its slots in place.

Each row of the table registers up to four ops: for resources or reference variables of TensorFlow
1, and for gradients of a whole variable or of some rows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.dynamic_size import runs
from invert.primitives.tf.variables import assign, current
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Value, rule
from invert.tf.numerics import optimizers as steps
from invert.tf.ops.node import Node
from invert.tf.values.constants import array


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """One optimizer.

    **Arguments:**

    - `slots`: the number of operands that are variables; they come first.
    - `inputs`: names of the other operands of the dense op, in order.
    - `step`: the update, see `tf.numerics.optimizers`.
    - `flag`: name of an attribute of the op that the update takes, with its default.
    - `sparse`: whether there is an op for gradients of rows.
    """

    slots: int
    inputs: str
    step: Callable[..., tuple[Array, ...]]
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


def _applying(optimizer: Optimizer, sparse: bool) -> Callable[..., Value]:
    names = optimizer.inputs.replace("grad", "grad indices") if sparse else optimizer.inputs

    def rule(*operands: Value, ctx: Context, node: Node) -> Value:
        handles, inputs = operands[: optimizer.slots], operands[optimizer.slots :]
        given = dict(zip(names.split(), map(array, inputs), strict=True))
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
        return None if node.op.startswith("Resource") else handles[0]

    return rule


def _by_rows(
    step: Callable[..., tuple[Array, ...]], slots: tuple[Array, ...], grad: Array, indices: Array
) -> tuple[Array, ...]:
    """Update rows; repeated rows are updated one after the other, as on the CPU.

    The first updates of all rows are applied at once, then the second ones, usually none.
    """

    def once(chosen: Array, slots: tuple[Array, ...]) -> tuple[Array, ...]:
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


def _turns(indices: Array) -> Array:
    """For each index, the number of earlier equal ones."""
    order, _, start = runs(indices)
    places = jnp.arange(indices.size, dtype=order.dtype)
    return jnp.zeros_like(places).at[order].set(places - start, unique_indices=True)


# Ops newer than references.
_RESOURCE_ONLY = ("AdamWithAmsgrad", "KerasMomentum")

for _name, _optimizer in OPTIMIZERS.items():
    for _sparse in (False, True) if _optimizer.sparse else (False,):
        _op = f"SparseApply{_name}" if _sparse else f"Apply{_name}"
        _ops = [f"Resource{_op}", _op][: 1 if _name in _RESOURCE_ONLY else 2]
        rule(*_ops, ignores=("use_locking",))(_applying(_optimizer, _sparse))
