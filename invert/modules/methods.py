"""A module with a method for each function of a container, on shared parameters."""

from __future__ import annotations

import dataclasses
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence

import equinox as eqx
import numpy as np
from jax import Array

from invert._errors import InvertError, SignatureError
from invert._report import Report
from invert.emission import Emission, constant_name
from invert.ir.types import Arguments, JaxFunction, Keywords, Tree, Value
from invert.modules.function import Function
from invert.modules.module import Recovered, class_of, leaves_of, method, named, styles_of
from invert.modules.module import run as call_function
from invert.modules.params import nest
from invert.modules.signatures import led_by_letter
from invert.modules.texts import emission_of


class Methods(Recovered):
    """The functions of a container as methods.

    **Attributes:**

    - `params`: as in `Module`, for all functions together. A variable that any of them assigns is
        in the state for all.
    - `constants`: the arrays held by each program, by function name.
    - `failed`: the errors of functions that could not be converted, by name. Their methods raise
        them.
    """

    constants: dict[str, tuple[Array | np.ndarray, ...]]
    _functions: tuple[tuple[str, Function], ...] = eqx.field(static=True, repr=False)
    _failed: tuple[tuple[str, InvertError], ...] = eqx.field(static=True, repr=False)

    @property
    def failed(self) -> Mapping[str, InvertError]:
        return dict(self._failed)

    @property
    def reports(self) -> Mapping[str, Report]:
        """The reports of the functions that were recovered so far."""
        stages = {name: f.shown for name, f in self._functions}
        return {name: stage.report for name, stage in stages.items() if stage is not None}

    def _functions_by_name(self) -> Mapping[str, Function]:
        return dict(self._functions)

    def _named_constants(self) -> Mapping[str, Array | np.ndarray]:
        names = self._names()
        return {
            constant_name(names[name], i): c
            for name, held in self.constants.items()
            for i, c in enumerate(held)
        }

    def _emission(self, layers: str | Sequence[str] = (), typecheck: bool = False) -> Emission:
        styles = styles_of(layers, typecheck)
        emissions = self._functions[0][1].emissions_together
        if styles not in emissions:
            functions = {self._names()[name]: function for name, function in self._functions}
            entries = [f.entry for f in functions.values()]
            held = frozenset(e.params[i].name for e in entries for i in e.assigned)
            notes = [f"{name} is left out: {error}" for name, error in self._failed]
            title = type(self).__name__
            emissions[styles] = emission_of(functions, title, styles, held, notes)
        return emissions[styles]

    def _names(self) -> dict[str, str]:
        return _attributes(dict(self._functions), dict(self._failed))


def _method(name: str, function: Function, attribute: str) -> JaxFunction:
    def run(self: Methods, *args: object, **kwargs: object) -> Tree:
        return _call(self, name, args, kwargs)

    return method(function, attribute, run)


def _call(module: Methods, name: str, args: Arguments, kwargs: Keywords) -> Tree:
    functions = dict(module._functions)
    function = functions[name]
    values = named(module.params, functions.values())
    leaves = [values[p.name] for p in function.entry.params]
    return call_function(function, module.constants[name], leaves, args, kwargs)


def _picking(name: str, traces: Sequence[str]) -> JaxFunction:
    """A method that dispatches each call to one of a function's traces.

    Python values among the arguments are static, as in a `tf.function`.
    """

    def run(self: Methods, *args: object, **kwargs: object) -> Tree:
        functions = {n: f for n, f in self._functions if n in traces}
        given = [*args, *kwargs.values()]
        states = [a for a in given if isinstance(a, eqx.nn.State)]
        plain = [a for a in args if not isinstance(a, eqx.nn.State)]
        kwargs = {k: v for k, v in kwargs.items() if not isinstance(v, eqx.nn.State)}
        for exact in (True, False):
            for trace, function in functions.items():
                own = {k: v for k, v in kwargs.items() if k == function.key_name}
                rest = {k: v for k, v in kwargs.items() if k not in own}
                assert function.entry.trace is not None
                picked = function.entry.trace.pick(plain, rest, exact)
                if picked is not None:
                    return _call(self, trace, [*picked[0], *states], {**picked[1], **own})
        raise SignatureError(
            f"the arguments fit none of the traces of {name}:\n"
            + "\n".join(f"  - {trace}" for trace in traces),
            remedy="Pass arguments of one of these types.",
        )

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"One of {', '.join(traces)}, by the arguments."
    return run


def _failing(name: str) -> JaxFunction:
    def run(self: Methods, *args: object, **kwargs: object) -> Tree:
        raise self.failed[name]

    return run


def method_names(names: Iterable[str]) -> dict[str, str]:
    """A unique identifier for each function: `encoder___call__` for `encoder.__call__`.

    Avoids keywords and attributes of the class. A trace is called after its function and how it
    differs: `call_training` for `__call__(training=True)`.
    """
    taken = {*dir(Methods), *(f.name for f in dataclasses.fields(Methods))} - {"__call__"}
    identifiers: dict[str, str] = {}
    for name in names:
        function, _, trace = name.partition("(")
        plain = re.sub(r"\W", "_", function, flags=re.ASCII)
        if apart := re.findall(r"\w+", re.sub(r"=True\b", "", trace), flags=re.ASCII):
            plain = "_".join([plain.rstrip("_"), *apart])
        plain = led_by_letter(plain)
        if plain.startswith("__") and not plain.endswith("__"):
            # Python mangles these in the source of a class.
            plain = led_by_letter(plain.lstrip("_"))
        while plain in taken or keyword.iskeyword(plain):
            plain += "_"
        taken.add(plain)
        identifiers[name] = plain
    return identifiers


def _attributes(functions: Mapping[str, Function], failed: Mapping[str, object]) -> dict[str, str]:
    """The attribute of each function; the default trace of a function has its name."""
    traces = {name: f.entry.trace for name, f in functions.items()}
    named = {n: t.of if t is not None and t.default else n for n, t in traces.items()}
    identifiers = method_names([*named.values(), *failed])
    return {name: identifiers[of] for name, of in named.items()} | {
        name: identifiers[name] for name in failed
    }


def build_methods(
    name: str, functions: Mapping[str, Function], failed: Mapping[str, InvertError]
) -> Methods:
    """The module of several functions."""
    body: dict[str, JaxFunction] = {}
    names = _attributes(functions, failed)
    for key, function in functions.items():
        body[names[key]] = _method(key, function, names[key])
    for key in failed:
        body[names[key]] = _failing(key)
    # A call of a function by its own name runs the trace that fits, perhaps the default one.
    of = {key: f.entry.trace.of for key, f in functions.items() if f.entry.trace is not None}
    for function in dict.fromkeys(of.values()):
        (identifier,) = method_names([function]).values()
        traces = [key for key in functions if of.get(key) == function]
        if identifier not in body or any(names[key] == identifier for key in traces):
            body[identifier] = _picking(function, traces)
    params = {p.name: p for f in functions.values() for p in f.entry.params}
    assigned = {f.entry.params[i].name for f in functions.values() for i in f.entry.assigned}
    leaves = leaves_of(list(params.values()), assigned)
    constants: dict[str, tuple[Value, ...]] = {}
    for key, function in functions.items():
        constants[key] = function.home.constants if function.home else ()
    # Methods look up their function by its name in the container.
    cls = class_of(
        method_names([name])[name], Methods, f"Recovered from {name}.", body, of=tuple(names)
    )
    return cls(
        nest(list(params), leaves), constants, tuple(functions.items()), tuple(failed.items())
    )
