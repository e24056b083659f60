"""Names of the inputs of layers: after their use, the layers that make them, or arguments."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import jax.numpy as jnp

from invert.emission.layers import roles
from invert.emission.layers.cut import NUMBER, Layer, LayerCall, calls
from invert.emission.layers.library_names import without_number
from invert.emission.layers.lists import Lists
from invert.emission.layers.memory import Memories, is_tested, residuals, skips
from invert.emission.layers.tree import Tree, parameters_of
from invert.emission.python.naming import stem
from invert.emission.python.nouns import STREAM, of_field, says
from invert.ir import kinds
from invert.ir.graph import is_var
from invert.ir.types import Atom, Var

# Names of layers by what they compute, which say nothing about their results.
_PRODUCTS = frozenset(("linear", "conv"))


@dataclasses.dataclass
class InputNames:
    """Finds the names of the inputs of the layers in a tree.

    **Arguments:**

    - `called`: the names of the program's arguments.
    """

    tree: Tree
    lists: Lists
    memories: Memories
    called: Mapping[Var, str]

    def of(self, layer: Layer) -> dict[Var, str]:
        """The names of those inputs of a layer for which one is known."""
        made, told = self._of_makers(layer), {**self._passed(layer), **self.memories.of(layer)}
        if not parameters_of(layer) and not layer.children:
            return {**told, **made}
        # Other inputs than the stream are named after their makers, as `time` is.
        beside = {v: without_number(n) for v, n in made.items() if v is not self._stream(layer)}
        return {**beside, **told, **(residuals(layer) or skips(layer))}

    def _passed(self, layer: Layer) -> dict[Var, str]:
        """The names of inputs that are arguments of the program, besides those of an array.

        What is passed through a list of layers is `x`.
        """
        if len(layer.inputs) < 2:
            return {}
        stream, listed = self._stream(layer), layer in self.lists.series
        given = {v: self.called.get(v, "") for v in layer.inputs if v is not stream}
        names = {v: n for v, n in given.items() if says(n)}
        tested = [v for v in layer.inputs if is_tested(v, layer.steps)]
        masks = {tested[0]: roles.MASK} if len(tested) == 1 else {}
        return masks | names | ({stream: STREAM} if listed and stream is not None else {})

    def _stream(self, layer: Layer) -> Var | None:
        """The input that a layer changes: that of its list, or the first array of real numbers."""
        if (loop := self.lists.series.get(layer)) is not None:
            return layer.inputs[loop.stream]
        arrays = (v for v in layer.inputs if jnp.issubdtype(v.aval.dtype, jnp.inexact))
        return next(arrays, None)

    def _of_makers(self, layer: Layer) -> dict[Var, str]:
        """Name the inputs of a layer after the layers that compute them.

        Where layers of its name are called several times, those of all calls have one name.
        """
        if len(layer.inputs) < 2:
            return {}
        around = [own for own in self._calls if any(layer in (c.layer, c.layer.same) for c in own)]
        own_name = without_number(stem(layer.name))
        again = [c for s in around for c in s if without_number(stem(c.layer.name)) == own_name]
        names: dict[Var, str] = {}
        for i, v in enumerate(layer.inputs):
            given = (a for c in again for a in c.invars[i : i + 1] if is_var(a))
            own = {self._makers.get(a, "") for a in given}
            if len(own) == 1 and (name := own.pop()) and not name.isdigit():
                names[v] = of_field(name)
        return names if len(set(names.values())) == len(names) else {}

    @functools.cached_property
    def _calls(self) -> list[list[LayerCall]]:
        """The layers that each layer calls."""
        return [list(calls(layer.steps)) for layer in self.tree.programs]

    @functools.cached_property
    def _makers(self) -> dict[Atom, str]:
        """For values that a layer returns, or that depend on one of its results, its field."""
        found: dict[Atom, str] = {}
        for step in (s for layer in self.tree.programs for s in layer.steps):
            if isinstance(step, LayerCall) and step.layer in self.tree.names:
                field = self.tree.names[step.layer].split(".")[-1]
                if NUMBER in step.layer.name and without_number(field) in _PRODUCTS:
                    continue
                found |= dict.fromkeys(step.outvars, field)
            elif not isinstance(step, LayerCall) and step.primitive.name in kinds.ELEMENTWISE:
                own = {found.get(a, "") for a in step.invars if is_var(a)}
                if len(own) == 1 and (field := own.pop()):
                    found |= dict.fromkeys(step.outvars, field)
        return found
