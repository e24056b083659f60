"""The outermost class: methods with the original signatures."""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec
from jax.tree_util import KeyEntry

from invert._entry import ArgSpec, EntryPoint
from invert._errors import EmissionError
from invert.emission.annotations import dimensions_of, kind_of
from invert.emission.classes import Classes
from invert.emission.emitted import CALL
from invert.emission.expressions import literals, trees
from invert.emission.expressions.body import Body
from invert.emission.expressions.render import render
from invert.emission.expressions.statements import FunctionText, Statement, ValueType
from invert.emission.layers import mapped_trees
from invert.emission.layers.cut import Layer
from invert.emission.layers.shared import Draft
from invert.emission.layers.state import StateVar
from invert.emission.layers.tree import METHODS, Node
from invert.emission.outer_method import around
from invert.emission.python import pytrees, syntax
from invert.emission.python.naming import Names, camel, comment, identifier, snake
from invert.emission.python.nouns import PLAIN, STREAM, says
from invert.emission.python.pytrees import Trees
from invert.emission.reader import Reader, trainable
from invert.emission.sizes.expressions import (
    dimension_of,
    dimension_sources,
    dimension_token,
    expression,
    least_of,
)
from invert.emission.twin_runs import CallOf
from invert.ir.avals import is_key
from invert.ir.graph import is_var
from invert.ir.sizes import Constraint, Shape, dimension, is_open
from invert.ir.types import Atom, Tree, Value, Var


@dataclasses.dataclass(frozen=True)
class Method:
    """One program as a method of the outermost class.

    **Arguments:**

    - `name`: the name of the method.
    - `layer`: the program.
    - `arguments`: variables of the flat arguments, then of the key.
    - `states`: the first and the last state; `None` if the method takes none.
    - `x64`: whether the program has 64-bit values.
    - `partitionable`: the setting `jax_threefry_partitionable` for its random numbers.
    - `checkify`: whether assertions are written as `checkify.check`.
    - `fixed`: why the text holds for one size of its open dimensions only, or `""`.
    - `constraints`: conditions on its open dimensions, which the text checks.
    - `may_be_empty`: the open dimensions whose size may be 0.
    """

    name: str
    entry: EntryPoint
    layer: Layer
    arguments: Sequence[Var]
    states: tuple[StateVar, StateVar] | None
    x64: bool
    partitionable: bool = True
    checkify: bool = False
    fixed: str = ""
    constraints: Sequence[Constraint] = ()
    may_be_empty: Set[str] = frozenset()


@dataclasses.dataclass
class _Arguments:
    """The arguments of a method.

    **Arguments:**

    - `hints`: preferred names.
    - `annotations`: their annotations, by token, in order.
    - `types`: types of those that are single arrays, by token.
    - `given`: expressions of arrays that are a part of an argument.
    - `called`: names of all arrays.
    - `unpacked`: statements that unpack lists of named arrays.
    - `trees`: the trees among them.
    """

    hints: list[str]
    annotations: dict[str, ast.expr] = dataclasses.field(default_factory=dict)
    types: dict[str, ValueType | None] = dataclasses.field(default_factory=dict)
    given: dict[Var, ast.expr] = dataclasses.field(default_factory=dict)
    called: dict[Atom, str] = dataclasses.field(default_factory=dict)
    unpacked: list[Statement] = dataclasses.field(default_factory=list)
    trees: Trees = dataclasses.field(default_factory=Trees)


