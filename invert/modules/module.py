"""The callable Equinox module that a conversion returns."""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn, SupportsIndex, TypeVar, cast

import equinox as eqx
import jax
import numpy as np
from jax import Array

from invert._entry import Param, Shardings
from invert._errors import SaveError, SignatureError
from invert._report import Report
from invert.emission import CALL, STYLES, Emission, constant_name
from invert.ir.types import Arguments, JaxFunction, Jaxpr, Keywords, Tree, Value
from invert.modules import placement, shown
from invert.modules.function import Function
from invert.modules.graph import Graph, graph_of
from invert.modules.params import nest, param_paths
from invert.modules.specializations import Specialization
from invert.modules.texts import emission_of, with_loader

_T = TypeVar("_T")


class Recovered(eqx.Module):
    """Base class of modules of one or several functions."""

    params: dict[str, Value]

    @abc.abstractmethod
    def _functions_by_name(self) -> Mapping[str, Function]:
        """The functions, by their names in the container."""

    @abc.abstractmethod
    def _named_constants(self) -> Mapping[str, Array | np.ndarray]:
        """The arrays held by the programs, by their names in an emission."""

    @abc.abstractmethod
    def _emission(self, layers: str | Sequence[str] = (), typecheck: bool = False) -> Emission:
        """The text in a style, written once, with the container's parameters, without loader."""

    def named_params(self) -> dict[str, Value]:
        """Leaves of `params` by the names of the variables."""
        return named(self.params, self._functions_by_name().values())

    @property
    def shardings(self) -> Shardings | None:
        """The shardings of arguments, parameters and results on the mesh of the original.

        `None` if the program is for one device. For several functions, those of the first that
        uses several devices, with the parameters of all.
        """
        functions = list(self._functions_by_name().values())
        found = [
            s for f in functions if (s := placement.shardings_of(f.entry, f.shown)) is not None
        ]
        params = {name: spec for s in found for name, spec in s.params.items()}
        return dataclasses.replace(found[0], params=params) if found else None

    @property
    def source(self) -> str:
        """The program as Python source; several functions are methods of one class.

        **Raises:** `EmissionError` if it has none; `SignatureError` if sizes are open that the text
        cannot leave open and no call has fixed.
        """
        return with_loader(self._emission().namespace)

    @property
    def model(self) -> eqx.Module:
        """The module defined by `source`, with the parameters of this one.

        **Raises:** as `source`.
        """
        return self.emit().model

    def emit(
        self,
        *,
        layers: str | Sequence[str] = (),
        typecheck: bool = False,
        loader: bool = True,
    ) -> Emission:
        """The program as the text of a Python file, in a chosen style.

        Functions that could not be converted are left out.

        **Arguments:**

        - `layers`: one or several of these. `"scan"` stacks the arrays of consecutive equal layers
            in one module, run by `lax.scan`; `"auto"` does so only where there are so many that
            they compile much faster; `"equinox"` uses layers of `equinox.nn` where these do the
            same arithmetic. By default each layer is a separate field.
        - `typecheck`: makes every call check the annotated shapes and dtypes, by
            `jaxtyping.jaxtyped` with beartype, which the file then needs.
        - `loader`: whether the text ends with the function `load`, which reads weights. Saved
            modules always have it.

        **Returns:** an `Emission`; its `model` has the parameters of this module.

        **Raises:** as `source`; `ValueError` for unknown `layers`.
        """
        emission = self._emission(layers, typecheck)
        source = with_loader(emission.namespace) if loader else emission.source
        model = emission.with_values({**self._named_constants(), **self.named_params()})
        return dataclasses.replace(emission, source=source, model=model)

    def summary(self) -> str:
        """The functions with their types, and a table of layers, arrays and sizes."""
        return shown.summary(*self._shown())

    def graph(self, function: str | None = None, *, depth: int | None = None) -> Graph:
        """A picture of the program: its layers as boxes, with data flow as arrows.

        A notebook shows it, and `save(path)` writes it as an SVG file; a click on a layer folds and
        unfolds it. Equations between layers are grouped in small boxes, without those that only
        rearrange or convert values.

        **Arguments:**

        - `function`: the name of the function, if the module has several.
        - `depth`: how many levels of layers are unfolded at first. By default as many as fit into
            one view.

        **Raises:** `SignatureError` if no function has that name, or sizes are open that no call
        has fixed.
        """
        functions = self._functions_by_name()
        if function is None and len(functions) == 1:
            (function,) = functions
        if function is None or function not in functions:
            names = ", ".join(map(repr, functions))
            raise SignatureError(
                f"graph takes the name of one function, not {function!r}",
                remedy=f"Pass the name of one: {names}.",
            )
        return graph_of(functions[function], depth)

    def _shown(self) -> tuple[list[str], list[tuple[str, str, str]], str]:
        functions = self._functions_by_name()
        lines = [shown.call_line(n, f) for n, f in functions.items()]
        certificates = {shown.certificate_line(f) for f in functions.values()}
        if len(certificates) == 1:
            lines += certificates
        else:
            lines = [f"{x}  ({shown.certificate_line(f)})"
                     for x, f in zip(lines, functions.values(), strict=True)]  # fmt: skip
        named, constants = self.named_params(), self._named_constants()
        total = shown.count_line(named, list(constants.values()))
        return lines, shown.table(named, constants), total

    def _repr_html_(self) -> str:
        return shown.as_html(*self._shown())

    def __repr__(self) -> str:
        leaves = [*self.named_params().values(), *self._named_constants().values()]
        if not shown.is_whole(leaves):
            return super().__repr__()  # such as the filter returned by `trainable`
        lines, _, total = self._shown()
        return f"<{'; '.join([*lines, total])}>"

    def __hash__(self) -> int:
        # By identity, so that `jax.jit(module)` works; the arrays of a module have no hash.
        return id(self)

    def __eq__(self, other: object, /) -> bool | np.bool_ | Array:
        # Caches of `jax.jit` compare a module with itself, in traces too.
        return self is other or super().__eq__(other)

    def __copy__(self) -> Recovered:
        return jax.tree_util.tree_map(lambda x: x, self)

    def __deepcopy__(self, memo: dict[int, object]) -> Recovered:
        # The program is never changed; graphs of TensorFlow cannot be copied.
        return jax.tree_util.tree_map(lambda x: copy.deepcopy(x, memo), self)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        name = type(self).__name__
        raise SaveError(
            f"{name} cannot be pickled: it holds the program in memory",
            remedy=(
                "Write it with invert.save(module, directory) and read it with "
                "invert.load(directory); if only the arrays matter, pickle "
                "jax.tree_util.tree_leaves(module)."
            ),
        )


