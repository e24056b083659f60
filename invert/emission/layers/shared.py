"""Shares one text among layers that differ only in sizes, read from their arrays."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import (
    Callable,
    Container,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from typing import TYPE_CHECKING, Any, TypeAlias

from invert.emission.layers.tree import Node
from invert.emission.python import syntax
from invert.emission.python.naming import Names
from invert.emission.python.syntax import field_of
from invert.ir.sizes import is_open
from invert.ir.types import Var

if TYPE_CHECKING:
    from typing_extensions import TypeIs

# A small number may be a stride or an axis: it is a size only if several layers agree.
_SMALL, _FEW = 5, 3
# Arguments that become static fields if layers differ only in them: by position or keyword, the
# name of the field.
_STATIC: Mapping[str, Mapping[int | str, str]] = {
    "conv_general_dilated": {
        2: "strides",
        3: "padding",
        "lhs_dilation": "input_dilation",
        "rhs_dilation": "dilation",
        "feature_group_count": "groups",
    },
    "conv_transpose": {2: "strides"},
    "pad": {1: "pad_width"},
    "scan": {"reverse": "reverse"},
    "max_pool": {2: "strides"},
}
_NO_FIELDS: Mapping[int | str, str] = {}
# Those of convolutions that become fields even if all layers have them, unless they are ones.
_ALWAYS = frozenset(("strides", "dilation"))
# Arguments that are left out where they have their default values.
_DEFAULTS: Mapping[int | str, Callable[[ast.Call], ast.expr]] = {
    "reverse": lambda call: ast.Constant(False),
    "rhs_dilation": lambda call: _ones_like(_strides_of(call)),
}
# Arguments of steps that a layer may lack, with the values that mean that it does.
_WITHOUT: Mapping[str, Callable[[ast.expr], ast.expr]] = {
    "pad": lambda value: ast.Constant(None),
    "max_pool": lambda value: _ones_like(value),
}
# Functions of a sum with a small number.
_ROOTS = frozenset(("rsqrt", "sqrt"))
# The argument before which they are written.
_LAST = "dimension_numbers"
# The function of marks, see `values`.
STEP = "$step"
# An attribute of the field that decides about a step which the first layer of a class lacks.
LEFT_OUT = "left_out"
# Static fields: the activation of a result, that of another value, whether a layer adds its input
# to its result, and whether it returns the values of all steps.
ACTIVATION, INNER_ACTIVATION, RESIDUAL = "activation", "inner_activation", "residual"
RETURN_SEQUENCES = "return_sequences"
# Whether an attention only looks back, or leaves out some places.
CAUSAL, MASKED, LOCAL = "causal", "masked", "local"
# Those of any name.
EPS = "eps"  # the small number under a root
OPTIONS = frozenset(
    (ACTIVATION, INNER_ACTIVATION, RESIDUAL, RETURN_SEQUENCES, CAUSAL, MASKED, LOCAL, EPS)
).union(*(fields.values() for fields in _STATIC.values()))
# Up to this many items of one type, the type of a tuple gives their number.
_MOST_ALIKE = 3
# At least as many matrices as this are those of several products.
_BLOCK = 3
# Code with variables of its own, or that runs several times.
_NESTED = (ast.For, ast.FunctionDef, ast.Lambda, ast.comprehension)
# Heads, groups, and the factor of hidden layers.
_LARGEST_FACTOR = 64
# The values of a size in all drafts, and the operator and number by which others follow from it.
_Size: TypeAlias = tuple[tuple[int, ...], str, int]


@dataclasses.dataclass(eq=False)
class Draft:
    """A node as a class of its own.

    **Arguments:**

    - `node`: the node.
    - `children`: the nodes among its fields, with the expressions that name their classes.
    - `fields`: declarations of its fields.
    - `methods`: its methods; `texts`: their texts without annotations, integers and static
        arguments, as 0.
    - `annotations`: the array types in fields and methods, without sizes.
    - `arrays`: the kinds and shapes of these types.
    - `sources`: the expressions by which methods read these arrays; `None` for results.
    - `inner`: the arrays of the layers inside, by expressions that read them.
    - `axes`, `inner_axes`: the axes of variables that `arrays` and `inner` are of.
    - `twin`: the layer of which it is one of other sizes; `None` for those of the program.
    - `absent`: the arguments of its method that it does not take.
    """

    node: Node
    children: list[tuple[ast.Name, Node]] = dataclasses.field(default_factory=list)
    fields: list[ast.stmt] = dataclasses.field(default_factory=list)
    methods: list[ast.FunctionDef] = dataclasses.field(default_factory=list)
    texts: list[str] = dataclasses.field(default_factory=list)
    annotations: list[ast.expr] = dataclasses.field(default_factory=list)
    arrays: list[tuple[str, tuple[int, ...]]] = dataclasses.field(default_factory=list)
    sources: list[ast.expr | None] = dataclasses.field(default_factory=list)
    inner: list[tuple[ast.expr, tuple[int, ...]]] = dataclasses.field(default_factory=list)
    axes: list[tuple[tuple[Var, int] | None, ...]] = dataclasses.field(default_factory=list)
    inner_axes: list[tuple[tuple[Var, int], ...]] = dataclasses.field(default_factory=list)
    twin: Draft | None = None
    absent: tuple[str, ...] = ()

    @functools.cached_property
    def inner_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes in `inner`, by the texts of their expressions."""
        return {syntax.text_of(source): shape for source, shape in self.inner}

    def numbers(self) -> Numbers:
        """The integers in the bodies of its methods, and what is known about them."""
        options = [s for m in self.methods for s in sites(m)]
        own = [_constants(m, options) for m in self.methods]
        found = [c for constants in own for c in constants]
        nodes = [n for m in self.methods for n in syntax.walk(m)]
        calls = [n for n in nodes if n.__class__ is ast.Call]
        quotients = [n for n in nodes if n.__class__ is ast.BinOp]
        unused = {id(c) for mark in filter(_is_left_out, calls) for c in integers(mark.args[0])}
        shapes = _in_shapes([*calls, *quotients])
        places = {id(c): i for i, c in enumerate(found)}

        def among(ids: Set[int]) -> set[int]:
            return {i for i, c in enumerate(found) if id(c) in ids}

        return Numbers(
            found,
            [i for i, constants in enumerate(own) for _ in constants],
            among(unused),
            among(shapes | _under_roots(quotients)),
            among(shapes),
            [(s.field, ast.literal_eval(s.value)) for s in options],
            [[places.get(id(a)) for a in args] for args in _reshapes(calls, places)],
        )

    def read_methods(self) -> None:
        """Find `texts`."""
        self.texts = []
        for method in self.methods:
            with blank(method):
                self.texts.append(f"{method.name}: {syntax.text_of(bare(method))}")

    def keys(self, known: dict[tuple[str, ...], tuple[str, ...]]) -> tuple[str, ...]:
        """The texts, the same whatever arguments and local variables are called.

        **Arguments:**

        - `known`: those of `texts`, from which they follow.
        """
        texts = tuple(self.texts)
        if texts not in known:
            copies: list[ast.FunctionDef] = []
            for method in self.methods:
                with blank(method):
                    copies.append(syntax.copied(bare(method)))
            known[texts] = tuple(map(_anonymous, copies))
        return known[texts]

    def place(self, field: str) -> int:
        """The position in `arrays` of the array in a field."""
        return [field_of(s) for s in self.sources].index(field)


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The integers in the methods of a layer, as long as no others are written there.

    Those of a twin are all that its text is, which is otherwise that of its layer.

    **Arguments:**

    - `constants`: their nodes, which hold what each is at the time.
    - `methods`: the place of the method that each is in.
    - `unused`: the places of those in steps that the layer lacks.
    - `in_shapes`: the places of those that must be sizes: in shapes, ranges and roots.
    - `plain`: the same without those in roots.
    - `options`: the arguments that may be static fields: the field of each, and its value.
    - `reshapes`: the places of the arguments of each `reshape`, `None` for other expressions.
    """

    constants: list[ast.Constant]
    methods: list[int]
    unused: set[int]
    in_shapes: set[int]
    plain: set[int]
    options: list[tuple[str, Any]]
    reshapes: list[list[int | None]]

    def copied(self) -> Numbers:
        """Those of a twin, which may become others."""
        new = {id(c): syntax.copied(c) for c in self.constants}
        return dataclasses.replace(
            self, constants=[new[id(c)] for c in self.constants], options=list(self.options)
        )

    def value(self, place: int) -> int | None:
        """The number at a place; `None` in a step that the layer lacks."""
        return None if place in self.unused else number_of(self.constants[place])


class NumbersOf(dict[Draft, Numbers]):
    """The integers of layers, each text read once."""

    def keep(self, drafts: Iterable[Draft]) -> None:
        """Forget all but those of some layers."""
        kept = {draft: self[draft] for draft in drafts if draft in self}
        self.clear()
        self.update(kept)

    def __missing__(self, draft: Draft) -> Numbers:
        self[draft] = found = draft.numbers()
        return found


@dataclasses.dataclass(eq=False)
class Class:
    """A class of the file.

    **Arguments:**

    - `token`: a placeholder for its name until all classes are known.
    - `drafts`: its nodes, of which the first is written; none for an Equinox class.
    - `statics`: its static fields, with their values for all nodes.
    - `optional`: fields that are `None` in some nodes.
    - `shapes`: the shapes that arrays would have there.
    - `marked`: whether its method has steps that some nodes lack, see `values`.
    """

    token: str
    drafts: list[Draft]
    definition: ast.ClassDef = dataclasses.field(init=False)
    statics: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    optional: tuple[str, ...] = ()
    shapes: dict[tuple[Node, str], tuple[int, ...]] = dataclasses.field(default_factory=dict)
    marked: bool = False

    def settled(self) -> Callable[[], None]:
        """A function that undoes later changes to the class."""
        drafts, statics, shapes = list(self.drafts), dict(self.statics), dict(self.shapes)
        first, bases = drafts[0], self.definition.bases

        def undo() -> None:
            # Together, since annotations and sources are parts of the fields and methods.
            fields, methods, annotations, sources = syntax.cloned(
                (first.fields, first.methods, first.annotations, first.sources)
            )
            again = dataclasses.replace(
                first, fields=fields, methods=methods, annotations=annotations, sources=sources
            )
            self.drafts = [again, *drafts[1:]]
            self.statics, self.shapes = dict(statics), dict(shapes)
            self.definition = syntax.class_of(self.token, bases, [*fields, *methods])

        return undo

    @property
    def plain(self) -> bool:
        """Return whether its nodes have the same fields and options."""
        return bool(self.drafts) and not (self.statics or self.optional or self.marked)


def is_block(node: Node) -> bool:
    """Return whether a module holds the matrices of several products, rather than of one layer."""
    if any("recurrent" in field for field in node.fields) or node.name.lower().endswith("cell"):
        return False
    ranks = [len(v.aval.shape) for v in node.fields.values() if isinstance(v, Var)]
    return sum(rank in (2, 3) for rank in ranks) >= _BLOCK


def holds_weights(node: Node) -> bool:
    """Return whether a module only holds the weights of a product that is computed around it."""
    ranks = [len(v.aval.shape) for v in node.fields.values() if isinstance(v, Var)]
    return len(ranks) == len(node.fields) and sorted(ranks, reverse=True) in ([2], [2, 1])


@dataclasses.dataclass(frozen=True)
class Code:
    """A function as the value of a static field."""

    text: str


# The activation of a layer without one.
IDENTITY = Code("jax.nn.identity")


def taken(method: ast.FunctionDef) -> set[str]:
    """The names in a method."""
    names = syntax.used(method)
    return names | syntax.argument_names(method)


def constants(method: ast.FunctionDef) -> list[ast.Constant]:
    """The integers in the body of a method."""
    return _constants(method, sites(method))


def _constants(method: ast.FunctionDef, options: Iterable[_Site]) -> list[ast.Constant]:
    """The integers in the body of a method, without those in its static arguments."""
    left_out = {id(c) for s in options for c in integers(s.value)}
    return [c for s in method.body for c in integers(s) if id(c) not in left_out]


def number_of(constant: ast.Constant) -> int:
    """One of the `integers` of a text."""
    assert isinstance(constant.value, (int, float))
    return int(constant.value)


def integers(tree: ast.AST) -> Iterable[ast.Constant]:
    """The integers in a tree, and integral floats as divisors or under roots."""
    for node in syntax.walk(tree):
        match node:
            case ast.Constant(value=number):
                if type(number) is int:
                    yield node
                continue
            case ast.BinOp(op=ast.Div(), right=value):
                pass
            case ast.Call(func=function) if syntax.is_path(function, "jnp", "sqrt"):
                inner = node.args[0]
                value = inner.args[0] if isinstance(inner, ast.Call) and inner.args else inner
            case _:
                continue
        number = value.value if isinstance(value, ast.Constant) else None
        if isinstance(value, ast.Constant) and type(number) is float and number.is_integer():
            yield value


def bare(method: ast.FunctionDef) -> ast.FunctionDef:
    """A method without its annotations."""
    args = [syntax.argument(a.arg) for a in method.args.args]
    keywords = [syntax.argument(a.arg) for a in method.args.kwonlyargs]
    return syntax.function(method.name, args, method.body, keyword_only=keywords)


@dataclasses.dataclass
class _Site:
    """A number or an argument of a call that may be a static field."""

    field: str
    call: ast.Call
    key: int | str
    default: ast.expr | None = None

    @property
    def is_always(self) -> bool:
        """Return whether it is a field even if equal in all layers, except at one."""
        return self.field in _ALWAYS and _callee(self.call) not in _WITHOUT

    @property
    def without(self) -> ast.expr | None:
        """Its value where the call is missing."""
        make = _WITHOUT.get(_callee(self.call))
        return None if make is None else make(self.value)

    @property
    def value(self) -> ast.expr:
        if self.key == EPS:
            return self._sum.right
        if isinstance(self.key, int):
            return self.call.args[self.key]
        found = next((k.value for k in self.call.keywords if k.arg == self.key), self.default)
        assert found is not None  # without a default it is given
        return found

    @value.setter
    def value(self, value: ast.expr) -> None:
        if self.key == EPS:
            self._sum.right = value
            return
        if isinstance(self.key, int):
            self.call.args[self.key] = value
            return
        given = [k for k in self.call.keywords if k.arg == self.key]
        if self.default is not None and _is_same(value, self.default):
            self.call.keywords = [k for k in self.call.keywords if k.arg != self.key]
        elif given:
            given[0].value = value
        else:
            names = [k.arg for k in self.call.keywords]
            place = names.index(_LAST) if _LAST in names else len(names)
            self.call.keywords.insert(place, ast.keyword(str(self.key), value))

    @property
    def _sum(self) -> ast.BinOp:
        """The sum under a root."""
        (total,) = self.call.args
        assert isinstance(total, ast.BinOp)
        return total


def sites(method: ast.FunctionDef) -> list[_Site]:
    """The arguments of a method's calls that may be static fields."""
    found: list[_Site] = []
    names = Names()
    calls = [n for s in method.body for n in syntax.in_order(s) if type(n) is ast.Call]
    for call in calls:
        callee = _callee(call)
        if callee in _ROOTS and len(call.args) == 1 and _adds_number(call.args[0]):
            found.append(_Site(names.new(EPS), call, EPS))
        for key, field in _STATIC.get(callee, _NO_FIELDS).items():
            keywords = [k.arg for k in call.keywords]
            given = range(len(call.args)) if isinstance(key, int) else keywords
            if key in given or key in _DEFAULTS:
                default = _DEFAULTS[key](call) if key in _DEFAULTS else None
                site = _Site(names.new(field), call, key, default)
                if _literal(site.value):
                    found.append(site)
    return found


