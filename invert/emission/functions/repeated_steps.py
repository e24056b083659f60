"""Writes steps that methods repeat as a function: `rope(x)` of both queries and keys.

Values are compared by the expressions that compute them, whatever their names. What differs between
the places, or is used elsewhere, becomes an argument.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import copy
import dataclasses
import itertools
import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from invert.emission.functions.names import known_names
from invert.emission.python import syntax
from invert.emission.python.naming import Names, stem
from invert.emission.python.nouns import STREAM, is_blank, says
from invert.emission.python.syntax import field_of

if TYPE_CHECKING:
    from typing_extensions import TypeIs

# The fewest characters that a function saves, and those of one of its copies.
_LEAST, _SHORTEST = 80, 70
_MOST_ARGUMENTS = 3
# The most pairs of steps that are compared.
_MOST_PAIRS = 2000
_MODULES = frozenset(("jax", "jnp", "lax", "np", "math"))
_CONV = "lax.conv_general_dilated"
# A function gets a name only if it is clear what it computes. For each: the calls that it contains,
# those that it may contain, its name and its docstring.
_KNOWN: tuple[tuple[frozenset[str], frozenset[str], str, str], ...] = (
    (
        frozenset(("jnp.cos", "jnp.sin", "jnp.stack")),
        frozenset(("jnp.arange", "astype", "reshape")),
        "rope", "Rotate pairs of features by angles that grow with the position.",
    ),
    (
        frozenset(("lax.rsqrt", "jnp.mean", "jnp.square")), frozenset(),
        "rms_norm", "Divide by the root of the mean square.",
    ),
    (
        frozenset((_CONV,)), frozenset(),
        "conv", "Convolve images.",
    ),
)  # fmt: skip
# All calls of these.
_CALLS = frozenset(c for needed, others, _, _ in _KNOWN for c in needed | others)
# The longest value into which another one is written.
_LINE = 72


@dataclasses.dataclass(eq=False)
class _Method:
    """A method, with the statements that its names refer to.

    **Arguments:**

    - `defined`: for each name that is read, the statement that assigns it, if it is a plain one.
    - `since`: for each name that is read, the number of the last statement that assigns it.
    - `users`: the statements that read what a plain one assigns.
    - `counts`: the static fields that are numbers.
    - `sizes`: for each name of a size that is read, the array and the axis that it is read from.
    - `known`: the statements that a function with a known name may contain; others end the steps.
    """

    node: ast.FunctionDef
    counts: frozenset[str] = frozenset()
    defined: dict[ast.Name, ast.Assign] = dataclasses.field(default_factory=dict)
    since: dict[ast.Name, int] = dataclasses.field(default_factory=dict)
    users: dict[ast.stmt, list[ast.stmt]] = dataclasses.field(default_factory=dict)
    sizes: dict[ast.Name, tuple[str, int]] = dataclasses.field(default_factory=dict)
    known: set[ast.stmt] = dataclasses.field(default_factory=set)

    @classmethod
    def of(cls, node: ast.FunctionDef, counts: Set[str]) -> _Method:
        method = cls(node, frozenset(counts))
        measured: dict[str, tuple[str, int]] = {}
        last: dict[str, ast.Assign | None] = {}
        since: dict[str, int] = {}
        for i, statement in enumerate(node.body):
            if _is_plain(statement) and _CALLS.issuperset(_calls(statement)):
                method.known.add(statement)
            for name in syntax.names_in(statement):
                method.since[name] = since.get(name.id, -1)
                if not _is_stored(name) and name.id in measured:
                    method.sizes[name] = measured[name.id]
                if not _is_stored(name) and (source := last.get(name.id)) is not None:
                    method.defined[name] = source
                    method.users.setdefault(source, []).append(statement)
            for name in _stored(statement):
                last[name] = statement if _is_plain(statement) else None
                since[name] = i
                measured.pop(name, None)
            measured |= _measured(statement)
        return method

    def is_size(self, node: ast.expr) -> bool:
        """Return whether an expression is a size, or a static field that is a number."""
        return node in self.sizes or field_of(node) in self.counts

    def value(self, node: ast.expr, kept: Sequence[ast.stmt]) -> tuple[ast.expr, ast.stmt | None]:
        """The expression behind a name, and the statement that assigns it."""
        source = self.defined.get(node) if isinstance(node, ast.Name) else None
        if source is None or source in kept or source not in self.known:
            return node, None
        return source.value, source

    def roots(self) -> Iterator[_Place]:
        """Expressions that may be the result of a function with a known name."""
        calls: dict[ast.stmt, set[str]] = {}

        def called(node: ast.AST) -> set[str]:
            sources = (self.defined.get(n) for n in syntax.names_in(node))
            before = (calls[s] for s in sources if s in self.known)
            return {*_calls(node)}.union(*before)

        for statement in self.node.body:
            calls[statement] = called(statement)
            assigned = isinstance(statement, ast.Assign | ast.Return)
            if assigned and _kind_of(calls[statement], only=False) is not None:
                for node in syntax.walk(statement):
                    operation = isinstance(node, ast.Call | ast.BinOp)
                    if (
                        operation
                        and _CALLS.issuperset(_calls(node))
                        and _kind_of(called(node), only=False) is not None
                    ):
                        yield _Place(self, statement, node)


def _calls(node: ast.AST) -> list[str]:
    """The names of what an expression or a statement calls."""
    return [_callee(n) for n in syntax.walk(node) if isinstance(n, ast.Call)]


def _callee(call: ast.Call) -> str:
    """`jnp.mean`, or the name of a method."""
    names: list[str] = []
    node: ast.expr = call.func
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and (node.id in _MODULES or not names):
        return ".".join(reversed([*names, node.id]))
    return names[0] if names else ""


def _measured(statement: ast.stmt) -> dict[str, tuple[str, int]]:
    """The name that `batch = x.shape[0]` gives to an axis."""
    value = statement.value if isinstance(statement, ast.Assign) else None
    if isinstance(value, ast.Subscript) and _is_plain(statement):
        with contextlib.suppress(ValueError):
            array, _, attribute = ast.unparse(value.value).rpartition(".")
            if attribute == "shape" and array.isidentifier():
                return {_target(statement): (array, ast.literal_eval(value.slice))}
    return {}


def _is_plain(statement: ast.stmt) -> TypeIs[ast.Assign]:
    """Return whether a statement assigns one name."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return len(targets) == 1 and isinstance(targets[0], ast.Name)


