"""A method's computation as a graph of values, without local names.

Steps that some layers of a class lack are marked by calls `$step(taken, operand, has)`. Layers that
have the step use the first value, in which `$` stands for the second; the others use the second.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Collection, Hashable, Mapping
from typing import TYPE_CHECKING

from invert.emission.layers.shared import STEP, blank, taken
from invert.emission.python import syntax
from invert.emission.python.naming import Names
from invert.emission.python.syntax import field_of, is_named
from invert.ir.order import reached

if TYPE_CHECKING:
    from typing_extensions import TypeIs

HOLE = "$"
_PAD, _POOL = "jnp.pad", "max_pool"
_ACTIVATIONS = frozenset(
    """jax.nn.relu jax.nn.relu6 jax.nn.gelu jax.nn.silu jax.nn.sigmoid jax.nn.softmax jax.nn.elu
    jax.nn.softplus jax.nn.leaky_relu jax.nn.selu jax.nn.soft_sign jax.nn.log_softmax
    jax.nn.hard_sigmoid jax.nn.hard_swish jax.nn.hard_silu jax.nn.log_sigmoid jnp.tanh
    gelu""".split()
)
# The number of values within each other.
_DEEPEST = 150


@dataclasses.dataclass(eq=False)
class Value:
    """A value that a method computes: an expression of its parts, without variables.

    **Arguments:**

    - `head`: its operation, without its parts and without numbers; the same for all activations.
    - `uses`: how often the method reads it.
    - `name`: the local variable or the argument that it is.
    """

    head: tuple[Hashable, ...]
    parts: list[Value]
    node: ast.AST
    uses: int = 1
    name: str = ""
    depth: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.depth = 1 + max((p.depth for p in self.parts), default=0)

    @property
    def is_argument(self) -> bool:
        return self.head[0] == "argument"


class _Unreadable(Exception):
    """A method has statements that are not values."""


def result(method: ast.FunctionDef) -> Value | None:
    """The value that a method returns; `None` if it has statements other than assignments."""
    with blank(method):
        try:
            found = _read(method, {}, 0)
        except _Unreadable:
            return None
    return found if found.depth <= _DEEPEST else None


def key(value: Value) -> Hashable:
    """A key that values share if they differ only in numbers and activations."""
    numbers: dict[Value, int] = {}
    rows: list[Hashable] = []

    def add(value: Value) -> int:
        if value not in numbers:
            parts = tuple(map(add, value.parts))
            rows.append((value.head, parts))
            numbers[value] = len(numbers)
        return numbers[value]

    add(value)
    return tuple(rows)


def _read(function: ast.FunctionDef, around: Mapping[str, Value], level: int) -> Value:
    """The value that a function returns, given the values of the variables around it."""
    known = dict(around)
    for i, argument in enumerate((*function.args.args, *function.args.kwonlyargs)):
        known[argument.arg] = Value(("argument", level, i), [], argument, name=argument.arg)

    def value(node: ast.AST) -> Value:
        kind = type(node)
        if isinstance(node, ast.Name) and node.id in known:
            found = known[node.id]
            if found.is_argument:  # each use is a value
                return dataclasses.replace(found, node=node)
            found.uses += 1
            return found
        if isinstance(node, ast.Lambda | ast.comprehension):
            raise _Unreadable  # with local variables of its own
        if kind is ast.Call and is_step(node):
            before, known[HOLE] = known.get(HOLE), value(node.args[1])
            found = Value((STEP,), [value(node.args[0]), known[HOLE]], node)
            known[HOLE] = before or known[HOLE]
            return found
        if kind is ast.Call and is_activation(node):
            return Value(("activation",), [value(node.args[0])], node)
        head: list[Hashable] = [kind.__name__]
        parts: list[Value] = []
        for name in kind._fields:
            field = getattr(node, name, None)
            items = field if type(field) is list else [field]
            head += (name, len(items))
            for item in items:
                if not isinstance(item, ast.AST):
                    head.append(repr(item))
                elif not isinstance(item, ast.expr_context):
                    parts.append(value(item))
        return Value(tuple(head), parts, node)

    def bind(target: ast.expr, new: Value) -> None:
        if isinstance(target, ast.Name):
            if not new.name:
                new.uses, new.name = new.uses - 1, target.id
            known[target.id] = new
        elif isinstance(target, ast.Tuple):
            for i, part in enumerate(target.elts):
                bind(part, Value(("item", i), [new], target))
        else:
            raise _Unreadable

    *body, last = function.body
    for statement in body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            bind(statement.targets[0], value(statement.value))
        elif isinstance(statement, ast.FunctionDef):
            inside, count = _read(statement, known, level + 1), len(statement.args.args)
            known[statement.name] = Value(("function", count), [inside], statement, 0)
        else:
            raise _Unreadable
    if not isinstance(last, ast.Return) or last.value is None:
        raise _Unreadable
    return value(last.value)


def is_step(node: ast.AST) -> TypeIs[ast.Call]:
    """Return whether an expression is a step that layers may lack."""
    return isinstance(node, ast.Call) and is_named(node.func, STEP)


def steps(method: ast.FunctionDef) -> list[ast.Call]:
    """The steps that layers may lack, in the order of the text."""
    return [n for n in syntax.in_order(method) if n.__class__ is ast.Call and is_step(n)]


def has(step: ast.Call) -> bool:
    """Return whether a layer has a step."""
    flag = step.args[2]
    return not (isinstance(flag, ast.Constant) and flag.value is False)


def is_activation(node: ast.AST) -> TypeIs[ast.Call]:
    """Return whether an expression is an activation of one value, with at most decimal options."""
    if not isinstance(node, ast.Call) or len(node.args) != 1:
        return False
    if syntax.path_of(node.func) not in _ACTIVATIONS:
        return False
    constants = (n for k in node.keywords for n in syntax.walk(k) if isinstance(n, ast.Constant))
    return all(type(n.value) is not int for n in constants)


def is_pad(node: ast.AST) -> TypeIs[ast.Call]:
    plain = isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords
    return isinstance(node, ast.Call) and plain and syntax.path_of(node.func) == _PAD


def is_subsampling(node: ast.AST) -> TypeIs[ast.Call]:
    """Return whether an expression is a pooling of windows of one element: a subsampling."""
    if not isinstance(node, ast.Call) or len(node.args) != 4 or not is_named(node.func, _POOL):
        return False
    return all(
        isinstance(n, ast.Constant) and n.value == 1
        for n in syntax.walk(node.args[1])
        if not isinstance(n, ast.Tuple | ast.Load)
    )


def is_mask(node: ast.AST) -> TypeIs[ast.Call]:
    """Return whether an expression is a value that a number replaces in some places."""
    match node:
        case ast.Call(args=[_, _, ast.Constant() | ast.UnaryOp(operand=ast.Constant())]):
            return ast.unparse(node.func) == "jnp.where"
    return False


def is_limit(node: ast.AST) -> TypeIs[ast.BinOp]:
    """Return whether an expression is a mask that another one limits."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd)


