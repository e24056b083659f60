"""Writes recovered programs as the text of an Equinox module, and compares them."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from typing import Any

import equinox as eqx
import jax

from invert._errors import EmissionError, only_refusals, optional_step, report_defect
from invert._private.collection import collected_rarely
from invert._private.jax import forget_traces, names_of, open_jaxpr, with_names
from invert.emission import main_class
from invert.emission.classes import Classes
from invert.emission.comparison import Outermost
from invert.emission.emitted import CALL, STYLES, Emission, Origin
from invert.emission.equinox_nn import replace
from invert.emission.equinox_nn.weights import Weights
from invert.emission.expressions.groups import groups_of
from invert.emission.expressions.proof import Prover
from invert.emission.file import (
    File,
    MissingSizeError,
    check_types,
    extended,
    headed,
    module_text,
)
from invert.emission.functions import empty_classes, equal_methods, lookups, repeated_steps, unused
from invert.emission.layers import (
    blocks,
    cells,
    copies,
    cut,
    field_names,
    lists,
    loop_bodies,
    regions,
    scans,
    stack,
    structure,
)
from invert.emission.layers import tree as layer_tree
from invert.emission.layers.arguments import arrange
from invert.emission.layers.given_sizes import give_sizes
from invert.emission.layers.hoisted import hoisted
from invert.emission.layers.masks import rows_of, shared_values, with_common_scopes
from invert.emission.layers.memory import Memories
from invert.emission.layers.places import separated
from invert.emission.layers.positions import give_positions
from invert.emission.layers.separate_inputs import separate
from invert.emission.layers.state import thread
from invert.emission.layers.tree import Node
from invert.emission.own_constants import split_constants
from invert.emission.page import page_of
from invert.emission.parameters import Parameters
from invert.emission.python import load
from invert.emission.python.naming import camel, spelled, wrapped_comment
from invert.emission.recovered import Recovered
from invert.emission.sequences import compute_sequences
from invert.emission.sizes.program import Program, together
from invert.gradients.backward_passes import expanded, lowered, with_gradients
from invert.ir import associative_scans, kinds, meshes, traced_form
from invert.ir.avals import is_differentiable
from invert.ir.closed_over import with_numbers_inside
from invert.ir.graph import Graph, is_var, reads
from invert.ir.jaxprs import equations, map_jaxprs, names_in, variables_read
from invert.ir.lowered_form import has_too_many_calls
from invert.ir.narrow_operands import with_shared_broadcasts
from invert.ir.size_values import with_size_values
from invert.ir.types import Eqn, Jaxpr, ShapedArray, Var
from invert.ir.value_and_grad import value_and_grad_p
from invert.ir.written_form import as_written, without_neutral

# What Keras calls models without a name.
_UNNAMED = ("Sequential", "Functional")
# Names of the whole tree of a model's arrays.
_COLLECTIONS = frozenset(("params", "parameters", "variables", "weights"))


def emit(recovered: Recovered, styles: Set[str] = frozenset()) -> Emission:
    """Write one program; `styles` as for `emit_methods`.

    **Raises:** `EmissionError` if no text traces to the program.
    """
    return emit_methods({CALL: recovered}, recovered.entry.name, styles)


@collected_rarely()
def emit_methods(
    recovered: Mapping[str, Recovered],
    title: str,
    styles: Set[str] = frozenset(),
    notes: Sequence[str] = (),
) -> Emission:
    """Write programs that share parameters as the methods of one class.

    **Arguments:**

    - `recovered`: the programs, by the names of the methods, which are identifiers.
    - `title`: the class is named after it.
    - `styles`: `"scan"` stacks consecutive layers that compute the same, `"auto"` those that then
        compile faster; `"equinox"` replaces layers by equivalent ones of `equinox.nn`;
        `"typecheck"` makes methods check their annotations.
    - `notes`: lines for the README saved with the text.

    **Raises:** `EmissionError` if no text traces to the programs.
    """
    for name, r in recovered.items():
        # JAX traces the function of a composite each time that it is called.
        if "composite" in names_in(open_jaxpr(r.program)) and has_too_many_calls(r.program):
            raise EmissionError(
                f"the functions of {name} call each other too often to be traced, since some are "
                "composites",
                remedy="Use the module itself.",
            )
    change = _prepared if len(recovered) > 1 else _prepared_alone
    recovered = {name: _with_gradients(r, change) for name, r in recovered.items()}
    if not any(meshes.has_shards(r.program) for r in recovered.values()):
        return _emit(recovered, title, styles, notes)
    try:
        return _emit(_with_checks(recovered, None), title, styles, notes)
    except EmissionError:
        # JAX marks the operands of some functions as varying along other axes.
        return _emit(_with_checks(recovered, False), title, styles, notes)


def _prepared(recovered: Recovered, *, implied: bool = True) -> Recovered:
    program = _as_written(recovered.program, implied=implied)
    return dataclasses.replace(recovered, program=program)


def _prepared_alone(recovered: Recovered, *, implied: bool = True) -> Recovered:
    return _with_constants(_prepared(recovered, implied=implied))


def _with_gradients(recovered: Recovered, change: Callable[..., Recovered]) -> Recovered:
    """A changed program, also with its backward passes as derivatives of a loss."""
    changed = change(recovered)
    if recovered.recognized is None or meshes.has_shards(recovered.program):
        return changed
    program = recovered.program
    with jax.enable_x64(recovered.x64):
        derived = optional_step(
            "the search for backward passes",
            [],
            with_gradients,
            program,
            recovered.recognized,
            lambda derived: traced_form.difference(lowered(derived), program) is None,
        )
    if derived is None:
        return changed
    whole = dataclasses.replace(recovered, program=derived)
    with jax.enable_x64(recovered.x64):
        traced = dataclasses.replace(recovered, program=expanded(derived))
    # The form of the text must not change the derivative, as that of some broadcasts does.
    for implied in (True, False):
        other, target = change(whole, implied=implied), change(traced, implied=implied)
        if not _are_one(other.constants, changed.constants):
            return changed
        with jax.enable_x64(recovered.x64):
            program = _as_written(expanded(other.program), implied=implied)
            difference = traced_form.difference(target.program, program)
        if difference is None:
            return dataclasses.replace(changed, derived=other.program)
    return changed


def _are_one(one: Sequence[object], other: Sequence[object]) -> bool:
    same = all(a is b for a, b in zip(one, other, strict=False))
    return same and len(one) == len(other)


def _expanded(recovered: Recovered) -> Recovered:
    """With its backward passes, and without neutral numbers, as `as_written` leaves it."""
    with jax.enable_x64(recovered.x64):
        program = expanded(recovered.program)
    if program is recovered.program:
        return recovered
    return dataclasses.replace(recovered, program=map_jaxprs(program, without_neutral))


def _with_constants(recovered: Recovered) -> Recovered:
    """With each layer's own constants that it reads; constants beside parameters are no weights."""
    change = compute_sequences if recovered.entry.params else split_constants
    with jax.enable_x64(recovered.x64):
        program, constants, numbers = change(recovered.program, recovered.constants)
    own, others = program.invars[: len(constants)], program.invars[len(constants) :]
    read = variables_read(program)
    kept = [i for i, v in enumerate(own) if v in read]
    return dataclasses.replace(
        recovered,
        program=program.replace(invars=[*(own[i] for i in kept), *others]),
        constants=[constants[i] for i in kept],
        numbers=[numbers[i] for i in kept],
    )


