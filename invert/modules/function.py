"""One function of a container: its programs by argument shape, and its call."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jax.sharding import AbstractMesh
from jax.typing import DTypeLike

from invert._config import Config
from invert._entry import ArgSpec, EntryPoint
from invert._errors import InvertError, SignatureError, only_refusals, optional_step
from invert._private.jax import (
    SIZE_ERRORS,
    eval_context,
    eval_jaxpr,
    is_tracer,
    name_stack,
    on_whole_values,
    undecided,
)
from invert._report import Report
from invert.emission import Emission
from invert.ir import meshes
from invert.ir.avals import type_of_key
from invert.ir.sizes import (
    Constraint,
    DimSize,
    Shape,
    evaluate,
    is_open,
    listening,
    parsed,
    scope,
    solve,
    suggest,
    variables,
)
from invert.ir.substitution import substitute
from invert.ir.types import Aval, Jaxpr, Value
from invert.modules import placement, signatures
from invert.modules.dimensions import independent, named_shapes, scope_of, symbolic_shapes
from invert.modules.placement import AnyMesh


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """A recovered program for given argument types, whose sizes may be open.

    **Arguments:**

    - `jaxpr`: takes the constants, then the parameters, then the flat arguments.
    - `constants`: values of the leading arguments of `jaxpr`.
    - `report`: how it was recovered.
    - `shapes`: those of the flat arguments.
    - `names`: the names of the dimensions, by those with which it was traced.
    - `constraints`: conditions on the open sizes under which the program equals the original.
    - `settled`: the program rewritten at concrete sizes: a loop of known trip count is a `scan`.
    """

    jaxpr: Jaxpr
    constants: tuple[np.ndarray, ...]
    report: Report
    x64: bool
    shapes: tuple[Shape, ...] = ()
    names: Mapping[str, DimSize] = dataclasses.field(default_factory=dict)
    constraints: tuple[Constraint, ...] = ()
    settled: Callable[[Jaxpr], Jaxpr] = lambda jaxpr: jaxpr
    _sized: dict[Hashable, Stage] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def is_open(self) -> bool:
        """Whether any argument has an open size."""
        return any(is_open(n) for shape in self.shapes for n in shape)

    def at(self, shapes: Sequence[Sequence[DimSize]]) -> Stage | None:
        """The program at concrete argument shapes; `None` if its constraints do not hold."""
        if not self.is_open:
            return self
        sizes = solve(self.shapes, shapes)
        if sizes is None or not all(c.holds(sizes) for c in self.constraints):
            return None
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
        """Evaluate the program on arrays or tracers; `on` maps its meshes to those to use."""

        def evaluate(values: Sequence[Value]) -> list[Value]:
            if not on:
                return eval_jaxpr(self.jaxpr, values)
            chosen = on
            return meshes.MeshRetracer(lambda mesh: chosen.get(mesh.abstract_mesh, mesh))(
                self.jaxpr, values
            )

        if not self.x64:
            return evaluate(values)
        # 64-bit values are allowed regardless of `jax_enable_x64`, as in the module.
        with jax.enable_x64(True):
            widened = [
                _widen(x, v.aval.dtype) for x, v in zip(values, self.jaxpr.invars, strict=True)
            ]
            return evaluate(widened)


def _pattern(shapes: Sequence[Sequence[int | str]]) -> Hashable:
    """A partition of the sizes: equal names get equal numbers."""
    names = {n: i for i, n in enumerate(dict.fromkeys(n for s in shapes for n in s))}
    return tuple(tuple(names[n] for n in s) for s in shapes)


def _under(constraints: Sequence[Constraint], stage: Stage) -> Stage:
    """The program for all sizes, with the constraints under which it holds."""
    # Of two equal dimensions, only one is left.
    held = {str(d) for s in stage.shapes for d in variables(s)}
    if stage.names:
        known = [c for c in constraints if c.dimensions <= stage.names.keys()]
        constraints = [c.at(stage.names) for c in known]
    constraints = [c for c in constraints if c.dimensions <= held]
    of = scope_of(independent([c.tidy() for c in constraints]))
    names = {str(d): parsed((str(d),), of)[0] for s in stage.shapes for d in variables(s)}
    # A dimension that the constraints determine is replaced in the constraints as well.
    gone = {d: n for d, n in names.items() if str(n) != d}
    plain = {d: parsed((d,), scope())[0] for d in names}
    plain |= {d: evaluate(n, plain) for d, n in gone.items()}
    constraints = [c.at(plain) if c.dimensions & gone.keys() else c for c in constraints]
    kept = independent([c.tidy() for c in constraints])
    stage = dataclasses.replace(
        stage,
        jaxpr=substitute(stage.jaxpr, names),
        shapes=tuple(tuple(evaluate(n, names) for n in shape) for shape in stage.shapes),
    )
    certificate = stage.report.certificate
    dimensions = variables(n for shape in stage.shapes for n in shape)
    sizes = ", ".join([*(f"{d} >= 1" for d in dimensions), *(c.words() for c in kept)])
    certificate = dataclasses.replace(certificate, sizes=sizes)
    report = dataclasses.replace(stage.report, certificate=certificate)
    return dataclasses.replace(stage, report=report, constraints=kept)


# Programs require some sizes to be at least others: an array must be as long as its slice. So `<`
# and `>` are assumed to be false.
_WANTED = {"<=": "le", ">=": "ge", "<": "ge", ">": "le"}


def _suggest_undecided(error: Exception) -> None:
    """Suggest the undecided comparison of sizes in an error as an assumption."""
    if (found := undecided(error)) is not None:
        left, right = parsed((found[0], found[2]), scope())
        suggest(Constraint(_WANTED[found[1]], left, right))


# Raised if a program cannot be recovered for all sizes: by undecided comparisons, by shapes
# that do not match, and by code of JAX and NumPy that needs a number. All others are defects.
NO_EXPRESSION = (*SIZE_ERRORS, InvertError, TypeError, ValueError, NotImplementedError)


class Function:
    """An entry point with the programs recovered for the argument types seen so far."""

    def __init__(
        self,
        entry: EntryPoint,
        recover: Callable[[EntryPoint, Sequence[Any]], Stage],
        config: Config,
        *,
        stateful: bool = False,
        changed: tuple[Function, Callable[[Stage], Stage]] | None = None,
    ):
        self.entry = entry
        self.config = config
        self._recover = recover
        # The function with the programs before a change, and the change.
        self._changed = changed
        self._stateful = stateful
        self._stages: dict[Any, Stage] = {}
        self._compiled: dict[Any, Callable[..., Any]] = {}
        # Programs for all sizes, by key type.
        self._whole: dict[Any, Stage | None] = {}
        self.divided = ""
        # Whether a program for several devices runs on those of the process if no mesh is set.
        self.first_devices = False
        self.home: Stage | None = None
        self._last_called: Stage | None = None
        self._example: Sequence[Any] | None = None
        self.emissions: dict[frozenset[str], Emission] = {}
        # With several functions on the same parameters, the first holds the text of all.
        self.emissions_together: dict[frozenset[str], Emission] = {}
        specs, self.in_tree = jax.tree_util.tree_flatten(
            (entry.args, dict(entry.kwargs)), is_leaf=lambda x: isinstance(x, ArgSpec)
        )
        self.specs: list[ArgSpec] = specs
        self.signature = signatures.signature(entry, stateful=stateful)
        self._state, self._key = signatures.state_and_key(entry, stateful)
        self._safe = signatures.parameter_names(entry)

    @property
    def is_static(self) -> bool:
        """Whether all argument shapes are static."""
        return all(isinstance(n, int) for spec in self.specs for n in spec.shape)

    @property
    def state_name(self) -> str | None:
        """The name of the state argument, if any."""
        return self._state

    @property
    def key_name(self) -> str | None:
        """The name of the key argument, if any."""
        return self._key

    @property
    def called(self) -> Stage | None:
        """The program for all sizes, or at those of an example or of the first call."""
        return self.home or self.whole() or self._last_called

    @property
    def sized(self) -> Stage | None:
        """The program at the sizes of an example or of the first call; `None` without either."""
        return self._last_called if self._example is None else self.stage(self._example)

    @property
    def shown(self) -> Stage | None:
        """The program whose report is shown: the one called, otherwise the one emitted."""
        return self.called or next(iter(self._stages.values()), None)

    def whole_for_text(self) -> Stage | None:
        """The program for all sizes; `None` if there is none that covers the example."""
        if (whole := self.whole()) is None or self._example is None:
            return whole
        if whole.at([v.shape for v in self._example]) is None:
            sizes = whole.report.certificate.sizes
            self.divided = f"the sizes of the example do not satisfy {sizes}"
            return None
        return whole

    def begin(self, values: Sequence[Value]) -> None:
        """Recover the program at the shapes of an example; the module will hold its constants.

        If it holds for all sizes, the module holds the constants of that program instead.
        """
        self._example = values
        if (whole := self.whole()) is not None and whole.at([v.shape for v in values]) is not None:
            self.home = whole
        else:
            self.home = self.stage(values)

    def begin_whole(self) -> None:
        """Recover the program for all sizes, if any; the module will hold its constants."""
        self.home = self.whole()

    def changed(self, change: Callable[[Stage], Stage]) -> Function:
        """Return the function with `change` applied to its programs, present and future."""
        new = Function(
            self.entry,
            lambda entry, avals: change(self._at(avals)),
            self.config,
            stateful=self._stateful,
            changed=(self, change),
        )
        new.first_devices = self.first_devices
        if self._example is None:
            new.begin_whole()
        else:
            new.begin(self._example)
        return new

    def stage(self, values: Sequence[Value], key: Value = None) -> Stage:
        """The program for the shapes of `values` and the kind of `key`, recovered once.

        If the program for all sizes holds there, it is that program at these sizes.
        """
        avals = self._avals(values, key)
        whole = self.whole(key)
        if whole is not None:
            count = len(self.specs)
            if (stage := whole.at([a.shape for a in avals[:count]])) is not None:
                return stage
        return self._at(avals)

    def _at(self, avals: Sequence[Aval]) -> Stage:
        types = tuple((a.shape, a.dtype) for a in avals)
        if types not in self._stages:
            # The caller may be traced; verification and folding run eagerly.
            with eval_context(), on_whole_values(), name_stack(()):
                self._stages[types] = self._recover(self.entry, avals)
        return self._stages[types]

    def whole(self, key: Value = None) -> Stage | None:
        """The program for all sizes; `None` for static sizes, or for the reason in `divided`."""
        if self.is_static:
            return None
        kind = self._key_dtype(key)
        if kind not in self._whole:
            self._whole[kind] = self._recover_whole(key)
        return self._whole[kind]

    def _recover_whole(self, key: Value) -> Stage | None:
        if self._changed is not None:
            # A new trace would not report the conditions on sizes met before.
            before, change = self._changed
            whole, self.divided = before.whole(key), before.divided
            return None if whole is None else change(whole)
        # Unnamed sizes may be equal, e.g. the lengths of a text and its mask.
        tried: list[Hashable] = []
        found = None
        for shared in ("batch", "axes", "none"):
            shapes = named_shapes(self.specs, shared)
            if (pattern := _pattern(shapes)) in tried:
                continue
            tried.append(pattern)
            stage, constraints = self._recover_named(shapes, key)
            found = stage or found
            if stage is not None and not any(c.relation == "eq" for c in constraints):
                return stage
            # Sizes may be equal only because they share a name.
        return found

    def _recover_named(
        self, shapes: Sequence[Sequence[int | str]], key: Value
    ) -> tuple[Stage | None, Sequence[Constraint]]:
        """The program at named shapes, and the constraints needed to trace it."""
        assumed: list[Constraint] = []
        while (found := symbolic_shapes(shapes, assumed)) is not None:
            avals = self._avals([jax.ShapeDtypeStruct(s, np.int8) for s in found], key)
            with listening() as said:
                stage = optional_step("the program for all sizes", [], self._for_all, avals)
            # Sizes of other scopes do not compare as equal, so the words tell them apart.
            known = {c.words() for c in assumed}
            new = [c for c in said.constraints if c.words() not in known]
            if stage is not None:
                return _under([*assumed, *new], stage), [*assumed, *new]
            self.divided = self.divided or "a defect; see the warning"
            # They may be decided under the constraints found so far, or under assumptions.
            new = new or [c for c in said.assumptions if c.words() not in known]
            if not new:
                break
            assumed += new
        return None, assumed

    def _for_all(self, avals: Sequence[Aval]) -> Stage | None:
        """The program at symbolic sizes; `None` if there is none."""
        try:
            with only_refusals():
                return self._at(avals)
        except NO_EXPRESSION as error:
            first = (str(error).splitlines() or [""])[0]
            reason = error.line if isinstance(error, InvertError) else first
            self.divided = self.divided or reason
            _suggest_undecided(error)
            return None

    def _avals(self, values: Sequence[Value], key: Value) -> list[jax.ShapeDtypeStruct]:
        avals = [
            jax.ShapeDtypeStruct(tuple(v.shape), spec.dtype)
            for v, spec in zip(values, self.specs, strict=True)
        ]
        if (drawn := self._key_dtype(key)) is not None:
            avals.append(jax.ShapeDtypeStruct((), drawn))
        return avals

    def _key_dtype(self, key: Value) -> Value:
        """The type of the key that the function takes; `None` if it takes none."""
        if not self._key:
            return None
        # jax.random.key makes keys of the default generator.
        return (type_of_key() if key is None else key).dtype

    def __deepcopy__(self, memo: dict[int, Any]) -> Function:
        # The program of a module is never changed; graphs of TensorFlow cannot be copied.
        return self

    def split(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], Any, Any]:
        """The flat arguments, the state and the key, checked against the signature.

        **Raises:** `SignatureError` that lists all mismatches.
        """
        name = self.entry.name
        if self._key is not None and kwargs.get(self._key) is None:
            raise SignatureError(
                f"{name}{self.signature} draws random numbers; pass {self._key}=jax.random.key(0) "
                "or another key"
            )
        if self._state is None and any(
            isinstance(x, eqx.nn.State) for x in (*args, *kwargs.values())
        ):
            raise SignatureError(
                f"{name}{self.signature} keeps no state; leave out the equinox.nn.State"
            )
        try:
            bound = self.signature.bind(*args, **self._renamed(kwargs))
        except TypeError as error:
            raise SignatureError(f"{name}{self.signature}: {error}") from error
        bound.apply_defaults()
        state = key = None
        if self._key is not None:
            key = _typed_key(bound.arguments.pop(self._key), name)
        if self._state is not None:
            state = bound.arguments.pop(self._state)
            if not isinstance(state, eqx.nn.State):
                raise SignatureError(
                    f"{name}: {self._state!r} is a {type(state).__name__}, expected the "
                    "equinox.nn.State that equinox.nn.State(module) makes"
                )
        return self._flat(bound), state, key

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Value]:
        """The flat arguments, without state and key, checked against the signature.

        **Raises:** `SignatureError` that lists all mismatches.
        """
        extra = (self._state, self._key)
        parameters = [p for n, p in self.signature.parameters.items() if n not in extra]
        try:
            signature = self.signature.replace(parameters=parameters)
            bound = signature.bind(*args, **self._renamed(kwargs))
        except TypeError as error:
            raise SignatureError(f"{self.entry.name}{self.signature}: {error}") from error
        bound.apply_defaults()
        return self._flat(bound)

    def _renamed(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by parameter name; the container's names are accepted too."""
        return {self._safe.get(name, name): value for name, value in kwargs.items()}

    def _flat(self, bound: inspect.BoundArguments) -> list[Value]:
        names = [self._safe[n] for n in self.entry.arg_names]
        args = tuple(bound.arguments[n] for n in names)
        rest = {k: bound.arguments[self._safe[k]] for k in self.entry.kwargs}
        values, tree = jax.tree_util.tree_flatten((args, rest))
        if tree != self.in_tree:
            given = dict(zip(self.entry.arg_names, args, strict=True)) | rest
            wanted = dict(zip(self.entry.arg_names, self.entry.args, strict=True))
            said = _differences(given, wanted | dict(self.entry.kwargs))
            said = said or f"the arguments have the structure {tree}, expected {self.in_tree}"
            raise SignatureError(f"{self.entry.name}: {said}")
        problems: list[str] = []
        pairs = zip(values, self.specs, strict=True)
        flat = [_fit(v, s, problems, self.config) for v, s in pairs]
        self._check_named_sizes(flat, problems)
        if problems:
            raise SignatureError(f"{self.entry.name}: " + "; ".join(problems))
        return flat

    def _check_named_sizes(self, flat: Sequence[Any], problems: list[str]) -> None:
        sizes: dict[str, tuple[int, str]] = {}
        for value, spec in zip(flat, self.specs, strict=True):
            if value is None:
                continue
            for size, name in zip(value.shape, spec.shape, strict=True):
                if not isinstance(name, str) or not name.isidentifier():
                    continue
                seen, where = sizes.setdefault(name, (size, spec.name))
                if seen != size:
                    problems.append(
                        f"{spec.name!r} has size {size} and {where!r} has {seen}, but both are "
                        f"the dimension {name!r}"
                    )

    def __call__(
        self,
        constants: Sequence[Value],
        params: Sequence[Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run the program.

        **Arguments:**

        - `constants`: values of the leading arguments of the program with which the module was
            built.
        - `params`: arrays, or `eqx.nn.StateIndex` for those whose values are in the state.
        - `args`, `kwargs`: as given by the user.

        **Returns:** the results; with the new state if variables are assigned.
        """
        flat, state, key = self.split(args, kwargs)
        stage = self.stage(flat, key)
        self._last_called = self._last_called or stage
        # The module holds the constants of the program it was built with; others hold their own.
        own = self.home is not None and stage.constants is self.home.constants
        held = constants if own else stage.constants
        read = [_read_param(p, state) for p in params]
        values = (*held, *read, *flat, *(() if key is None else (key,)))
        shardings = self.entry.shardings
        if stage.meshes or shardings:
            results = self._on_devices(stage, values, len(flat))
        elif any(is_tracer(v) for v in values):
            results = stage.run(*values)
        else:
            results = self._run_compiled(stage, {}, values)
        assigned = self.entry.assigned
        results = _checked(results, self.entry.checks, len(assigned), self.config)
        count = len(results) - len(assigned)
        out = jax.tree_util.tree_unflatten(self.entry.out_tree, results[:count])
        if not assigned:
            return out
        assert state is not None
        for i, value in zip(assigned, results[count:], strict=True):
            # Without 64-bit types the state holds narrower values than the program computes.
            state = state.set(params[i], _widen(value, state.get(params[i]).dtype))
        return out, state

    def _on_devices(self, stage: Stage, values: Sequence[Value], count: int) -> list[Value]:
        """Run a program for several devices on the mesh of the caller or of the arguments."""
        shardings = self.entry.shardings
        named = dict(stage.meshes)
        if shardings is not None and shardings.mesh is not None:
            named.setdefault(shardings.mesh, frozenset())
        on = placement.chosen(named, values, self.first_devices)
        first = len(values) - count - (self._key is not None)
        flat = placement.placed(shardings, on, values[first : first + count])
        values = [*values[:first], *flat, *values[first + count :]]
        return self._run_compiled(stage, on, values)

    def _run_compiled(
        self,
        stage: Stage,
        on: Mapping[AbstractMesh, AnyMesh],
        values: Sequence[Value],
    ) -> list[Value]:
        key = stage, tuple(on.items())
        if key not in self._compiled:
            self._compiled[key] = jax.jit(functools.partial(stage.run, on=on))
        with jax.enable_x64(True) if stage.x64 else contextlib.nullcontext():
            return self._compiled[key](*values)


def _read_param(param: Any, state: Any) -> Any:
    return state.get(param) if isinstance(param, eqx.nn.StateIndex) else param


def _typed_key(key: Value, name: str) -> Value:
    """A typed PRNG key; a legacy `uint32` key is wrapped."""
    if getattr(key, "dtype", None) == np.uint32 and np.ndim(key) == 1:
        key = jax.random.wrap_key_data(key)
    typed = hasattr(key, "dtype") and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not typed or np.shape(key) != ():
        raise SignatureError(f"{name}: expected a key from jax.random.key")
    return key


def _widen(value: Value, dtype: DTypeLike) -> Value:
    """Convert between the dtype of the program and the narrower one that JAX uses without x64."""
    return value if value.dtype == dtype else jnp.asarray(value).astype(dtype)


def _checked(
    results: list[Value], checks: Sequence[str], assigned: int, config: Config
) -> list[Value]:
    """Check the assertions among the results of a program; return the other results."""
    if not checks:
        return results
    last = len(results) - assigned
    first = last - len(checks)
    failed, results = results[first:last], [*results[:first], *results[last:]]
    for message, flag in zip(checks, failed, strict=True):
        if config.assertions == "checkify":
            # The message of a check is a format string.
            text = message.replace("{", "{{").replace("}", "}}")
            checkify.check(jnp.logical_not(flag), text)
        elif results:
            results = eqx.error_if(results, flag, message)
    return results


def _differences(given: Any, wanted: Any) -> str:
    """The paths in which two trees differ."""
    have, want = (
        [
            jax.tree_util.keystr(path, simple=True, separator=".")
            for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]
        ]
        for tree in (given, wanted)
    )
    parts = [f"{n!r} was given" for n in have if n not in want]
    parts += [f"{n!r} is missing" for n in want if n not in have]
    return ", ".join(parts)


def _fit(value: Value, spec: ArgSpec, problems: list[str], config: Config) -> Value:
    """`value` as an array of the type of `spec`, or a line in `problems`."""
    if isinstance(value, (bool, int, float, complex)):
        value = np.asarray(value, spec.dtype)
    elif not isinstance(value, jax.Array | np.ndarray | np.generic) and (
        not hasattr(value, "shape")
        or not hasattr(value, "dtype")
        # Arrays of other libraries, such as TensorFlow.
        or (hasattr(value, "__array__") and not hasattr(value, "__jax_array__"))
    ):
        try:
            value = np.asarray(value)
        except (TypeError, ValueError) as error:
            problems.append(f"{spec.name!r} is not an array: {error}")
            return None
        if not value.shape and value.dtype == object:
            problems.append(f"{spec.name!r} is not an array but a {type(value.item()).__name__}")
            return None
    want = tuple(n if isinstance(n, int) else "?" if n is None else n for n in spec.shape)
    have = tuple(value.shape)
    if len(have) != len(want) or (
        config.strict_shapes
        and any(isinstance(w, int) and w != h for w, h in zip(want, have, strict=True))
    ):
        problems.append(f"{spec.name!r} has the shape {_shape(have)}, expected {_shape(want)}")
        return None
    if value.dtype == spec.dtype:
        return value
    # Without jax_enable_x64, JAX narrows 64-bit arguments on its own before they come here.
    if value.dtype == jax.dtypes.canonicalize_dtype(spec.dtype):
        with jax.enable_x64(True):
            return jnp.asarray(value).astype(spec.dtype)
    to_real = np.issubdtype(value.dtype, np.complexfloating) and spec.dtype.kind != "c"
    if not config.strict_dtypes and not to_real:
        with jax.enable_x64(True):
            return jnp.asarray(value).astype(spec.dtype)
    remedy = "" if to_real else "; Config(strict_dtypes=False) converts it"
    problems.append(f"{spec.name!r} has the dtype {value.dtype}, expected {spec.dtype}{remedy}")
    return None


def _shape(shape: Sequence[DimSize | str]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