class Main:
    """Writes the outermost class.

    **Arguments:**

    - `stacked`: whether some layers are stacked.
    - `specs`: the shardings of parameters.
    - `trees`: whether operations on all arrays of a tree are written once.

    **Attributes:**

    - `maps`: whether there are such operations.
    """

    def __init__(
        self,
        classes: Classes,
        methods: Sequence[Method],
        *,
        stacked: bool = False,
        specs: Mapping[Var, PartitionSpec] | None = None,
        trees: bool = False,
    ):
        self.classes, self.methods, self.stacked = classes, methods, stacked
        self.trees, self.maps = trees, False
        self.specs = specs or {}
        self.file = classes.file
        self.messages: list[str] = []
        self.name = ""
        # The compiled method of each method: itself, or one that it calls.
        self.compiled: dict[str, str] = {}
        self._dictionaries: dict[str, str] = {}

    def add(self, node: Node, trained: Set[Var]) -> Reader:
        """Add the class; return the loader of its weights, which a text may do without.

        **Arguments:**

        - `trained`: variables of the parameters that the container calls trainable.
        """
        self.classes.add(node)
        name = self.name = self.file.names.new(node.name)
        draft = self.classes.declared(node)
        names = Names({*node.fields, *METHODS, *(m.name for m in self.methods)})
        for method in self.methods:
            draft.methods += self._methods(method, names, draft)
        self.classes.outermost(draft, name, *self._sizable(draft))
        leaves = {v: ".".join(path) for path, v in node.leaves()}
        for v in self.classes.inits.starts.unknown(leaves):
            self.messages.append(f"{name}(key=...) has no values for the constant {leaves[v]}")
        held = self.classes.held
        loader = Reader(
            name,
            x64=any(m.x64 for m in self.methods),
            stateful=bool(held),
            keyed=self.classes.inits.keyed(node),
            specs=self._add_specs(node),
        )
        places = [((*path, "init") if v in held else path, v) for path, v in node.leaves()]
        trained = trained - held
        self.file.definitions += trainable(
            name,
            [path for path, v in places if v not in trained],
            [path for path, v in places if v in trained],
        )
        return loader

    def _sizable(self, draft: Draft) -> tuple[Sequence[Var], CallOf | None]:
        """Arguments and call of a single stateless method, whose sizes may vary."""
        (method, *others) = self.methods
        entry = method.entry
        if others or len(draft.methods) > 1 or method.states or method.fixed:
            return (), None

        def run(module: Any, arrays: Sequence[Value]) -> list[Any]:
            args, keywords = given(entry, arrays)
            return jax.tree_util.tree_leaves(getattr(module, method.name)(*args, **keywords))

        return method.arguments, run

    def _add_specs(self, node: Node) -> bool:
        """Define the shardings of the arrays; return whether there are any."""
        specs = {".".join(p): self.specs[v] for p, v in node.leaves() if v in self.specs}
        if specs and not self.stacked:
            keys: list[ast.expr | None] = list(map(syntax.number, specs))
            table = ast.Dict(keys, list(map(literals.spec, specs.values())))
            self.file.names.taken.add("SPECS")
            place = ast.Name("SPECS", ast.Store())
            self.file.definitions.insert(0, ast.Assign([place], table, lineno=0))
        return bool(specs) and not self.stacked

    def _array(
        self, v: Atom, draft: Draft | None = None, source: ast.expr | None = None
    ) -> ast.expr:
        """The type of an array.

        **Arguments:**

        - `draft`: a draft of the class, if the array may have other sizes.
        - `source`: as for `Draft.sources`.
        """
        if is_key(v):
            return syntax.name("PRNGKeyArray")
        if draft is not None and isinstance(v, Var):
            return self.classes.annotation(v, draft, source)
        text = ast.Constant(dimensions_of(self.file.program.shape(v)))
        kind = kind_of(v.aval.dtype)
        return syntax.item(syntax.name(kind), syntax.tuple_of([syntax.name("Array"), text]))

    def _methods(self, method: Method, names: Names, draft: Draft) -> list[ast.FunctionDef]:
        function = self._function(method, draft)
        taken = self.file.names.taken
        jitted = syntax.name("eqx.filter_jit")
        checks = method.entry.checks
        self.compiled[method.name] = method.name
        settings = {"enable_x64": True} if method.x64 else {}
        if not method.partitionable:  # the default of JAX is `True`
            settings["threefry_partitionable"] = False
        if not settings and not checks:
            function.decorators = [jitted]
            made = _guarded(method, render(function, method.name, {}, taken))
            _name_sources(draft, function, made)
            return [made]
        function.doc = ""
        stem = method.name.strip("_")
        run = names.new("_run" if method.name == CALL else f"_run_{stem}")
        inner = _guarded(method, render(function, run, {}, taken))
        inner.decorator_list = [jitted]
        self.compiled[method.name] = run
        doc = self._doc(method.entry)
        outer = around(
            inner, method.name, doc, settings=settings, checks=checks, checkify=method.checkify
        )
        return [outer, inner]

    def _doc(self, entry: EntryPoint) -> str:
        """The origin of a method; that of a single one heads the file."""
        if len(self.methods) == 1:
            return ""
        return f"Recovered {comment(source_of(entry))}." if entry.source else "Recovered."

    def _function(self, method: Method, draft: Draft) -> FunctionText:
        entry, layer = method.entry, method.layer
        arguments = self._arguments(method, draft)
        outputs = list(layer.outputs)
        if entry.assigned and method.states is not None:
            outputs.append(method.states[1])
        jaxpr = self.file.program.jaxpr.replace(
            constvars=[],
            invars=list(method.arguments),
            outvars=outputs,
            eqns=self.classes.lists.looped(layer.steps),
        )
        count = len(layer.outputs) - len(entry.checks)
        if self.trees:
            tree = pytrees.filled(_numbers(entry, count), layer.outputs[:count])
            one = functools.partial(trees.is_one, self.file)
            whole = jaxpr
            jaxpr = mapped_trees.with_maps(jaxpr, [*arguments.trees.values], tree, one)
            self.maps = self.maps or jaxpr is not whole
        wanted = {**_keys(entry, layer.outputs[:count]), **self.classes.wanted(layer)}
        given = {**self.classes.own(layer), **arguments.given}
        body = Body(self.file, jaxpr, given, arguments.called, wanted, layer.path, arguments.trees)
        results = body.run()
        stem = "" if method.name == CALL else method.name
        value, returns = self._result(
            entry, results[:count], layer.outputs[:count], f"{stem}_outputs", draft, body.trees
        )
        if entry.assigned:
            value = syntax.tuple_of([value, results[-1]])
            kinds = syntax.tuple_of([returns, syntax.name("eqx.nn.State")])
            returns = syntax.item(syntax.name("tuple"), kinds)
        if entry.checks:
            value = syntax.tuple_of([value, *results[count : len(layer.outputs)]])
        ordinary = all(n.isidentifier() for n in entry.arg_names)
        by_name = 0 if entry.one_argument and method.states is None else len(entry.kwargs)
        function = FunctionText(
            "", method.name, list(arguments.annotations), arguments.hints, body.statements, value,
            first=["self"], doc=self._doc(entry), annotations=arguments.annotations,
            returns=returns, keyword_only=by_name + entry.draws, positional_only=not ordinary,
            types=arguments.types, layers=self.classes.names_of_layers(layer),
        )  # fmt: skip
        function = self.file.with_dimensions(function, method.arguments, arguments.given)
        function.body = [*arguments.unpacked, *function.body]
        return function

    def _arguments(self, method: Method, draft: Draft) -> _Arguments:
        entry = method.entry
        names, state, key = parameters(entry)
        trees: list[Any] = [*entry.args]
        hints = [names[n] for n in entry.arg_names]
        if method.states is not None:
            trees.append(method.states[0])
            hints.append(state)
        trees += entry.kwargs.values()
        hints += [names[n] for n in entry.kwargs]
        if entry.draws:
            trees.append(ArgSpec(key, (), method.arguments[-1].aval.dtype))
            hints.append(key)
        if entry.defaults:
            left = ", ".join(entry.defaults)
            self.messages.append(f"arguments of the text have no defaults, and are given: {left}")
        arguments = _Arguments(hints)
        flat = iter(_leaves_in_order(entry, method.arguments))
        for tree, hint in zip(trees, hints, strict=True):
            if isinstance(tree, StateVar):
                token = self.file.token(tree)
                arguments.annotations[token] = syntax.name("eqx.nn.State")
                arguments.types[token] = (), tree.aval.dtype
            elif isinstance(tree, ArgSpec):
                v = next(flat)
                token = self.file.token(v)
                arguments.called[v] = hint
                arguments.annotations[token] = self._array(v, draft, ast.Name(token, ast.Load()))
                arguments.types[token] = self.file.program.shape(v), v.aval.dtype
                if v.aval.dtype == np.bool_ and not v.aval.shape:
                    # A Python bool is static, so that the compiler knows the branch.
                    either = syntax.infix(syntax.name("bool"), "|", self._array(v))
                    arguments.annotations[token] = either
            else:
                token = syntax.new_token()
                # The variables are in the order in which the tree is flattened.
                leaves, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_spec)
                variables = [next(flat) for _ in leaves]
                named = ast.Name(token, ast.Load())
                parts = [pytrees.access(named, path) for path, _ in leaves]
                kinds = structure.unflatten(
                    [self._array(v, draft, p) for v, p in zip(variables, parts, strict=True)]
                )
                arguments.annotations[token] = self._typed(kinds, hint, draft)
                arguments.types[token] = None
                if (called := _names_in(tree)) and not method.fixed:
                    arguments.called |= zip(variables, called, strict=True)
                    arguments.unpacked.append(
                        Statement(
                            [self.file.token(v) for v in variables],
                            named,
                            called,
                            [(self.file.program.shape(v), v.aval.dtype) for v in variables],
                        )
                    )
                    continue
                if self.trees:
                    arguments.trees.add_parts(structure.unflatten(variables), named, hint)
                for (path, _), v, part in zip(leaves, variables, parts, strict=True):
                    arguments.given[v] = part
                    arguments.called[v] = _last_key(path)
        return arguments

    def _result(
        self,
        entry: EntryPoint,
        results: Sequence[ast.expr],
        outputs: Sequence[Atom],
        hint: str,
        draft: Draft,
        known: pytrees.Trees,
    ) -> tuple[ast.expr, ast.expr]:
        """The results in the structure of the original, and its annotation."""
        numbers = _numbers(entry, len(results))
        tree = pytrees.filled(numbers, results)
        kinds = pytrees.filled(numbers, [self._array(v, draft) for v in outputs])
        plain = pytrees.known(tree)
        if jax.tree_util.tree_structure(plain) != jax.tree_util.tree_structure(tree):
            self.messages.append("results are tuples where the text does not know their classes")
        values = {id(e): a for e, a in zip(results, outputs, strict=True) if is_var(a)}
        whole = pytrees.nested(known.written(plain, values))
        return whole, self._typed(pytrees.known(kinds), hint, draft)

    def _typed(self, kinds: object, hint: str, draft: Draft) -> ast.expr:
        """The annotation of a pytree of annotations."""

        def define(types: dict[str, ast.expr]) -> ast.expr:
            body: list[ast.stmt] = [syntax.declare(k, t) for k, t in types.items()]
            key = syntax.text_of(ast.Module(body, []))
            if key not in self._dictionaries:
                name = self.file.names.new(camel(hint, "Dictionary"))
                written = copy.deepcopy(body)
                bases = [syntax.name("TypedDict")]
                self.file.definitions.append(syntax.class_of(name, bases, written))
                self._dictionaries[key] = name
                places = {id(a): i for i, a in enumerate(draft.annotations)}
                nodes = zip(*(ast.walk(ast.Module(b, [])) for b in (body, written)), strict=True)
                for own, other in nodes:
                    if id(own) in places and isinstance(other, ast.Subscript):
                        self.classes.typed.append((other, places[id(own)]))
            return syntax.name(self._dictionaries[key])

        return pytrees.typed(kinds, define)


