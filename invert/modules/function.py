"""One function of a container: its signature and its calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jax.sharding import AbstractMesh
from jax.typing import DTypeLike

from invert._config import Config
from invert._entry import ArgSpec
from invert._errors import SignatureError
from invert._private.jax import is_tracer
from invert.emission import Emission
from invert.ir.avals import type_of_key
from invert.ir.jaxprs import enabling_x64
from invert.ir.meshes import AnyMesh
from invert.ir.sizes import DimSize
from invert.ir.types import Arguments, Keywords, Tree, Value
from invert.modules import placement, signatures
from invert.modules.specializations import Change, Specialization, Specializations, widen
from invert.modules.wide import wide_call


class Function:
    """An entry point with its signature, its programs, and its calls.

    **Arguments:**

    - `programs`: its programs, which a call at new types adds to.
    - `stateful`: whether it takes the state even if it assigns no variable.
    """

    def __init__(self, programs: Specializations, config: Config, *, stateful: bool = False):
        self.programs = programs
        self.entry = entry = programs.entry
        self.config = config
        self._stateful = stateful
        self._compiled: dict[Hashable, Callable[..., list[Value]]] = {}
        # Whether a program for several devices runs on the process's devices if no mesh is set.
        self.first_devices = False
        self.home: Specialization | None = None
        self._last_called: Specialization | None = None
        self._example: Sequence[Value] | None = None
        self.emissions: dict[frozenset[str], Emission] = {}
        # If several functions share parameters, the first holds the source of all.
        self.emissions_together: dict[frozenset[str], Emission] = {}
        self.specs = entry.specs
        self.in_tree = jax.tree_util.tree_structure((entry.args, dict(entry.kwargs)))
        self.signature = signatures.signature(entry, stateful=stateful)
        # Names of the arguments for the state and the key, if there are any.
        self.state_name, self.key_name = signatures.state_and_key(entry, stateful)
        self._safe = signatures.parameter_names(entry)

    @property
    def is_static(self) -> bool:
        """True if all argument shapes are static."""
        return self.programs.is_static

    @property
    def divided(self) -> str:
        """Why no program covers all sizes, if none does."""
        return self.programs.divided

    @property
    def called(self) -> Specialization | None:
        """The program for all sizes, or at those of an example or first call."""
        return self.home or self.whole() or self._last_called

    @property
    def sized(self) -> Specialization | None:
        """The program at the sizes of an example or first call, if any."""
        return self._last_called if self._example is None else self.stage(self._example)

    @property
    def shown(self) -> Specialization | None:
        """The program whose report is shown: the last one called, or else the one emitted."""
        return self.called or self.programs.first()

    def whole_for_text(self) -> Specialization | None:
        """The program for all sizes, if it covers the example."""
        if (whole := self.whole()) is None or self._example is None:
            return whole
        if whole.at([v.shape for v in self._example]) is None:
            sizes = whole.report.certificate.sizes
            self.programs.divided = f"the sizes of the example do not satisfy {sizes}"
            return None
        return whole

    def begin(self, values: Sequence[Value]) -> None:
        """Recover the program at an example's shapes; the module will hold its constants.

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

    def changed(self, change: Change) -> Function:
        """Return the function with `change` applied to its programs, present and future."""
        new = Function(self.programs.changed(change), self.config, stateful=self._stateful)
        new.first_devices = self.first_devices
        if self._example is None:
            new.begin_whole()
        else:
            new.begin(self._example)
        return new

    def stage(self, values: Sequence[Value], key: Value = None) -> Specialization:
        """The program for the shapes of `values` and the kind of `key`, recovered once."""
        return self.programs.at([tuple(v.shape) for v in values], self._key_dtype(key))

    def whole(self, key: Value = None) -> Specialization | None:
        """The program for all sizes; `None` for static sizes, or if `divided` says why."""
        return self.programs.whole(self._key_dtype(key))

    def _key_dtype(self, key: Value) -> Value:
        """The type of the key that the function takes; `None` if it takes none."""
        if not self.key_name:
            return None
        # jax.random.key makes keys of the default generator.
        return (type_of_key() if key is None else key).dtype

    def __deepcopy__(self, memo: dict[int, object]) -> Function:
        # The program of a module is never changed; graphs of TensorFlow cannot be copied.
        return self

    def split(self, args: Arguments, kwargs: Keywords) -> tuple[list[Value], Tree, Value]:
        """The flat arguments, the state and the key, checked against the signature.

        **Raises:** `SignatureError` that lists all mismatches.
        """
        name = self.entry.name
        if self.key_name is not None and kwargs.get(self.key_name) is None:
            raise SignatureError(
                f"{name} draws random numbers",
                remedy=f"Pass {self.key_name}=jax.random.key(0) or another key.",
            )
        if self.state_name is None and any(
            isinstance(x, eqx.nn.State) for x in (*args, *kwargs.values())
        ):
            raise SignatureError(f"{name} keeps no state", remedy="Leave out the equinox.nn.State.")
        bound = self._bound(self.signature, args, kwargs)
        state = key = None
        if self.key_name is not None:
            key = _typed_key(bound.arguments.pop(self.key_name), name)
        if self.state_name is not None:
            state = bound.arguments.pop(self.state_name)
            if not isinstance(state, eqx.nn.State):
                raise SignatureError(
                    f"{name}: {self.state_name!r} is a {type(state).__name__}",
                    remedy="Pass the equinox.nn.State that equinox.nn.State(module) makes.",
                )
        return self._flat(bound), state, key

    def flatten(self, args: Arguments, kwargs: Keywords) -> list[Value]:
        """The flat arguments, without state and key, checked against the signature.

        **Raises:** `SignatureError` that lists all mismatches.
        """
        extra = (self.state_name, self.key_name)
        parameters = [p for n, p in self.signature.parameters.items() if n not in extra]
        return self._flat(self._bound(self.signature.replace(parameters=parameters), args, kwargs))

    def _bound(
        self, signature: inspect.Signature, args: Arguments, kwargs: Keywords
    ) -> inspect.BoundArguments:
        """Arguments by parameter, with defaults; the container's names are accepted too."""
        renamed = {self._safe.get(name, name): value for name, value in kwargs.items()}
        try:
            bound = signature.bind(*args, **renamed)
        except TypeError as error:
            raise SignatureError(f"{self.entry.name}: {error}", remedy=self._usage) from error
        bound.apply_defaults()
        return bound

    @property
    def _usage(self) -> str:
        """The remedy against arguments that do not fit."""
        entry = self.entry
        types = dict(zip(entry.arg_names, entry.args, strict=True)) | dict(entry.kwargs)
        trees = {self._safe[name]: tree for name, tree in types.items()}
        call = signatures.call_text(entry.name, self.signature, trees)
        made = f", with {self.state_name} = equinox.nn.State(module)" if self.state_name else ""
        return f"Call it as {call}{made}."

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
            raise SignatureError(
                f"{self.entry.name}: {said}",
                remedy=self._usage,
            )
        problems: list[str] = []
        pairs = zip(values, self.specs, strict=True)
        flat = [_fit(v, s, problems, self.config) for v, s in pairs]
        self._check_named_sizes(flat, problems)
        if problems:
            raise SignatureError(
                f"{self.entry.name}: " + "; ".join(problems),
                remedy="Pass arrays of these types, or convert again at the types that you need.",
            )
        return flat

    def _check_named_sizes(self, flat: Sequence[Value], problems: list[str]) -> None:
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
        params: Sequence[Value],
        args: Arguments,
        kwargs: Keywords,
    ) -> Tree:
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
        read = [state.get(p) if isinstance(p, eqx.nn.StateIndex) else p for p in params]
        values = (*held, *read, *flat, *(() if key is None else (key,)))
        shardings = self.entry.shardings
        if stage.meshes or shardings:
            results = self._on_devices(stage, values, len(flat))
        elif any(is_tracer(v) for v in values):
            inner = stage.x64 and jax.dtypes.canonicalize_dtype(np.int64) != np.int64
            results = wide_call(stage.run, values) if inner else stage.run(*values)
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
            state = state.set(params[i], widen(value, state.get(params[i]).dtype))
        return out, state

    def _on_devices(
        self, stage: Specialization, values: Sequence[Value], count: int
    ) -> list[Value]:
        """Run a program on the mesh of the caller or the arguments."""
        shardings = self.entry.shardings
        named = dict(stage.meshes)
        if shardings is not None and shardings.mesh is not None:
            named.setdefault(shardings.mesh, frozenset())
        on = placement.chosen(named, values, self.first_devices)
        first = len(values) - count - (self.key_name is not None)
        flat = placement.placed(shardings, on, values[first : first + count])
        values = [*values[:first], *flat, *values[first + count :]]
        return self._run_compiled(stage, on, values)

    def _run_compiled(
        self,
        stage: Specialization,
        on: Mapping[AbstractMesh, AnyMesh],
        values: Sequence[Value],
    ) -> list[Value]:
        key = stage, tuple(on.items())
        if key not in self._compiled:
            self._compiled[key] = jax.jit(functools.partial(stage.run, on=on))
        with enabling_x64(stage.x64):
            return self._compiled[key](*values)


