"""A written program: its text, its module, and the origin of its arrays."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import TypeVar

import equinox as eqx
import jax

from invert.emission.equinox_nn import weights
from invert.emission.equinox_nn.indices import Layout
from invert.emission.layers import stack
from invert.emission.layers.stack import Nested
from invert.ir.types import Value

M = TypeVar("M", bound=eqx.Module)
# The method of a single program.
CALL = "__call__"
# The styles of layers that a caller may choose.
STYLES = frozenset({"auto", "scan", "equinox"})


@dataclasses.dataclass(frozen=True)
class Emission:
    """Programs as Python source, and the module that the source defines.

    **Attributes:**

    - `source`: the text of a Python file.
    - `model`: an instance of the outermost class of the text, with the parameters.
    - `namespace`: the Python module that the text defines.
    - `names`: the name of each array of `model` in the file of weights, and its name in the
        container; for stacked arrays, a tuple of names.
    - `messages`: what could not be written as requested, and what was written instead.
    - `layouts`: for arrays whose axes differ from those of their variable in the container, the
        order of its axes and the new shape.
    - `certificates`: for each method, how far the recovery is proved, and for which sizes.
    """

    source: str
    model: eqx.Module
    namespace: types.ModuleType
    names: Mapping[str, Nested[str]]
    messages: tuple[str, ...]
    layouts: Mapping[str, Layout] = dataclasses.field(default_factory=dict)
    certificates: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        certificates = "; ".join(dict.fromkeys(self.certificates.values()))
        count = len(self.source.splitlines())
        return f"<Emission of {type(self.model).__name__}: {count} lines; {certificates}>"

    def with_values(self, values: Mapping[str, Value]) -> eqx.Module:
        """The model with other arrays, given by their names in the container.

        An `eqx.nn.StateIndex` is kept, so that a state of one model works with the other.
        """
        return put_values(self.model, self.names, self.layouts, values)


def put_values(
    model: M,
    names: Mapping[str, Nested[str]],
    layouts: Mapping[str, Layout],
    values: Mapping[str, Value],
) -> M:
    """A written model with other arrays; see `Emission` for `names` and `layouts`."""
    leaves, tree = jax.tree_util.tree_flatten(model, is_leaf=is_index)
    new = []
    for (path, names_of_leaf), old in zip(names.items(), leaves, strict=True):
        known = set(stack.leaves_of(names_of_leaf)) <= values.keys()
        value = weights.arranged(names_of_leaf, layouts.get(path), values) if known else old
        new.append(eqx.nn.StateIndex(value) if is_index(old) > is_index(value) else value)
    return jax.tree_util.tree_unflatten(tree, new)


@dataclasses.dataclass(frozen=True)
class Origin:
    """The origin of a written model's arrays; `Emission` explains `names` and `layouts`.

    **Arguments:**

    - `shapes`: shapes of the container's variables, by name.
    """

    names: Mapping[str, Nested[str]]
    layouts: Mapping[str, Layout]
    shapes: Mapping[str, tuple[int, ...]]

    def values(self, leaves: Sequence[Value]) -> dict[str, Value]:
        """A model's arrays under the names and in the shapes of the container."""
        found: dict[str, Value] = {}
        for (path, names), array in zip(self.names.items(), leaves, strict=True):
            found |= weights.spread(names, self.layouts.get(path), array, self.shapes)
        return found


def is_index(x: object) -> bool:
    """Return whether a leaf of a module stands for a value in its state."""
    return isinstance(x, eqx.nn.StateIndex)


def constant_name(method: str, i: int) -> str:
    """A name for a constant of a program, which has none in the container."""
    return f"constant_{i}" if method == CALL else f"{method}/constant_{i}"