def _name_sources(draft: Draft, function: FunctionText, made: ast.FunctionDef) -> None:
    """Fill in the names of the arguments of a method."""
    arguments = [*made.args.posonlyargs, *made.args.args, *made.args.kwonlyargs]
    names = dict(zip(function.parameters, (a.arg for a in arguments[1:]), strict=True))
    for name in (n for s in draft.sources if s is not None for n in syntax.names_in(s)):
        name.id = names.get(name.id, name.id)


def _names_in(tree: object) -> list[str]:
    """The names of arrays in a list or tuple, if all are meaningful."""
    if type(tree) not in (list, tuple) or not isinstance(tree, Sequence) or len(tree) < 2:
        return []
    names = [snake(s.name, PLAIN) for s in tree if isinstance(s, ArgSpec)]
    blank = any(_NUMBERED.fullmatch(n) or not says(n) for n in names)
    return names if len(set(names)) == len(tree) and not blank else []


def names_of_arrays(entry: EntryPoint) -> list[str]:
    """The names of the flat arguments; `y` for those without meaningful ones."""
    names = [snake(s.name, PLAIN) for s in entry.specs]
    return [PLAIN if _NUMBERED.fullmatch(n) else n for n in names]


def _wanted(name: str, tree: object) -> str:
    """The name of an argument, or of its array if more meaningful."""
    own = name
    if isinstance(tree, ArgSpec) and _GENERAL.fullmatch(name):
        own = snake(tree.name, PLAIN)
    return name if _NUMBERED.fullmatch(own) or not says(own) else own


