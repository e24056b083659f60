"""Which programs of an entry point are written: at several sizes where its sizes are open."""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Protocol

import jax
import numpy as np

from invert._config import Config
from invert._entry import ArgSpec, EntryPoint
from invert._errors import EmissionError, InvertError, SignatureError, nested_too_deep
from invert._private.jax import eval_jaxpr, on_whole_values, trace_closed
from invert.emission.emit import Emission, Recovered, emit_methods
from invert.emission.python.naming import Names, identifier
from invert.emission.sizes import probes
from invert.emission.sizes.probes import DoesNotRun, Shown, SizeError
from invert.emission.sizes.size import Points

# Pairs of sizes at which programs with open sizes are recovered; the second where a model refuses
# the first. Primes, so that no product of sizes is another's by chance.
_SIZES = ((7, 11), (13, 17), (3, 5))
# More open dimensions than this are not told apart: four take fifteen programs.
_MOST = 4


class Function(Protocol):
    """What is asked of a recovered function."""

    entry: EntryPoint
    config: Config
    specs: list[ArgSpec]

    @property
    def is_static(self) -> bool: ...

    @property
    def called(self) -> Any:
        """The program at the sizes of an example or of the first call; `None` without either."""
        ...

    def stage(self, values: Sequence[Any], key: Any = None) -> Any:
        """The program at the shapes of `values`."""
        ...

    def raw(self, values: Sequence[Any]) -> Any:
        """The program at the shapes of `values`, as it was read."""
        ...


# Python's parser counts how deep a tree is for all threads together (seen in 3.11).
_ONE_THREAD = threading.RLock()


@on_whole_values()
def emission_of(
    functions: Mapping[str, Function],
    title: str,
    styles: Set[str] = frozenset(),
    held: Set[str] = frozenset(),
    notes: Sequence[str] = (),
) -> Emission:
    """The text of recovered functions on the same parameters.

    **Arguments:**

    - `functions`: by the names of the methods that they become.
    - `held`: names of the parameters that are in the state for all.
    - `title`, `styles`, `notes`: as for `emit_methods`.

    **Raises:** `EmissionError`; `SignatureError` where sizes are open that no example has fixed.
    """
    # The sizes that the user has called it with, or has given as examples.
    called = {name: f.called for name, f in functions.items()}
    static = all(f.is_static for f in functions.values())
    failures: list[str] = []
    # Sizes that have no name may be one another's: of a text and its mask, the length.
    tries = [(sizes, shared) for shared in (False, True) for sizes in _SIZES]
    for sizes, shared in tries[:1] if static else tries:
        try:
            parts = {n: _at_sizes(f, sizes, held, shared) for n, f in functions.items()}
            with _ONE_THREAD, nested_too_deep(title):
                return emit_methods(parts, title, styles, notes)
        except SizeError as error:
            failures.insert(0, error.line)
            break
        except InvertError as error:
            if static:
                raise
            failures.append(error.line)
    parts = {}
    for name, function in functions.items():
        stage = _static_stage(function) if function.is_static else called[name]
        if stage is None:
            raise SignatureError(
                f"{function.entry.name}: no text holds for all sizes ({failures[0]}); call the "
                "module once, or pass example arguments when converting, to have it written for "
                "these sizes"
            )
        parts[name] = _recovered(function, [stage], None, held)
        if not function.is_static:
            parts[name] = dataclasses.replace(parts[name], fixed=failures[0])
    notes = (f"for fixed sizes only: {failures[0]}", *notes)
    with _ONE_THREAD, nested_too_deep(title):
        return emit_methods(parts, title, styles, notes)


def _static_stage(function: Function) -> Any:
    return function.stage([_type(s.shape, s.dtype) for s in function.specs])


