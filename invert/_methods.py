"""A module with one method for each function of a container, all on the same parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import equinox as eqx
import numpy as np
from jax import Array

from invert._errors import InvertError
from invert._module import Function, leaf_of, lookup, method, nest, param_paths
from invert._report import Report


class Methods(eqx.Module):
    """The functions of a container as methods.

    **Attributes:**

    - `params`: as in `Module`, of all functions together. A variable that one of them assigns is in
        the state for all.
    - `constants`: the arrays that each program holds itself, by name of the function.
    - `failed`: errors of the functions that could not be converted, by name. Their methods raise
        these errors.
    """

    params: dict[str, Any]
    constants: dict[str, tuple[Array | np.ndarray, ...]]
    _functions: tuple[tuple[str, Function], ...] = eqx.field(static=True)
    _failed: tuple[tuple[str, InvertError], ...] = eqx.field(static=True)

    @property
    def failed(self) -> Mapping[str, InvertError]:
        return dict(self._failed)

    @property
    def reports(self) -> Mapping[str, Report]:
        """What the conversion did, for the functions whose shapes are known."""
        found = {name: next(iter(f.stages.values()), None) for name, f in self._functions}
        return {name: stage.report for name, stage in found.items() if stage is not None}

    def named_params(self) -> dict[str, Any]:
        """Leaves of `params` by the names of the variables."""
        names = list(dict.fromkeys(p.name for _, f in self._functions for p in f.entry.params))
        paths = param_paths(names)
        return {n: lookup(self.params, p) for n, p in zip(names, paths, strict=True)}

    def __hash__(self) -> int:
        return id(self)


def _method(name: str, function: Function, attribute: str) -> Any:
    def run(self: Methods, *args: Any, **kwargs: Any) -> Any:
        named = self.named_params()
        leaves = [named[p.name] for p in function.entry.params]
        return function(self.constants[name], leaves, args, kwargs)

    return method(function, attribute, run)


def _failing(error: InvertError) -> Any:
    def run(self: Methods, *args: Any, **kwargs: Any) -> Any:
        raise error

    return run


def method_name(name: str) -> str:
    """An identifier for the name of a function: `encoder.__call__` is `encoder___call__`."""
    name = re.sub(r"\W", "_", name)
    return name if name.isidentifier() else f"_{name}"


def build_methods(
    name: str, functions: Mapping[str, Function], failed: Mapping[str, InvertError]
) -> Methods:
    """The module of several functions."""
    body: dict[str, Any] = {"__module__": __name__, "__doc__": f"Recovered from {name}."}
    for key, function in functions.items():
        body[method_name(key)] = _method(key, function, method_name(key))
    for key, error in failed.items():
        body[method_name(key)] = _failing(error)
    params = {p.name: p for f in functions.values() for p in f.entry.params}
    assigned = {f.entry.params[i].name for f in functions.values() for i in f.entry.assigned}
    leaves = [leaf_of(p, assigned) for p in params.values()]
    constants: dict[str, tuple[Any, ...]] = {}
    for key, function in functions.items():
        function.home = next(iter(function.stages.values()), None)
        constants[key] = function.home.constants if function.home else ()
    cls: Any = cast(Any, type(Methods))(method_name(name), (Methods,), body)
    return cls(
        nest(list(params), leaves), constants, tuple(functions.items()), tuple(failed.items())
    )