def _is_same(one: ast.expr, other: ast.expr) -> bool:
    """Return whether two expressions have one text."""
    return type(one) is type(other) and ast.unparse(one) == ast.unparse(other)


def _adds_number(value: ast.expr) -> bool:
    """Return whether an expression is like `var + 0.001`."""
    right = value.right if isinstance(value, ast.BinOp) else None
    return isinstance(right, ast.Constant) and type(right.value) is float


def _strides_of(call: ast.Call) -> ast.expr:
    """The strides of a convolution, which plain texts give by name."""
    named = (k.value for k in call.keywords if k.arg == "window_strides")
    return call.args[2] if len(call.args) > 2 else next(named)


def _callee(call: ast.Call) -> str:
    """The last name of a function that is called."""
    node = call.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _ones_like(strides: ast.expr) -> ast.expr:
    count = len(strides.elts) if isinstance(strides, ast.Tuple) else 0
    return syntax.tuple_of([syntax.number(1)] * count)


def _literal(value: ast.expr) -> bool:
    if isinstance(value, ast.Tuple):
        return all(map(_literal, value.elts))
    return isinstance(value, ast.Constant)


def _anonymous(copied: ast.FunctionDef) -> str:
    """The text of a method whose arguments and local variables lose their names."""
    names: dict[str, str] = {}

    def new(name: str) -> str:
        names[name] = f"${next(count)}"
        return names[name]

    count = itertools.count()
    nested = any(isinstance(n, _NESTED) for s in copied.body for n in syntax.walk(s))
    for node in syntax.in_order(copied) if nested else (copied.args,):
        for argument in (n for n in ast.iter_child_nodes(node) if isinstance(n, ast.arg)):
            argument.arg = new(argument.arg)
        if isinstance(node, ast.FunctionDef) and node is not copied:
            node.name = new(node.name)
    local = {n for s in copied.body for n in syntax.stored(s)} | names.keys()
    for statement in copied.body:
        read = [n for n in syntax.names_in(statement) if n.id in local]
        targets = [n for n in read if isinstance(n.ctx, ast.Store)]
        for name in (n for n in read if nested or n not in targets):
            name.id = names.get(name.id) or new(name.id)
        for name in () if nested else targets:
            name.id = new(name.id)
    return syntax.text_of(copied)


