"""The comparisons of `invert convert --verify`: certificate, saved module and original."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import equinox as eqx
import jax
import numpy as np

from invert._errors import InvertError, VerificationError, only_refusals
from invert._report import Report
from invert.cli.model import Model
from invert.emission import main_class
from invert.frontends import original
from invert.frontends.signature import with_valid_splits
from invert.ir.jaxprs import equations
from invert.ir.numbers import largest_gap, on_cpu, random_value
from invert.ir.sizes import evaluate
from invert.ir.substitution import samples
from invert.ir.types import Arguments, CallArguments, Keywords, Value
from invert.modules import save
from invert.modules.dimensions import (
    at_numbers,
    dimension_order,
    named_shapes,
    symbolic_shapes,
)
from invert.modules.function import Function
from invert.modules.module import Module

# Tolerances relative to the largest result, by item size, for another library on the same machine,
# which sums in another order.
_TOLERANCES = {1: 0.5, 2: 5e-2, 4: 1e-3, 8: 1e-9}
# Sizes to try for open dimensions, row by row. Emission does not use them.
_SIZES = ((2, 3), (1, 4), (17, 10))


class Difference(VerificationError):
    """The converted model differs from its original."""


@dataclasses.dataclass
class Comparisons:
    """The comparisons made, and those that failed, as lines of text."""

    lines: list[str] = dataclasses.field(default_factory=list)
    failures: list[str] = dataclasses.field(default_factory=list)


def check(model: Model, module: object, target: Path, reports: Mapping[str, Report]) -> Comparisons:
    """Compare a converted model with its original and with its saved copy."""
    # An artifact may run nowhere but on the default device.
    with contextlib.nullcontext() if model.kind == "exported" else on_cpu():
        return _check(model, module, target, reports)


def _check(
    model: Model, module: object, target: Path, reports: Mapping[str, Report]
) -> Comparisons:
    comparisons = Comparisons()
    for name, report in reports.items():
        if report.certificate.kind == "unverified":
            comparisons.failures.append(f"{name}: unverified: {report.certificate.reason}")
    if not isinstance(module, Module):
        comparisons.lines.append(
            "  not run: it was written by invert; verify the model that it was converted from"
            if model.kind == "saved"
            else "  not run: only modules of one function are; use --signature"
        )
        return comparisons
    comparing = _Comparing(model, module, save.load_saved(target), comparisons)
    ran = [comparing.at(*sizes) for sizes in _sizes(module._function)]
    if not any(ran):
        ran = [comparing.at(*sizes) for sizes in _fitting_sizes(module._function)]
    if not any(ran):
        comparisons.failures.append("nothing was compared: the program refuses all sizes tried")
    return comparisons


# Numbers for dimensions by their names, and the shapes of the arguments.
_Sizes = tuple[Mapping[str, int], Sequence[Sequence[int]]]


def _sizes(function: Function) -> list[_Sizes]:
    names = named_shapes(function.specs)
    dims = dimension_order(symbolic_shapes(names) or ())
    return [
        ({n: row[i % len(row)] for i, n in enumerate(dims)}, at_numbers(names, row))
        for row in (_SIZES if dims else _SIZES[:1])
    ]


def _fitting_sizes(function: Function) -> list[_Sizes]:
    """Sizes that meet the conditions on the program, such as that one is a multiple of 4."""
    whole = function.whole()
    if whole is None or not whole.is_open:
        return []
    try:
        fitting = samples(whole.jaxpr)
    except InvertError:  # none of those that it tries does
        return []
    return [
        (
            {str(whole.names.get(n, n)): int(size) for n, size in sizes.items()},
            [[int(evaluate(n, sizes)) for n in shape] for shape in whole.shapes],
        )
        for sizes in fitting
    ]


@dataclasses.dataclass(frozen=True)
class _Comparing:
    model: Model
    module: Module
    loaded: Value
    found: Comparisons

    def at(self, sizes: Mapping[str, int], shapes: Sequence[Sequence[int]]) -> bool:
        """Compare at some sizes; return whether the program ran."""
        function = self.module._function
        at = f" at {', '.join(f'{n} = {size}' for n, size in sizes.items())}" if sizes else ""
        args, kwargs = _arguments(function, shapes)
        try:
            with only_refusals():
                here = _results(self.module, function, args, kwargs, function.key_name)
        except (InvertError, TypeError, ValueError) as error:
            if not at:
                raise
            self.found.lines.append(
                f"  not run{at}, which the program refuses: {_first_line(error)}"
            )
            return False
        try:
            # A text names those arguments differently that would hide a module it imports.
            names, _, key = main_class.parameters(function.entry)
            named = {names[n]: value for n, value in kwargs.items()}
            there = _results(self.loaded, function, args, named, key)
        except (TypeError, ValueError) as error:
            self.found.failures.append(f"the saved module does not run{at}: {_first_line(error)}")
            return True
        if _same(here, there):
            self.found.lines.append(f"  saved and loaded again: equal, bit for bit{at}")
        else:
            self.found.failures.append(
                f"the saved module's results differ from the converted module's{at}"
            )
        _compare_original(self.model, function, (args, kwargs), here, self.found)
        return True


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _arguments(function: Function, shapes: Sequence[Sequence[int]]) -> CallArguments:
    """Random arguments of these shapes."""
    rng = np.random.default_rng(0)
    values = [
        random_value(rng, jax.ShapeDtypeStruct(shape, spec.dtype))
        for shape, spec in zip(shapes, function.specs, strict=True)
    ]
    return with_valid_splits(jax.tree_util.tree_unflatten(function.in_tree, values), rng)


def _results(
    module: Value, function: Function, args: Arguments, kwargs: Keywords, key: str | None
) -> list[np.ndarray]:
    extra: dict[str, Value] = {}
    if key is not None and function.key_name is not None:
        extra[key] = jax.random.key(0)
    if function.state_name is not None:
        args = (*args, eqx.nn.State(module))
    out = module(*args, **kwargs, **extra)
    if function.state_name is not None:
        out = out[0]
    return [np.asarray(x) for x in jax.tree_util.tree_leaves(out)]


def _same(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> bool:
    return len(a) == len(b) and all(
        x.shape == y.shape and x.dtype == y.dtype and x.tobytes() == y.tobytes()
        for x, y in zip(a, b, strict=True)
    )


def _compare_original(
    model: Model,
    function: Function,
    values: CallArguments,
    here: Sequence[np.ndarray],
    found: Comparisons,
) -> None:
    if function.key_name is not None:
        found.lines.append("  not compared with the original: it draws other random numbers")
        return
    try:
        with only_refusals():
            there = _original(model, function.entry.name)
            results = there(*values) if there is not None else None
    # Exceptions of the container's own library for arguments that it refuses.
    except (InvertError, RuntimeError, ValueError, TypeError, LookupError, OSError) as error:
        found.lines.append(
            f"  not compared with the original, which does not run: {_first_line(error)}"
        )
        return
    if results is None:
        found.lines.append("  not compared with the original: nothing installed here can run it")
        return
    if len(here) != len(results):
        found.failures.append(f"it has {len(here)} results, and the original {len(results)}")
        return
    largest, narrowest = 0.0, _narrowest(function)
    for i, (x, y) in enumerate(zip(here, results, strict=True)):
        gap, limit = _gap(x, np.asarray(y), narrowest)
        largest = max(largest, gap)
        if not gap <= limit:
            found.failures.append(
                f"result {i} differs from the original's by {gap:.3g}, "
                "relative to its largest number"
            )
    found.lines.append(f"  compared with the original: largest relative difference {largest:.3g}")


def _original(model: Model, name: str) -> original.Original | None:
    if model.kind == "saved_model":
        return original.of_saved_model(model.path, name)
    if model.kind == "keras":
        return original.of_keras(model.path)
    if model.kind == "graph":
        return original.of_graph(model.path, model.inputs, model.outputs)
    return original.of_exported(model.path.read_bytes()) if model.kind == "exported" else None


def _narrowest(function: Function) -> int:
    """The fewest bytes of a floating-point number that the program computes."""
    if (program := function.called) is None:
        return 8
    found = (v.aval.dtype for eqn in equations(program.jaxpr) for v in eqn.outvars)
    return min(map(_bytes_of_part, filter(_is_inexact, found)), default=8)


def _is_inexact(dtype: np.dtype) -> bool:
    return jax.dtypes.issubdtype(dtype, np.inexact)


def _bytes_of_part(dtype: np.dtype) -> int:
    return dtype.itemsize // (2 if dtype.kind == "c" else 1)


def _gap(x: np.ndarray, y: np.ndarray, narrowest: int) -> tuple[float, float]:
    """The largest difference, relative to the largest number in `y`, and its tolerance."""
    if x.shape != y.shape:
        return float("inf"), 0.0
    if not _is_inexact(x.dtype):
        return float(not np.array_equal(x, y)), 0.0
    size = min(_bytes_of_part(x.dtype), narrowest)
    finite = np.abs(y[np.isfinite(y)].astype(np.complex128))
    return largest_gap(x, y) / max(1.0, finite.max(initial=0.0)), _TOLERANCES[size]