def _at_sizes(
    function: Function, sizes: tuple[int, int], held: Set[str], shared: bool
) -> Recovered:
    """The programs of a function at the corners of its open sizes.

    `shared`: open sizes without a name are the same for all arguments.

    **Raises:** `EmissionError` where the sizes are too many, or refused.
    """
    if function.is_static:
        return _recovered(function, [_static_stage(function)], None, held)
    names = dimension_names(function.specs, shared)
    if shared and names == dimension_names(function.specs):
        raise EmissionError("no open sizes could be one another's")
    if names is None:
        raise EmissionError("more open dimensions than can be told apart")
    dims = list(dict.fromkeys(n for shape in names for n in shape if isinstance(n, str)))
    points = Points(dims, *([size] * len(dims) for size in sizes))
    stages = [_stage_at(function, names, points.sizes(c)) for c in points.corners]
    recovered = _recovered(function, stages, points, held)
    constants = stages[0].constants

    def probe(compare: Callable[[Any], bool]) -> Shown:
        """Compares a text at other sizes."""

        def check(sizes: Mapping[str, int]) -> bool | None:
            try:
                stage = _stage_at(function, names, sizes)
            except InvertError:
                return None
            at = ", ".join(f"{n} = {size}" for n, size in sizes.items())
            program = stage.jaxpr
            if not _same_constants(constants, stage.constants):
                program = _over(constants, stage)
            try:
                return compare(program)
            except DoesNotRun:
                raise
            except EmissionError as error:
                raise SizeError(f"at {at} the program has another form: {error}") from error

        return probes.compare(
            points, lambda sizes: function.raw(_values(function, names, sizes)), check
        )

    return dataclasses.replace(recovered, probe=probe)


def _type(shape: Sequence[Any], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def _stage_at(
    function: Function, names: Sequence[Sequence[int | str]], sizes: Mapping[str, int]
) -> Any:
    """The program at some sizes; what JAX refuses there is an error of ours."""
    try:
        return function.stage(_values(function, names, sizes))
    except (TypeError, ValueError) as error:
        raise EmissionError(f"the program refuses the sizes {dict(sizes)}: {error}") from error


def _values(
    function: Function, names: Sequence[Sequence[int | str]], sizes: Mapping[str, int]
) -> list[jax.ShapeDtypeStruct]:
    """Types of the arguments at some sizes."""
    return [
        _type([sizes[n] if isinstance(n, str) else n for n in shape], spec.dtype)
        for shape, spec in zip(names, function.specs, strict=True)
    ]


def dimension_names(specs: Sequence[ArgSpec], shared: bool = False) -> list[list[int | str]] | None:
    """The shapes with a name for each open size.

    Open sizes without a name are the batch where they come first, which all arguments share;
    where `shared`, so are those of every other axis.
    """
    taken = Names()
    known: dict[Any, str] = {}
    shapes: list[list[int | str]] = []
    for spec in specs:
        shape: list[int | str] = []
        for axis, size in enumerate(spec.shape):
            if isinstance(size, int):
                shape.append(size)
                continue
            if size is not None and not re.fullmatch(r"[A-Za-z_]\w*", size):
                return None
            own = ("" if shared else spec.name, axis)
            key: Any = size if size is not None else ("batch" if axis == 0 else own)
            if key not in known:
                # What has two axes or more is a row of steps for each of the batch.
                common = "length" if axis == 1 else f"size_{axis}"
                wanted = key if isinstance(key, str) else f"{own[0]}_{axis}" if own[0] else common
                known[key] = taken.new(identifier(wanted, "size"))
            shape.append(known[key])
        shapes.append(shape)
    return shapes if len(known) <= _MOST else None


def _over(constants: Sequence[np.ndarray], stage: Any) -> Any:
    """A program as one over other constants, those that are its own among them.

    At small sizes an array that is computed at others may be a constant.
    """
    places = [
        next((i for i, c in enumerate(constants) if _same_constants([c], [own])), None)
        for own in stage.constants
    ]
    rest = [v.aval for v in stage.jaxpr.invars[len(stage.constants) :]]
    types = [*constants, *(jax.ShapeDtypeStruct(t.shape, t.dtype) for t in rest)]

    def run(*values: Any) -> list[Any]:
        pairs = zip(stage.constants, places, strict=True)
        own = [np.asarray(c) if i is None else values[i] for c, i in pairs]
        return eval_jaxpr(stage.jaxpr, [*own, *values[len(constants) :]])

    with jax.enable_x64(True):
        return trace_closed(run, *types)


def _same_constants(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> bool:
    return len(a) == len(b) and all(
        x is y or np.array_equal(x, y, equal_nan=x.dtype.kind in "fc")
        for x, y in zip(a, b, strict=True)
    )


def _recovered(
    function: Function, stages: Sequence[Any], points: Points | None, held: Set[str]
) -> Recovered:
    first = stages[0]
    for stage in stages[1:]:
        if not _same_constants(first.constants, stage.constants):
            raise EmissionError("the program holds other constants at other sizes")
    kinds = {s.report.certificate.kind: s.report.certificate for s in stages}
    worst = next(k for k in ("unverified", "numerical", "exact") if k in kinds)
    return Recovered(
        function.entry,
        [s.jaxpr for s in stages],
        first.constants,
        any(s.x64 for s in stages),
        str(kinds[worst]),
        points,
        held,
        function.config.assertions == "checkify",
    )
