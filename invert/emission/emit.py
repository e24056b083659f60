"""Writes recovered programs as the text of an Equinox module, and compares them."""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
import itertools
import types
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax import lax

from invert._entry import ArgSpec, EntryPoint
from invert._errors import EmissionError, only_refusals, optional_step
from invert._private.jax import (
    SIZE_ERRORS,
    close_like,
    consts_of,
    dce,
    forget_traces,
    names_of,
    open_jaxpr,
    rename,
    trace_closed,
    with_names,
)
from invert.emission import main_class
from invert.emission.classes import Classes
from invert.emission.constructors.starts import Starts, is_keras
from invert.emission.equinox_nn import replace, weights
from invert.emission.equinox_nn.weights import Weights
from invert.emission.expressions import idioms
from invert.emission.expressions.proof import Prover
from invert.emission.file import File, MissingSizeError, check_types, headed
from invert.emission.layers import (
    blocks,
    cells,
    copies,
    cut,
    field_names,
    lists,
    regions,
    stack,
    structure,
)
from invert.emission.layers import tree as layer_tree
from invert.emission.layers.arguments import arrange
from invert.emission.layers.given_sizes import give_sizes
from invert.emission.layers.memory import Memories
from invert.emission.layers.positions import give_positions
from invert.emission.layers.state import thread
from invert.emission.layers.tree import Node
from invert.emission.own_constants import split_constants
from invert.emission.page import page_of
from invert.emission.python import load
from invert.emission.python.naming import camel, spelled, wrapped_comment
from invert.emission.sizes.program import Program, together
from invert.ir import meshes, traced_form
from invert.ir.arrays import device_array
from invert.ir.avals import type_of_key
from invert.ir.graph import Graph, is_var
from invert.ir.interpret import inline_calls
from invert.ir.jaxprs import map_jaxprs
from invert.ir.known_numbers import with_known_numbers
from invert.ir.lookups import with_wrapped_positions
from invert.ir.loop_operands import with_plain_operands
from invert.ir.narrow_operands import with_narrow_operands
from invert.ir.reversed_loops import unreversed
from invert.ir.size_values import with_size_values
from invert.ir.sizes import Constraint, is_open
from invert.ir.triangles import with_triangles
from invert.ir.types import AnyJaxpr, Atom, Aval, Eqn, Jaxpr, Literal, Value, Var

M = TypeVar("M", bound=eqx.Module)

# What Keras calls models without a name.
_UNNAMED = ("Sequential", "Functional")
# The styles of layers that a caller may choose.
STYLES = frozenset({"scan", "equinox"})


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

    @property
    def in_state(self) -> list[bool]:
        """For each parameter, whether it is in the state."""
        assigned = set(self.entry.assigned)
        return [i in assigned or p.name in self.held for i, p in enumerate(self.entry.params)]


@dataclasses.dataclass(frozen=True)
class Emission:
    """Programs as Python source, and the module that the source defines.

    **Attributes:**

    - `source`: the text of a Python file.
    - `model`: an instance of the outermost class of the text, with the parameters.
    - `namespace`: the Python module that the text defines.
    - `names`: the name of each array of `model` in the file of weights, and its name in the
        container; for stacked arrays, a tuple of names.
    - `messages`: what could not be written as requested, and how layers were written instead.
    - `layouts`: for arrays whose axes differ from those of their variable in the container, the
        order of its axes and the new shape.
    - `certificates`: for each method, how far the recovery is proved, and for which sizes.
    """

    source: str
    model: eqx.Module
    namespace: types.ModuleType
    names: Mapping[str, Any]
    messages: tuple[str, ...]
    layouts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    certificates: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        certificates = "; ".join(dict.fromkeys(self.certificates.values()))
        count = len(self.source.splitlines())
        return f"<Emission of {type(self.model).__name__}: {count} lines; {certificates}>"

    def with_values(self, values: Mapping[str, Value]) -> eqx.Module:
        """The model with other arrays, given by their names in the container.

        An `eqx.nn.StateIndex` is kept, so that a state of one model works with the other.
        """
        return put_values(self.model, self.names, self.layouts, values)


def put_values(
    model: M, names: Mapping[str, Any], layouts: Mapping[str, Any], values: Mapping[str, Value]
) -> M:
    """A written model with other arrays; see `Emission` for `names` and `layouts`."""
    leaves, tree = jax.tree_util.tree_flatten(model, is_leaf=_is_index)
    new = []
    for (path, names_of_leaf), old in zip(names.items(), leaves, strict=True):
        known = set(stack.leaves_of(names_of_leaf)) <= values.keys()
        value = weights.arranged(names_of_leaf, layouts.get(path), values) if known else old
        new.append(eqx.nn.StateIndex(value) if _is_index(old) > _is_index(value) else value)
    return jax.tree_util.tree_unflatten(tree, new)


