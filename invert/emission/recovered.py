"""A recovered program with what its text needs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence, Set

import numpy as np

from invert._entry import ArgSpec, EntryPoint
from invert.emission import main_class
from invert.ir.jaxprs import drawn_under, equations
from invert.ir.sizes import Constraint, is_open
from invert.ir.types import Jaxpr

# At most this many arguments are named in the certificate of a text for fixed sizes.
_FEW = 2


@dataclasses.dataclass(frozen=True)
class Recovered:
    """The programs of an entry point, as they are emitted.

    **Arguments:**

    - `program`: the jaxpr, over constants, parameters and arguments. Its sizes may be open.
    - `certificate`: one line about how far the recovery is proved.
    - `held`: names of the parameters in the state; assigned ones always are.
    - `checkify`: whether assertions are written as `checkify.check` rather than `eqx.error_if`.
    - `fixed`: why the text holds for one size of its open dimensions only, or `""`.
    - `constraints`: conditions on its open dimensions.
    - `begin`: called with a line about each step.
    - `numbers`: for each constant, its number among those of the module; by default its own.
    - `may_be_empty`: the open dimensions whose size may be 0.
    - `recognized`: a part of the program with the library functions that it consists of; `None` if
        no part of it is a backward pass.
    - `derived`: the program with its backward passes as equations of `value_and_grad`.
    """

    entry: EntryPoint
    program: Jaxpr
    constants: Sequence[np.ndarray]
    x64: bool
    certificate: str = ""
    held: Set[str] = frozenset()
    checkify: bool = False
    fixed: str = ""
    constraints: Sequence[Constraint] = ()
    begin: Callable[[str], None] = lambda text: None
    numbers: Sequence[int] | None = None
    may_be_empty: Set[str] = frozenset()
    recognized: Callable[[Jaxpr], Jaxpr] | None = lambda jaxpr: jaxpr
    derived: Jaxpr | None = None

    @functools.cached_property
    def partitionable(self) -> bool:
        """The `jax_threefry_partitionable` that the text needs, for any of its numbers."""
        return all(drawn_under(e) is not False for e in equations(self.program))

    @property
    def in_state(self) -> list[bool]:
        """For each parameter, whether it is in the state."""
        assigned = set(self.entry.assigned)
        return [i in assigned or p.name in self.held for i, p in enumerate(self.entry.params)]

    @property
    def held_count(self) -> int:
        """The number of constants and parameters, which are the program's first arguments."""
        return len(self.constants) + len(self.entry.params)

    @property
    def stated(self) -> str:
        """The certificate, with the sizes of the arguments if none of them is open."""
        certificate, entry = self.certificate, self.entry
        arguments = self.program.invars[self.held_count :]
        shapes = [v.aval.shape for v in arguments[: len(entry.specs)]]
        if not any(shapes) or any(map(is_open, itertools.chain(*shapes))):
            return certificate
        kind, _, rest = certificate.partition(" ")
        if kind == "unverified":
            return certificate
        names, _, _ = main_class.parameters(entry)
        single = [*zip(entry.arg_names, entry.args, strict=True), *entry.kwargs.items()]
        stated = ""
        if all(isinstance(tree, ArgSpec) for _, tree in single):
            # JAX sorts keyword arguments by name; `single` may have another order.
            sizes = dict(zip((*entry.arg_names, *sorted(entry.kwargs)), shapes, strict=True))
            told = [f"{names[n]} of shape {sizes[n]}" for n, _ in single if sizes[n]]
            stated = " and ".join(told) if len(told) <= _FEW else ""
        if not stated:
            stated = "arguments of the sizes below"
        return f"{kind} for {stated}{rest and ' '}{rest}"
