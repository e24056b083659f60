"""Finds the inputs that layers use as a memory, as a decoder uses its encoder's results."""

from __future__ import annotations

from collections.abc import Mapping

from invert.emission.layers import roles
from invert.emission.layers.cut import Layer, LayerCall
from invert.ir.graph import Graph
from invert.ir.types import Atom, Jaxpr, Var

MEMORY = "memory"


class Memories:
    """Finds the inputs from which a layer computes only keys and values, and no queries.

    **Arguments:**

    - `jaxpr`: the program.
    """

    def __init__(self, jaxpr: Jaxpr):
        self._jaxpr = jaxpr
        self._found: dict[Layer, Mapping[Var, str]] = {}

    def of(self, layer: Layer) -> Mapping[Var, str]:
        """The name of the only such input of a layer."""
        if layer not in self._found:
            self._found[layer] = {}
            if len(layer.inputs) > 1:
                jaxpr = self._jaxpr.replace(eqns=layer.steps, outvars=layer.outputs)
                known = roles.roles(Graph(jaxpr))
                found = {v: MEMORY for v in layer.inputs if self._only_kept(v, layer, known)}
                if len(found) == 1:
                    self._found[layer] = found
        return self._found[layer]

    def _only_kept(self, v: Var, layer: Layer, known: Mapping[Atom, str]) -> bool:
        users = [s for s in layer.steps if any(a is v for a in s.invars)]
        for user in users:
            if isinstance(user, LayerCall) and len(user.invars) == len(user.layer.inputs):
                inner = self.of(user.layer)
                pairs = zip(user.invars, user.layer.inputs, strict=True)
                if inner and all(w in inner for a, w in pairs if a is v):
                    continue
            if not all(known.get(out) in ("key", "value") for out in user.outvars):
                return False
        return bool(users)