def _stored(statement: ast.stmt) -> set[str]:
    functions = {n.name for n in syntax.walk(statement) if isinstance(n, ast.FunctionDef)}
    return syntax.stored(statement) | functions


def _is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


@dataclasses.dataclass(eq=False)
class _Place:
    """A copy of some steps.

    **Arguments:**

    - `root`: the statement that computes the result, by its expression `node`.
    - `steps`: the other statements, which nothing else uses.
    - `kept`: statements whose values are arguments, since others use them.
    - `inputs`: the arguments, by the expression in the copy that each stands for.
    """

    method: _Method
    root: ast.Assign | ast.Return
    node: ast.expr
    steps: dict[ast.stmt, None] = dataclasses.field(default_factory=dict)
    kept: list[ast.stmt] = dataclasses.field(default_factory=list)
    inputs: list[ast.expr] = dataclasses.field(default_factory=list)

    def body(self) -> list[ast.stmt]:
        """The steps in order, without the last."""
        return [s for s in self.method.node.body if s in self.steps]

    def text_length(self) -> int:
        return sum(len(ast.unparse(s)) for s in (*self.steps, self.node))

    def is_shared(self, step: ast.stmt) -> bool:
        """Return whether the value of a step is used elsewhere."""
        if not {*self.steps, self.root}.issuperset(self.method.users[step]):
            return True
        defined, own = self.method.defined, set(syntax.names_in(self.node))
        rest = (n for n in syntax.names_in(self.root) if n not in own)
        return any(defined.get(n) is step for n in rest)

    def is_same(self, one: ast.expr, other: ast.expr) -> bool:
        """Return whether two names or fields are one value."""
        if isinstance(one, ast.Tuple):
            return one is other
        if isinstance(one, ast.Name) and isinstance(other, ast.Name):
            since = self.method.since
            return one.id == other.id and since[one] == since[other]
        return bool(field_of(one)) and field_of(one) == field_of(other)

    def axes(self) -> dict[ast.expr, tuple[int, int]] | None:
        """The axes of arguments that are the sizes in the steps, by their expressions.

        A number is a size where an array is reshaped to sizes that begin like an argument's.
        Returns `None` if some size is not that of an argument.
        """
        shapes: list[dict[int, str]] = []
        for place, array in enumerate(self.inputs):
            shape = self.shape(place)
            if shape is None and isinstance(array, ast.Name):
                shape = self._measured_of(array)
            shapes.append(shape or {})
        known: dict[str, tuple[int, int]] = {}
        for place, shape in enumerate(shapes):
            for k, text in shape.items():
                known.setdefault(text, (place, k))
        used: dict[ast.expr, tuple[int, int]] = {}

        def covers(node: ast.AST) -> bool:
            sizes = _reshaped_to(node)
            for place, shape in enumerate(shapes):
                for k, size in enumerate(sizes):
                    if shape.get(k) != ast.unparse(size):
                        break
                    used.setdefault(size, (place, k))
            if isinstance(node, ast.expr) and node in used:
                return True
            if not isinstance(node, ast.Constant) and isinstance(node, ast.expr):
                if (axis := known.get(ast.unparse(node))) is not None:
                    used[node] = axis
                    return True
                if isinstance(node, ast.Name | ast.Attribute) and self.method.is_size(node):
                    return False
            return all(map(covers, ast.iter_child_nodes(node)))

        steps: Iterator[ast.AST] = (s.value for s in self.steps if isinstance(s, ast.Assign))
        return used if all(map(covers, [*steps, self.node])) else None

    def shape(self, place: int) -> dict[int, str] | None:
        """The texts of the sizes of an argument that was reshaped before."""
        array = self.inputs[place]
        source = self.method.defined.get(array) if isinstance(array, ast.Name) else None
        return None if source is None else _shape(source.value)

    def _measured_of(self, array: ast.Name) -> dict[int, str]:
        """The names of the axes of an argument of the method."""
        pairs = self.method.sizes.items()
        own = array not in self.method.defined
        return {k: n.id for n, (name, k) in pairs if own and name == array.id}

    def empty(self) -> _Place:
        """The place before it is compared with another."""
        return _Place(self.method, self.root, self.node)

    def has_steps_of(self, other: _Place) -> bool:
        """Return whether another place with the same last step has the same steps and arguments."""
        inputs = len(self.inputs) == len(other.inputs)
        inputs = inputs and all(map(self.is_same, self.inputs, other.inputs))
        return inputs and self.axes() is not None and self.steps.keys() == other.steps.keys()

    def can_move(self) -> bool:
        """Return whether the arguments have the same values at the last step."""
        order = {s: i for i, s in enumerate(self.method.node.body)}
        for name in (n for a in self.inputs for n in syntax.names_in(a)):
            between = self.method.node.body[self.method.since[name] + 1 : order[self.root]]
            if any(name.id in _stored(s) for s in between if s not in self.steps):
                return False
        return True


