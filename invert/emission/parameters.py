"""The constants and parameters that programs share: their values, names and use."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence

import jax
import numpy as np

from invert._private.jax import rename
from invert.emission.constructors.starts import Starts, has_keras_names
from invert.emission.emitted import constant_name
from invert.emission.layers.cut import Path
from invert.emission.layers.scans import Stack
from invert.emission.layers.tree import SCALES, SUMMANDS, split_name
from invert.emission.layers.tree import constant_name as name_by_use
from invert.emission.recovered import Recovered
from invert.emission.sizes.program import Program
from invert.ir import kinds
from invert.ir.graph import is_number, is_var
from invert.ir.sizes import DimSize
from invert.ir.types import Eqn, Jaxpr, Value, Var

# The rows by which a table is known.
_TOLD = 8
# Larger arrays are not searched for other numbers than zeros and ones.
_LARGEST_MASK = 1 << 12


class Parameters:
    """Constants and parameters of some programs, by their shared variables.

    **Attributes:**

    - `values`, `paths`: their values and names; `containers`: their names in the container.
    - `held`: those in the state.
    """

    def __init__(self, recovered: Mapping[str, Recovered]):
        self._recovered = recovered
        self.values: dict[Var, Value] = {}
        self.paths: dict[Var, Path] = {}
        self.containers: dict[Var, str] = {}
        self.held: set[Var] = set()
        self._shared: dict[Hashable, Var] = {}

    def share(self, method: str, program: Program) -> Program:
        """The program over the variables of parameters that all programs share."""
        recovered = self._recovered[method]
        params = recovered.entry.params
        jaxpr = program.jaxpr
        count = len(recovered.constants)
        own = jaxpr.invars[: recovered.held_count]
        users, computed = _users([jaxpr]), _computed([jaxpr])
        names: dict[Var, Var] = {}
        for i, (v, value) in enumerate(zip(own, recovered.constants, strict=False)):
            key = (value.dtype, value.shape, value.tobytes()) if len(self._recovered) > 1 else v
            names[v] = self._shared.setdefault(key, v)
            if names[v] is v:
                number = i if recovered.numbers is None else recovered.numbers[i]
                self.values[v], self.containers[v] = value, constant_name(method, number)
                self.paths[v] = (_name_by_values(value) or name_by_use(v, users, computed),)
        for v, param, held in zip(own[count:], params, recovered.in_state, strict=True):
            names[v] = self._shared.setdefault(param.name, v)
            if names[v] is v:
                self.values[v], self.containers[v] = param.value, param.name
                self.paths[v] = split_name(param.path or param.name)
                if held:
                    self.held.add(v)
        invars = [names.get(v, v) for v in jaxpr.invars]
        renamed = rename(jaxpr, names).replace(invars=invars)
        return dataclasses.replace(program, jaxpr=renamed)

    def flags(self) -> dict[Var, bool | None]:
        """Return whether each parameter is trained; `None` for constants."""
        params = [p for r in self._recovered.values() for p in r.entry.params]
        flags = {p.name: p.trainable for p in params}
        return {v: flags.get(name) for v, name in self.containers.items()}

    def constants(self) -> dict[Var, Value]:
        """The values of the constants that are not weights."""
        params = [p.name for r in self._recovered.values() for p in r.entry.params]
        known = {v for v, name in self.containers.items() if name in params}
        # If a program has no parameters, its constants are the weights, except integer tables.
        return {
            v: value
            for v, value in self.values.items()
            if v not in known and (params or not jax.numpy.issubdtype(value.dtype, np.inexact))
        }

    def starts(self, jaxprs: Iterable[Jaxpr], stacks: Sequence[Stack] = ()) -> Starts:
        """The initial values of the parameters, and of the rows of stacked ones."""
        params = [p.name for r in self._recovered.values() for p in r.entry.params]
        values = self.constants()
        every = [*jaxprs, *(stack.body for stack in stacks)]
        users, computed = _users(every), _computed(every)
        # A stacked parameter has no users but its loop.
        own = [*self.values, *(v for stack in stacks for v in stack.rows)]
        uses = {v: name_by_use(v, users, computed) for v in own}
        scales = {
            v
            for v, use in uses.items()
            if use in SCALES and (len(v.aval.shape) < 2 or _scales_larger(v, users, v.aval.size))
        }
        added = {
            v
            for v, use in uses.items()
            if use in SUMMANDS or _is_joined(v, users) or _is_looked_up(v, users)
        }
        inputs_first = {v for v in own if _is_multiplied(v, users, 2)}
        split = {v for v in own if _is_multiplied(v, users, 3)}
        names = {v: path[-1] for v, path in self.paths.items()}
        keras = any(r.entry.keras for r in self._recovered.values()) or has_keras_names(params)
        lstm = _forgetful(self.paths) if keras else frozenset()
        held = frozenset(self.held)
        return Starts(
            names,
            values,
            scales,
            held,
            keras,
            lstm,
            split,
            added,
            inputs_first,
            beside_one={v for v in own if _is_beside_one(v, users)},
            several={v for v in own if _is_several(v, users)},
            outputs_first={v for v in own if _has_outputs_first(v, users)},
        )


def _users(jaxprs: Iterable[Jaxpr]) -> dict[Var, list[Eqn]]:
    users: dict[Var, list[Eqn]] = collections.defaultdict(list)
    for jaxpr in jaxprs:
        for eqn in jaxpr.eqns:
            for atom in filter(is_var, eqn.invars):
                users[atom].append(eqn)
    return users


def _computed(jaxprs: Iterable[Jaxpr]) -> dict[Var, Eqn | None]:
    """The arguments of programs, and the results of equations on variables with these equations."""
    found: dict[Var, Eqn | None] = {}
    for jaxpr in jaxprs:
        found.update(dict.fromkeys(jaxpr.invars))
        for eqn in jaxpr.eqns:
            if any(map(is_var, eqn.invars)):
                found.update(dict.fromkeys(eqn.outvars, eqn))
    return found


def _forgetful(paths: Mapping[Var, Path]) -> frozenset[Var]:
    """The biases of LSTMs, identified by the kernels next to them."""
    sizes = {p[:-1]: v.aval.shape for v, p in paths.items() if p[-1] == "recurrent_kernel"}
    return frozenset(
        v
        for v, p in paths.items()
        if p[-1] == "bias"
        and (shape := sizes.get(p[:-1])) is not None
        and len(shape) >= 2
        and v.aval.shape == shape[-1:]
        and shape[-1] == 4 * shape[-2]
    )


def _is_multiplied(v: Var, users: Mapping[Var, Sequence[Eqn]], rank: int) -> bool:
    """Return whether an array with this many axes is only multiplied along its first one."""
    if len(v.aval.shape) != rank or not users.get(v):
        return False
    return all(
        kinds.computes(e) == "dot_general"
        and e.invars[1] is v
        and tuple(kinds.product_axes(e)[0][1]) == (0,)
        for e in users[v]
    )


def _is_beside_one(v: Var, users: Mapping[Var, Sequence[Eqn]]) -> bool:
    """Return whether an array, possibly broadcast, is only added to one."""
    own = users.get(v, ())
    if own and all(e.primitive.name == "broadcast_in_dim" for e in own):
        return all(_is_beside_one(e.outvars[0], users) for e in own)
    return bool(own) and all(
        e.primitive.name == "add" and any(is_number(a, 1) for a in e.invars) for e in own
    )


def _scales_larger(v: Var, users: Mapping[Var, Sequence[Eqn]], size: int) -> bool:
    """Return whether an array only scales larger ones, whose rows are not summed next.

    So do the factors of a normalization over several axes, but not a kernel that is masked, or
    whose product is written as a sum.
    """
    own = users.get(v, ())
    if own and all(e.primitive.name in kinds.LAYOUT for e in own):
        return all(_scales_larger(e.outvars[0], users, size) for e in own)

    def scales(eqn: Eqn) -> bool:
        (out,) = eqn.outvars if eqn.primitive.name == "mul" else (None,)
        if out is None or not all(map(is_var, eqn.invars)):
            return False
        summed = any(e.primitive.name == "reduce_sum" for e in users.get(out, ()))
        return not summed and not _is_at_most(out.aval.shape, size)

    return bool(own) and all(map(scales, own))


def _is_at_most(shape: Sequence[DimSize], size: int) -> bool:
    """Return whether an array of fixed shape has no more elements than a number."""
    return all(isinstance(n, int) for n in shape) and math.prod(shape) <= size


def _is_several(v: Var, users: Mapping[Var, Sequence[Eqn]]) -> bool:
    """Return whether an array holds matrices along its first axis, each of inputs and outputs."""

    def contracts_second(eqn: Eqn) -> bool:
        if eqn.primitive.name != "dot_general":
            return False
        axes = eqn.params["dimension_numbers"][0][eqn.invars[0] is not v]
        return tuple(axes) == (1,)

    own = users.get(v, ())
    return len(v.aval.shape) == 3 and bool(own) and all(map(contracts_second, own))


def _has_outputs_first(v: Var, users: Mapping[Var, Sequence[Eqn]]) -> bool:
    """Return whether the last axes of a convolution's kernel are its outputs and inputs."""
    last = (len(v.aval.shape) - 2, len(v.aval.shape) - 1)

    def ends_with_inputs(eqn: Eqn) -> bool:
        if eqn.primitive.name == "rev":
            return _has_outputs_first(eqn.outvars[0], users)
        convolved = eqn.primitive.name == "conv_general_dilated" and eqn.invars[1] is v
        return convolved and tuple(eqn.params["dimension_numbers"].rhs_spec[:2]) == last

    own = users.get(v, ())
    return bool(own) and all(map(ends_with_inputs, own))