@dataclasses.dataclass(frozen=True)
class Origin:
    """The origin of the arrays of a written model; see `Emission` for `names` and `layouts`.

    **Arguments:**

    - `shapes`: shapes of the container's variables, by name.
    """

    names: Mapping[str, Any]
    layouts: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]

    def values(self, leaves: Sequence[Value]) -> dict[str, Value]:
        """The arrays of a model by their names in the container, in the container's shapes."""
        found: dict[str, Value] = {}
        for (path, names), array in zip(self.names.items(), leaves, strict=True):
            found |= weights.spread(names, self.layouts.get(path), array, self.shapes)
        return found


def constant_name(method: str, i: int) -> str:
    """A name for a constant of a program, which has none in the container."""
    return f"constant_{i}" if method == main_class.CALL else f"{method}/constant_{i}"


def _is_index(x: object) -> bool:
    return isinstance(x, eqx.nn.StateIndex)


def emit(recovered: Recovered, styles: Set[str] = frozenset()) -> Emission:
    """Writes one program; `styles` as for `emit_methods`.

    **Raises:** `EmissionError` if no text traces to the program.
    """
    return emit_methods({main_class.CALL: recovered}, recovered.entry.name, styles)


def emit_methods(
    recovered: Mapping[str, Recovered],
    title: str,
    styles: Set[str] = frozenset(),
    notes: Sequence[str] = (),
) -> Emission:
    """Writes programs that share parameters as the methods of one class.

    **Arguments:**

    - `recovered`: the programs, by the names of the methods, which are identifiers.
    - `title`: the class is named after it.
    - `styles`: `"scan"` stacks consecutive layers that compute the same; `"equinox"` replaces
        layers by equivalent ones of `equinox.nn`; `"typecheck"` makes methods check their
        annotations; `"no loader"` leaves out the functions that read weights.
    - `notes`: lines for the README saved with the text.

    **Raises:** `EmissionError` if no text traces to the programs.
    """
    recovered = {
        name: dataclasses.replace(r, program=map_jaxprs(r.program, _as_written))
        for name, r in recovered.items()
    }
    if len(recovered) == 1:
        recovered = {name: _with_own_constants(r) for name, r in recovered.items()}
    on_shards = any(meshes.has_shards(r.program) for r in recovered.values())
    if not on_shards:
        return _emit(recovered, title, styles, notes)
    try:
        return _emit(_with_checks(recovered, None), title, styles, notes)
    except EmissionError:
        # JAX does not mark the operands of all functions as varying along the same axes.
        return _emit(_with_checks(recovered, False), title, styles, notes)


def _with_own_constants(recovered: Recovered) -> Recovered:
    if recovered.entry.params:  # the constants are no weights
        return recovered
    program, constants, numbers = split_constants(recovered.program, recovered.constants)
    return dataclasses.replace(recovered, program=program, constants=constants, numbers=numbers)


def _as_written(jaxpr: Jaxpr) -> Jaxpr:
    """A program in the form of source text.

    Sums of cotangents use `+`, arrays of one number are numbers, what is computed from numbers is a
    number, operations with neutral numbers are dropped, `x + -1.0` is `x - 1.0`, `-x * y + z` is
    `z - x * y`, loops over reversed arrays run in reverse, loops take arrays without axes of size
    one, and positions are looked up as other indices are.
    """
    jaxpr = with_known_numbers(jaxpr.replace(eqns=[_known(e) for e in jaxpr.eqns]))
    narrow = with_narrow_operands(with_wrapped_positions(jaxpr))
    narrow = _without_neutral(narrow)
    return with_triangles(with_plain_operands(unreversed(_with_differences(narrow))))


def _known(eqn: Eqn) -> Eqn:
    """An equation with the primitive that `jax.numpy` uses."""
    if eqn.primitive.name == "add_any":
        return eqn.replace(primitive=lax.add_p)
    if (order := _order_of_axes(eqn)) is not None:
        return eqn.replace(primitive=lax.transpose_p, params={"permutation": order})
    if eqn.primitive.name != "tile":
        return eqn
    (x,), (out,) = eqn.invars, eqn.outvars
    old, new = x.aval.shape, out.aval.shape
    if any(m not in (1, n) for m, n in zip(old, new, strict=True)):
        return eqn
    params = {"shape": new, "broadcast_dimensions": tuple(range(len(new))), "sharding": None}
    return eqn.replace(primitive=lax.broadcast_in_dim_p, params=params)


def _order_of_axes(eqn: Eqn) -> tuple[int, ...] | None:
    """The order of axes of a reshape that only exchanges an axis of size one with the last one."""
    if eqn.primitive.name != "reshape" or len(eqn.invars) != 1:
        return None
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    rank = len(new)
    if rank < 2 or len(old) != rank or old[:-2] != new[:-2]:
        return None
    exchanged = old[-2:] == new[:-3:-1] and 1 == old[-1] != old[-2]
    return (*range(rank - 2), rank - 1, rank - 2) if exchanged else None