# Names that every layer gives to its input.
_GENERAL = re.compile(r"inputs?|args?_\d+")
# Names made up by converters and libraries.
_NUMBERED = re.compile(r".*\d|input|inputs|args?|x|y|keras_tensor|input_layer")
# Names of arguments that have none in the container.
_COUNTED = re.compile(r"args?_?\d+")


def parameters(entry: EntryPoint) -> tuple[dict[str, str], str, str]:
    """Identifiers for an entry point's arguments by name, state and key."""
    names = Names()
    alone = len(entry.arg_names) + len(entry.kwargs) == 1
    identifiers = {
        n: names.new(
            STREAM if alone and _COUNTED.fullmatch(n) else identifier(_wanted(n, tree), f"x_{i}")
        )
        for i, (n, tree) in enumerate(zip(entry.arg_names, entry.args, strict=True))
    }
    identifiers |= {n: names.new(identifier(n, "argument")) for n in entry.kwargs}
    return identifiers, names.new("state"), names.new("key")


def given(entry: EntryPoint, arrays: Sequence[Value]) -> tuple[Sequence[Any], dict[str, Any]]:
    """A method's arguments and keywords from flat arrays and a key."""
    structure = jax.tree_util.tree_structure((entry.args, dict(entry.kwargs)), is_leaf=_is_spec)
    names, _, key = parameters(entry)
    rest = list(arrays)
    keywords = {key: rest.pop()} if entry.draws else {}
    args, kwargs = jax.tree_util.tree_unflatten(structure, rest)
    return args, keywords | {names[k]: v for k, v in kwargs.items()}