@contextlib.contextmanager
def blank(method: ast.FunctionDef) -> Iterator[None]:
    """Replace all integers and static arguments in a method by 0."""
    places = sites(method)
    values = [site.value for site in places]
    for site in places:
        site.value = ast.Constant(0)
    constants = [c for s in method.body for c in integers(s)]
    numbers = [c.value for c in constants]
    for constant in constants:
        constant.value = 0
    try:
        yield
    finally:
        for constant, value in zip(constants, numbers, strict=True):
            constant.value = value
        for site, value in zip(places, values, strict=True):
            site.value = value


def make_static(cls: Class, read: NumbersOf) -> None:
    """Turn arguments that differ between the nodes of a class into static fields.

    One that is a size of an array, such as the groups of a depthwise convolution, is read from it.

    **Arguments:**

    - `read`: the integers and options of all nodes but the first.
    """
    first, *others = cls.drafts
    places = [(s, i) for i, m in enumerate(first.methods) for s in sites(m)]
    told = _told(cls.drafts) if places else []
    rows = [[value for _, value in read[d].options] for d in others]
    names = Names(first.node.fields)
    for (site, method), *more in zip(places, *rows, strict=True):
        values = (ast.literal_eval(site.value), *more)
        always = site.is_always and values[0] != (1,) * len(values[0])
        always = always and bool(first.node.fields)  # a model without fields has no options
        if all(v == values[0] for v in values) and not always:
            continue
        if values in told[method] and all(type(v) is int for v in values):
            site.value = _read(first.methods[method], told[method][values])
            continue
        inner = _of_images(site, values)
        values = inner or values
        known = next((n for n, other in cls.statics.items() if other == values), None)
        name = known or names.new(site.field)
        cls.statics[name] = values
        value = syntax.field(ast.Name("self", ast.Load()), name)
        around = syntax.tuple_of([syntax.number(0), syntax.number(0)])
        whole = syntax.tuple_of([around, ast.Starred(value, ast.Load()), around])
        site.value = whole if inner else value


