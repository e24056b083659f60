"""The classes of a program; layers that compute the same share a class."""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from types import ModuleType

import jax.numpy as jnp

from invert._errors import EmissionError
from invert.emission.annotations import (
    annotate,
    dimensions_of,
    fields_axes,
    kind_of,
    name_sizes,
    sequence,
    shorten,
)
from invert.emission.axis_names import Dimensions, letters_of
from invert.emission.class_names import describe, name_classes
from invert.emission.constructors.defaults import drop_unused_defaults
from invert.emission.constructors.initializers import Initializers
from invert.emission.constructors.sizes import (
    HEADS,
    HIDDEN,
    KV_HEADS,
)
from invert.emission.constructors.starts import Starts
from invert.emission.constructors.write import write
from invert.emission.equinox_nn import construct
from invert.emission.expressions import helpers, literals, loops, scanned
from invert.emission.expressions.body import Body, Placed
from invert.emission.expressions.render import render
from invert.emission.expressions.statements import FunctionText
from invert.emission.file import File
from invert.emission.layers import branches, choices, heads, options, roles
from invert.emission.layers.branches import BRANCH, is_passed_on
from invert.emission.layers.cut import Assign, Layer, LayerCall, calls
from invert.emission.layers.input_names import InputNames
from invert.emission.layers.lend import lend
from invert.emission.layers.library_names import (
    CONV_BLOCK,
    is_automatic,
    says_nothing,
    without_number,
)
from invert.emission.layers.lifted import lift
from invert.emission.layers.lists import Lists, Loop, Unrolled, starts_loop
from invert.emission.layers.memory import Memories, residuals
from invert.emission.layers.shared import (
    Class,
    Draft,
    NumbersOf,
    bare,
    generalize,
    groups,
    holds_weights,
    make_static,
    static_type,
)
from invert.emission.layers.stack import Pick, Run
from invert.emission.layers.state import Read, StateVar
from invert.emission.layers.ties import TiesOf, carried
from invert.emission.layers.tree import (
    METHODS,
    Node,
    Path,
    Tree,
    count_of,
    modules_of,
    parameters_of,
)
from invert.emission.layers.twins import ALL, LENGTHS, Scaled, Twins, unfit
from invert.emission.model_sizes import ModelSizes, Seen
from invert.emission.python import syntax
from invert.emission.python.naming import Names, camel, identifier, stem
from invert.emission.python.nouns import NOUNS, PLAIN, STREAM, of_field, of_layer, says
from invert.emission.python.syntax import field_of
from invert.emission.size_names import (
    SizeNames,
    keep_state_size,
    know_classes,
    know_inputs,
    limits_of,
)
from invert.emission.twin_runs import CallOf, calling, runs
from invert.emission.written_again import Written, call_key, key_of
from invert.ir.avals import is_key
from invert.ir.graph import is_var
from invert.ir.jaxprs import is_wide
from invert.ir.sizes import Shape
from invert.ir.types import Atom, Eqn, Jaxpr, Var

_CALL = "__call__"
# What a layer of a list is given of an array.
_ROW = "row"


def _self() -> ast.expr:
    return ast.Name("self", ast.Load())


def _wide(v: Var) -> ast.expr | None:
    """The 64-bit type of a variable; its value in a state is narrower in a session without x64."""
    return literals.dtype(v.aval.dtype) if is_wide(v) else None


def _axes(v: Var) -> tuple[tuple[Var, int], ...]:
    return tuple((v, i) for i in range(len(v.aval.shape)))


@dataclasses.dataclass
class _Begun:
    """The classes before their names and sizes are filled in."""

    definitions: list[ast.stmt | Class]
    undo: dict[Class, Callable[[], None]]
    names: Names
    of: dict[Node, Class]


