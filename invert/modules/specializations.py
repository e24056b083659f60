"""Recovered programs of an entry point, by the types of its arguments."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh
from jax.typing import DTypeLike

from invert._entry import EntryPoint
from invert._errors import InvertError, SignatureError, first_line, only_refusals, optional_step
from invert._private.jax import SIZE_ERRORS, eval_context, eval_jaxpr, name_stack, undecided
from invert._private.meshes import under_own_settings
from invert._report import Report
from invert.ir import meshes
from invert.ir.meshes import AnyMesh
from invert.ir.sizes import (
    Constraint,
    DimSize,
    Shape,
    dimension,
    evaluate,
    is_open,
    listening,
    parsed,
    scope,
    solve,
    suggest,
    suggest_divisions,
    variables,
)
from invert.ir.substitution import substitute
from invert.ir.types import Aval, Jaxpr, Value
from invert.modules.dimensions import (
    dimension_order,
    independent,
    named_shapes,
    scope_of,
    symbolic_shapes,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Specialization:
    """A recovered program for given argument types, whose sizes may be open.

    **Arguments:**

    - `jaxpr`: takes the constants, then the parameters, then the flat arguments.
    - `constants`: values of the leading arguments of `jaxpr`.
    - `report`: how it was recovered.
    - `shapes`: those of the flat arguments.
    - `names`: the names of the dimensions, by their names in the trace.
    - `constraints`: conditions on the open sizes under which the program equals the original.
    - `reverse_only`: the gradients of the container that are kept for reverse mode only, in words.
    - `settled`: the program rewritten at concrete sizes: a loop of known trip count is a `scan`.
    - `recognized`: a part of the program with the library functions that it consists of; `None` if
        no part of it is a backward pass.
    """

    jaxpr: Jaxpr
    constants: tuple[np.ndarray, ...]
    report: Report
    x64: bool
    shapes: tuple[Shape, ...] = ()
    names: Mapping[str, DimSize] = dataclasses.field(default_factory=dict)
    constraints: tuple[Constraint, ...] = ()
    reverse_only: tuple[str, ...] = ()
    settled: Callable[[Jaxpr], Jaxpr] = lambda jaxpr: jaxpr
    recognized: Callable[[Jaxpr], Jaxpr] | None = lambda jaxpr: jaxpr
    _sized: dict[Hashable, Specialization] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def is_open(self) -> bool:
        """True if any argument has an open size."""
        return any(is_open(n) for shape in self.shapes for n in shape)

    def at(self, shapes: Sequence[Sequence[DimSize]]) -> Specialization | None:
        """The program at concrete argument shapes; `None` if its constraints do not hold."""
        sizes = solve(self.shapes, shapes)
        if sizes is None or not all(c.holds(sizes) for c in self.constraints):
            return None
        if not self.is_open:  # conditions may have determined all sizes
            return self
        key = tuple(sizes.items())
        if key not in self._sized:
            jaxpr = substitute(self.jaxpr, sizes)
            if not any(map(is_open, sizes.values())):
                jaxpr = self.settled(jaxpr)
            shape = tuple(map(tuple, shapes))
            self._sized[key] = dataclasses.replace(self, jaxpr=jaxpr, shapes=shape, _sized={})
        return self._sized[key]

    @functools.cached_property
    def meshes(self) -> Mapping[AbstractMesh, frozenset[str]]:
        """The device meshes that it names, each with its manual axes."""
        return meshes.meshes_of(self.jaxpr)

    def run(self, *values: Value, on: Mapping[AbstractMesh, AnyMesh] | None = None) -> list[Value]:
        """Evaluate the program on arrays or tracers; `on` replaces its meshes.

        **Raises:** `SignatureError` if a size that it computes with is too large for its integers.
        """

        def evaluate(values: Sequence[Value]) -> list[Value]:
            if not on:
                try:
                    return eval_jaxpr(self.jaxpr, values)
                except OverflowError as error:  # only sizes are Python numbers
                    message = f"the program computes with too large a size: {error}"
                    raise SignatureError(message, remedy="Pass arrays of smaller sizes.") from error
                except TypeError as error:
                    self._explain(error)
                    raise
            chosen = on
            return meshes.MeshRetracer(lambda mesh: chosen.get(mesh.abstract_mesh, mesh))(
                self.jaxpr, values
            )

        if not self.x64:
            return evaluate(values)
        # 64-bit values are allowed regardless of `jax_enable_x64`, as in the module.
        with jax.enable_x64(True):
            widened = [
                widen(x, v.aval.dtype) for x, v in zip(values, self.jaxpr.invars, strict=True)
            ]
            return evaluate(widened)

    def _explain(self, error: TypeError) -> None:
        """Name the kept gradients in JAX's error for forward mode, which names no function."""
        if "custom_vjp" in str(error):
            for line in self.reverse_only:
                error.add_note(f"A gradient of the container has reverse mode only: {line}")