def _of_images(site: _Site, values: Sequence[Any]) -> tuple[Any, ...]:
    """The inner axes' paddings, if samples and features are not padded."""
    given = [v for v in values if v is not None] if _callee(site.call) == "pad" else []
    if not given or any(len(v) < 3 or {v[0], v[-1]} != {(0, 0)} for v in given):
        return ()
    return tuple(v if v is None else v[1:-1] for v in values)


def _read(method: ast.FunctionDef, size: ast.expr) -> ast.expr:
    """A size, by its name in a method if it has one."""
    for statement in method.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.value) == ast.unparse(size):
            return ast.parse(ast.unparse(statement.targets[0]), mode="eval").body
    return size


def static_type(values: Sequence[Any]) -> ast.expr:
    """The annotation of a static field."""
    order = sorted(values, key=lambda v: (v is None, isinstance(v, tuple)))
    texts = dict.fromkeys(map(_type_of, order))
    return ast.parse(" | ".join(texts), mode="eval").body


def _type_of(value: Any) -> str:
    if isinstance(value, tuple):
        kinds = list(map(_type_of, value))
        many = len(kinds) > _MOST_ALIKE and len(set(kinds)) == 1
        return f"tuple[{kinds[0]}, ...]" if many else f"tuple[{', '.join(kinds)}]"
    if isinstance(value, Code):
        return "Callable[[Array], Array]"
    return "None" if value is None else type(value).__name__


