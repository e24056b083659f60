"""The mesh of devices that JAX traces under, and which values differ along it."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

import jax
from jax._src import config, core
from jax._src.mesh import empty_abstract_mesh, get_abstract_mesh

if TYPE_CHECKING:
    from invert._private.jax import Aval, Eqn

pvary = core.pvary


@contextlib.contextmanager
def on_shards(eqn: Eqn, checked: bool = False) -> Iterator[None]:
    """Enter the mesh context of a `shard_map` body; a no-op for other equations.

    Varying axes are not checked, since passes change bodies without declaring them. With
    `checked=True` they are, where the `shard_map` checks them.
    """
    if eqn.primitive.name != "shard_map":
        yield
        return
    mesh, axes = eqn.params["mesh"], eqn.params["newly_manual_axes"]
    manual = frozenset(axes) | set(mesh.manual_axes)
    inner = mesh.abstract_mesh.update_axis_types(
        dict.fromkeys(manual, jax.sharding.AxisType.Manual)
    )
    sizes = [(name, size) for name, size in mesh.shape.items() if name in manual]
    with (
        core.extend_axis_env_nd(sizes),
        jax.sharding.use_abstract_mesh(inner),
        config._check_vma(checked and eqn.params["check_vma"]),
    ):
        yield


def mesh_of_now() -> Hashable:
    """The current mesh and its manual axes, which a trace depends on."""
    return get_abstract_mesh(), core.get_axis_env()


# Its value without a mesh.
NO_MESH: Hashable = (empty_abstract_mesh, core.top_axis_env)


@contextlib.contextmanager
def on_whole_values() -> Iterator[None]:
    """Undo `on_shards`: trace without a mesh."""
    env = core.trace_ctx.axis_env
    core.trace_ctx.set_axis_env(core.top_axis_env)
    try:
        with jax.sharding.use_abstract_mesh(empty_abstract_mesh), config._check_vma(False):
            yield
    finally:
        core.trace_ctx.set_axis_env(env)


@contextlib.contextmanager
def under_own_settings() -> Iterator[None]:
    """Trace and compute on whole values, as under JAX's default settings.

    The checks of a session are for its own code; what is recovered and written is the same in all.
    """
    with (
        on_whole_values(),
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
        jax.disable_jit(False),
        jax.check_tracer_leaks(False),  # of the user's functions; values of regions live longer
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.transfer_guard("allow"),
        jax.threefry_partitionable(True),
    ):
        yield


def is_on_shards() -> bool:
    """Return whether the current trace has manual mesh axes."""
    return bool(get_abstract_mesh().manual_axes)


def varying(value: object) -> frozenset[str]:
    """The manual axes along which shards of a value or type may differ."""
    aval: Aval = value if isinstance(value, core.AbstractValue) else core.typeof(value)
    return aval.mat.varying if hasattr(aval, "mat") else aval.vma


def type_on_mesh(value: object, row: bool = False) -> Aval:
    """The type of a value or of its rows, including the mesh."""
    aval: Aval = value if isinstance(value, core.AbstractValue) else core.typeof(value)
    return core.mapped_aval(aval.shape[0], 0, aval) if row else aval