def _pattern(shapes: Sequence[Sequence[int | str]]) -> Hashable:
    """A partition of the sizes: equal names get equal numbers."""
    names = {n: i for i, n in enumerate(dict.fromkeys(n for s in shapes for n in s))}
    return tuple(tuple(names[n] for n in s) for s in shapes)


def _under(
    assumed: Sequence[Constraint], new: Sequence[Constraint], stage: Specialization
) -> Specialization:
    """The program for all sizes, with the constraints under which it holds.

    `assumed` are those under which it was traced, `new` those that the trace met.
    """
    # Only one of two equal dimensions is left.
    held = {str(d) for s in stage.shapes for d in variables(s)}
    constraints = [*assumed, *new]
    named = sorted({d for c in constraints for d in c.dimensions})
    left = dict(zip(named, map(_unbound, parsed(named, scope_of(assumed))), strict=True))
    constraints = [c.at(left) for c in constraints]
    if stage.names:
        known = [c for c in constraints if c.dimensions <= stage.names.keys()]
        constraints = [c.at({d: _unbound(n) for d, n in stage.names.items()}) for c in known]
    constraints = [c for c in constraints if c.dimensions <= held]
    of = scope_of(independent([c.tidy() for c in constraints]))
    names = {str(d): parsed((str(d),), of)[0] for s in stage.shapes for d in variables(s)}
    # A dimension that the constraints determine is replaced in the constraints as well.
    gone = {d: n for d, n in names.items() if str(n) != d}
    plain = {d: parsed((d,), scope())[0] for d in names}
    plain |= {d: evaluate(n, plain) for d, n in gone.items()}
    constraints = [c.at(plain) if c.dimensions & gone.keys() else c for c in constraints]
    kept = independent([c.tidy() for c in constraints if not c.always_holds()])
    # The functions of an unchanged program keep their derivative rules.
    open_sizes = [d for shape in stage.shapes for d in variables(shape)]
    if gone or any(d.scope is not of for d in open_sizes):  # pyright: ignore
        stage = dataclasses.replace(
            stage,
            jaxpr=substitute(stage.jaxpr, names),
            shapes=tuple(tuple(evaluate(n, names) for n in shape) for shape in stage.shapes),
        )
    certificate = stage.report.certificate
    dimensions = variables(n for shape in stage.shapes for n in shape)
    least = {str(c.left): c for c in kept if c.relation == "ge" and not is_open(c.right)}
    words = [least.pop(str(d)).words() if str(d) in least else f"{d} >= 1" for d in dimensions]
    words += [c.words() for c in kept if c.words() not in words]
    sizes = ", ".join(words)
    certificate = dataclasses.replace(certificate, sizes=sizes)
    report = dataclasses.replace(stage.report, certificate=certificate)
    return dataclasses.replace(stage, report=report, constraints=kept)


def _unbound(size: DimSize) -> DimSize:
    """A size in a scope without conditions, in which none is implied."""
    return parsed((str(size),), scope())[0]


# Traces at sizes that all differ: of many arguments, each may meet another pair of equal sizes.
_ROUNDS = 4