def groups(drafts: Sequence[Draft], key: Callable[[Draft], Hashable]) -> list[list[Draft]]:
    """Groups of nodes that can share a text; the first has all fields.

    **Arguments:**

    - `key`: what they must have in common, apart from numbers.
    """
    alike: dict[Hashable, list[Draft]] = {}
    for draft in drafts:
        alike.setdefault(key(draft), []).append(draft)
    read = NumbersOf()
    return [p for group in alike.values() for part in _parts(group, read) for p in _by_fields(part)]


def _by_fields(group: Sequence[Draft]) -> Iterator[list[Draft]]:
    rest = sorted(group, key=lambda d: -len(d.node.fields))
    while rest:
        own = rest[0].node.fields.keys()
        yield [d for d in rest if d.node.fields.keys() <= own]
        rest = [d for d in rest if not d.node.fields.keys() <= own]


def _parts(group: list[Draft], read: NumbersOf) -> list[list[Draft]]:
    if len(group) == 1:
        return [group]
    columns, first = _columns(group, read), read[group[0]]
    differ = [i for i, column in enumerate(columns) if _differ(column)]
    told = _told(group) if differ else []
    sizes = {i: _size(columns[i], told[first.methods[i]], i in first.in_shapes) for i in differ}
    unknown = [i for i, size in sizes.items() if size is None]
    if not unknown:
        return [group]
    split: dict[tuple[int | None, ...], list[Draft]] = {}
    for i, draft in enumerate(group):
        split.setdefault(tuple(columns[j][i] for j in unknown), []).append(draft)
    return [part for some in split.values() for part in _parts(some, read)]