class Module(Recovered):
    """A recovered program: callable, with its variables as parameters.

    Every conversion creates a subclass whose `__call__` has the signature of the original.

    **Attributes:**

    - `params`: nested dictionaries of arrays that follow the names of the variables. Variables that
        the program assigns are `eqx.nn.StateIndex`; their values are in the state that
        `eqx.nn.State(module)` creates. The module is then called as
        `out, state = module(x, state)`.
    - `constants`: arrays held by the program, such as weights baked into an export.
    """

    constants: tuple[Array | np.ndarray, ...]
    _function: Function = eqx.field(static=True, repr=False)

    def __call__(self, *args: object, **kwargs: object) -> Tree:
        """Run the program.

        **Raises:** `SignatureError` if the arguments do not fit the signature.
        """
        function = self._function
        leaves = list(named(self.params, [function]).values())
        return run(function, self.constants, leaves, args, kwargs)

    @property
    def jaxpr(self) -> Jaxpr:
        """The program as a jaxpr of constants, parameters, flat arguments and key.

        If argument sizes are open, it is that of the example or of the first call.

        **Raises:** `SignatureError` if argument sizes are open and no call has fixed them.
        """
        return self._first().jaxpr

    @property
    def report(self) -> Report:
        """The report of the conversion; with open sizes, at those in `report.sizes`.

        **Raises:** `SignatureError` if sizes are open and the program was not yet recovered at any,
        as by a call or by `source`.
        """
        if (stage := self._function.shown) is None:
            return self._first().report
        return stage.report

    def _emission(self, layers: str | Sequence[str] = (), typecheck: bool = False) -> Emission:
        styles = styles_of(layers, typecheck)
        function = self._function
        if styles not in function.emissions:
            functions = {CALL: function}
            function.emissions[styles] = emission_of(functions, function.entry.name, styles)
        return function.emissions[styles]

    def _functions_by_name(self) -> Mapping[str, Function]:
        return {self._function.entry.name: self._function}

    def _named_constants(self) -> Mapping[str, Array | np.ndarray]:
        return {constant_name(CALL, i): c for i, c in enumerate(self.constants)}

    def _first(self) -> Specialization:
        if (stage := self._function.called) is None:
            name, reason = self._function.entry.name, self._function.divided.rstrip(".")
            raise SignatureError(
                f"{name}: the argument sizes are open, and no single program covers them all "
                f"({reason})",
                remedy="Call the module, or pass example arguments when converting.",
            )
        return stage


def run(
    function: Function,
    constants: Sequence[Value],
    params: Sequence[Value],
    args: Arguments,
    kwargs: Keywords,
) -> Tree:
    """Call a function.

    **Raises:** `SignatureError` if the program fails on arrays of other types than its own.
    """
    try:
        return function(constants, params, args, kwargs)
    except (AttributeError, TypeError, ValueError) as error:
        # Compared only on failure, to keep calls fast. An array may be replaced by anything, such
        # as `None`, which has no shape; without such an array, the error travels.
        if not (wrong := list(_wrong_arrays(function, constants, params))):
            raise
        raise SignatureError(
            f"{function.entry.name}: {'; '.join(wrong)}. The program is for these types",
            remedy="Put arrays of other types into `module.model`, whose classes take them.",
        ) from error