def _guarded(method: Method, node: ast.FunctionDef) -> ast.FunctionDef:
    """The method, with checks of the sizes for which its text is valid."""
    guards: list[ast.stmt] = [] if method.fixed else list(_checks(method, node))
    for value, shape, _ in _open_arguments(method, node) if method.fixed else ():
        actual = syntax.field(value, "shape")
        expected = syntax.tuple_of([syntax.number(n) for n in shape])
        message = f"{syntax.text_of(value)} has the shape {{}}, but this text is for {shape} only: "
        message += _braced(method.fixed)
        guards.append(_refusal(actual, ast.NotEq(), expected, message))
    _guard(node, guards)
    return node


def _checks(method: Method, node: ast.FunctionDef) -> Iterator[ast.stmt]:
    """`if x.shape[0] > 64: raise ValueError(...)`, for each condition on open sizes."""
    arrays = [(value, shape) for value, shape, _ in _open_arguments(method, node)]
    sources = dimension_sources(arrays)
    values = {dimension_token(d): e for d, e in sources.items()}

    def unless(left: ast.expr, relation: str, right: ast.expr, message: str) -> ast.stmt:
        test = syntax.infix(left, _OPPOSITES[relation], right)
        if missing := [t for t in syntax.tokens_in(test) if t.startswith("$") and t not in values]:
            raise EmissionError(
                f"no argument has the size {dimension_of(missing[0])}, on which there is a "
                f"condition: {message}"
            )
        refuse = ast.Raise(syntax.call("ValueError", ast.Constant(message)))
        return ast.If(syntax.substitute(test, values), [refuse], [])

    yield from _nonempty(method, arrays)
    for value, shape, stated in _open_arguments(method, node):
        for axis, size in enumerate(shape):
            # Of an open size, conditions may have left one number.
            if dimension(size) is None and not isinstance(stated[axis], int):
                actual = syntax.size(value, axis)
                message = f"{syntax.text_of(actual)} has to be {size}"
                least = least_of(size, actual, sources)
                if least is None or least[1] != 1:
                    yield unless(actual, "eq", expression(size), message)
                if least is not None and least[2] > 0:
                    message += f", where {least[0]} is at least 1"
                    yield unless(actual, "ge", syntax.number(least[2]), message)
    for c in method.constraints:
        message = _STATE.split(c.message)[0] or f"this text is for {c.words()} only"
        yield unless(expression(c.left), c.relation, expression(c.right), message)