def _depends(value: Value) -> bool:
    """Return whether a value depends on arguments, apart from their shapes."""

    def is_shape(part: Value) -> bool:
        return isinstance(part.node, ast.Attribute) and part.node.attr == "shape"

    every = reached([value], lambda v: () if is_shape(v) else v.parts)
    return any(v.is_argument and not is_shape(v) for v in every)


def operand(value: Value) -> Value | None:
    """The operand of a step that methods may lack; `None` for any other value."""
    node = value.node
    if is_mask(node):
        return None if _depends(value.parts[1]) else value.parts[2]
    if is_limit(node):
        return None if any(map(_depends, value.parts)) else value.parts[0]
    if is_activation(node):
        return value.parts[0]
    if is_pad(node) or is_subsampling(node) or (isinstance(node, ast.Call) and layer_of(node)):
        return value.parts[1]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, _, right = value.parts
        if field_of(node.right):
            return left
        if left.is_argument != right.is_argument:
            return right if left.is_argument else left
    return None


def added_layer(node: ast.AST) -> str:
    """The layer whose result is added to a value or subtracted from it, or `""`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return layer_of(node.right) if isinstance(node.right, ast.Call) else ""
    return ""


def replace_operand(value: Value, node: ast.AST, new: ast.expr, old: Value) -> ast.expr:
    """Replace an operand in a copy of a step; return its expression."""
    if isinstance(node, ast.Call):
        place = int(is_mask(node))
        before, node.args[place] = node.args[place], new
    elif isinstance(node, ast.BinOp) and old is value.parts[0]:
        before, node.left = node.left, new
    else:
        assert isinstance(node, ast.BinOp)
        before, node.right = node.right, new
    return before


@dataclasses.dataclass
class Steps:
    """The values of all steps of a loop, as the result of a method.

    **Arguments:**

    - `scan`: the loop; `time`: the axis of time in the result.
    """

    scan: Value
    time: int

    @staticmethod
    def of(value: Value) -> Steps | None:
        """`ys` or `jnp.swapaxes(ys, 0, 1)`, after `carry, ys = lax.scan(step, init, xs)`."""
        swapped = isinstance(value.node, ast.Call) and value.head != ("item", 1)
        if swapped and ast.unparse(value.node).startswith("jnp.swapaxes("):
            ys = value.parts[1]
            places = [p.node.value for p in value.parts[2:] if isinstance(p.node, ast.Constant)]
            found = Steps.of(ys) if places == [0, 1] else None
            return None if found is None else Steps(found.scan, 1)
        call = value.parts[0].node if value.head == ("item", 1) else None
        loop = isinstance(call, ast.Call) and ast.unparse(call.func) == "lax.scan"
        return Steps(value.parts[0], 0) if loop else None

    def states(self) -> list[Value]:
        """The values that are carried to the last step: all of them, and each."""
        carried = Value(("item", 0), [self.scan], self.scan.node)
        init = self.scan.parts[2].node
        count = len(init.elts) if isinstance(init, ast.Tuple) else 0
        return [carried, *(Value(("item", i), [carried], self.scan.node) for i in range(count))]

    def name(self, method: ast.FunctionDef, scan: ast.AST, state: Value) -> ast.Name | None:
        """Name the final state in a method that ends with this loop."""
        found = (s for s in method.body if isinstance(s, ast.Assign) and s.value is scan)
        assign = next(found, None)
        target = assign.targets[0] if assign is not None else None
        if assign is None or not isinstance(target, ast.Tuple) or not isinstance(scan, ast.Call):
            return None
        init, whole = scan.args[1], state.parts[0] is self.scan
        items = [init] if whole or not isinstance(init, ast.Tuple) else init.elts
        place = 0 if whole else int(str(state.head[1]))
        start = items[place]
        name = start.id if isinstance(start, ast.Name) else Names(taken(method)).new("h")
        names = [name if i == place else "_" for i in range(len(items))]
        new: list[ast.expr] = [ast.Name(n, ast.Store()) for n in names]
        assign.targets = [ast.Tuple([new[0] if whole else ast.Tuple(new), target.elts[1]])]
        return ast.Name(name, ast.Load())


def layer_of(call: ast.Call) -> str:
    """The field of a layer that is called with one value, or `""`."""
    return field_of(call.func) if len(call.args) == 1 and not call.keywords else ""


def is_addition(node: ast.AST) -> bool:
    """Return whether an expression is a sum in which one side is not a bias."""
    added = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)
    return added and not decider(node)


def decider(node: ast.AST) -> str:
    """The field of a step, `None` where the step is missing, or `""`."""
    if isinstance(node, ast.BinOp):
        return field_of(node.right)
    return layer_of(node) if isinstance(node, ast.Call) else ""


def fields(step: ast.Call) -> list[str]:
    """A step's layers and biases, `None` in layers that lack it."""
    found, node = list[str](), step.args[0]
    while isinstance(node, ast.Call | ast.BinOp) and not is_step(node):
        adds = isinstance(node, ast.BinOp) and is_named(node.left, HOLE)
        found += [decider(node) or (added_layer(node) if adds else "")]
        node = node.left if isinstance(node, ast.BinOp) else node.args[0]
    return [name for name in found if name]


def argument(step: ast.Call, names: Collection[str]) -> str:
    """Which of some arguments a marked step adds, or `""`."""
    total = step.args[0]
    parts = (total.left, total.right) if isinstance(total, ast.BinOp) else ()
    return next((p.id for p in parts if isinstance(p, ast.Name) and p.id in names), "")


def returns_steps(step: ast.Call) -> bool:
    """Return whether a marked step chooses the values of all steps of a loop."""
    return not fields(step) and not any(is_named(n, HOLE) for n in syntax.walk(step.args[0]))


def activations(method: ast.FunctionDef) -> list[tuple[ast.Call, bool]]:
    """The activations in a method, and whether the layer has them."""
    calls = [n for n in syntax.in_order(method) if n.__class__ is ast.Call]
    flags = {id(s.args[0]): has(s) for s in filter(is_step, calls) if not fields(s)}
    return [(call, flags.get(id(call), True)) for call in filter(is_activation, calls)]


def end(method: ast.FunctionDef, result: Value) -> int | None:
    """Which of the activations is that of a method's result."""
    last = result.parts[0].node if result.head == (STEP,) else result.node
    calls = [call for call, _ in activations(method)]
    return next((i for i, call in enumerate(calls) if call is last), None)