class _Pair:
    """Two places compared."""

    def __init__(self, one: _Place, other: _Place):
        self.one, self.other = one, other
        # The values of statements that are the same, and pairs that are not.
        self._matched: dict[ast.expr, ast.expr] = {}
        self._failed: set[tuple[ast.expr, ast.expr]] = set()
        # Numbers that differ, which both have to be the size of one argument.
        self._sizes: list[tuple[ast.expr, ast.expr]] = []

    def run(self) -> bool:
        """Find the steps that both share; tell whether there are any."""
        while True:
            for place in (self.one, self.other):
                place.steps, place.inputs = {}, []
            self._matched.clear()
            self._failed.clear()
            self._sizes.clear()
            if not self._same(self.one.node, self.other.node, top=True):
                return False
            if not self._keep_shared():
                axes, others = self.one.axes(), self.other.axes()
                if axes is None or others is None or len(self.one.inputs) > _MOST_ARGUMENTS:
                    return False
                alike = all(a in axes and axes[a] == others.get(b) for a, b in self._sizes)
                return alike and [*axes.values()] == [*others.values()]

    def _keep_shared(self) -> bool:
        """Turn values that are used elsewhere into arguments; tell whether there are new ones."""
        found = False
        for place in (self.one, self.other):
            shared = [s for s in place.steps if place.is_shared(s)]
            place.kept += shared
            found = found or bool(shared)
        return found

    def _same(self, a: ast.expr, b: ast.expr, *, top: bool = False) -> bool:
        """Compare two expressions; parts that differ become arguments."""
        one, source = self.one.method.value(a, self.one.kept)
        other, of_other = self.other.method.value(b, self.other.kept)
        for known_a, known_b in zip(self.one.inputs, self.other.inputs, strict=True):
            known = self.one.is_same(known_a, a), self.other.is_same(known_b, b)
            if any(known):
                return all(known)
        if self.one.method.is_size(a) and self.other.method.is_size(b):
            return ast.unparse(a) == ast.unparse(b)
        named = source is not None or of_other is not None
        if named and self._matched.get(one) is other:
            return True
        again = one in self._matched or other in self._matched.values()
        if (one, other) not in self._failed and not (named and again):
            before = len(self.one.inputs), self.one.steps, self.other.steps, self._matched
            for place, statement in ((self.one, source), (self.other, of_other)):
                place.steps = {**place.steps, **({} if statement is None else {statement: None})}
            self._matched = {**self._matched, **({one: other} if named else {})}
            if self._equal(one, other):
                return True
            count, self.one.steps, self.other.steps, self._matched = before
            del self.one.inputs[count:], self.other.inputs[count:]
            self._failed.add((one, other))
        if top or not (_may_be_given(a) and _may_be_given(b)):
            return False
        self.one.inputs.append(a)
        self.other.inputs.append(b)
        return True

    def _equal(self, a: ast.AST, b: ast.AST) -> bool:
        if type(a) is not type(b) or field_of(a) or _calls_layer(a):
            return False
        match a, b:
            case ast.Constant(), ast.Constant():
                return type(a.value) is type(b.value) and repr(a.value) == repr(b.value)
            case ast.Name(), ast.Name():
                free = a not in self.one.method.defined and b not in self.other.method.defined
                return free and a.id == b.id and a.id in _MODULES
            case ast.Lambda(), _:
                return False
            case ast.BinOp(op=ast.MatMult()), _ if field_of(a.left) or field_of(a.right):
                return False  # a layer
            case ast.Call(func=ast.Name(id=one)), ast.Call(func=ast.Name(id=other)):
                if one != other or a.func in self.one.method.defined:
                    return False
                return all(map(self._part, a.args, b.args)) and self._keywords(a, b)
            case ast.Call(), ast.Call() if (one := _strides(a)) and (other := _strides(b)):
                rest = [(x, y) for x, y in zip(a.args, b.args, strict=False) if x is not one]
                if len(a.args) != len(b.args) or not all(itertools.starmap(self._part, rest)):
                    return False
                self.one.inputs.append(one)
                self.other.inputs.append(other)
                return self._keywords(a, b)
            case ast.Call(), ast.Call() if len(_reshaped_to(a)) == len(_reshaped_to(b)) > 0:
                sizes = zip(_reshaped_to(a), _reshaped_to(b), strict=True)
                return self._part(a.func, b.func) and all(itertools.starmap(self._size, sizes))
        for name in a._fields:
            x, y = getattr(a, name, None), getattr(b, name, None)
            if isinstance(x, list) and isinstance(y, list):
                if len(x) != len(y) or not all(map(self._part, x, y)):
                    return False
            elif not self._part(x, y):
                return False
        return True

    def _size(self, a: ast.expr, b: ast.expr) -> bool:
        if isinstance(a, ast.Constant) and isinstance(b, ast.Constant) and a.value != b.value:
            self._sizes.append((a, b))
            return True
        return self._same(a, b)

    def _keywords(self, a: ast.Call, b: ast.Call) -> bool:
        same = len(a.args) == len(b.args) and len(a.keywords) == len(b.keywords)
        return same and all(map(self._part, a.keywords, b.keywords))

    def _part(self, x: object, y: object) -> bool:
        if isinstance(x, ast.expr) and isinstance(y, ast.expr):
            return self._same(x, y)
        if isinstance(x, ast.AST) and isinstance(y, ast.AST):
            return self._equal(x, y)
        return x == y