def fit(group: Sequence[Draft], read: NumbersOf) -> bool:
    """Return whether one text can be written for some nodes, by `generalize`."""
    return len(_parts(list(group), read)) == 1


def _columns(group: Sequence[Draft], read: NumbersOf) -> list[tuple[int | None, ...]]:
    """Each integer of the text in all drafts; `None` in steps one lacks."""
    every = [read[draft] for draft in group]
    rows = ([own.value(i) for i in range(len(own.constants))] for own in every)
    return list(zip(*rows, strict=True))


def _is_left_out(node: ast.AST) -> TypeIs[ast.Call]:
    """Return whether an expression is marked as a step that its layer lacks."""
    if not isinstance(node, ast.Call) or not syntax.is_named(node.func, STEP):
        return False
    flag = node.args[2]
    lacks = isinstance(flag, ast.Constant) and flag.value is False
    return lacks or hasattr(flag, LEFT_OUT)


def _differ(column: Iterable[int | None]) -> bool:
    """Return whether numbers differ, apart from those that are unused."""
    return len({*column} - {None}) > 1


def _in_shapes(nodes: Iterable[ast.AST]) -> set[int]:
    """The nodes of integers in shapes and ranges, by `id`, among those of calls and quotients."""
    sizes: set[int] = set()
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr="reshape"), args=args):
                sizes.update(map(id, args))
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(attr="random")),
                args=[_, ast.Tuple(elts=args), *_],
            ):
                sizes.update(map(id, args))
            case ast.Call(func=ast.Attribute(attr="arange"), args=[length]):
                sizes.add(id(length))
            case ast.BinOp(
                left=ast.Call(func=ast.Attribute(attr="arange"), args=[ast.Constant(value=length)]),
                op=ast.Div(),
                right=ast.Constant(value=total),
            ) if total == length:
                sizes.add(id(node.right))
            case (
                ast.Call(
                    func=ast.Attribute(attr="zeros" | "ones" | "full"),
                    args=[ast.Tuple(elts=args), *_],
                )
                | ast.Call(
                    func=ast.Attribute(attr="broadcast_to" | "broadcast_in_dim"),
                    args=[_, ast.Tuple(elts=args), *_],
                )
            ):
                sizes.update(map(id, args))
    return sizes