def _is_looked_up(v: Var, users: Mapping[Var, Sequence[Eqn]]) -> bool:
    """Return whether rows of an array are looked up."""
    return any(e.primitive.name == "gather" and e.invars[0] is v for e in users.get(v, ()))


def _is_mask(value: Value) -> bool:
    """Return whether an array consists of zeros and ones, of both."""
    return value.size <= _LARGEST_MASK and {*np.unique(value)} == {0, 1}


def _name_by_values(value: Value) -> str:
    """A name for a constant whose values say what it is, otherwise `""`."""
    if _is_mask(value):
        return "mask"
    return "positional_encoding" if _is_sinusoidal(value) else ""


def _is_sinusoidal(value: Value) -> bool:
    """Return whether rows hold sines and cosines of angles, interleaved or concatenated."""
    rows, columns = value.shape[-2:] if len(value.shape) > 1 and value.size else (0, 0)
    if not jax.numpy.issubdtype(value.dtype, np.floating) or rows < 2 or columns < 4 or columns % 2:
        return False
    # A few rows tell; the constant may be a large table of weights.
    matrix = value[(0,) * (len(value.shape) - 2)]
    first = np.asarray(matrix[:_TOLD], np.float64)
    pairs = (first[:, ::2], first[:, 1::2]), np.split(first, 2, axis=-1)
    unit = any(np.allclose(a**2 + b**2, 1, atol=1e-3) for a, b in pairs)
    return unit and not np.allclose(first, first[:1])


def _is_joined(v: Var, users: Mapping[Var, Sequence[Eqn]]) -> bool:
    """Return whether an array, possibly broadcast, is only concatenated with others."""
    own = users.get(v, ())
    names = {e.primitive.name for e in own}
    if names == {"broadcast_in_dim"}:
        return all(_is_joined(e.outvars[0], users) for e in own)
    return names == {"concatenate"}
