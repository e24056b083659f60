"""State: variables that a program assigns, read and written as in Equinox.

An assignment is a step of the layer that holds both the variable and the new value. Once the layers
are known, the state is threaded through their steps as an additional value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
from jax.extend.core import Primitive

from invert.emission.layers.cut import Assign, Layer, LayerCall, Path
from invert.ir.graph import read_by
from invert.ir.types import Atom, Eqn, Params, ShapedArray, Var


class StateVar(Var):
    """The state between two steps; replaces a variable."""

    def __init__(self) -> None:
        super().__init__(ShapedArray((), jax.dtypes.float0))


_GET = Primitive("state_get")


@dataclasses.dataclass(eq=False)
class Read(Eqn):
    """`variable = state.get(self.variable)`; replaces an equation, see `Assign`."""

    variable: Var
    invars: list[Atom]
    outvars: list[Var]
    place: Path = ()
    primitive: Primitive = _GET
    params: Params = dataclasses.field(default_factory=dict)


def thread(root: Layer, held: set[Var]) -> tuple[StateVar, StateVar]:
    """Thread the state through the steps of a program.

    Layers that read or assign variables take it as their last argument; those that assign return it
    as their last result.

    **Arguments:**

    - `held`: variables of the parameters that are in the state.

    **Returns:** the first and the last state of the program.
    """
    return _thread(root, held, outermost=True)


def _thread(layer: Layer, held: set[Var], *, outermost: bool) -> tuple[StateVar, StateVar]:
    before = state = StateVar()
    steps: list[Eqn] = []
    used = {*read_by(layer.steps), *layer.results}
    for v in layer.parameters:
        if v in held and v in used:
            steps.append(Read(v, [state], [v]))
    for step in layer.steps:
        if isinstance(step, Assign):
            after = StateVar()
            step.invars, step.outvars = [state, *step.invars], [after]
            state = after
        elif isinstance(step, LayerCall):
            inner = step.layer
            given = list(inner.inputs)
            entered, left = _thread(inner, held, outermost=False)
            if any(a is entered for a in inner.inputs):
                step.invars = [*given, state]
            if left is not entered:
                state = StateVar()
                step.outvars = [*inner.results[:-1], state]
        steps.append(step)
    layer.steps = steps
    if not outermost:
        if any(a is before for step in steps for a in step.invars):
            layer.inputs = [*layer.inputs, before]
        if state is not before:
            layer.outputs = [*layer.outputs, state]
    return before, state


def locate(layer: Layer, at: Mapping[Layer, Path], places: Mapping[Var, Path]) -> None:
    """Set the paths of the indices that steps read or assign.

    **Arguments:**

    - `at`, `places`: paths of layers and parameters from the outermost module.
    """
    for step in layer.steps:
        if isinstance(step, LayerCall):
            locate(step.layer, at, places)
        elif isinstance(step, (Assign, Read)):
            step.place = places[step.variable][len(at[layer]) :]