def _with_checks(recovered: Mapping[str, Recovered], checks: bool | None) -> dict[str, Recovered]:
    return {
        name: dataclasses.replace(r, program=meshes.unchecked(r.program, checks))
        for name, r in recovered.items()
    }


def _emit(
    recovered: Mapping[str, Recovered], title: str, styles: Set[str], notes: Sequence[str]
) -> Emission:
    """As `emit_methods`, for programs without marks of varying mesh axes."""
    messages: list[str] = []
    failures: list[str] = []
    checks = styles - STYLES
    forms = [_Form(checks), _Form(checks, outlined=False)]
    forms += [_Form(checks, outlined=False, lists=False), _Form(checks, False, False, False)]
    if styles != checks:
        forms[:0] = [_Form(styles), _Form(styles, outlined=False)]
    forms.append(_Form(checks, False, False, False, plain=True))
    parted = False
    while forms:
        form = forms.pop(0)
        if form.lists and not form.outlined and not parted:
            continue  # it has been tried
        variant = _Variant(recovered, title, form)
        try:
            # All programs can be written in the last form, so a failure there is an error.
            emission = (
                variant.run()
                if form.plain
                else optional_step(f"the text as {form}", failures, variant.run)
            )
        except MissingSizeError as error:
            if form.every_size or not form.layers:
                failures.append(str(error))
            else:
                forms.insert(0, dataclasses.replace(form, every_size=True))
            parted = bool(variant.parts)
            continue
        except EmissionError as error:
            failures.append(str(error))
            parted = bool(variant.parts)
            continue
        if emission is None:
            parted = bool(variant.parts)
            failures = failures or ["an open size would have to be known"]
            continue
        if failures:
            messages.append(f"written as {form}: {failures[0]}")
        messages = [*notes, *messages, *emission.messages]
        emission = dataclasses.replace(emission, messages=tuple(messages))
        space: Any = emission.namespace
        space.__source__ = emission.source
        params = (p for r in recovered.values() for p in r.entry.params)
        shapes = {p.name: tuple(p.value.shape) for p in params}
        space.__origin__ = Origin(emission.names, emission.layouts, shapes)
        space.__page__ = page_of(
            {name: (r.entry, emission.certificates[name]) for name, r in recovered.items()},
            title,
            emission.source,
            type(emission.model).__name__,
            emission.names,
            emission.messages,
        )
        return emission
    raise EmissionError("no text traces to the program: " + "; ".join(dict.fromkeys(failures)))


@dataclasses.dataclass(frozen=True)
class Layered:
    """The layers that the text of a program has.

    **Arguments:**

    - `root`: the outermost layer; `found`: the layers that the text calls in a loop.
    - `paths`: the names of the parameters; `constants` are those held by the program.
    """

    root: cut.Layer
    found: lists.Lists
    paths: Mapping[Var, cut.Path]
    constants: Set[Var]

    def name(self, layer: cut.Layer) -> str:
        """The name from which the field of a layer is derived."""
        return layer_tree.called(layer, self.paths)


def cut_into_layers(recovered: Recovered) -> Layered:
    """The layers of a program's text, without the text."""
    method = main_class.CALL
    variant = _Variant({method: recovered}, recovered.entry.name, _Form(frozenset()))
    programs, _, roots, found = variant.layered()
    constants = programs[method].jaxpr.invars[: len(recovered.constants)]
    return Layered(roots[method], found, variant.paths, frozenset(constants))


@dataclasses.dataclass(frozen=True)
class _Form:
    """How a text is written.

    **Arguments:**

    - `styles`: as for `emit_methods`.
    - `layers`: whether layers become separate classes.
    - `lists`: whether layers that compute the same are held in tuples.
    - `outlined`: whether parts that are computed several times are written once.
    - `plain`: as for `Writer`.
    - `every_size`: as `every` for `give_sizes`.
    """

    styles: Set[str]
    layers: bool = True
    lists: bool = True
    outlined: bool = True
    plain: bool = False
    every_size: bool = False

    def __str__(self) -> str:
        if self.layers:
            return "classes"
        return "one class, in plain lax" if self.plain else "one class"