def _wrong_arrays(
    function: Function, constants: Sequence[Value], params: Sequence[Value]
) -> Iterator[str]:
    """Name the arrays that differ from those that the program holds and reads."""
    held = () if function.home is None else function.home.constants
    pairs = [
        *((f"constant {i}", c, x) for i, (c, x) in enumerate(zip(held, constants, strict=True))),
        *((f"parameter {p.name!r}", p.value, x)
          for p, x in zip(function.entry.params, params, strict=True)),
    ]  # fmt: skip
    for name, wanted, x in pairs:
        if isinstance(x, eqx.nn.StateIndex):
            continue
        if not hasattr(x, "shape") or not hasattr(x, "dtype"):
            yield f"the {name} is {'None' if x is None else f'a {type(x).__name__}'}, not an array"
        elif tuple(x.shape) != tuple(wanted.shape):
            yield f"the {name} has the shape {list(x.shape)}, expected {list(wanted.shape)}"
        elif x.dtype != jax.dtypes.canonicalize_dtype(wanted.dtype) and x.dtype != wanted.dtype:
            yield f"the {name} has the dtype {x.dtype}, expected {wanted.dtype}"


def styles_of(layers: str | Sequence[str], typecheck: bool) -> frozenset[str]:
    """The requested styles of a text.

    **Raises:** `ValueError` for an unknown style.
    """
    styles = frozenset([layers] if isinstance(layers, str) else layers)
    if unknown := styles - STYLES:
        names = " or ".join(map(repr, sorted(STYLES)))
        raise ValueError(f"layers={sorted(unknown)[0]!r} is not a style; expected {names}")
    return styles | {"typecheck"} if typecheck else styles


def named(params: dict[str, Value], functions: Iterable[Function]) -> dict[str, Value]:
    """Leaves of the parameters of some functions, by the names of the variables.

    Calls use it, since Equinox takes long to look up a method.
    """
    names = tuple(dict.fromkeys(p.name for f in functions for p in f.entry.params))
    leaves = (functools.reduce(operator.getitem, p, params) for p in param_paths(names))
    return dict(zip(names, leaves, strict=True))


def method(function: Function, name: str, run: Callable[..., object]) -> JaxFunction:
    """`run` as a method called `name`, with the signature of `function`."""

    def call(self: object, *args: object, **kwargs: object) -> Tree:
        return run(self, *args, **kwargs)

    call.__name__, call.__qualname__ = name, f"{function.entry.name}.{name}"
    call.__doc__ = f"Recovered from {function.entry.source}."
    others = list(function.signature.parameters.values())
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    if any(p.kind is inspect.Parameter.POSITIONAL_ONLY for p in others):
        kind = inspect.Parameter.POSITIONAL_ONLY
    parameters = [inspect.Parameter("self", kind), *others]
    signature = function.signature.replace(parameters=parameters)
    setattr(call, "__signature__", signature)  # noqa: B010  functions have no such field by type
    call.__annotations__ = {p.name: p.annotation for p in parameters[1:]}
    call.__annotations__["return"] = function.signature.return_annotation
    return call


def on_first_devices(module: Module) -> Module:
    """The module, run on the first devices unless a mesh is set."""
    module._function.first_devices = True
    return module


def build(function: Function) -> Module:
    """The module of a function: an instance of its own class."""
    entry = function.entry
    call = method(function, "__call__", Module.__call__)
    name = entry.name if entry.name.isidentifier() else "Recovered"
    cls = class_of(name, Module, call.__doc__ or "", {"__call__": call})
    assigned = {entry.params[i].name for i in entry.assigned}
    params = nest([p.name for p in entry.params], leaves_of(entry.params, assigned))
    return cls(params, function.home.constants if function.home else (), function)


@dataclasses.dataclass(frozen=True)
class _Interface:
    """The public interface of a class; classes with equal interfaces are shared."""

    name: str
    base: type
    doc: str
    seen: tuple[Hashable, ...]
    methods: Mapping[str, JaxFunction] = dataclasses.field(compare=False)


def class_of(
    name: str,
    base: type[_T],
    doc: str,
    methods: Mapping[str, Callable[..., object]],
    of: tuple[str, ...] = (),
) -> type[_T]:
    """A subclass of `base` with these methods `of` functions, shared by equal interfaces.

    JAX and Equinox keep each class of modules, and all that its methods refer to, until the process
    ends. So the methods find their functions in the instance.
    """
    seen = [
        (key, m.__qualname__, m.__doc__, str(inspect.signature(m))) for key, m in methods.items()
    ]
    made = _class_like(_Interface(name, base, doc, (*seen, *of), methods))
    return cast(type[_T], made)


@functools.lru_cache(maxsize=1024)
def _class_like(interface: _Interface) -> type:
    body = {**interface.methods, "__module__": interface.base.__module__, "__doc__": interface.doc}
    return type(interface.base)(interface.name, (interface.base,), body)


def leaves_of(
    params: Sequence[Param], assigned: Container[str]
) -> list[Array | np.ndarray | eqx.nn.StateIndex]:
    """The leaf for each variable: its array, or a state index if assigned."""
    pairs = zip(params, placement.param_arrays(params), strict=True)
    return [eqx.nn.StateIndex(value) if p.name in assigned else value for p, value in pairs]