def _typed_key(key: Value, name: str) -> Value:
    """A typed PRNG key; a legacy `uint32` key is wrapped."""
    if getattr(key, "dtype", None) == np.uint32 and np.ndim(key) == 1:
        key = jax.random.wrap_key_data(key)
    typed = hasattr(key, "dtype") and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not typed or np.shape(key) != ():
        raise SignatureError(
            f"{name}: the key is a {type(key).__name__}",
            remedy="Pass one that jax.random.key makes.",
        )
    return key


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


def _differences(given: object, wanted: object) -> str:
    """The paths at which two trees differ."""
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
        value = _number(value, spec, problems, config)
        if value is None:
            return None
    elif isinstance(value, jax.ShapeDtypeStruct):
        problems.append(f"{spec.name!r} is a type; `jax.eval_shape(module, ...)` takes these")
        return None
    elif isinstance(value, np.ma.MaskedArray):  # JAX refuses these, too
        problems.append(f"{spec.name!r} is a masked array; its `filled()` is not")
        return None
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
    if min(_kind(value.dtype), _kind(spec.dtype)) < 0:  # keys of random numbers, texts
        problems.append(f"{spec.name!r} has the dtype {value.dtype}, expected {spec.dtype}")
        return None
    # Without jax_enable_x64, JAX narrows 64-bit arguments on its own before they come here.
    narrowed = value.dtype == jax.dtypes.canonicalize_dtype(spec.dtype)
    to_real = np.issubdtype(value.dtype, np.complexfloating) and spec.dtype.kind != "c"
    if narrowed or not (config.strict_dtypes or to_real):
        return _converted(value, spec.dtype)
    remedy = "" if to_real else "; Config(strict_dtypes=False) converts it"
    problems.append(f"{spec.name!r} has the dtype {value.dtype}, expected {spec.dtype}{remedy}")
    return None