class _Variant:
    """One attempt to write the programs, in one form."""

    def __init__(self, recovered: Mapping[str, Recovered], title: str, form: _Form):
        self.recovered, self.title, self.form = recovered, title, form
        self.styles = form.styles
        self.parts: list[copies.Part] = []
        self.weights = Weights()
        self.x64 = any(r.x64 for r in recovered.values())
        self.messages: list[str] = []
        # Values and names of the parameters, by the variables that all programs share.
        self.values: dict[Var, Any] = {}
        self.paths: dict[Var, tuple[str, ...]] = {}
        self.containers: dict[Var, str] = {}
        self.held: set[Var] = set()
        self._shared: dict[Hashable, Var] = {}
        # The tree of an instance, which a trace of the constructors tells.
        self._structure = functools.cache(_structure)

    def run(self) -> Emission:
        with load.loading() as module_of:
            return self._run(module_of)

    def layered(
        self,
    ) -> tuple[dict[str, Program], File, dict[str, cut.Layer], lists.Lists]:
        """The programs, the file for them, their layers, and the lists among these."""
        programs = {
            name: self._parameters(
                name, Program.of(_tidy(r.program, len(r.constants) + len(r.entry.params)))
            )
            for name, r in self.recovered.items()
        }
        program = together(list(programs.values()))
        settings = (True,) if self.x64 else (False, True)
        prover = Prover(settings, program.dimensions)
        file = File(program, prover, plain=self.form.plain)
        roots = {name: self._cut(name, p.jaxpr, file) for name, p in programs.items()}
        if self.form.lists and len(roots) == 1:
            for root in (*roots.values(), *(p.root for p in self.parts)):
                blocks.group(root, self.paths)
        if len(roots) == 1:
            for root in roots.values():
                field_names.shorten(root, self._own_name(roots), self.paths)
        for root in roots.values():
            copies.call(root)
            give_positions(root)
            give_sizes(root, program.shape, every=self.form.every_size)
            arrange(root, Memories(program.jaxpr))
        if self.styles & STYLES:
            self._restyle(roots, program)
        found = lists.Lists(lambda layer: layer.field or layer_tree.called(layer, self.paths))
        if self.form.lists and len(roots) == 1:
            for root in roots.values():
                found.find(root, stack.Stacker(program.jaxpr, program, {}, []))
        for name, root in roots.items():
            blocks.name_layers(root)
            if self.form.layers:
                units = functools.partial(_units, file)
                cells.find(root, programs[name].jaxpr, self.paths, self.held, units)
            if self.form.lists and not self.held:
                found.unroll(root)
        return programs, file, roots, found

    def _own_name(self, roots: Mapping[str, cut.Layer]) -> str:
        """The name of the outermost module as its author wrote it, or `""`."""
        named = next(iter(roots.values())).name if len(roots) == 1 else ""
        anonymous = self.title in ("<lambda>", main_class.CALL)
        kinds = {r.entry.kind for r in self.recovered.values()}
        kind = next(iter(kinds)) if len(kinds) == 1 else ""
        return kind or named or ("" if anonymous else self.title)

    def _run(self, module_of: Callable[[str, str], types.ModuleType]) -> Emission:
        programs, file, roots, found = self.layered()
        states = {name: thread(root, self.held) for name, root in roots.items()}
        title = spelled(camel(self._own_name(roots), "Model", model=True))
        if len(title) == 1 or title in _UNNAMED:  # the name of a parameter says nothing
            title = "Model"
        jaxprs = {name: p.jaxpr for name, p in programs.items()}
        starts = self._starts(jaxprs)
        held = {k: v for r in self.recovered.values() for k, v in r.entry.attributes.items()}
        tree = layer_tree.tree_of(roots, self.paths, title, counted=starts.keras, attributes=held)
        classes = Classes(file, tree, jaxprs, self.paths, self.held, found, starts)
        classes.on_layer = self._tell
        methods = [
            main_class.Method(
                name,
                r.entry,
                roots[name],
                self._arguments(r, jaxprs[name]),
                states[name] if any(r.in_state) else None,
                r.x64,
                r.checkify,
                r.fixed,
                r.constraints,
            )
            for name, r in self.recovered.items()
        ]
        stated = [r.entry.shardings.params for r in self.recovered.values() if r.entry.shardings]
        known = {name: spec for params in stated for name, spec in params.items()}
        specs = {v: known[name] for v, name in self.containers.items() if name in known}
        main = main_class.Main(classes, methods, stacked=bool(self.weights.rows), specs=specs)
        flags = self._flags()
        trained = {v for v, flag in flags.items() if flag}
        cls = main.add(tree.root, trained, loader="no loader" not in self.styles)
        self.messages += main.messages
        certificates = {name: r.certificate for name, r in self.recovered.items()}
        while True:
            classes.finish()
            if "typecheck" in self.styles:
                check_types(file.definitions)
            source = headed(file.text(), self._doc(certificates))
            namespace = module_of(source, f"emitted_{cls}")
            first = next(iter(self.recovered.values()))
            with jax.enable_x64(self.x64), only_refusals(), meshes.set_for(first.program):
                if not classes.weaken(namespace):
                    break
        self._begin("comparing the source")
        certificates = self._compare(namespace, tree.root, main, jaxprs)
        forget_traces(vars(namespace))
        self.messages += file.prover.defects
        return self._emission(source, namespace, cls, tree.root, certificates)

    def _starts(self, jaxprs: Mapping[str, Jaxpr]) -> Starts:
        """The initial values of the parameters."""
        params = [p.name for r in self.recovered.values() for p in r.entry.params]
        known = {v for v, name in self.containers.items() if name in params}
        # If a program has no parameters, its constants are the weights, except integer tables.
        values = {
            v: value
            for v, value in self.values.items()
            if v not in known and (params or not jax.numpy.issubdtype(value.dtype, np.inexact))
        }
        users: dict[Var, list[Eqn]] = collections.defaultdict(list)
        for jaxpr in jaxprs.values():
            for eqn in jaxpr.eqns:
                for atom in filter(is_var, eqn.invars):
                    users[atom].append(eqn)
        uses = {v: layer_tree.constant_name(v, users) for v in self.values}
        scales = {v for v, use in uses.items() if use == "scale"}
        added = {v for v, use in uses.items() if use == "bias" or _is_joined(v, users)}
        split = {v for v in self.values if _is_split(v, users)}
        names = {v: path[-1] for v, path in self.paths.items()}
        sources = " ".join(r.entry.source for r in self.recovered.values())
        keras = is_keras(sources, [n for name in params for n in layer_tree.split_name(name)])
        lstm = _forgetful(self.paths) if keras else frozenset()
        return Starts(names, values, scales, frozenset(self.held), keras, lstm, split, added)

    def _begin(self, text: str) -> None:
        first = next(iter(self.recovered.values()))
        first.begin(f"{self.title}: {text}")

    def _tell(self, done: int, count: int) -> None:
        self._begin(f"writing the source, {100 * done // max(count, 1)} %")

    def _compare(
        self,
        namespace: types.ModuleType,
        node: Node,
        main: main_class.Main,
        jaxprs: Mapping[str, Jaxpr],
    ) -> dict[str, str]:
        """Compares each method with its programs; returns the certificates.

        **Raises:** `EmissionError` where they differ.
        """
        certificates: dict[str, str] = {}
        for name, r in self.recovered.items():
            own = list(jaxprs[name].invars[: len(r.constants) + len(r.entry.params)])
            cls = getattr(namespace, main.name)
            check = self._comparison(cls, node, main.compiled[name], r, own)
            check(r.program)
            certificates[name] = r.certificate
        return certificates

    def _emission(
        self,
        source: str,
        namespace: types.ModuleType,
        cls: str,
        node: Node,
        certificates: Mapping[str, str],
    ) -> Emission:
        model = self._instance(namespace, cls, node)
        places = {".".join(path): v for path, v in node.leaves()}
        rows, layouts = self.weights.rows, self.weights.layouts
        leaves = {p: stack.renamed(rows.get(v, v), self.containers) for p, v in places.items()}
        laid = {p: layouts[v] for p, v in places.items() if v in layouts}
        messages = tuple(self.messages)
        return Emission(source, model, namespace, leaves, messages, laid, certificates)

    def _parameters(self, method: str, program: Program) -> Program:
        """The program over the variables of parameters that all programs share."""
        recovered = self.recovered[method]
        params = recovered.entry.params
        jaxpr = program.jaxpr
        count = len(recovered.constants)
        own = jaxpr.invars[: count + len(params)]
        users: dict[Var, list[Eqn]] = collections.defaultdict(list)
        for eqn in jaxpr.eqns:
            for atom in eqn.invars:
                if is_var(atom):
                    users[atom].append(eqn)
        names: dict[Var, Var] = {}
        for i, (v, value) in enumerate(zip(own, recovered.constants, strict=False)):
            key = (value.dtype, value.shape, value.tobytes()) if len(self.recovered) > 1 else v
            names[v] = self._shared.setdefault(key, v)
            if names[v] is v:
                number = i if recovered.numbers is None else recovered.numbers[i]
                self.values[v], self.containers[v] = value, constant_name(method, number)
                self.paths[v] = (layer_tree.constant_name(v, users),)
        for v, param, held in zip(own[count:], params, recovered.in_state, strict=True):
            names[v] = self._shared.setdefault(param.name, v)
            if names[v] is v:
                self.values[v], self.containers[v] = param.value, param.name
                self.paths[v] = layer_tree.split_name(param.name)
                if held:
                    self.held.add(v)
        invars = [names.get(v, v) for v in jaxpr.invars]
        renamed = rename(jaxpr, names).replace(invars=invars)
        return dataclasses.replace(program, jaxpr=renamed)

    def _cut(self, method: str, jaxpr: Jaxpr, file: File) -> cut.Layer:
        recovered = self.recovered[method]
        count = len(recovered.constants)
        own = jaxpr.invars[: count + len(recovered.entry.params)]
        assigned = [own[count + i] for i in recovered.entry.assigned]
        alone = len(self.recovered) == 1
        cut_by = jaxpr if self.form.layers else _unscoped(jaxpr)
        named = {v: self.paths[v] for v in own}
        parts: list[copies.Part] = []
        if self.form.outlined and alone:
            free = {v: path for v, path in named.items() if v not in self.held}
            cut_by, parts = copies.outlined(cut_by, free)
            self.parts = parts
        every = [e for program in (cut_by, *(p.body for p in parts)) for e in program.eqns]
        self.paths |= cut.named_by_scope(every, named)
        for part in parts:
            part.layer = self._layer(part.body, part.parameters, (), file, alone=True)
            part.layer.path = part.path
        inside = {v for p in parts for v in p.parameters}
        rest = [v for v in own if v not in inside]
        return self._layer(cut_by, rest, assigned, file, alone=alone)

    def _layer(
        self,
        jaxpr: Jaxpr,
        parameters: Sequence[Var],
        assigned: Sequence[Var],
        file: File,
        *,
        alone: bool,
    ) -> cut.Layer:
        """The layer of a program, with the layers inside it."""
        paths = {v: self.paths[v] for v in parameters}
        if self.form.layers:
            paths = structure.named(jaxpr, paths)
            self.paths |= paths
            jaxpr = regions.scoped(jaxpr, paths, functools.partial(_units, file, jaxpr))
        return cut.cut(jaxpr, paths, self.messages, assigned, alone=alone)

    def _flags(self) -> dict[Var, bool | None]:
        """Whether each parameter is trained; `None` for constants."""
        params = [p for r in self.recovered.values() for p in r.entry.params]
        flags = {p.name: p.trainable for p in params}
        return {v: flags.get(name) for v, name in self.containers.items()}

    def _restyle(self, roots: Mapping[str, cut.Layer], program: Program) -> None:
        """Replaces layers by those of Equinox, and stacks layers."""
        if len(roots) > 1:
            raise EmissionError(
                "layers that several methods share are neither stacked nor replaced"
            )
        (root,) = roots.values()
        if "equinox" in self.styles:
            if self.held:
                raise EmissionError("layers of a model with a state are not replaced")
            parameters = set(self.values)
            replacer = replace.Replacer(program.jaxpr, program, parameters, self.messages)
            replacer.replace(root)
            self.weights.layouts = replacer.layouts
        if "scan" in self.styles:
            stacker = stack.Stacker(program.jaxpr, program, self._flags(), self.messages)
            stacker.stack(root)
            rows = self.weights.rows = stacker.rows
            if any(v in self.held for r in rows.values() for v in stack.leaves_of(r)):
                raise EmissionError("layers whose arrays are in the state are not stacked")

    @staticmethod
    def _arguments(recovered: Recovered, jaxpr: Jaxpr) -> list[Var]:
        return list(jaxpr.invars[len(recovered.constants) + len(recovered.entry.params) :])

    def _doc(self, certificates: Mapping[str, str]) -> list[str]:
        lines = []
        for name, r in self.recovered.items():
            lines.append(
                f"{r.entry.name}: recovered by invert {main_class.source_of(r.entry)}".rstrip()
            )
            lines[-1] += "."
            stated = _at_sizes(certificates[name], r)
            lines += wrapped_comment(f"Certificate: {stated}.", stated)
            if r.fixed:
                lines += wrapped_comment(f"For fixed sizes only: {r.fixed}.", r.fixed)
        return lines

    def _instance(self, namespace: types.ModuleType, cls: str, node: Node) -> Any:
        with jax.enable_x64(self.x64):
            values = {v: device_array(self.weights.array(v, self.values)) for _, v in node.leaves()}
            values |= {v: eqx.nn.StateIndex(values[v]) for v in self.held}
            tree = self._structure(getattr(namespace, cls))
            return jax.tree_util.tree_unflatten(tree, [values[v] for _, v in node.leaves()])

    def _comparison(
        self,
        cls: type[eqx.Module],
        node: Node,
        method: str,
        recovered: Recovered,
        own: Sequence[Var],
    ) -> Callable[[Jaxpr], None]:
        """A function that traces a method at the sizes of a program and compares the two.

        The sizes may be open. It raises `EmissionError` if they differ.

        **Arguments:**

        - `method`: the name of the compiled method.
        - `own`: the variables of the constants and parameters of the program; one may occur twice.
        """
        leaves = [v for _, v in node.leaves()] if self.weights.changed else list(own)
        run = self._traceable(cls, node, method, recovered, own, leaves)

        def check(program: Jaxpr) -> None:
            avals: list[Aval] = [v.aval for v in open_jaxpr(program).invars]
            avals[: len(own)] = map(self.weights.type_of, leaves)
            for x64 in (True,) if recovered.x64 else (False, True):
                with jax.enable_x64(x64):
                    try:
                        with only_refusals(), meshes.set_for(program):
                            again = trace_closed(run, *avals)
                    except (TypeError, ValueError, *SIZE_ERRORS) as error:
                        raise EmissionError(f"the text does not run: {error}") from error
                    # Derivatives of the text are traced now, under the setting it runs in.
                    again = inlined(meshes.unchecked(again))
                    difference = self.weights.difference(again, program, own, leaves)
                if difference is not None:
                    raise EmissionError(f"the text traces to another program: {difference}")

        return check

    def _traceable(
        self,
        cls: Any,
        node: Node,
        method: str,
        recovered: Recovered,
        own: Sequence[Var],
        leaves: Sequence[Var],
    ) -> Callable[..., list[Any]]:
        """A method as a function of the arrays of the module and the flat arguments."""
        entry = recovered.entry
        in_tree = jax.tree_util.tree_structure(
            (entry.args, dict(entry.kwargs)), is_leaf=lambda x: isinstance(x, ArgSpec)
        )
        names, _, key = main_class.parameters(entry)
        params = own[len(recovered.constants) :]
        tree = self._structure(cls)

        def run(*values: Any) -> list[Any]:
            given = {**self.values, **dict(zip(leaves, values, strict=False))}
            given |= {v: eqx.nn.StateIndex(given[v]) for v in self.held}
            traced = jax.tree_util.tree_unflatten(tree, [given[v] for _, v in node.leaves()])
            rest = list(values[len(leaves) :])
            keywords = {key: rest.pop()} if entry.draws else {}
            args, kwargs = jax.tree_util.tree_unflatten(in_tree, rest)
            keywords |= {names[k]: v for k, v in kwargs.items()}
            if any(recovered.in_state):
                args = (*args, eqx.nn.State(traced))
            result = getattr(traced, method)(*args, **keywords)
            result, *flags = result if entry.checks else (result,)
            if not entry.assigned:
                return [*jax.tree_util.tree_leaves(result), *flags]
            result, state = result
            new = [state.get(given[params[i]]) for i in entry.assigned]
            return [*jax.tree_util.tree_leaves(result), *flags, *new]

        return run