# Programs require some sizes to be at least others: an array must be as long as its slice. So `<`
# and `>` are assumed to be false.
_WANTED = {"<=": "le", ">=": "ge", "<": "ge", ">": "le"}


def _suggest_undecided(error: Exception) -> None:
    """Suggest the undecided comparison of sizes in an error as an assumption."""
    if (comparison := undecided(error)) is not None:
        left, right = parsed((comparison[0], comparison[2]), scope())
        if suggest_divisions(left - right):
            return
        suggest(Constraint(_WANTED[comparison[1]], left, right))


def _same_sizes(refusal: str, names: Sequence[str]) -> list[Constraint]:
    """The equality of two sizes, if an error names them."""
    named = [n for n in names if re.search(rf"\b{n}\b", refusal)]
    if len(named) != 2:
        return []
    left, right = parsed(named, scope())
    return [Constraint("eq", left, right)]


def _only_equal(constraints: Sequence[Constraint]) -> bool:
    """Return whether all constraints on several sizes say that they are equal."""
    return all(c.relation == "eq" for c in constraints if len(c.dimensions) > 1)


def _later_replaced(constraint: Constraint, names: Sequence[str]) -> Constraint:
    """An equality of dimensions with the later one left, where JAX replaces it."""
    left, right = dimension(constraint.left), dimension(constraint.right)
    if constraint.relation != "eq" or left not in names or right not in names:
        return constraint
    if names.index(left) > names.index(right):
        return constraint
    return dataclasses.replace(constraint, left=constraint.right, right=constraint.left)


# Raised if a program cannot be recovered for all sizes. A comparison is undecided, shapes do not
# match, or code of JAX or NumPy needs a number. All others are defects.
NO_EXPRESSION = (*SIZE_ERRORS, InvertError, TypeError, ValueError, NotImplementedError)


# Recovers the program of an entry point for argument types.
Recover: TypeAlias = Callable[[EntryPoint, Sequence[Aval]], Specialization]
Change: TypeAlias = Callable[[Specialization], Specialization]