def _reshapes(calls: Iterable[ast.AST], places: Container[int]) -> Iterator[list[ast.expr]]:
    """The arguments of `x.reshape(batch, 16, 4)`, if the ids of its numbers are among `places`."""
    for call in calls:
        assert isinstance(call, ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "reshape":
            numbers = [a for a in call.args if isinstance(a, ast.Constant)]
            if all(id(a) in places for a in numbers):
                yield call.args


def _under_roots(powers: Iterable[ast.AST]) -> set[int]:
    """The nodes of numbers in roots, by `id`."""
    sizes: set[int] = set()
    for node in powers:
        match node:
            case ast.BinOp(left=base, op=ast.Pow(), right=ast.Constant(value=0.5)):
                sizes.add(id(base))
    return sizes


def _size(
    column: tuple[int | None, ...],
    told: Mapping[tuple[int, ...], ast.expr],
    small: bool,
) -> _Size | None:
    """A size equal to numbers, or their multiple or divisor, in all drafts.

    **Arguments:**

    - `small`: whether the numbers are sizes however small they are.
    """
    used = [i for i, n in enumerate(column) if n is not None]
    if len(used) < len(column):  # any size will do where there is none
        found = (k for k in told if all(column[i] == k[i] for i in used))
        return next(((k, "", 1) for k in found), None)
    values = tuple(n for n in column if n is not None)
    few = min(values) < _SMALL and len(set(values)) < _FEW
    if few and not small:
        return None
    if values in told:
        return values, "", 1
    for k in range(2, _LARGEST_FACTOR + 1):
        whole = tuple(v * k for v in values)
        if whole in told:
            return whole, "//", k
        part = tuple(v // k for v in values)
        if part in told and all(v % k == 0 for v in values):
            return part, "*", k
    return None


def _told(group: Sequence[Draft]) -> list[dict[tuple[int, ...], ast.expr]]:
    """Sizes of arrays that each method can read, by their values in all drafts."""
    return [_told_in(group, _read_in(group[0], method)) for method in group[0].methods]


def _read_in(draft: Draft, method: ast.FunctionDef) -> list[tuple[int, ast.expr]]:
    """The arrays that a method can read, by their places; those of arguments come first."""
    kinds = [a.annotation for a in (*method.args.args, *method.args.kwonlyargs) if a.annotation]
    own = {id(node) for kind in kinds for node in syntax.walk(kind)}
    every = zip(draft.sources, draft.annotations, strict=True)
    found = [
        (i, source)
        for i, (source, kind) in enumerate(every)
        if source is not None and (len(draft.methods) == 1 or field_of(source) or id(kind) in own)
    ]
    return sorted(found, key=lambda read: not isinstance(read[1], ast.Name))


def _told_in(
    group: Sequence[Draft], read: Sequence[tuple[int, ast.expr]]
) -> dict[tuple[int, ...], ast.expr]:
    """Sizes of some arrays, and of those of the layers inside."""
    sizes_by_values: dict[tuple[int, ...], ast.expr] = {}
    for i, source in read:
        shapes = [d.arrays[i][1] for d in group]
        if len({len(s) for s in shapes}) > 1:
            continue
        axes = list(enumerate(zip(*shapes, strict=True)))
        for axis, sizes in axes[-1:] + axes[:-1]:  # the last axis holds the features
            if any(map(is_open, sizes)):
                continue
            place = -1 if axis == len(shapes[0]) - 1 > 0 else axis
            size = syntax.size(source, place)
            sizes_by_values.setdefault(tuple(map(int, sizes)), size)
    for i, source in read:
        shapes = [d.arrays[i][1] for d in group]
        ranks = {len(s) for s in shapes}
        if not isinstance(source, ast.Name) or len(ranks) > 1 or min(ranks) < 4:
            continue
        inner = [s[1:-1] for s in shapes]  # those of an image
        if not any(map(is_open, itertools.chain(*inner))):
            axes_of = syntax.item(
                syntax.field(source, "shape"), syntax.slice_of(syntax.number(1), syntax.number(-1))
            )
            sizes_by_values.setdefault(
                tuple(math.prod(map(int, s)) for s in inner), syntax.call("math.prod", axes_of)
            )
    inner_shapes = [d.inner_shapes for d in group]
    for source, _ in group[0].inner:
        own = [shapes.get(syntax.text_of(source)) for shapes in inner_shapes]
        column = [shape for shape in own if shape is not None]  # some lack the layer
        sides = enumerate(zip(*column, strict=False) if len(column) == len(own) else ())
        for axis, sizes in sides:
            if not any(map(is_open, sizes)):
                size = syntax.size(source, axis)
                sizes_by_values.setdefault(tuple(map(int, sizes)), size)
    return sizes_by_values


def generalize(
    group: Sequence[Draft],
    names: Mapping[tuple[str, ...], str],
    taken: Iterable[str],
    stored: Mapping[str, ast.expr],
    read: NumbersOf,
) -> None:
    """Replace numbers that differ between drafts by sizes of arrays, in the first.

    **Arguments:**

    - `names`: the sizes named in the annotations, by their values in all drafts.
    - `taken`: names of the file.
    - `stored`: fields that are sizes, by the texts that read these from arrays.
    - `read`: the integers of all others.
    """
    read[group[0]] = first = group[0].numbers()  # in which steps may have been rewritten
    columns = _columns(group, read)
    if not any(map(_differ, columns)):
        return
    told = _told(group)
    changing: list[list[tuple[ast.Constant, _Size]]] = [[] for _ in told]
    for i, values in enumerate(columns):
        if _differ(values):
            place = first.methods[i]
            size = _size(values, told[place], i in first.in_shapes)
            assert size is not None  # ensured by `groups`
            changing[place].append((first.constants[i], size))
    for method, own, read_there in zip(group[0].methods, changing, told, strict=True):
        _write_sizes(method, own, read_there, names, taken, stored)


def _write_sizes(
    method: ast.FunctionDef,
    changing: Sequence[tuple[ast.Constant, _Size]],
    told: Mapping[tuple[int, ...], ast.expr],
    names: Mapping[tuple[str, ...], str],
    taken: Iterable[str],
    stored: Mapping[str, ast.expr],
) -> None:
    """Replace some numbers of a method by their sizes, which it reads in its first lines."""
    used = {*taken, *syntax.used(method)}
    used |= {n.arg for n in syntax.walk(method) if isinstance(n, ast.arg)}
    local: dict[tuple[int, ...], str] = {}
    replaced: dict[int, ast.expr] = {}
    rest = _left_to_reshape(method, {id(c) for c, _ in changing})
    for constant, (base, operator, factor) in changing:
        known = stored.get(ast.unparse(told[base]))
        if id(constant) in rest and known is None and tuple(map(str, base)) not in names:
            replaced[id(constant)] = syntax.number(-1)
            continue
        if known is None and base not in local:
            usual = "area" if isinstance(told[base], ast.Call) else "n"
            wanted = name = names.get(tuple(map(str, base)), usual)
            number = 2
            while name in used:
                name, number = f"{wanted}_{number}", number + 1
            used.add(name)
            local[base] = name
        value = syntax.name(local[base]) if known is None else known
        if operator:
            value = syntax.infix(value, operator, syntax.number(factor))
        replaced[id(constant)] = value
    syntax.replace_all(method, replaced)
    sizes = [syntax.assign(syntax.name(n), told[base]) for base, n in local.items()]
    start = 0
    while start < len(method.body) and _is_reading_of_size(method.body[start]):
        start += 1
    method.body[start:start] = sizes


def _left_to_reshape(method: ast.FunctionDef, changing: Set[int]) -> set[int]:
    """The sizes, by `id`, that are the only changing ones of a reshape: it can infer them."""
    found: set[int] = set()
    for node in syntax.walk(method):
        match node:
            case ast.Call(func=ast.Attribute(attr="reshape"), args=args):
                inferred = any(ast.unparse(a) == "-1" for a in args)
                own = [id(a) for a in args if id(a) in changing]
                found.update(own if len(own) == 1 and not inferred else ())
    return found


def settle(group: Sequence[Draft], read: NumbersOf) -> None:
    """Copy numbers that no size determines from a layer to its twin, last."""
    twin = group[-1]
    assert twin.twin is not None
    pairs = list(zip(read[twin].constants, read[twin.twin].constants, strict=True))
    differ = [i for i, (constant, own) in enumerate(pairs) if constant.value != own.value]
    if not differ:
        return  # before all texts are read
    rows: dict[Hashable, Draft] = {}
    for draft in group:  # equal ones tell nothing more
        shapes = tuple([shape for _, shape in draft.arrays])
        numbers = tuple([read[draft].value(i) for i in differ])
        rows.setdefault((shapes, tuple(draft.inner_shapes.items()), numbers), draft)
    alike = list(rows.values())
    told, methods = _told(alike), read[twin].methods
    columns = {i: tuple(read[draft].value(i) for draft in alike) for i in differ}
    for i, column in columns.items():
        constant, own = pairs[i]
        if _size(column, told[methods[i]], i in read[twin].in_shapes) is None:
            constant.value = own.value


def _is_reading_of_size(statement: ast.stmt) -> bool:
    """Return whether a statement is like `batch = x.shape[0]`."""
    value = statement.value if isinstance(statement, ast.Assign) else None
    read = value.value if isinstance(value, ast.Subscript) else None
    return isinstance(read, ast.Attribute) and read.attr == "shape"
