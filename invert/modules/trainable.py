"""Filters for the leaves of a module that its container trains."""

from __future__ import annotations

import sys

import equinox as eqx
import jax

from invert.emission import is_index
from invert.ir.types import Tree
from invert.modules.methods import Methods
from invert.modules.module import Module
from invert.modules.params import nest


def trainable(module: Module | Methods | eqx.Module) -> Tree:
    """A filter specification: true for the parameters that are trainable in the container.

    Variables that the program assigns are in its state and so not among them; nor are its
    constants. The same arrays are trainable in a module's `model`, and after `save` and `load`. If
    the container trains none, such as a `jax.export` artifact, whose weights are constants, all
    floating-point arrays of the `model` are trainable.

    **Returns:** a pytree of the structure of `module` with a `bool` for each leaf.

    ??? example

        ```python
        import equinox as eqx

        import invert

        net = invert.load("model.keras").model
        trained, rest = eqx.partition(net, invert.trainable(net))
        ```
    """
    if not isinstance(module, (Module, Methods)):
        own = getattr(sys.modules.get(type(module).__module__), "trainable", None)
        return jax.tree_util.tree_map(eqx.is_inexact_array, module) if own is None else own(module)
    single = isinstance(module, Module)
    functions = [module._function] if single else [f for _, f in module._functions]
    flags = {p.name: p.trainable for f in functions for p in f.entry.params}
    named = module.named_params()
    leaves = [
        jax.tree_util.tree_map(lambda _: False, leaf) if is_index(leaf) else flags[name]
        for name, leaf in named.items()
    ]
    spec = jax.tree_util.tree_map(lambda _: False, module)
    return eqx.tree_at(lambda m: m.params, spec, nest(list(named), leaves))