def _with_checks(recovered: Mapping[str, Recovered], checks: bool | None) -> dict[str, Recovered]:
    return {
        name: dataclasses.replace(r, program=meshes.unchecked(r.program, checks))
        for name, r in recovered.items()
    }


def _emit(
    recovered: Mapping[str, Recovered], title: str, styles: Set[str], notes: Sequence[str]
) -> Emission:
    """As `emit_methods`, for programs without marks of varying mesh axes."""
    failures: list[str] = []
    checks = styles - STYLES
    forms = [_Form(checks), _Form(checks, outlined=False)]
    forms.append(_Form(checks, outlined=False, lists=False))
    forms += [dataclasses.replace(form, stacks=False) for form in forms]
    forms.append(_Form(checks, False, False, False))
    if styles != checks:
        forms[:0] = [_Form(styles), _Form(styles, outlined=False)]
    forms.append(_Form(checks, False, False, False, plain=True, trees=False))
    derived = {
        name: r if r.derived is None else dataclasses.replace(r, program=r.derived)
        for name, r in recovered.items()
    }
    if any(r.derived is not None for r in recovered.values()):
        alone = _Form(styles, False, False, False)
        written = (_Form(styles), _Form(styles, outlined=False), alone)
        forms[:0] = [dataclasses.replace(form, gradients=True) for form in written]
    parted = stacked = False
    while forms:
        form = forms.pop(0)
        if form.lists and not form.outlined and not parted:
            continue  # it has been tried
        if form.layers and not form.stacks and not stacked:
            continue  # so has it without stacks
        variant = _Variant(derived if form.gradients else recovered, title, form)
        emission = None
        try:
            # All programs can be written in the last form, so a failure there is an error.
            emission = (
                variant.run()
                if form.plain
                else optional_step(f"the text as {form}", failures, variant.run)
            )
            if emission is None and not failures:
                failures.append("an open size would have to be known")
        except MissingSizeError as error:
            if form.every_size or not form.layers:
                failures.append(error.reason)
            else:
                forms.insert(0, dataclasses.replace(form, every_size=True))
        except EmissionError as error:
            failures.append(error.reason)
        if emission is None and variant.maps:
            forms.insert(0, dataclasses.replace(form, trees=False))
            continue
        if emission is not None:
            reasons = [f"written as {form}: {failures[0]}"] if failures else []
            messages = (*notes, *reasons, *emission.messages)
            return _described(dataclasses.replace(emission, messages=messages), recovered, title)
        parted = bool(variant.parts)
        stacked = stacked or bool(variant.stacks or variant.bodies)
    raise EmissionError("no text traces to the program: " + "; ".join(dict.fromkeys(failures)))


