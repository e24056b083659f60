"""Names inputs of layers after their use: a decoder's memory, an attention's mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax.numpy as jnp

from invert.emission.layers import links, roles
from invert.emission.layers.cut import Layer, LayerCall
from invert.emission.layers.shared import RESIDUAL
from invert.ir import kinds
from invert.ir.graph import Graph
from invert.ir.types import Atom, Eqn, Jaxpr, Var

# An input from which a layer computes only keys and values, and no queries.
MEMORY = "memory"
# One that is joined to what is computed from another one.
_SKIP = "skip"


class Memories:
    """Finds the inputs that layers use as a memory, or add to scores.

    **Arguments:**

    - `jaxpr`: the program.
    """

    def __init__(self, jaxpr: Jaxpr):
        self._jaxpr = jaxpr
        self._found: dict[Layer, Mapping[Var, str]] = {}

    def of(self, layer: Layer) -> Mapping[Var, str]:
        """The names of such inputs of a layer; several inputs used alike have none."""
        if layer not in self._found:
            self._found[layer] = {}
            if len(layer.inputs) > 1:
                jaxpr = self._jaxpr.replace(eqns=layer.steps, outvars=layer.outputs)
                known = roles.roles(Graph(jaxpr))
                named = {v: self._name(v, layer, known) for v in layer.inputs}
                names = [*named.values()]
                self._found[layer] = {v: n for v, n in named.items() if n and names.count(n) == 1}
        return self._found[layer]

    def _name(self, v: Var, layer: Layer, known: Mapping[Atom, str]) -> str:
        """The name that all uses of an input give it, or `""`; positions have none."""
        if jnp.issubdtype(v.aval.dtype, jnp.integer):
            return ""
        users = links.users(v, layer.steps)
        found = {self._used_as(v, user, layer, known) for user in users}
        return found.pop() if len(found) == 1 else ""

    def _used_as(self, v: Var, user: Eqn, layer: Layer, known: Mapping[Atom, str]) -> str:
        if isinstance(user, LayerCall) and len(user.invars) == len(user.layer.inputs):
            inner = self.of(user.layer)
            pairs = zip(user.invars, user.layer.inputs, strict=True)
            names = {inner.get(w, "") for a, w in pairs if a is v}
            if names != {""}:
                return names.pop() if len(names) == 1 else ""
        if all(known.get(out) in ("key", "value") for out in user.outvars):
            return MEMORY
        if isinstance(user, LayerCall) and len(user.invars) == len(user.outvars) == 1:
            # What a layer, such as a normalization, makes of a memory.
            (out,) = user.outvars
            if out not in layer.outputs and self._name(out, layer, known) == MEMORY:
                return MEMORY
        return known.get(v, "") if known.get(v) in roles.ADDED_TO_SCORES else ""


def skips(layer: Layer) -> dict[Var, str]:
    """A layer's second input, joined to what is computed from the first."""
    if len(layer.inputs) != 2:
        return {}
    _, v = layer.inputs
    users = links.users(v, layer.steps)
    joins = len(users) == 1 and users[0].primitive.name == "concatenate"
    return {v: _SKIP} if joins and v not in layer.outputs and v not in layer.arguments else {}


def is_tested(v: Var, steps: Sequence[Eqn]) -> bool:
    """Return whether integers, possibly reshaped, are only compared or taken as booleans."""
    users = links.users(v, steps)
    if not users or not jnp.issubdtype(v.aval.dtype, jnp.integer):
        return False

    def tests(step: Eqn) -> bool:
        if isinstance(step, LayerCall):
            given = zip(step.invars, step.layer.inputs, strict=False)
            return all(is_tested(w, step.layer.steps) for a, w in given if a is v)
        if step.primitive.name in kinds.LAYOUT:
            return is_tested(step.outvars[0], steps)
        return [w.aval.dtype for w in step.outvars] == [jnp.bool_]

    return all(map(tests, users))


def residuals(layer: Layer) -> dict[Var, str]:
    """The inputs that a layer only adds to a function of its first one."""
    found: dict[Var, str] = {}
    for v in layer.inputs[1:]:
        users = links.users(v, layer.steps)
        if len(users) != 1 or not isinstance(v.aval.shape, tuple):
            continue
        (user,) = users
        if isinstance(user, LayerCall):
            inner = user.layer.inputs[user.invars.index(v)]
            adds = inner in residuals(user.layer)
        else:
            shapes = [r.aval.shape for r in layer.results]
            adds = user.primitive.name == "add" and shapes == [v.aval.shape]
        if adds:
            found[v] = RESIDUAL
    return found if len(found) == 1 else {}