def _nonempty(method: Method, arrays: Sequence[tuple[ast.expr, Shape]]) -> Iterator[ast.stmt]:
    """`if x.shape[0] == 0: raise ValueError(...)`: the program is known at larger sizes only.

    Not for `method.may_be_empty`, and not for dimensions that another check bounds from below.
    """
    bounded = {
        dimension(c.left)
        for c in method.constraints
        if c.relation == "ge" and not is_open(c.right) and c.right >= 1
    }
    bounded |= method.may_be_empty
    sources = dimension_sources(arrays)
    for value, shape in arrays:
        for axis, size in enumerate(shape):
            actual = syntax.size(value, axis)
            if (least := least_of(size, actual, sources)) is not None:
                bounded.add(least[0])
    left = {name: source for name, source in sources.items() if name not in bounded}
    zero, tests = syntax.number(0), list[ast.expr]()
    for value, shape in arrays:
        own = [name for name in dict.fromkeys(map(dimension, shape)) if name in left]
        plain = [n for n in shape if is_open(n) and dimension(n) in left]
        if len(own) > 1 and len(plain) == sum(map(is_open, shape)) and 0 not in shape:
            tests.append(ast.Compare(zero, [ast.In()], [syntax.field(value, "shape")]))
            left = {name: source for name, source in left.items() if name not in own}
    tests += [ast.Compare(source, [ast.Eq()], [zero]) for source in left.values()]
    if tests:
        names = [name for name in sources if name not in bounded]
        message = f"this text is for {' and '.join(f'{name} >= 1' for name in names)} only"
        refuse = ast.Raise(syntax.call("ValueError", ast.Constant(message)))
        yield ast.If(tests[0] if len(tests) == 1 else ast.BoolOp(ast.Or(), tests), [refuse], [])


# Start of the part of a `jax.export` message about the sizes of a call and the export's arguments.
_STATE = re.compile(r", but found |\.? +Using the following polymorphic shapes")
_OPPOSITES = {"eq": "!=", "ne": "==", "ge": "<", "gt": "<=", "le": ">", "lt": ">="}