def _at_sizes(certificate: str, recovered: Recovered) -> str:
    """The certificate, with the sizes of the arguments if none of them is open."""
    entry = recovered.entry
    arguments = recovered.program.invars[len(recovered.constants) + len(entry.params) :]
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


# At most this many arguments are named in the certificate of a text for fixed sizes.
_FEW = 2


def _forgetful(paths: Mapping[Var, cut.Path]) -> frozenset[Var]:
    """The biases of LSTMs, identified by the kernels next to them."""
    sizes = {p[:-1]: v.aval.shape for v, p in paths.items() if p[-1] == "recurrent_kernel"}
    return frozenset(
        v
        for v, p in paths.items()
        if p[-1] == "bias"
        and (shape := sizes.get(p[:-1])) is not None
        and len(shape) == 2
        and v.aval.shape == shape[-1:]
        and shape[-1] == 4 * shape[0]
    )


def _is_split(v: Var, users: Mapping[Var, Sequence[Eqn]]) -> bool:
    """Whether an array of three axes is only multiplied along its first one."""
    if len(v.aval.shape) != 3 or not users.get(v):
        return False
    return all(
        e.primitive.name == "dot_general"
        and e.invars[1] is v
        and tuple(e.params["dimension_numbers"][0][1]) == (0,)
        for e in users[v]
    )