def _calls_layer(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and bool(field_of(node.func))


def _may_be_given(node: ast.expr) -> bool:
    """Return whether an expression may be an argument: an array, not an axis or function."""
    return isinstance(node, ast.Name) or bool(field_of(node))


def _kernel(node: ast.Call) -> list[ast.expr]:
    """The kernel of a convolution."""
    return node.args[1:2] if _callee(node) == _CONV else []


def _strides(node: ast.AST) -> ast.Tuple | None:
    """The strides of a convolution, if these are numbers."""
    match node:
        case ast.Call(args=[_, _, ast.Tuple() as strides, *_]) if _callee(node) == _CONV:
            return strides if all(isinstance(n, ast.Constant) for n in strides.elts) else None
    return None


def rewrite(definitions: list[ast.stmt]) -> bool:
    """Write repeated steps as functions; tell whether there were any."""
    changed = False
    while places := _best(definitions):
        _outline(definitions, places)
        changed = True
    return changed


def _methods(definitions: Sequence[ast.stmt]) -> Iterator[_Method]:
    for definition in definitions:  # functions of a file may be derivative rules
        if isinstance(definition, ast.ClassDef):
            counts = _counts(definition)
            for node in definition.body:
                if isinstance(node, ast.FunctionDef) and node.name != "__init__":
                    yield _Method.of(node, counts)


def _counts(definition: ast.ClassDef) -> set[str]:
    """The static fields of a class that are numbers."""
    fields = (s for s in definition.body if isinstance(s, ast.AnnAssign) and s.value is not None)
    return {
        f.target.id
        for f in fields
        if isinstance(f.target, ast.Name) and ast.unparse(f.annotation) == "int"
    }


def _reshaped_to(node: ast.AST) -> list[ast.expr]:
    """The sizes to which an array is reshaped; `[]` for other expressions."""
    match node:
        case ast.Call(func=ast.Attribute(attr="reshape"), args=[*sizes], keywords=[]):
            return sizes
    return []


def _shape(value: ast.expr) -> dict[int, str] | None:
    """The texts of an array's sizes, where it is reshaped or also transposed."""
    match value:
        case ast.Call(func=ast.Attribute(attr="reshape")):
            return {k: ast.unparse(size) for k, size in enumerate(_reshaped_to(value))}
        case ast.Call(
            func=ast.Attribute(attr="swapaxes"),
            args=[inner, ast.Constant(value=int(i)), ast.Constant(value=int(j))],
        ):
            shape = _shape(inner)
            moved = {i: j, j: i}
            return None if shape is None else {moved.get(k, k): t for k, t in shape.items()}
    return None


def _best(definitions: Sequence[ast.stmt]) -> list[_Place]:
    """The copies whose function makes the text shortest."""
    roots: dict[Hashable, list[_Place]] = {}
    for method in _methods(definitions):
        for place in method.roots():
            roots.setdefault(_head(place.node), []).append(place)
    best, most = list[_Place](), _LEAST
    for alike in roots.values():
        for one, other in itertools.islice(itertools.combinations(alike, 2), _MOST_PAIRS):
            first = one.empty()
            if not _Pair(first, other.empty()).run() or first.text_length() < _SHORTEST:
                continue
            if _kind(first) is None:
                continue
            found = list(_copies(first, alike))
            saved = (len(found) - 1) * first.text_length() - 30 * (len(found) + 1)
            if len(found) > 1 and saved > most:
                best, most = found, saved
    return best


def _copies(first: _Place, roots: Sequence[_Place]) -> Iterator[_Place]:
    """The places with the steps of the first, which do not overlap."""
    taken: set[ast.stmt] = set()
    for root in roots:
        own, place = first.empty(), root.empty()
        own.kept += first.kept
        if root.node is first.node:
            place.steps, place.inputs = dict(first.steps), [*first.inputs]
        elif not _Pair(own, place).run() or not own.has_steps_of(first):
            continue
        steps = {*place.steps, place.root}
        if place.can_move() and taken.isdisjoint(steps):
            taken |= steps
            yield place


def _head(node: ast.expr) -> Hashable:
    """The kind of the outermost step of an expression."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr
    return type(node.op) if isinstance(node, ast.BinOp) else type(node)


def _kind(place: _Place) -> tuple[str, str] | None:
    """The name and docstring of these steps, if clear what they compute."""
    calls = [c for s in (*place.steps, place.node) for c in _calls(s)]
    return None if calls.count("jnp.mean") > 1 else _kind_of(calls)


def _kind_of(calls: Collection[str], *, only: bool = True) -> tuple[str, str] | None:
    """A name and docstring, judged by the calls that the steps contain.

    **Arguments:**

    - `only`: whether there may be no other calls, which the name would not tell.
    """
    found = (
        (name, text)
        for needed, others, name, text in _KNOWN
        if needed <= set(calls) and (not only or {*needed, *others}.issuperset(calls))
    )
    return next(found, None)


def _outline(definitions: list[ast.stmt], places: Sequence[_Place]) -> None:
    """Define a function of some steps, and call it in each place."""
    first = places[0]
    kind = _kind(first)
    assert kind is not None  # as chosen
    _keep_equal_strides(places)
    names = known_names(definitions)
    name = kind[0] if kind[0] not in names.taken else names.new(kind[0])
    parameters = _parameters(places)
    given: Mapping[ast.expr, ast.expr] = {
        node: syntax.name(p) for node, p in zip(first.inputs, parameters, strict=True)
    }
    own = Names(parameters)
    axes = first.axes() or {}
    texts = {axis: ast.unparse(node) for node, axis in reversed([*axes.items()])}
    sizes = {a: own.new(_size_name(texts[a])) for a in dict.fromkeys(axes.values())}
    body = _body(first, given, parameters, _common_names(places), sizes)
    _inline(body)
    array = syntax.name("Array")
    strides = syntax.item(
        syntax.name("tuple"), syntax.tuple_of([syntax.name("int"), ast.Constant(...)])
    )
    arguments = [
        syntax.argument(p, strides if isinstance(node, ast.Tuple) else array)
        for node, p in zip(first.inputs, parameters, strict=True)
    ]
    body = [syntax.docstring(kind[1]), *_readings(first, sizes, parameters), *body]
    function = syntax.function(name, arguments, body, returns=array)
    syntax.rename(function, _without_numbers(function))
    index = min(_index(definitions, p.method.node) for p in places)
    for place in places:
        result = syntax.call(name, *map(syntax.copied, place.inputs))
        syntax.replace(place.root, place.node, result)
        place.method.node.body = [s for s in place.method.node.body if s not in place.steps]
        _name_alike(place.method.node.body, place.root)
        _inline(place.method.node.body, place.root)
    definitions.insert(index, function)


def _keep_equal_strides(places: Sequence[_Place]) -> None:
    """Strides that all places have are no argument."""
    for k in reversed(range(len(places[0].inputs))):
        column = [p.inputs[k] for p in places]
        if isinstance(column[0], ast.Tuple) and len({*map(ast.unparse, column)}) == 1:
            for place in places:
                del place.inputs[k]


def _index(definitions: Sequence[ast.stmt], method: ast.FunctionDef) -> int:
    """The place of the class that has a method."""
    holds = (isinstance(d, ast.ClassDef) and method in d.body for d in definitions)
    return list(holds).index(True)


def _parameters(places: Sequence[_Place]) -> list[str]:
    """Argument names: shared by all places, else `x`, else the last word."""
    found: list[str] = []
    kernels = [a for p in places if isinstance(p.node, ast.Call) for a in _kernel(p.node)]
    for column in zip(*(p.inputs for p in places), strict=True):
        own = [field_of(a) or stem(ast.unparse(a)) for a in column]
        # The kernels of an LSTM's gates may be `kernel_i` and `kernel_f`.
        words = {re.sub(r"_[a-z]$", "", name).rpartition("_")[2] for name in own}
        fields = all(map(field_of, column))
        wanted = words.pop() if len(words) == 1 else "scale" if fields else STREAM
        wanted = STREAM if is_blank(wanted) else wanted
        if isinstance(column[0], ast.Tuple):
            wanted = "strides"
        elif all(a in kernels for a in column):
            wanted = "kernel"
        name, number = wanted, 2
        while name in found:
            name, number = f"{wanted}_{number}", number + 1
        found.append(name)
    return found


def _size_name(text: str) -> str:
    """A name for a size: `heads` of `self.heads`, `head_dim` of `dim // self.heads`."""
    name = text.removeprefix("self.")
    if not name.isidentifier():
        name = "head_dim" if name.endswith("self.heads") else "n"
    return name


def _readings(
    place: _Place, names: Mapping[tuple[int, int], str], parameters: Sequence[str]
) -> Iterator[ast.stmt]:
    """Statements that read sizes, by their axes, from arguments."""
    for i, parameter in enumerate(parameters):
        own = {k: syntax.name(name) for (number, k), name in names.items() if number == i}
        shape = syntax.field(syntax.name(parameter), "shape")
        rank = len(place.shape(i) or ())
        if rank == len(own) > 1:
            every = syntax.tuple_of([own[k] for k in range(rank)])
            yield syntax.assign(syntax.store(every), shape)
            continue
        for k, name in sorted(own.items()):
            yield syntax.assign(name, syntax.item(shape, syntax.number(k)))


def _common_names(places: Sequence[_Place]) -> list[str]:
    """Names of the first place's values, or `y` if named otherwise elsewhere."""
    rows = [[_target(s) for s in p.body()] for p in places]
    alike = [row for row in rows if len(row) == len(rows[0])]
    columns = list(zip(*alike, strict=True))
    return [stem(c[0]) if len({*map(stem, c)}) == 1 else "y" for c in columns]


def _target(statement: ast.stmt) -> str:
    assert isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    return statement.targets[0].id


def _inline(body: list[ast.stmt], only: ast.stmt | None = None) -> None:
    """Write values at their only use, in the next statement, if short."""
    for first, second in itertools.pairwise([*body]):
        if not _is_plain(first) or (only is not None and first is not only):
            continue
        name = _target(first)
        after = body[body.index(first) + 1 :]
        read = [n for s in after for n in syntax.names_in(s) if n.id == name and not _is_stored(n)]
        again = isinstance(second, ast.Assign) and name in _stored(second)
        here = [n for n in syntax.names_in(second) if n in read]
        if len(here) != 1 or (len(read) > 1 and not again):
            continue
        if not isinstance(second, ast.Assign | ast.Return) or second.value is None:
            continue
        value = syntax.substitute(second.value, {name: first.value})
        if len(ast.unparse(value)) <= _LINE:
            second.value = value
            body.remove(first)


def _without_numbers(function: ast.FunctionDef) -> dict[str, str]:
    """New names for values numbered apart from values now written in place."""
    taken = {n.id for n in syntax.names_in(function)} | {a.arg for a in function.args.args}
    new: dict[str, str] = {}
    for name in sorted(n for s in function.body for n in _stored(s)):
        if (short := stem(name)) not in {*taken, *new.values()}:
            new[name] = short
    return new


def _name_alike(body: Sequence[ast.stmt], root: ast.stmt) -> None:
    """Name the first argument of a call after the result: `query = rope(query)`."""
    if not isinstance(root, ast.Assign) or not _is_plain(root) or root not in body:
        return
    call, name = root.value, _target(root)
    argument = call.args[0] if isinstance(call, ast.Call) and call.args else None
    if not isinstance(argument, ast.Name) or not is_blank(argument.id):
        return
    before = body[: body.index(root)]
    source = next((s for s in before[::-1] if argument.id in _stored(s)), None)
    if source is None or not _is_plain(source):
        return
    between = before[before.index(source) + 1 :]
    after = body[body.index(root) + 1 :]
    again = next((s for s in after if argument.id in _stored(s)), None)
    rest = after if again is None else after[: after.index(again) + 1]
    reads = [n for s in (root, *rest) for n in syntax.names_in(s) if not _is_stored(n)]
    if [n for n in reads if n.id == argument.id] != [argument]:
        return
    inside = {n.id for s in between for n in syntax.names_in(s)}
    if (
        says(name)
        and inside.isdisjoint((name, argument.id))
        and name not in (n.id for n in syntax.names_in(source))
    ):
        source.targets = [syntax.store(syntax.name(name))]
        argument.id = name


def _body(
    place: _Place,
    given: Mapping[ast.expr, ast.expr],
    parameters: Sequence[str],
    names: Sequence[str],
    sizes: Mapping[tuple[int, int], str],
) -> list[ast.stmt]:
    """The steps of a place over the parameters and some sizes; names are unique."""
    axes = place.axes() or {}
    taken = collections.Counter[str]((*parameters, *sizes.values()))
    renamed: dict[ast.stmt, str] = {}
    body: list[ast.stmt] = []

    def written(node: ast.AST) -> ast.AST:
        source = place.method.defined.get(node) if isinstance(node, ast.Name) else None
        for known, value in given.items():
            if node is known or (isinstance(node, ast.expr) and place.is_same(known, node)):
                return syntax.copied(value)
        if source in renamed:
            return ast.Name(renamed[source], ast.Load())
        if isinstance(node, ast.expr) and node in axes:
            return ast.Name(sizes[axes[node]], ast.Load())
        new = copy.copy(node)
        for name in node._fields:
            setattr(new, name, mapped(getattr(node, name, None)))
        return new

    def mapped(value: object) -> object:
        if isinstance(value, list):
            return [mapped(v) for v in value]
        return written(value) if isinstance(value, ast.AST) else value

    for statement, wanted in zip(place.body(), names, strict=True):
        assert isinstance(statement, ast.Assign)
        value, name = written(statement.value), wanted
        while taken[name]:
            taken[wanted] += 1
            name = f"{wanted}_{taken[wanted]}"
        taken[name] += 1
        renamed[statement] = name
        assert isinstance(value, ast.expr)
        body.append(syntax.assign(syntax.name(name), value))
    result = written(place.node)
    assert isinstance(result, ast.expr)
    body.append(ast.Return(result))
    return body