# Kinds of numbers, each of which holds those before it.
_KINDS = (np.bool_, np.integer, np.floating, np.complexfloating)


def _kind(dtype: DTypeLike) -> int:
    return next((i for i, kind in enumerate(_KINDS) if jnp.issubdtype(dtype, kind)), -1)


def _converted(value: Value, dtype: DTypeLike) -> Value:
    """A value as an array of a type that may have 64 bits."""
    with jax.enable_x64(True):
        return jnp.asarray(value).astype(dtype)


def _number(value: complex, spec: ArgSpec, problems: list[str], config: Config) -> Value:
    """A Python number as an array of the type of `spec`, or a line in `problems`."""
    is_within = _kind(type(value)) <= _kind(spec.dtype)
    if isinstance(value, int) and jnp.issubdtype(spec.dtype, jnp.integer):
        bounds = jnp.iinfo(spec.dtype)
        is_within = bounds.min <= value <= bounds.max
    elif not config.strict_dtypes and not isinstance(value, complex) and _kind(spec.dtype) >= 0:
        return _converted(value, spec.dtype)
    if is_within:
        return np.asarray(value, spec.dtype)
    problems.append(f"{spec.name!r} is {value!r}, which {spec.dtype} does not hold")
    return None


def _shape(shape: Sequence[DimSize | str]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