def _is_joined(v: Var, users: Mapping[Var, Sequence[Eqn]]) -> bool:
    """Whether an array, possibly broadcast, is only concatenated with others."""
    own = users.get(v, ())
    names = {e.primitive.name for e in own}
    if names == {"broadcast_in_dim"}:
        return all(_is_joined(e.outvars[0], users) for e in own)
    return names == {"concatenate"}


def _units(file: File, jaxpr: Jaxpr) -> list[list[Eqn]]:
    """Groups of a program's equations that one expression replaces."""
    graph = Graph(jaxpr)
    by_id = {id(e): e for e in graph.eqns}
    groups = idioms.find(graph, file)
    return [[by_id[i] for i in (last, *g.covered)] for last, g in groups.items()]


def _tidy(program: Jaxpr, held: int) -> Jaxpr:
    """The program as written: each layer computes a value once.

    Its first `held` arguments are constants and parameters.
    """
    parameters = set(program.invars[:held])
    using = (e for e in program.eqns if any(is_var(a) and a in parameters for a in e.invars))
    scopes = {s[:n] for s in map(names_of, using) for n in range(len(s) + 1)}

    def within(eqn: Eqn) -> Hashable:
        if not any(map(is_var, eqn.invars)):
            return id(eqn)  # a number in an array is cheap, and more readable at its use
        path = names_of(eqn)
        return next((path[:n] for n in range(len(path), 0, -1) if path[:n] in scopes), ())

    merged = traced_form.merged(traced_form.strong(program), within=within)
    return map_jaxprs(merged, with_size_values)


