"""Traces the methods of a text, and compares them with their programs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

import equinox as eqx
import jax

from invert._errors import EmissionError, only_refusals
from invert._private.jax import SIZE_ERRORS, open_jaxpr, trace_closed
from invert.emission import main_class
from invert.emission.emitted import is_index
from invert.emission.equal_layers import traced_once
from invert.emission.equinox_nn.weights import Weights
from invert.emission.recovered import Recovered
from invert.ir import meshes, traced_form
from invert.ir.arrays import device_array
from invert.ir.avals import type_of_key
from invert.ir.interpret import without_outer_call
from invert.ir.jaxprs import map_jaxprs
from invert.ir.match import equivalent
from invert.ir.merging import with_shared_functions
from invert.ir.types import AnyJaxpr, Aval, Value, Var
from invert.ir.written_form import without_neutral


@dataclasses.dataclass(frozen=True)
class Outermost:
    """The outermost class of a text, and the arrays of its instance.

    **Arguments:**

    - `namespace`: the text.
    - `name`: that of the class.
    - `leaves`: the variables of the arrays, in the order of the instance's leaves.
    - `values`: the values of parameters.
    - `held`: the parameters in the state.
    """

    namespace: ModuleType
    name: str
    leaves: Sequence[Var]
    values: Mapping[Var, Value]
    held: Collection[Var]
    weights: Weights

    @property
    def cls(self) -> type[eqx.Module]:
        return getattr(self.namespace, self.name)

    def _layers_once(self) -> contextlib.AbstractContextManager[None]:
        return traced_once(self.namespace, self.name)

    @functools.cached_property
    def _structure(self) -> jax.tree_util.PyTreeDef:
        """The tree of an instance, from a trace of the constructor."""
        keyed = "key" in inspect.signature(self.cls).parameters
        # Without a warning that 64-bit types are narrowed.
        with jax.enable_x64(True), self._layers_once():
            like = eqx.filter_eval_shape(self.cls, **({"key": type_of_key()} if keyed else {}))
        return jax.tree_util.tree_structure(like, is_leaf=is_index)

    def _filled(self, values: dict[Var, Value]) -> Any:
        """An instance with some arrays; those of the state become indices in `values` too."""
        values |= {v: eqx.nn.StateIndex(values[v]) for v in self.held}
        return jax.tree_util.tree_unflatten(self._structure, [values[v] for v in self.leaves])

    def instance(self, *, x64: bool) -> Any:
        """An instance with the parameters."""
        with jax.enable_x64(x64):
            arrays = {v: device_array(self.weights.array(v, self.values)) for v in self.leaves}
            return self._filled(arrays)

    def compare(self, method: str, recovered: Recovered, own: Sequence[Var]) -> None:
        """Trace a method at its program's sizes, perhaps open, and compare the two.

        **Arguments:**

        - `method`: the name of the compiled method.
        - `own`: the variables of the constants and parameters of the program; one may occur twice.

        **Raises:** `EmissionError` if they differ.
        """
        program = recovered.program
        leaves = self.leaves if self.weights.changed else own
        run = self._traceable(method, recovered, own, leaves)
        avals: list[Aval] = [v.aval for v in open_jaxpr(program).invars]
        avals[: len(own)] = map(self.weights.type_of, leaves)
        # What was compared under the first setting, if the second changes nothing about it.
        compared: AnyJaxpr | None = None
        for x64 in (True,) if recovered.x64 else (False, True):
            with jax.enable_x64(x64), jax.threefry_partitionable(recovered.partitionable):
                try:
                    with only_refusals():
                        with meshes.set_for(program), self._layers_once():
                            again = trace_closed(run, *avals)
                        # Derivatives of the text are traced now, under the setting it runs in.
                        again = without_outer_call(meshes.unchecked(again))
                        again = with_shared_functions(again)
                        plain = map_jaxprs(again, without_neutral)
                        if compared is not None and _are_alike(plain, compared):
                            continue
                        difference = self.weights.difference(plain, program, own, leaves)
                        shared = not self.weights.changed and traced_form.has_shared_rules(plain)
                        compared = plain if shared else None
                except (TypeError, ValueError, *SIZE_ERRORS) as error:
                    raise EmissionError(f"the text does not run: {error}") from error
            if difference is not None:
                raise EmissionError(f"the text traces to a different program: {difference}")

    def _traceable(
        self, method: str, recovered: Recovered, own: Sequence[Var], leaves: Sequence[Var]
    ) -> Callable[..., list[Value]]:
        """A method as a function of the module's arrays and flat arguments."""
        entry = recovered.entry
        params = own[len(recovered.constants) :]

        def run(*values: Value) -> list[Value]:
            given = {**self.values, **dict(zip(leaves, values, strict=False))}
            traced = self._filled(given)
            states = [eqx.nn.State(traced)] if any(recovered.in_state) else []
            args, keywords = main_class.given(entry, values[len(leaves) :])
            result = getattr(traced, method)(*args, *states, **keywords)
            result, *flags = result if entry.checks else (result,)
            if not entry.assigned:
                return [*jax.tree_util.tree_leaves(result), *flags]
            result, state = result
            new = [state.get(given[params[i]]) for i in entry.assigned]
            return [*jax.tree_util.tree_leaves(result), *flags, *new]

        return run


def _are_alike(one: AnyJaxpr, other: AnyJaxpr) -> bool:
    """Return whether two traces of a text are one program but for what x64 decides."""
    form = traced_form.of_either_setting
    return equivalent(one, other) or equivalent(form(one), form(other))