def _refusal(actual: ast.expr, test: ast.cmpop, limit: ast.expr, message: str) -> ast.stmt:
    """`if actual > limit: raise ValueError(message.format(actual))`."""
    text = syntax.method(ast.Constant(message), "format", actual)
    refuse = ast.Raise(syntax.call("ValueError", text))
    return ast.If(ast.Compare(actual, [test], [limit]), [refuse], [])


def _guard(node: ast.FunctionDef, guards: Sequence[ast.stmt]) -> None:
    """Insert statements at the beginning of a function, after its docstring."""
    first = 1 if ast.get_docstring(node) is not None else 0
    node.body[first:first] = guards


def _open_arguments(
    method: Method, node: ast.FunctionDef
) -> Iterator[tuple[ast.expr, Shape, Sequence[int | str | None]]]:
    """Arrays among the arguments with open sizes: expression, shape, and that of the original."""
    entry, given = method.entry, node.args
    arguments = [a.arg for a in (*given.posonlyargs, *given.args)][1:]
    pairs = [*zip(entry.args, arguments, strict=False)]
    # A keyword argument that is the only one is positional in the text, too.
    names, _, _ = parameters(entry)
    pairs += [(tree, names[k]) for k, tree in entry.kwargs.items()]
    flat = iter(_leaves_in_order(entry, list(method.arguments)))
    for tree, name in pairs:
        for path, spec in jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_spec)[0]:
            v = next(flat)
            if not all(isinstance(n, int) for n in spec.shape):
                yield pytrees.access(ast.Name(name, ast.Load()), path), v.aval.shape, spec.shape


def _braced(text: str) -> str:
    """The text as part of a format string."""
    return comment(text).replace("{", "{{").replace("}", "}}")


def _leaves_in_order(entry: EntryPoint, arguments: Sequence[Var]) -> list[Var]:
    """The variables in the order of the signature; JAX sorts keyword arguments by name."""
    structure = jax.tree_util.tree_structure((entry.args, dict(entry.kwargs)), is_leaf=_is_spec)
    count = structure.num_leaves
    args, kwargs = jax.tree_util.tree_unflatten(structure, arguments[:count])
    ordered = [*args, *(kwargs[k] for k in entry.kwargs)]
    leaves = [v for tree in ordered for v in jax.tree_util.tree_leaves(tree)]
    return [*leaves, *arguments[count:]]  # a key comes last


def source_of(entry: EntryPoint) -> str:
    """The origin of a program, as in `from a SavedModel`."""
    source = entry.source
    return source if not source or source.startswith("from ") else f"from {source}"


def _last_key(path: Sequence[KeyEntry]) -> str:
    """The last name in a path; `PLAIN` if it has only numbers."""
    names = [k.key for k in path if isinstance(getattr(k, "key", None), str)]
    return snake(names[-1], PLAIN) if names else PLAIN


def _numbers(entry: EntryPoint, count: int) -> Tree:
    """The numbers of the flat results in their structure."""
    if jax.tree_util.tree_structure(entry.outputs) == entry.out_tree:
        return entry.outputs
    return jax.tree_util.tree_unflatten(entry.out_tree, range(count))


def _keys(entry: EntryPoint, outputs: Sequence[Atom]) -> dict[Var, str]:
    """Names of results: the keys of the dictionaries in which they are returned."""
    paths, _ = jax.tree_util.tree_flatten_with_path(
        jax.tree_util.tree_unflatten(entry.out_tree, range(len(outputs)))
    )
    keys = {outputs[i]: _last_key(path) for path, i in paths if is_var(outputs[i])}
    return {v: name for v, name in keys.items() if name != PLAIN and not _PLACE.fullmatch(name)}


# Positional names given by converters.
_PLACE = re.compile(r"(output|result|y|x)?_?\d*")


def _is_spec(x: object) -> bool:
    return isinstance(x, ArgSpec)