# The right neutral number of each operation.
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "div": 1}


def _without_neutral(jaxpr: Jaxpr) -> Jaxpr:
    """Drop `x + 0.0` and `x * 1.0`, as compilers do."""
    names: dict[Var, Atom] = {}
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        neutral = _NEUTRAL.get(eqn.primitive.name)
        kept = None if neutral is None else _unchanged(eqn, neutral)
        if kept is None:
            eqns.append(eqn)
        else:
            names[eqn.outvars[0]] = names.get(kept, kept)
    return rename(jaxpr.replace(eqns=eqns), names) if names else jaxpr


def _with_differences(jaxpr: Jaxpr) -> Jaxpr:
    """Writes `-x * y + z` as `z - x * y`, and `x + -1.0` as `x - 1.0`.

    Both round alike, also in derivatives.
    """
    jaxpr = jaxpr.replace(eqns=[_without_sign(e) for e in jaxpr.eqns])
    graph = Graph(jaxpr)
    instead: dict[int, Eqn] = {}
    for eqn in graph.by_primitive.get("add", ()):
        for product, other in zip(eqn.invars, eqn.invars[::-1], strict=True):
            made = _alone(graph, product, "mul")
            negated = made and next(
                (n for a in made.invars if (n := _alone(graph, a, "neg"))), None
            )
            if made is None or negated is None or eqn.outvars[0].aval.dtype.kind not in "fV":
                continue
            (minus,), (x,) = negated.outvars, negated.invars
            factors = [x if a is minus else a for a in made.invars]
            instead[id(made)] = made.replace(invars=factors)
            instead[id(eqn)] = eqn.replace(primitive=lax.sub_p, invars=[other, product])
            break
    if not instead:
        return jaxpr
    return dce(jaxpr.replace(eqns=[instead.get(id(e), e) for e in jaxpr.eqns]))