def add_loader(namespace: types.ModuleType) -> str:
    """Add the functions that read weights to a written module, once; return its text."""
    space: Any = namespace
    if (reader := vars(namespace).pop("__reader__", None)) is not None:
        definitions = reader.definitions()
        load.extend(namespace, module_text(definitions), f"{namespace.__file__} load")
        space.__source__ = extended(space.__source__, definitions)
    return space.__source__


def _described(made: Emission, recovered: Mapping[str, Recovered], title: str) -> Emission:
    """The emission, with source, array origins and README in its namespace.

    The source is without the loader, see `add_loader`.
    """
    params = (p for r in recovered.values() for p in r.entry.params)
    shapes = {p.name: tuple(p.value.shape) for p in params}
    entries = {name: (r.entry, made.certificates[name]) for name, r in recovered.items()}
    cls = type(made.model).__name__
    space: Any = made.namespace
    space.__source__ = made.source
    space.__origin__ = Origin(made.names, made.layouts, shapes)
    space.__page__ = page_of(entries, title, made.source, cls, made.names, made.messages)
    return made


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
    method = CALL
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
    - `gradients`: whether backward passes are derivatives of a loss.
    - `trees`: whether operations on all arrays of a tree are written once.
    - `stacks`: whether the steps of loops over stacked parameters are layers, and whether bodies of
        loops call layers of the program around them.
    """

    styles: Set[str]
    layers: bool = True
    lists: bool = True
    outlined: bool = True
    plain: bool = False
    every_size: bool = False
    stacks: bool = True
    gradients: bool = False
    trees: bool = True

    def __str__(self) -> str:
        if self.gradients:
            return "derivatives of a loss"
        if self.layers:
            return "classes"
        return "one class, in plain lax" if self.plain else "one class"


class _Variant:
    """One attempt to write the programs, in one form."""

    def __init__(self, recovered: Mapping[str, Recovered], title: str, form: _Form):
        self.recovered, self.title, self.form = recovered, title, form
        self.styles = form.styles
        self.parts: list[copies.Part] = []
        self.stacks: list[scans.Stack] = []
        self.bodies: list[loop_bodies.LoopBody] = []
        self.weights = Weights()
        # The variables of the rows of stacked parameters.
        self.row_of: dict[Var, Var] = {}
        self.x64 = any(r.x64 for r in recovered.values())
        self.messages: list[str] = []
        # Whether operations on trees are written once.
        self.maps = False
        self.parameters = Parameters(recovered)
        # Shared with `parameters`; layers rename some of them.
        self.paths, self.held = self.parameters.paths, self.parameters.held

    def run(self) -> Emission:
        partitionable = all(r.partitionable for r in self.recovered.values())
        with load.loading() as module_of, jax.threefry_partitionable(partitionable):
            return self._run(module_of)

    def layered(
        self,
    ) -> tuple[dict[str, Program], File, dict[str, cut.Layer], lists.Lists]:
        """The programs, the file for them, their layers, and the lists among these."""
        programs = {
            name: self.parameters.share(name, Program.of(_tidy(r)))
            for name, r in self.recovered.items()
        }
        program = together(list(programs.values()))
        settings = (True,) if self.x64 else (True, False)
        prover = Prover(settings, program.dimensions)
        file = File(program, prover, plain=self.form.plain)
        roots = {name: self._cut(name, p.jaxpr, file) for name, p in programs.items()}
        inside = [body.root for body in self.bodies]
        whole = [*roots.values(), *inside, *(stack.root for stack in self.stacks)]
        if self.form.lists and len(roots) == 1:
            for root in (*whole, *(p.root for p in self.parts)):
                blocks.group(root, self.paths, self._own_name(roots))
        if len(roots) == 1:
            for root in (*roots.values(), *inside):
                field_names.shorten(root, self._own_name(roots), self.paths)
        for root in whole:
            copies.call(root)
            give_positions(root)
            give_sizes(root, program.shape, every=self.form.every_size)
            memories = Memories(program.jaxpr)
            arrange(root, memories)
            separate(root, self.paths, memories)
        if self.styles & STYLES:
            self._restyle(roots, program)
        found = lists.Lists(
            lambda layer: layer.field or layer_tree.called(layer, self.paths),
            layer_tree.lists_of(
                p.path or p.name for r in self.recovered.values() for p in r.entry.params
            ),
        )
        if self.form.lists and len(roots) == 1:
            for root in whole:
                found.find(root, stack.Stacker(program.jaxpr, program, {}, []))
                field_names.align(root)
        for root in whole:
            blocks.name_layers(root)
            if self.form.layers:
                units = functools.partial(_units, file)
                cells.find(root, program.jaxpr, self.paths, self.held, units)
            if self.form.lists and not self.held:
                found.unroll(root)
        for root in roots.values():
            loop_bodies.connect(root, self.bodies, found.looped)
        return programs, file, roots, found

    def _own_name(self, roots: Mapping[str, cut.Layer]) -> str:
        """The name of the outermost module as its author wrote it, or `""`."""
        named = next(iter(roots.values())).name if len(roots) == 1 else ""
        named = "" if named in _COLLECTIONS else named
        anonymous = self.title in ("<lambda>", CALL)
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
        starts = self.parameters.starts(jaxprs.values(), self.stacks)
        held = {k: v for r in self.recovered.values() for k, v in r.entry.attributes.items()}
        tree = layer_tree.tree_of(
            roots, self.paths, title, self.bodies, counted=starts.keras, attributes=held
        )
        classes = Classes(file, tree, jaxprs, self.paths, self.held, found, starts)
        classes.on_layer = self._tell
        given = {n: jaxprs[n].invars[r.held_count :] for n, r in self.recovered.items()}
        for name, r in self.recovered.items():
            # A key has no name.
            classes.called |= zip(given[name], main_class.names_of_arrays(r.entry), strict=False)
        methods = [
            main_class.Method(
                name,
                r.entry,
                roots[name],
                given[name],
                states[name] if any(r.in_state) else None,
                r.x64,
                r.partitionable,
                r.checkify,
                r.fixed,
                r.constraints,
                frozenset() if any(r.in_state) or r.fixed else r.may_be_empty,
            )
            for name, r in self.recovered.items()
        ]
        stated = [r.entry.shardings.params for r in self.recovered.values() if r.entry.shardings]
        known = {name: spec for params in stated for name, spec in params.items()}
        names = self.parameters.containers
        arrays = {v: self.weights.rows.get(v, v) for _, v in tree.root.leaves()}
        whole = {v: names[w] for v, w in arrays.items() if isinstance(w, Var)}
        specs = {v: known[name] for v, name in whole.items() if name in known}
        main = main_class.Main(
            classes, methods, stacked=len(whole) < len(arrays), specs=specs,
            trees=self.form.trees,
        )  # fmt: skip
        flags = self.parameters.flags()
        trained = {v for v, w in arrays.items() if all(map(flags.get, stack.leaves_of(w)))}
        loader = main.add(tree.root, trained)
        self.maps = main.maps
        self.messages += main.messages
        texts = self._texts(classes, file, loader.cls, module_of)
        self._begin("comparing the source")
        leaves = [v for _, v in tree.root.leaves()]
        namespaces = [n for _, n in texts]
        namespace, made = self._compared(namespaces, leaves, main, jaxprs, file.prover.defects)
        source = texts[namespaces.index(namespace)][0]
        vars(namespace)["__reader__"] = loader
        forget_traces(vars(namespace))
        self.messages += file.prover.defects
        return self._emission(source, namespace, made.instance(x64=self.x64), tree.root)

    def _texts(
        self,
        classes: Classes,
        file: File,
        cls: str,
        module_of: Callable[[str, str], types.ModuleType],
    ) -> list[tuple[str, types.ModuleType]]:
        """The text of the classes, and that with functions, with what they define."""
        while True:
            classes.finish()
            if classes.refine():
                continue
            if "typecheck" in self.styles:
                check_types(file.definitions)
            source = headed(file.text(), self._doc())
            namespace = module_of(source, f"emitted_{cls}")
            first = next(iter(self.recovered.values()))
            with jax.enable_x64(self.x64), only_refusals(), meshes.set_for(first.program):
                if not classes.weaken(namespace):
                    break
        texts = [(source, namespace)]
        changed = equal_methods.rewrite(file.definitions, cls)
        changed |= repeated_steps.rewrite(file.definitions)
        changed |= empty_classes.rewrite(file.definitions, cls)
        changed |= lookups.rewrite(file.definitions)
        if unused.remove(file.definitions) or changed:
            source = headed(file.text(), self._doc())
            texts.append((source, module_of(source, f"emitted_{cls}")))
        return texts

    def _compared(
        self,
        namespaces: list[types.ModuleType],
        leaves: Sequence[Var],
        main: main_class.Main,
        jaxprs: Mapping[str, Jaxpr],
        defects: list[str],
    ) -> tuple[types.ModuleType, Outermost]:
        """The last text that computes the programs; a defect if it is not the last of all."""
        values, held, weights = self.parameters.values, self.held, self.weights
        for i, namespace in reversed([*enumerate(namespaces)]):
            made = Outermost(namespace, main.name, leaves, values, held, weights)
            try:
                for name, r in self.recovered.items():
                    own = jaxprs[name].invars[: r.held_count]
                    made.compare(main.compiled[name], _expanded(r), own)
            except EmissionError as error:
                if not i:
                    raise
                report_defect("functions for repeated steps", defects, error)
            else:
                return namespace, made
        raise AssertionError("there is a text")

    def _begin(self, text: str) -> None:
        first = next(iter(self.recovered.values()))
        first.begin(f"{self.title}: {text}")

    def _tell(self, done: int, count: int) -> None:
        self._begin(f"writing the source, {100 * done // max(count, 1)} %")

    def _emission(
        self, source: str, namespace: types.ModuleType, model: eqx.Module, node: Node
    ) -> Emission:
        places = {".".join(path): v for path, v in node.leaves()}
        rows, layouts = self.weights.rows, self.weights.layouts
        leaves = {
            p: stack.renamed(rows.get(v, v), self.parameters.containers) for p, v in places.items()
        }
        laid = {p: layouts[v] for p, v in places.items() if v in layouts}
        certificates = {name: r.certificate for name, r in self.recovered.items()}
        return Emission(source, model, namespace, leaves, tuple(self.messages), laid, certificates)

    def _cut(self, method: str, jaxpr: Jaxpr, file: File) -> cut.Layer:
        paths, stacks, messages = dict(self.paths), len(self.stacks), len(self.messages)
        root = self._cut_with(method, jaxpr, file, bodies=self.form.layers and self.form.stacks)
        if loop_bodies.differ(root, self.bodies):
            self.paths |= paths
            del self.stacks[stacks:], self.messages[messages:]
            root = self._cut_with(method, jaxpr, file, bodies=False)
        return root

    def _cut_with(self, method: str, jaxpr: Jaxpr, file: File, *, bodies: bool) -> cut.Layer:
        """The layers of a program; `bodies`: whether those of loops call them."""
        recovered = self.recovered[method]
        count = len(recovered.constants)
        own = jaxpr.invars[: recovered.held_count]
        assigned = [own[count + i] for i in recovered.entry.assigned]
        alone = len(self.recovered) == 1
        unscoped = jaxpr.replace(eqns=[with_names(e, ()) for e in jaxpr.eqns])
        cut_by = jaxpr if self.form.layers else unscoped
        named = {v: self.paths[v] for v in own}
        parts: list[copies.Part] = []
        free = {v: path for v, path in named.items() if v not in self.held}
        self.bodies = loop_bodies.find(cut_by, free) if bodies and alone else []
        loops = {body.loop: body.closed(()) for body in self.bodies}
        cut_by = cut_by.replace(eqns=[loops.get(e, e) for e in cut_by.eqns])
        if self.form.outlined and alone:
            cut_by, parts = copies.outlined(cut_by, free)
            self.parts = parts
        programs = (cut_by, *(p.body for p in parts), *(body.program for body in self.bodies))
        every = [e for program in programs for e in program.eqns]
        self.paths |= cut.named_by_scope(every, named)
        for body in self.bodies:
            inner = body.parameters
            body.root = self._layer(body.program, inner, (), file, alone=False, around=False)
        eqns = [
            e if (body := e.params.get(cut.BODY)) is None else body.closed(body.root.steps)
            for e in cut_by.eqns
        ]
        cut_by = cut_by.replace(eqns=eqns)
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
        around: bool = True,
    ) -> cut.Layer:
        """The layer of a program, with the layers inside it."""
        paths = {v: self.paths[v] for v in parameters}
        stacks: list[scans.Stack] = []
        if self.form.layers and self.form.stacks:
            jaxpr, stacks, paths = self._stacks(jaxpr, paths, file)
        if self.form.layers:
            paths = structure.named(jaxpr, paths)
            self.paths |= paths
            jaxpr = regions.scoped(jaxpr, paths, functools.partial(_units, file, jaxpr))
            jaxpr, paths = hoisted(jaxpr, paths)
            self.paths |= paths
            jaxpr = separated(jaxpr)
        layer = cut.cut(jaxpr, paths, self.messages, assigned, alone=alone, around=around)
        scans.connect(layer, stacks)
        return layer

    def _stacks(
        self, jaxpr: Jaxpr, paths: Mapping[Var, cut.Path], file: File
    ) -> tuple[Jaxpr, list[scans.Stack], dict[Var, cut.Path]]:
        """Make layers of the steps of loops over stacked parameters."""
        other = {*self.held, *self.parameters.constants()}
        known = {v: path for v, path in paths.items() if v not in other}
        jaxpr, stacks = scans.outlined(jaxpr, known, self._row_of)
        paths = dict(paths)
        for part in stacks:
            n, rows = len(part.prefix), self.weights.rows
            rows |= {row: rows.get(v, v) for row, v in part.rows.items()}
            for row, v in part.rows.items():
                # Until it is cut, a block knows its own names only; outside, it is one thing.
                self.paths[row], paths[v] = paths[v][n:], (*part.prefix[:-1], paths[v][-1])
            part.become(self._layer(part.body, part.parameters, (), file, alone=True))
            self.paths |= {row: (*part.prefix, *self.paths[row]) for row in part.rows}
        self.stacks += stacks
        return jaxpr, stacks, paths

    def _row_of(self, v: Var) -> Var:
        """The variable of the rows of a parameter."""
        if v not in self.row_of:
            self.row_of[v] = Var(ShapedArray(v.aval.shape[1:], v.aval.dtype))
        return self.row_of[v]

    def _restyle(self, roots: Mapping[str, cut.Layer], program: Program) -> None:
        """Replace layers by those of Equinox, and stack layers."""
        if len(roots) > 1:
            raise EmissionError(
                "layers that several methods share are neither stacked nor replaced"
            )
        (root,) = roots.values()
        if "equinox" in self.styles:
            if self.held:
                raise EmissionError("layers of a model with a state are not replaced")
            parameters = set(self.parameters.values)
            replacer = replace.Replacer(program.jaxpr, program, parameters, self.messages)
            replacer.replace(root)
            self.weights.layouts = replacer.layouts
        if self.styles & {"auto", "scan"}:
            least = 0 if "scan" in self.styles else stack.PAYS
            marks = self.parameters.flags()
            stacker = stack.Stacker(program.jaxpr, program, marks, self.messages, least)
            stacker.stack(root)
            rows = self.weights.rows
            rows |= {v: stacker.rows[w] for v, w in rows.items() if w in stacker.rows}
            rows |= stacker.rows
            if any(v in self.held for r in stacker.rows.values() for v in stack.leaves_of(r)):
                raise EmissionError("layers whose arrays are in the state are not stacked")

    def _doc(self) -> list[str]:
        lines = []
        for r in self.recovered.values():
            lines.append(
                f"{r.entry.name}: recovered by invert {main_class.source_of(r.entry)}".rstrip()
            )
            lines[-1] += "."
            stated = r.stated
            lines += wrapped_comment(f"Certificate: {stated}.", stated)
            if r.fixed:
                lines += wrapped_comment(f"For fixed sizes only: {r.fixed}.", r.fixed)
        return lines


def _units(file: File, jaxpr: Jaxpr) -> list[list[Eqn]]:
    """Groups of a program's equations that one expression replaces."""
    graph = Graph(jaxpr)
    by_id = {id(e): e for e in graph.eqns}
    groups = groups_of(graph, file)
    return [[by_id[i] for i in (last, *g.covered)] for last, g in groups.items()]