class Specializations:
    """Programs of an entry point by argument types, each recovered once.

    As with `jax.jit`, a call with new types makes a new program.

    **Arguments:**

    - `entry`: the entry point.
    - `recover`: recovers its program for argument types, whose sizes may be open.
    """

    def __init__(self, entry: EntryPoint, recover: Recover):
        self.entry = entry
        self.divided = self._refusal = ""
        self._recover = recover
        self._known: dict[Hashable, Specialization] = {}
        # Programs for all sizes, by key type.
        self._whole: dict[Hashable, Specialization | None] = {}

    @property
    def is_static(self) -> bool:
        """True if all argument shapes are static."""
        return all(isinstance(n, int) for spec in self.entry.specs for n in spec.shape)

    def changed(self, change: Change) -> Specializations:
        """These programs with `change` applied to each, present and future."""
        return _Changed(self, change)

    def first(self) -> Specialization | None:
        """The program that was recovered first, if any."""
        return next(iter(self._known.values()), None)

    def at(self, shapes: Sequence[Shape], key: DTypeLike | None = None) -> Specialization:
        """The program for argument shapes and the type of a key.

        If the program for all sizes holds there, it is that program at these sizes.
        """
        whole = self.whole(key)
        if whole is not None and (sized := whole.at(shapes)) is not None:
            return sized
        return self.of_types(self._avals(shapes, key))

    def of_types(self, avals: Sequence[Aval]) -> Specialization:
        """The program for these types of the flat arguments and of any key."""
        types = tuple((a.shape, a.dtype) for a in avals)
        if types not in self._known:
            # The caller may be traced; verification and folding run eagerly.
            with eval_context(), under_own_settings(), name_stack(()):
                self._known[types] = self._recover(self.entry, avals)
        return self._known[types]

    def whole(self, key: DTypeLike | None = None) -> Specialization | None:
        """The program for all sizes; `None` for static sizes, or if `divided` says why."""
        if self.is_static:
            return None
        if key not in self._whole:
            self._whole[key] = self._recover_whole(key)
        return self._whole[key]

    def _recover_whole(self, key: DTypeLike | None) -> Specialization | None:
        # Unnamed sizes may be equal, e.g. the lengths of a text and its mask.
        apart, *others = {
            _pattern(shapes): shapes
            for shared in ("none", "batch", "axes")
            for shapes in [named_shapes(self.entry.specs, shared)]
        }.values()
        whole, constraints = self._recover_named(apart, key, _ROUNDS if others else math.inf)
        if whole is not None and _only_equal(constraints):
            return whole
        for shapes in others:
            stage, constraints = self._recover_named(shapes, key)
            if stage is not None and _only_equal(constraints):
                return stage
            # Sizes may be equal only because they share a name.
            whole = whole or stage
        return whole or (self._recover_named(apart, key)[0] if others else None)

    def _recover_named(
        self,
        shapes: Sequence[Sequence[int | str]],
        key: DTypeLike | None,
        rounds: float = math.inf,
    ) -> tuple[Specialization | None, Sequence[Constraint]]:
        """The program at named shapes, and the constraints needed to trace it.

        `rounds`: how often it may be traced, each time under the constraints found so far.
        """
        assumed: list[Constraint] = []
        known: set[str] = set()
        names: list[str] = []
        found: Specialization | None = None
        while rounds > 0 and (symbolic := symbolic_shapes(shapes, assumed)) is not None:
            rounds -= 1
            avals = self._avals(symbolic, key)
            names = names or dimension_order(symbolic)
            with listening() as said:
                stage = optional_step("the program for all sizes", [], self._for_all, avals)
            # Sizes of different scopes never compare equal, so their texts are compared.
            new = [c for c in said.constraints if c.words() not in known]
            if stage is not None:
                found = _under(assumed, new, stage)
                # Equal sizes may fit only if that is known, as those of gradients and arguments.
                if not any(c.relation == "eq" for c in new):
                    return found, [*assumed, *new]
            elif found is not None:
                break
            else:
                self.divided = self.divided or "a defect; see the warning"
            # The constraints found so far, or assumptions, may decide them.
            new = new or [c for c in said.assumptions if c.words() not in known]
            if not (new or found):
                new = [c for c in _same_sizes(self._refusal, names) if c.words() not in known]
            if not new:
                break
            known |= {c.words() for c in new}
            assumed += [_later_replaced(c.as_bound(), names) for c in new]
        return found, assumed

    def _for_all(self, avals: Sequence[Aval]) -> Specialization | None:
        """The program at symbolic sizes, if any."""
        try:
            with only_refusals():
                return self.of_types(avals)
        except NO_EXPRESSION as error:
            reason = error.line if isinstance(error, InvertError) else first_line(error)
            places = getattr(error, "__notes__", []) if isinstance(error, SIZE_ERRORS) else []
            self._refusal, self.divided = reason, ", ".join([reason, *places])
            _suggest_undecided(error)
            return None

    def _avals(
        self, shapes: Sequence[Sequence[DimSize]], key: DTypeLike | None
    ) -> list[jax.ShapeDtypeStruct]:
        avals = [
            jax.ShapeDtypeStruct(tuple(shape), spec.dtype)
            for shape, spec in zip(shapes, self.entry.specs, strict=True)
        ]
        return avals if key is None else [*avals, jax.ShapeDtypeStruct((), key)]


class _Changed(Specializations):
    def __init__(self, before: Specializations, change: Change):
        super().__init__(before.entry, lambda entry, avals: change(before.of_types(avals)))
        self._before, self._change = before, change

    def _recover_whole(self, key: DTypeLike | None) -> Specialization | None:
        # A new trace would not report the conditions on sizes met before.
        whole, self.divided = self._before.whole(key), self._before.divided
        return None if whole is None else self._change(whole)


def widen(value: Value, dtype: DTypeLike) -> Value:
    """Convert between the program's dtype and the narrower one without x64."""
    return value if value.dtype == dtype else jnp.asarray(value).astype(dtype)