class Classes:
    """Writes the classes of a tree of nodes into a file.

    **Arguments:**

    - `jaxprs`: the programs, by the names of the methods that they become.
    - `parameters`: names of the parameters in the container.
    - `held`: variables of the parameters in the state.
    - `lists`: the lists of layers.
    - `starts`: the initial values of the parameters.
    """

    def __init__(
        self,
        file: File,
        tree: Tree,
        jaxprs: Mapping[str, Jaxpr],
        parameters: Mapping[Var, Path],
        held: Set[Var] = frozenset(),
        lists: Lists | None = None,
        starts: Starts | None = None,
    ):
        self.lists = lists or Lists()
        self.file, self.tree, self.jaxprs = file, tree, jaxprs
        self.parameters, self.held = parameters, held
        self.of: dict[Node, Class] = {}
        starts = starts or Starts({}, {}, frozenset(), held, keras=False)
        self.inits = Initializers(self.of, starts, file.program.shape, file.names)
        self._outermost: Class | None = None
        # The arguments of the outermost class, and how it is called on them.
        self._called: tuple[Sequence[Var], CallOf | None] = (), None
        self._begun: _Begun | None = None
        # Which sizes the twins of classes share with them, and the twins.
        self._given: dict[Class, int] = {}
        # Arrays in the types of dictionaries, with their places among those of the outermost class.
        self.typed: list[tuple[ast.Subscript, int]] = []
        self._sizes = ModelSizes(shape=file.program.shape)
        # The integers of all layers but the first of each class, whose text is written anew.
        self._numbers = NumbersOf()
        self._scaled: dict[Class, Scaled] = {}
        self._methods: dict[Layer, str] = {}
        self._named: dict[Layer, dict[Atom, str]] = {}
        # The names of the program's arguments.
        self.called: dict[Var, str] = {}
        self._memories = Memories(file.program.jaxpr)
        self._inputs = InputNames(self.tree, self.lists, self._memories, self.called)
        self._arguments: dict[Layer, list[str]] = {}
        # The names of the arguments of lists' layers.
        self._listed: dict[Loop, list[str]] = {}
        # The keyword-only arguments of the layers.
        self._keywords: dict[Layer, dict[Var, str]] = {}
        # The methods of layers, by all that they depend on, and those that are one of these.
        self._written: dict[Hashable, Written] = {}
        self._one: dict[Layer, Written] = {}
        self._neutral: dict[tuple[str, ...], tuple[str, ...]] = {}
        # Called with the number of layers written so far and the total.
        self.on_layer: Callable[[int, int], None] = lambda done, count: None
        self._count = 0
        # The names of functions of the file, by their expressions of `x`.
        self._functions: dict[str, str] = {}
        # Steps of layers may be copies of the program's, see `places`.
        steps = (e for x in tree.programs for e in x.steps if not isinstance(e, LayerCall))
        eqns = itertools.chain(steps, *(j.eqns for j in jaxprs.values()))
        self._made = {v: e for e in eqns for v in e.outvars}
        self.size_names = SizeNames(self.of, self.inits, self._made, parameters, self.called)
        file.layer = self._step
        file.stacked = lambda layer: syntax.field(_self(), *self.tree.names[layer].split("."))

    def _step(self, body: Body, eqn: Eqn) -> Placed | None:
        """The call of a layer, or an access to the state; `None` for an equation."""
        if isinstance(eqn, Pick):
            return scanned.pick(body, eqn)
        if isinstance(eqn, Run):
            return scanned.run(body, eqn, self.tree.names[eqn.layer], self._applied)
        if isinstance(eqn, Loop):
            return self._loop(body, eqn)
        if isinstance(eqn, Unrolled):
            return self._unrolled(body, eqn)
        if isinstance(eqn, LayerCall) and eqn.layer.native is not None:
            return construct.applied(body, eqn, self.tree.names[eqn.layer])
        if isinstance(eqn, LayerCall):
            args = [body.operand(a) for a in eqn.invars]
            hints = self._results(eqn, body)
            # The state must not be reassigned before the layer is called with it.
            taken = any(isinstance(v, StateVar) for v in eqn.invars)
            starts = starts_loop(eqn, body.graph)
            once = starts or not self._again(eqn.layer)
            inline = not (taken and body.changes_state) and once
            applied = self._applied(self._callee(eqn.layer), eqn.layer, args)
            return Placed(applied, inline, hints=hints, starts=starts)
        if isinstance(eqn, Read):
            index = syntax.field(_self(), *eqn.place)
            value = syntax.method(body.operand(eqn.invars[0]), "get", index)
            if (wide := _wide(eqn.variable)) is not None:
                value = syntax.method(value, "astype", wide)
            return Placed(value, inline=False, hints=[self._parameter(eqn.variable)])
        if isinstance(eqn, Assign):
            state, value = map(body.operand, eqn.invars)
            index = syntax.field(_self(), *eqn.place)
            if _wide(eqn.variable) is not None:
                held = syntax.method(state, "get", index)
                value = syntax.method(value, "astype", syntax.field(held, "dtype"))
            return Placed(syntax.method(state, "set", index, value), False, hints=["state"])
        return None

    def _callee(self, layer: Layer) -> ast.expr:
        """`self.block`, or the method of it that a layer is."""
        method = self._methods[layer]
        attributes = [] if method == _CALL else [method]
        if layer.count:
            return syntax.field(ast.Name(self.file.module(layer), ast.Load()), *attributes)
        return syntax.field(_self(), *self.tree.names[layer].split("."), *attributes)

    def _applied(self, function: ast.expr, layer: Layer, args: Sequence[ast.expr]) -> ast.expr:
        """`self.dropout(x, key=key)`: a layer of the file, called on its inputs."""
        names = self._keywords[layer]
        pairs = list(zip(layer.inputs, args, strict=True))
        keywords = {names[v]: a for v, a in pairs if v in names}
        return syntax.call(function, *(a for v, a in pairs if v not in names), **keywords)

    def _again(self, layer: Layer) -> bool:
        """Return whether a layer is called several times."""
        return layer.same is not None or layer in self._repeated

    @functools.cached_property
    def _repeated(self) -> set[Layer | None]:
        return {x.same for x in self.tree.names}

    def _loop(self, body: Body, eqn: Loop) -> Placed:
        field, _, _ = self.tree.names[eqn.layer].partition(".")
        branch = field if of_layer(field) == BRANCH else ""
        hint = branch or self._for_users(eqn.outvars[0], body) or STREAM
        if self.lists.chains() and not self._keywords[eqn.layer]:
            start = body.operand(eqn.invars[eqn.stream])
            chained = helpers.calling(helpers.chain, syntax.field(_self(), field), start)
            return Placed(chained, hints=[hint], flows="blank")
        names = {**self._named[eqn.layer], **self._keywords[eqn.layer]}
        own = [names.get(eqn.layer.inputs[i], "") for i in eqn.rows]
        rows = [name if says(name) else _ROW for name in own]
        return loops.over_list(body, eqn, field, self._applied, hint, rows)

    def _for_users(self, v: Var, body: Body) -> str:
        """The name that all layers give a value they take as memory, or `""`."""
        users = body.graph.users.get(v, ())
        calls = [u for u in users if isinstance(u, LayerCall)]
        if not calls or len(calls) < len(users):
            return ""
        names = {
            self._memories.of(c.layer).get(w, "")
            for c in calls
            for a, w in zip(c.invars, c.layer.inputs, strict=True)
            if a is v
        }
        return names.pop() if len(names) == 1 else ""

    def _unrolled(self, body: Body, eqn: Unrolled) -> Placed:
        return loops.over_parts(body, eqn, self._callee(eqn.layer), self._applied)

    def _results(self, eqn: LayerCall, body: Body) -> list[str]:
        """Names of the results of a layer: its own name, or their names inside it.

        The result of a plain function, such as a norm, is named after its argument.
        """
        before = body.graph.producer(eqn.invars[0]) if len(eqn.invars) == 1 else None
        plain = is_automatic(without_number(eqn.layer.name)) and not parameters_of(eqn.layer)
        if plain and type(before) is LayerCall and len(before.outvars) == len(eqn.outvars) == 1:
            return self._results(before, body)
        field = self.tree.names[eqn.layer].split(".")[-1]
        listed = field.isdigit()
        hint = of_layer(eqn.layer.name) if listed else of_field(field)
        if of_layer(field) == CONV_BLOCK or says_nothing(field):
            hint = PLAIN  # a kind and a number say nothing about the result
        elif of_layer(field) == BRANCH and is_passed_on(eqn, body.graph):
            hint, _, _ = field.partition("_")
        hint = "h" if eqn.layer.name == "cell" else hint
        hint = STREAM if residuals(eqn.layer) else hint
        alone = sum(not isinstance(v, StateVar) for v in eqn.outvars) == 1
        inside, passed = self._named[eqn.layer], self.lists.passed(eqn)
        hints = []
        named = [v for v in eqn.outvars if says(inside.get(v))]
        for v in eqn.outvars:
            own = inside.get(v)
            other = own if not alone and own is not None and says(own) else hint
            if not alone and named and v not in named:
                other = PLAIN  # the layer is known by its other results
            if not alone and own in ("h", "c"):
                # Of a layer: the final state, beside other results.
                other = own if hint == "h" else f"{hint}_{own}"
            if v in passed:
                other = STREAM
            hints.append("state" if isinstance(v, StateVar) else other)
        return hints

    def _parameter(self, v: Var) -> str:
        return identifier(self.parameters[v][-1])

    def own(self, layer: Layer) -> dict[Var, ast.expr]:
        """The parameters of a layer that are fields; those in the state are read from it."""
        return {
            v: syntax.field(_self(), *path)
            for v, path in self.tree.places[layer].items()
            if v not in self.held
        }

    def add(self, root: Node) -> None:
        """Write the classes of all nodes except the outermost; equal nodes share a class."""
        levels: list[list[Draft]] = []
        order: list[Draft] = []
        self._count = count_of(root)
        for v in root.nodes:
            self._draft(v, levels, order)
        # From the innermost outwards, since modules with fields of different classes differ.
        inside: set[Node] = set()
        earlier: list[Draft] = []
        for drafts in levels:
            # A layer that skips a module of another one may be one level higher.
            again = [d for d in earlier if d.node not in inside and self.of[d.node].plain]
            lend(drafts, self._arrays)
            keys = options.keys(drafts, again, self._key, self._kinds)
            below = {self.of[d.node] for d in again if d in keys}
            every = [*drafts, *(d for cls in below for d in cls.drafts if d in keys)]
            for group in groups(every, keys.__getitem__):
                cls = Class(syntax.new_token(), group)
                choices.prepare(cls, self._function)
                for draft in group:
                    self.of.pop(draft.node, None)  # inner classes come first
                    self.of[draft.node] = cls
                    for place, child in draft.children:
                        place.id = self.of[child].token
                        inside.add(child)
            earlier += drafts
        self._check_lists(root)
        for cls in self._in_order(order):
            first = cls.drafts[0]
            body = [*first.fields, *first.methods]
            cls.definition = syntax.class_of(cls.token, [syntax.name("eqx.Module")], body)
            self.file.definitions.append(cls.definition)

    def _in_order(self, drafts: Sequence[Draft]) -> list[Class]:
        """The classes of some nodes, those of their fields first."""
        found: dict[Class, None] = {}

        def add(cls: Class) -> None:
            if cls not in found and cls.drafts:
                for _, child in cls.drafts[0].children:
                    add(self.of[child])
                found[cls] = None

        for draft in drafts:
            add(self.of[draft.node])
        return list(found)

    def _function(self, call: ast.Call) -> str:
        """The name of a function of the file that is an activation with options."""
        text = ast.unparse(ast.Call(call.func, [ast.Name("x", ast.Load())], call.keywords))
        if text not in self._functions:
            name = self._functions[text] = self.file.names.new(
                text.partition("(")[0].split(".")[-1]
            )
            array = syntax.name("Array")
            body: list[ast.stmt] = [ast.Return(ast.parse(text, mode="eval").body)]
            self.file.definitions.insert(
                0, syntax.function(name, [syntax.argument("x", array)], body, returns=array)
            )
        return self._functions[text]

    def _check_lists(self, node: Node) -> None:
        """**Raises:** `EmissionError` if the modules of a tuple are not of one class."""
        for value in node.fields.values():
            if isinstance(value, Node):
                if value.listed and not value.mixed and len({self.of[n] for n in value.nodes}) > 1:
                    raise EmissionError("layers that compute the same are of different classes")
                self._check_lists(value)

    def _key(self, draft: Draft) -> tuple[Hashable, ...]:
        """Features shared by nodes of one class, besides numbers in the text."""
        kinds, arrays = self._kinds(draft)
        return (
            # Modules that compute nothing are also distinguished by name.
            "" if draft.methods or holds_weights(draft.node) else camel(draft.node.name),
            draft.keys(self._neutral),
            tuple(kinds.items()),
            arrays,
        )

    def _kinds(self, draft: Draft) -> options.Fields:
        """The kinds of the fields by name, and those of the arrays with their fields."""
        kinds = {
            n: (self._start(v), *(self.of[m].token for m in modules_of(v)))
            for n, v in draft.node.fields.items()
        }
        arrays = tuple(
            (field_of(source), (kind, len(shape) if field_of(source) else len(shape) > 0))
            for (kind, shape), source in zip(draft.arrays, draft.sources, strict=True)
        )
        return kinds, arrays

    def _arrays(self, draft: Draft) -> Hashable:
        """The fields of a layer that holds arrays only."""
        fields = draft.node.fields
        return tuple((n, self._start(v)) for n, v in fields.items()), tuple(
            (kind, len(shape)) for kind, shape in draft.arrays[: len(fields)]
        )

    def _start(self, value: Var | Node) -> Hashable:
        """The initializer of a field, with the rank of its array but without sizes."""
        if not isinstance(value, Node):
            return self.inits.starts.of(value), len(self.file.program.shape(value))
        natives = [n for m in modules_of(value) if (n := construct.native_of(m)) is not None]
        return tuple((n.kind, n.keywords, len(n.args), n.keyed) for n in natives)

    def _draft(self, node: Node, levels: list[list[Draft]], order: list[Draft]) -> int:
        """Write a node and its inner nodes; return its level, above theirs."""
        if (native := construct.native_of(node)) is not None:
            self.of[node] = Class(f"eqx.nn.{native.kind}", [])
            return -1
        level = max((self._draft(v, levels, order) + 1 for v in node.nodes), default=0)
        draft = self._declared(node)
        self._add_methods(draft)
        while len(levels) <= level:
            levels.append([])
        levels[level].append(draft)
        order.append(draft)
        self.on_layer(len(order), self._count)
        return level

    def _declared(self, node: Node) -> Draft:
        """A draft with the fields of a node."""
        draft = Draft(node)
        for name, value in node.fields.items():
            if isinstance(value, Node):
                places = [ast.Name("", ast.Load()) for _ in modules_of(value)]
                draft.children += zip(places, modules_of(value), strict=True)
                kind = sequence(places, mixed=value.mixed) if value.listed else places[0]
                draft.inner += [] if value.listed else self._inner(name, value)
                inside = [] if value.listed else self._read(value).values()
                draft.inner_axes += [_axes(v) for v in inside]
            else:
                kind = self.annotation(value, draft, syntax.field(_self(), name))
                if value in self.held:
                    kind = syntax.item(syntax.name("eqx.nn.StateIndex"), kind)
            draft.fields.append(syntax.declare(name, kind))
        return draft

    def _inner(self, name: str, node: Node) -> list[tuple[ast.expr, tuple[int, ...]]]:
        """The arrays of a layer inside, by the expressions that read them."""
        own = self._read(node)
        shape = self.file.program.shape
        return [(syntax.field(_self(), name, n), shape(v)) for n, v in own.items()]

    def _read(self, node: Node) -> dict[str, Var]:
        """The arrays of a layer that are not in the state."""
        return {n: v for n, v in node.fields.items() if isinstance(v, Var) and v not in self.held}

    def _add_methods(self, draft: Draft) -> None:
        """Add a method for each distinct computation of a layer in the programs."""
        node = draft.node
        methods: dict[tuple[str, str], str] = {}
        names = Names({*node.fields, *METHODS})
        for layer in node.layers:
            own = Draft(node)
            method = self._method(layer, own)
            several = len(node.layers) > 1
            key = (syntax.text_of(bare(method)), str(own.arrays)) if several else ("", "")
            if key not in methods and layer.same is not None:
                raise EmissionError("the calls of a layer differ")
            if key not in methods:
                wanted = self.tree.programs[layer]
                wanted = "call" if wanted == _CALL else wanted
                methods[key] = names.new(wanted) if methods else _CALL
                method.name = methods[key]
                draft.methods.append(method)
                draft.annotations += own.annotations
                draft.arrays += own.arrays
                draft.axes += own.axes
                draft.sources += own.sources
            self._methods[layer] = methods[key]
        known = self._one.get(node.layers[0]) if len(node.layers) == 1 else None
        draft.texts = list(known.texts) if known is not None else []
        if not draft.texts:
            draft.read_methods()
        if known is not None:
            known.texts = draft.texts

    def annotation(self, v: Var, draft: Draft, source: ast.expr | None = None) -> ast.expr:
        """`Float[Array, "3 4"]`, for sizes of the program; `source` is the expression read."""
        if isinstance(v, StateVar):
            return syntax.name("eqx.nn.State")
        if is_key(v):
            return syntax.name("PRNGKeyArray")
        kind = kind_of(v.aval.dtype)
        draft.arrays.append((kind, self.file.program.shape(v)))
        draft.axes.append(_axes(v))
        # A value in the state has no shape before it is read.
        draft.sources.append(None if v in self.held else source)
        sizes = ast.Constant(dimensions_of(self.file.program.shape(v)))
        node = syntax.item(syntax.name(kind), syntax.tuple_of([syntax.name("Array"), sizes]))
        draft.annotations.append(node)
        return node

    def _method(self, layer: Layer, draft: Draft) -> ast.FunctionDef:
        hints = self._argument_hints(layer, layer.inputs)
        sources = [ast.Name("", ast.Load()) for _ in layer.inputs]
        kinds = [self.annotation(v, draft, s) for v, s in zip(layer.inputs, sources, strict=True)]
        results = [self.annotation(v, draft) for v in layer.results]
        method, names = self._copied(layer, hints, kinds) or self._new(layer, hints, kinds)
        arguments = {a.arg: a for a in (*method.args.args, *method.args.kwonlyargs)}
        for source, name, kind in zip(sources, names, kinds, strict=True):
            source.id, arguments[name].annotation = name, kind
        if len(results) == 1:
            method.returns = results[0]
        else:
            method.returns = syntax.item(syntax.name("tuple"), syntax.tuple_of(results))
        given = zip(layer.inputs, names, strict=True)
        self._keywords[layer] = {v: name for v, name in given if is_key(v)}
        return method

    def _copied(
        self, layer: Layer, hints: Sequence[str], kinds: Sequence[ast.expr]
    ) -> tuple[ast.FunctionDef, Sequence[str]] | None:
        """The method of a layer and the names of its arguments, if an equal one is known."""
        own = self.own(layer)
        program = self._program(layer, [*own, *layer.inputs])
        found = key_of(program, layer.path, self.wanted(layer), self._call_key)
        if found is None:
            return None
        fields = tuple([self.tree.places[layer][v] for v in own])
        taken = len(self.file.names.taken)
        key, free = found
        key = key, fields, tuple(hints), taken
        known = self._written.get(key)
        copied = known.copied(program, free) if known is not None else None
        if known is not None and copied is not None:
            method, self._named[layer] = copied
        else:
            method, names = self._new(layer, hints, kinds)
            known = Written(program, free, method, names, self._named[layer])
            if taken == len(self.file.names.taken):
                self._written[key] = known
        self._one[layer] = known
        return method, known.arguments

    def _call_key(self, call: LayerCall) -> Hashable | None:
        """As `call_key`, of a layer that is called once and has a class of its own.

        Layers of Equinox have none.
        """
        layer = call.layer
        if self._again(layer) or layer not in self._methods:
            return None
        place = self._methods[layer], self.tree.names[layer]
        inside, memory = self._named[layer], self._memories.of(layer)
        return call_key(call, *place, inside, memory, self.lists.passed(call))

    def _new(
        self, layer: Layer, hints: Sequence[str], kinds: Sequence[ast.expr]
    ) -> tuple[ast.FunctionDef, Sequence[str]]:
        """A method of a layer, with names of its arguments."""
        function = self._function_of(layer, layer.inputs, hints)
        tokens = [self.file.token(v) for v in layer.inputs]
        function.annotations = dict(zip(tokens, kinds, strict=True))
        method = render(function, "__call__", {}, self.file.names.taken)
        arguments = [*method.args.args[1:], *method.args.kwonlyargs]
        places = dict(zip(function.parameters, (a.arg for a in arguments), strict=True))
        return method, [places[t] for t in tokens]

    def function(self, layer: Layer, given: Mapping[Var, ast.expr] | None = None) -> FunctionText:
        """The computation of a layer as a method."""
        inputs = [v for v in layer.inputs if not given or v not in given]
        return self._function_of(layer, inputs, self._argument_hints(layer, inputs), given)

    def _argument_hints(self, layer: Layer, inputs: Sequence[Var]) -> list[str]:
        """Names of the arguments of a layer, which are noted."""
        told = {**self._inputs.of(layer), **roles.initial(layer.steps)}
        hints = self._hints(inputs, {**told, **layer.arguments})
        if layer.same is not None:
            hints = self._arguments.get(layer.same, hints)
        elif (loop := self.lists.series.get(layer)) is not None and not layer.mixed:
            # The layers of a list share a class.
            hints = self._listed.setdefault(loop, hints)
        self._arguments[layer] = hints
        return hints

    def _function_of(
        self,
        layer: Layer,
        inputs: Sequence[Var],
        hints: Sequence[str],
        given: Mapping[Var, ast.expr] | None = None,
    ) -> FunctionText:
        jaxpr = self._program(layer, layer.inputs)
        names: dict[Atom, str] = dict(zip(inputs, hints, strict=True))
        body = Body(
            self.file,
            jaxpr,
            {**self.own(layer), **(given or {})},
            names,
            self.wanted(layer),
            layer.path,
        )
        value = syntax.one_or_tuple(body.run())
        self._named[layer] = body.names
        arguments = sorted(zip(inputs, hints, strict=True), key=lambda pair: is_key(pair[0]))
        function = FunctionText(
            "",
            "__call__",
            [self.file.token(v) for v, _ in arguments],
            [hint for _, hint in arguments],
            body.statements,
            value,
            first=["self"],
            keyword_only=sum(map(is_key, inputs)),
            types={self.file.token(v): body.type_of(v) for v in inputs},
            layers=self.names_of_layers(layer),
        )
        return self.file.with_dimensions(function, inputs)

    def _program(self, layer: Layer, inputs: Sequence[Var]) -> Jaxpr:
        return self.file.program.jaxpr.replace(
            constvars=[],
            invars=inputs,
            outvars=layer.outputs,
            eqns=self.lists.looped(layer.steps),
        )

    def names_of_layers(self, layer: Layer) -> set[str]:
        """The names that results of the layers inside a layer have."""
        fields = (self.tree.names[c.layer].split(".")[-1] for c in calls(layer.steps))
        return {of_field(name) for name in fields if not name.isdigit()}

    def wanted(self, layer: Layer) -> dict[Atom, str]:
        """Names of branches, and of the new values of parameters."""
        steps = [s for s in layer.steps if isinstance(s, Assign)]
        new = {s.invars[-1]: self._parameter(s.variable) for s in steps if is_var(s.invars[-1])}
        return {**branches.results(layer), **new}

    def _hints(self, inputs: Sequence[Var], wanted: Mapping[Var, str]) -> list[str]:
        """Names of the arguments of a layer; `x` is the first array that may be differentiated."""
        hints = []
        streams = [v for v in inputs if v.aval.shape and jnp.issubdtype(v.aval.dtype, jnp.inexact)]
        for v in inputs:
            if v in wanted:
                hints.append(wanted[v])
            elif isinstance(v, StateVar):
                hints.append("state")
            elif v in self.parameters:
                hints.append(self._parameter(v))
            elif is_key(v):
                hints.append("key")
            elif "x" not in hints and not (
                (wanted and v.aval.dtype == jnp.bool_) or (streams and v not in streams)
            ):
                hints.append("x")
            elif v.aval.dtype == jnp.bool_:
                hints.append("mask")
            elif not v.aval.shape:
                hints.append("scale" if jnp.issubdtype(v.aval.dtype, jnp.inexact) else "index")
            else:
                eqn = self._made.get(v)
                noun = NOUNS.get(eqn.primitive.name, PLAIN) if eqn is not None else PLAIN
                hints.append(noun)
        return hints

    def declared(self, node: Node) -> Draft:
        """A draft with the fields of the outermost module, whose classes are known."""
        draft = self._declared(node)
        for place, child in draft.children:
            place.id = self.of[child].token
        return draft

    def outermost(
        self, draft: Draft, name: str, given: Sequence[Var] = (), run: CallOf | None = None
    ) -> None:
        """Add the outermost class, which is written last.

        **Arguments:**

        - `given`: its arguments.
        - `run`: calls an instance on them; without it, the sizes stay as they are.
        """
        draft.read_methods()
        cls = self._outermost = self.of[draft.node] = Class(name, [draft])
        body = [*draft.fields, *draft.methods]
        cls.definition = syntax.class_of(name, [syntax.name("eqx.Module")], body)
        self.file.definitions.append(cls.definition)
        self._called = given, run
        self._given[cls] = LENGTHS if run is not None else ALL

    def _add_init(self, cls: Class, sizes: Mapping[tuple[str, ...], str]) -> None:
        whole = cls is self._outermost
        init = write(self.inits, cls, sizes, self.file.names.taken, whole=whole)
        place = next(i for i, d in enumerate(self.file.definitions) if d is cls.definition)
        self.file.definitions[place:place] = self.inits.stages
        self.inits.stages.clear()
        if init is not None:
            body = cls.definition.body
            first = next(
                (i for i, s in enumerate(body) if isinstance(s, ast.FunctionDef)), len(body)
            )
            body.insert(first, init)

    def _restart(self) -> None:
        """Undo the changes made for an earlier text."""
        if self._begun is None:
            classes = list(dict.fromkeys(c for c in self.of.values() if c.drafts))
            own = {id(c.definition): c for c in classes}
            self._begun = _Begun(
                [own.get(id(d), d) for d in self.file.definitions],
                {c: c.settled() for c in classes},
                copy.deepcopy(self.file.names),
                dict(self.of),
            )
        begun = self._begun
        for undo in begun.undo.values():
            undo()
        self._numbers.keep(d for cls in begun.undo for d in cls.drafts[1:])
        self.file.definitions = [
            d.definition if isinstance(d, Class) else d for d in begun.definitions
        ]
        self.file.names.restore(begun.names)
        self.of.clear()
        self.of.update(begun.of)
        self.inits.restart()
        self._scaled = {}
        self.size_names.axes.clear()

    @functools.cached_property
    def _ties(self) -> TiesOf:
        roots = self.tree.root.layers
        return TiesOf({x: pairs for root in roots for x, pairs in carried(root).items()})

    def _keeps_shape(self, v: Var) -> bool:
        """Return whether the text contains a parameter's numbers, or its shape cannot change."""
        start = self.inits.starts.of(v)
        return start in ("values", "key") or (
            start == "unknown" and not jnp.issubdtype(v.aval.dtype, jnp.inexact)
        )

    def finish(self) -> None:
        """Fill in the names of the classes, and the sizes in the annotations.

        A size that differs between the layers of a class and their twins is a name, others are
        numbers. The text may be written again, see `refine` and `weaken`.
        """
        self._restart()
        names: dict[str, str] = {}
        written = list(dict.fromkeys(c for c in self.of.values() if c.drafts))
        twins = self._twins = Twins(
            self.of,
            self._keeps_shape,
            self._ties,
            self._given,
            self._outermost,
            self._sizes,
            self._numbers,
        )
        for cls in written:
            if (scaled := twins.add(cls)) is not None:
                self._scaled[cls] = scaled
        if self._weaken(dict.fromkeys(unfit(written, self._scaled, twins.read), False)):
            self.finish()
            return
        self.inits.gather_sites(written)
        inner = [cls for cls in written if cls is not self._outermost]
        for cls in inner:
            lift(cls, self.inits.sites, self.tree.names)
        keras = self.inits.starts.keras
        outer = self._outermost.definition.name if self._outermost is not None else "Model"
        fields = {part for path in self.tree.names.values() for part in path.split(".")}
        name_classes(
            inner, self.of, self.file.names, names, model=outer, keras=keras, fields=fields
        )
        images = letters_of("".join(c.drafts[0].texts) for c in inner)
        for cls in written:
            self._settle(cls, images)
        self.file.definitions[:0] = self.inits.constants()
        self._fill_in(names)
        drop_unused_defaults(self.file.definitions)

    def _settle(self, cls: Class, images: str) -> None:
        """Write the sizes, static fields and constructor of a class.

        **Arguments:**

        - `images`: the axes of images in the program.
        """
        inside = self.size_names.inside(cls)
        named = Dimensions.of(cls.drafts, images=images)
        for keys in (k for k, name in inside.items() if name == HIDDEN):
            named.know(keys, HIDDEN)
        for keys, name in self.size_names.of(
            cls, whole=cls is self._outermost, one_width=self._twins.has_one_width
        ).items():
            named.know(keys, name)
        if cls is self._outermost:
            self.inits.width = tuple(map(int, self.size_names.width))
            self.inits.sums = self._scaled[cls].sums if cls in self._scaled else {}
        if cls is self._outermost and cls in self._scaled:
            know_classes(cls, self._scaled[cls], named)
            self.inits.inputs = know_inputs(self._scaled[cls], named, self.called)
        if cls is not self._outermost or cls in self._scaled:
            annotate(cls, named)
            name_sizes(cls)
        for node, place in self.typed if cls is self._outermost else ():
            filled = cls.drafts[0].annotations[place]
            assert isinstance(filled, ast.Subscript)
            node.slice = syntax.copied(filled.slice)
        self.size_names.axes[cls] = fields_axes(cls.drafts[0])
        known = {**inside, **named.first()}
        states, taken = self.size_names.of_states(cls), self.file.names.taken
        generalize(cls.drafts, known, taken, states, self._numbers)
        heads.write_repeats(cls)
        make_static(cls, self._numbers)
        if cls not in self.inits.counted:
            heads.write(cls)
        choices.write(cls)
        outer = self._outermost
        # The model itself states the sizes of the loops it contains.
        if cls is not outer and outer not in self.inits.outer(cls):
            keep_state_size(cls, named)
        self._add_init(cls, named.first())
        if (number := self.inits.heads_in_arrays(cls)) is not None:
            heads.annotate(cls, number)
        for i, (name, values) in enumerate(cls.statics.items()):
            field = syntax.declare(name, static_type(values))
            assert isinstance(field, ast.AnnAssign)
            field.value = syntax.call("eqx.field", static=syntax.name("True"))
            cls.definition.body.insert(len(cls.drafts[0].fields) + i, field)

    def _fill_in(self, names: Mapping[str, str]) -> None:
        """Replace the tokens of classes by their names."""
        for definition in self.file.definitions:
            if isinstance(definition, ast.ClassDef):
                describe(definition)
                for statement in definition.body:
                    if isinstance(statement, ast.AnnAssign):
                        syntax.rename(statement.annotation, names)
                        shorten(statement.annotation, modules=statement.value is None)
                    elif isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
                        syntax.rename(statement, names)
            elif isinstance(definition, ast.FunctionDef):
                syntax.rename(definition, names)

    def refine(self) -> bool:
        """Decide more on the sizes of the model.

        Returns whether it did, so that the text has to be written again.
        """
        outer = self._outermost
        if outer is None or outer not in self._scaled:
            return False
        scaled = self._scaled[outer]
        made, place = self.inits.made(scaled.node)
        seen = Seen(
            scaled=scaled,
            arguments=made.arguments,
            place=place,
            has_width=self.size_names.has_width,
            has_one_width=bool(self.size_names.width),
            inside={*self._twins.numbers_inside(scaled.source, whole=False)},
            limits={n for m in outer.drafts[0].methods for n in limits_of(m)},
        )
        options = self.inits.counted, self.inits.heads_apart, self.inits.as_numbers
        return self._sizes.refine(seen, (*self._given.items(), *map(frozenset, options)))

    def weaken(self, namespace: ModuleType) -> bool:
        """Take the twins from classes that do not run at their sizes.

        Returns whether there are such classes in the `namespace` of the text, which then has to be
        written again.
        """
        outer = self._outermost
        unnamed = {
            cls: cls is not outer and self._lacks_names(scaled)
            for cls, scaled in self._scaled.items()
        }
        counted, apart = set(self.inits.counted), set(self.inits.heads_apart)
        numbers = set(self.inits.as_numbers)
        failed = {
            cls: unnamed[cls]
            for cls, scaled in self._scaled.items()
            if unnamed[cls] or not self._runs(cls, scaled, namespace)
        }
        if len(failed) > 1:  # the model may do without those inside that fail
            failed = {cls: flag for cls, flag in failed.items() if cls is not outer}
        lacks = outer in failed or outer not in self._scaled
        if lacks and self._called[1] is not None and self._sizes.step_back():
            if outer is not None:
                self._given[outer] = LENGTHS
            return True
        if len(self.inits.counted - counted) > 1:  # a layer inside may be why the model fails
            self.inits.counted -= {outer} - counted
        if self.inits.counted != counted or self.inits.as_numbers != numbers:
            return True
        if self.inits.heads_apart != apart:
            return True
        return self._weaken(failed)

    def _weaken(self, failed: Mapping[Class, bool]) -> bool:
        for cls, unnamed in failed.items():
            whole = cls is self._outermost
            self._given[cls] = (
                ALL if whole else self._twins.weaker(cls, self._scaled[cls], unnamed=unnamed)
            )
        return bool(failed)

    def _lacks_names(self, scaled: Scaled) -> bool:
        """Return whether a layer with layers inside has sizes without names of their own."""
        made, _ = self.inits.made(scaled.node)
        second = f"{HIDDEN}_2"
        unnamed = any(n not in (stem(n), second) for n in made.arguments)
        return unnamed and bool(scaled.node.nodes)

    def _counts_heads(
        self, cls: Class, scaled: Scaled, run: Callable[[Callable[[Atom], Shape], int], bool]
    ) -> bool:
        """Return whether a class runs with another number of heads, which its arrays do not have.

        Arrays passed to it may have an axis for the heads, such as a bias added to the scores.

        **Arguments:**

        - `run`: runs it, given the shapes of arguments and results and the number of heads.
        """
        made, _ = self.inits.made(scaled.node)
        counts = {*made.arguments.get(HEADS, ())}
        if len(counts) != 1:
            return True
        (old,) = counts
        new = 2 if old == 1 else 1
        shape_at = heads.with_heads(scaled.shape, self.file.program.shape, old)
        if self.inits.heads_in_arrays(cls) is None:
            if not run(scaled.shape, new):
                self.inits.counted.add(cls)
                return False
        # A batch may be as large: it can have another size at the same number of heads.
        elif run(shape_at(old + 1), old) or not run(shape_at(new), new):
            self.inits.heads_apart.add(cls)
            return False
        return True

    def _runs(self, cls: Class, scaled: Scaled, namespace: ModuleType) -> bool:
        made, place = self.inits.made(scaled.node)
        arguments = {n: column[place] for n, column in made.arguments.items()}
        given, run = self._called
        if cls is self._outermost and run is not None:
            (layer,) = scaled.node.layers
            called = run, given, layer.results
        else:
            methods = {m: x for x, m in self._methods.items() if x in scaled.node.layers}
            called = calling(list(methods.items()), self._keywords)
        name = cls.definition.name

        def run_with(
            given: Mapping[str, object],
            leaves: Sequence[tuple[Path, Sequence[Shape]]] = (),
            shape: Callable[[Atom], Shape] = scaled.shape,
        ) -> bool:
            return runs(namespace, name, given, *called, shape, keyed=made.keyed, leaves=leaves)

        whole = zip(scaled.node.leaves(), scaled.source.leaves(), strict=True)
        leaves = [(path, (v.aval.shape, old.aval.shape)) for (path, v), (_, old) in whole]
        if not run_with(arguments, leaves):
            return False
        more = {HEADS, KV_HEADS} <= arguments.keys()
        if more and not run_with({**arguments, KV_HEADS: arguments[HEADS]}):
            self.inits.as_numbers.add(KV_HEADS)
            return False
        return self._counts_heads(
            cls, scaled, lambda shape, n: run_with({**arguments, HEADS: n}, shape=shape)
        )