def _as_written(program: Jaxpr, *, implied: bool = True) -> Jaxpr:
    """The program in the form of text, also where loops close over numbers or arrays of them.

    **Arguments:**

    - `implied`: whether operations broadcast arrays themselves where they can.
    """
    written = functools.partial(as_written, implied=implied)
    program = map_jaxprs(with_numbers_inside(program), written)
    if _LOOPS.isdisjoint(names_in(program)):
        return program
    # Arrays that repeat a number have moved into bodies, where operations may be neutral now.
    strong = traced_form.strong(program)
    plain = map_jaxprs(strong, without_neutral)
    return program if plain is strong else plain


_LOOPS = frozenset(("scan", "while", "cond"))


def _tidy(recovered: Recovered) -> Jaxpr:
    """The program as written: each layer computes a value once."""
    program = recovered.program
    parameters = set(program.invars[: recovered.held_count])
    using = (e for e in program.eqns if reads(e, parameters))
    scopes = {s[:n] for s in map(names_of, using) for n in range(len(s) + 1)}

    strong = map_jaxprs(traced_form.strong(program), with_shared_broadcasts)
    graph = Graph(strong)
    masks = shared_values(graph, set(graph.jaxpr.invars[: recovered.held_count]))
    losses = (e for e in equations(strong) if e.primitive is value_and_grad_p)
    differentiated = {e for loss in losses for e in equations(open_jaxpr(loss.params["jaxpr"]))}

    def within(eqn: Eqn) -> Hashable:
        if eqn in differentiated and any(is_differentiable(v.aval) for v in eqn.outvars):
            return id(eqn)  # the derivatives of two equal values are added up separately
        if not masks.isdisjoint(eqn.outvars):
            return _SHARED, rows_of(eqn)
        if not any(map(is_var, eqn.invars)):
            if eqn.primitive.name == "iota":  # of rows and of columns
                return names_of(eqn), id(_consumer(eqn, graph))
            return id(eqn)  # a number in an array is cheap, and more readable at its use
        path = cut.names_outside(eqn)
        return next((path[:n] for n in range(len(path), 0, -1) if path[:n] in scopes), ())

    merged = with_common_scopes(traced_form.merged(strong, within=within), masks)
    return map_jaxprs(merged, lambda jaxpr: associative_scans.outlined(with_size_values(jaxpr)))


# Stands for the scopes of values that layers of a row have in common.
_SHARED = "shared"


def _consumer(eqn: Eqn, graph: Graph) -> Eqn:
    """The equation that uses a result first, but for its layout."""
    while len(users := graph.users.get(eqn.outvars[0], ())) == 1:
        (eqn,) = users
        if eqn.primitive.name not in kinds.LAYOUT:
            return eqn
    return eqn