def _without_sign(eqn: Eqn) -> Eqn:
    """An equation that subtracts a positive number instead of adding a negative one."""
    for number, x in zip(eqn.invars, eqn.invars[::-1], strict=False):
        dtype = number.aval.dtype
        if eqn.primitive is not lax.add_p or not isinstance(number, Literal) or not is_var(x):
            continue
        if jax.numpy.issubdtype(dtype, np.floating) and np.all(number.val < 0):
            positive = Literal(-number.val, number.aval)
            return eqn.replace(primitive=lax.sub_p, params={}, invars=[x, positive])
    return eqn


def _alone(graph: Graph, atom: Atom, primitive: str) -> Eqn | None:
    """The equation of a primitive that defines a value used once."""
    eqn = graph.producers.get(atom) if is_var(atom) else None
    if eqn is None or eqn.primitive.name != primitive or atom in graph.results:
        return None
    return eqn if len(graph.users.get(atom, ())) == 1 else None


def _unchanged(eqn: Eqn, neutral: int) -> Var | None:
    """The operand that equals the result of an operation with a neutral number."""
    x, number = eqn.invars
    if isinstance(x, Literal) and eqn.primitive.name in ("add", "mul"):
        x, number = number, x
    if isinstance(x, Literal) or not isinstance(number, Literal) or np.any(number.val != neutral):
        return None
    same = x.aval.shape == eqn.outvars[0].aval.shape and x.aval.dtype == eqn.outvars[0].aval.dtype
    return x if same else None


def _structure(cls: type[eqx.Module]) -> jax.tree_util.PyTreeDef:
    """The tree of an instance of a class."""
    keyed = "key" in inspect.signature(cls).parameters
    # Without a warning that 64-bit types are narrowed.
    with jax.enable_x64(True):
        like = eqx.filter_eval_shape(cls, **({"key": type_of_key()} if keyed else {}))
    return jax.tree_util.tree_structure(like, is_leaf=_is_index)


def inlined(closed: AnyJaxpr) -> AnyJaxpr:
    """The program inside the single call that `eqx.filter_jit` makes."""
    jaxpr = open_jaxpr(closed)
    if len(jaxpr.eqns) != 1 or jaxpr.eqns[0].primitive.name != "jit":
        return closed
    (call,) = jaxpr.eqns
    inner = open_jaxpr(call.params["jaxpr"])
    if consts_of(call.params["jaxpr"]):
        return inline_calls(closed)
    operands = call.invars
    inner = rename(inner, dict(zip(inner.invars, operands, strict=True)))
    results: dict[Atom, Atom] = dict(zip(call.outvars, inner.outvars, strict=True))
    outvars: list[Atom] = [results.get(v, v) if is_var(v) else v for v in jaxpr.outvars]
    return close_like(closed, jaxpr.replace(eqns=inner.eqns, outvars=outvars))


def _unscoped(jaxpr: Jaxpr) -> Jaxpr:
    """The program without name scopes."""
    return jaxpr.replace(eqns=[with_names(e, ()) for e in jaxpr.eqns])
