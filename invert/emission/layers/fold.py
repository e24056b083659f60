"""Shares one text among layers that differ only in activation or in having a bias.

The activation becomes a static field, and the bias one that may be `None`.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Sequence

from invert.emission.layers.shared import Class, Code, Draft, blank
from invert.emission.layers.tree import Node
from invert.emission.python import syntax
from invert.emission.python.naming import Names
from invert.ir.types import Var

_ACTIVATIONS = frozenset(
    """jax.nn.relu jax.nn.relu6 jax.nn.gelu jax.nn.silu jax.nn.sigmoid jax.nn.softmax jax.nn.elu
    jax.nn.softplus jax.nn.leaky_relu jax.nn.selu jax.nn.soft_sign jax.nn.log_softmax
    jax.nn.hard_sigmoid jax.nn.hard_swish jax.nn.hard_silu jax.nn.log_sigmoid jnp.tanh""".split()
)
ACTIVATION = "activation"
# The length of a product that is written in one line with its bias and activation.
_SHORT = 40


@dataclasses.dataclass
class Core:
    """A layer's method, split into its core, bias and activation.

    **Arguments:**

    - `body`: its statements except the last; `value`: the returned expression.
    - `bias`: the name of the field that is added; `activation`: the call without its argument.
    """

    body: list[ast.stmt]
    value: ast.expr
    bias: str = ""
    activation: ast.Call | None = None

    def text(self) -> str:
        """A text that does not depend on names of local variables, nor on numbers."""
        function = syntax.function("f", [], [*self.body, ast.Return(self.value)])
        with blank(function):
            return canonical(function)


def core(draft: Draft) -> Core | None:
    """The parts of the only method of a layer."""
    if len(draft.methods) != 1:
        return None
    (method,) = draft.methods
    *body, last = method.body
    if not isinstance(last, ast.Return) or last.value is None:
        return None
    found = Core(body, last.value)
    call = found.value
    plain = isinstance(call, ast.Call) and len(call.args) == 1
    if plain and isinstance(call, ast.Call) and is_activation(call):
        found.activation, found.value = call, call.args[0]
    _inline(found)
    value = found.value
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        name = field_of(value.right)
        uses = sum(name == field_of(n) for n in ast.walk(method))
        if name and uses == 1 and not isinstance(draft.node.fields.get(name), Node):
            found.bias, found.value = name, value.left
            _inline(found)
    return found


def is_activation(call: ast.Call) -> bool:
    """Whether a call of one value is an activation, with at most decimal options."""
    constants = [n for k in call.keywords for n in ast.walk(k) if isinstance(n, ast.Constant)]
    return ast.unparse(call.func) in _ACTIVATIONS and all(
        type(n.value) is not int for n in constants
    )


def _inline(found: Core) -> None:
    """Inlines the value of the last statement."""
    while found.body and isinstance(found.value, ast.Name):
        last = found.body[-1]
        if not isinstance(last, ast.Assign) or len(last.targets) != 1:
            return
        (target,) = last.targets
        if not isinstance(target, ast.Name) or target.id != found.value.id:
            return
        found.body, found.value = found.body[:-1], last.value


def field_of(node: ast.AST | None) -> str:
    """The name of a field of `self`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id == "self" else ""
    return ""


def canonical(function: ast.FunctionDef) -> str:
    """The text of a function with its local variables numbered."""
    tree = ast.parse(syntax.text_of(function))
    locals_ = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and _stores(n)}
    locals_ |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)} - {"self"}
    numbers: dict[str, str] = {}
    for node in syntax.in_order(tree):
        if isinstance(node, ast.Name) and node.id in locals_:
            node.id = numbers.setdefault(node.id, f"_{len(numbers)}")
        elif isinstance(node, ast.arg) and node.arg in locals_:
            node.arg = numbers.setdefault(node.arg, f"_{len(numbers)}")
    return ast.unparse(tree)


def _stores(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def missing(group: Sequence[Draft], cores: Sequence[Core]) -> dict[Node, tuple[str, int]] | None:
    """For layers without a bias, the axis of a field that has its size; `None` if unknown."""
    having = [d for d, c in zip(group, cores, strict=True) if c.bias]
    if not having or len(having) == len(group):
        return {}
    bias = next(c.bias for c in cores if c.bias)
    if any(c.bias not in ("", bias) for c in cores):
        return None
    sizes = [_shape(d, bias) for d in having]
    if any(len(s) != 1 for s in sizes):
        return None
    for name in having[0].node.fields:
        shapes = [_shape(d, name) for d in having]
        for axis in reversed(range(min(map(len, shapes)))):
            if name == bias or any(s[axis] != b[0] for s, b in zip(shapes, sizes, strict=True)):
                continue
            rest = [d for d in group if d not in having]
            if all(len(_shape(d, name)) > axis for d in rest):
                return {d.node: (name, axis) for d in rest}
    return None


def _shape(draft: Draft, field: str) -> tuple[int, ...]:
    """The shape of the array in a field."""
    for source, (_, shape) in zip(draft.sources, draft.arrays, strict=True):
        if source is not None and field_of(source) == field:
            return shape
    return ()


def parts(group: list[Draft]) -> list[list[Draft]]:
    """Splits layers that differ at most in biases into groups that can share one text.

    In a group with and without biases, layers with a bias come first, and the others get its type.
    """
    cores = [c for d in group if (c := core(d)) is not None]
    biases = {c.bias for c in cores}
    if len(cores) < len(group) or len(biases) < 2:
        return [group]
    axes = missing(group, cores) if len(biases - {""}) < 2 else None
    split: dict[str, list[Draft]] = {}
    for draft, own in zip(group, cores, strict=True):
        split.setdefault(own.bias, []).append(draft)
    if axes is None:
        return list(split.values())
    rest = split.pop("")
    ((name, having),) = split.items()
    place = next(i for i, s in enumerate(having[0].sources) if field_of(s) == name)
    kind, _ = having[0].arrays[place]
    for draft in rest:
        field, axis = axes[draft.node]
        other = next(i for i, s in enumerate(draft.sources) if field_of(s) == field)
        draft.arrays.insert(place, (kind, (draft.arrays[other][1][axis],)))
        draft.axes.insert(place, (draft.axes[other][axis],))
        draft.without = place
    return [[*having, *rest]]


def prepare(cls: Class, function: Callable[[ast.Call], str]) -> None:
    """Makes a differing activation a static field, and the bias a field that may be `None`.

    The first layer has all fields; the text of its method is changed by `write`.

    **Arguments:**

    - `function`: the name of a function of the file for an activation with options.
    """
    first = cls.drafts[0]
    for draft in cls.drafts:
        if draft.without is not None and first.without is None:
            cls.shapes[draft.node] = draft.arrays[draft.without][1]
        elif draft.without is not None:
            del draft.arrays[draft.without], draft.axes[draft.without]
    cores = [c for d in cls.drafts if (c := core(d)) is not None]
    if len(cores) != len(cls.drafts):
        return
    if cls.shapes:
        cls.optional = cores[0].bias
        for statement in first.fields:
            if isinstance(statement, ast.AnnAssign) and _is_named(statement.target, cls.optional):
                kind = statement.annotation
                statement.annotation = ast.BinOp(kind, ast.BitOr(), ast.Constant(None))
    ends = [None if c.activation is None else _code(c.activation, function) for c in cores]
    if any(e != ends[0] for e in ends) or (ends[0] is not None and _is_product(first.node)):
        cls.statics[ACTIVATION], cls.activated = tuple(ends), True


def _is_product(node: Node) -> bool:
    """Whether a module is a product and a bias, as the layers of libraries with an activation."""
    ranks = [len(v.aval.shape) if isinstance(v, Var) else 0 for v in node.fields.values()]
    return not node.nodes and len(ranks) < 3 and sum(rank > 1 for rank in ranks) == 1


def _is_named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _code(call: ast.Call, function: Callable[[ast.Call], str]) -> Code:
    return Code(function(call) if call.keywords else ast.unparse(call.func))


def write(cls: Class) -> None:
    """Makes the method of the first layer read these fields."""
    ends = cls.statics[ACTIVATION] if cls.activated else None
    if ends is None and not cls.optional:
        return
    found = core(cls.drafts[0])
    assert found is not None  # ensured by `prepare`
    (method,) = cls.drafts[0].methods
    taken = {n.id for n in ast.walk(method) if isinstance(n, ast.Name)}
    taken |= {a.arg for a in (*method.args.args, *method.args.kwonlyargs)}
    name = "x" if _free_for(found, method) else Names(taken).new("y")
    target, itself = ast.Name(name, ast.Load()), syntax.field(_self(), cls.optional or found.bias)
    value, body = found.value, list(found.body)
    if cls.optional:
        body.append(syntax.assign(target, value))
        added = syntax.assign(target, syntax.infix(target, "+", itself))
        there = ast.Compare(itself, [ast.IsNot()], [ast.Constant(None)])
        body.append(ast.If(there, [added], []))
        value = target
    elif found.bias:
        if ends is not None and len(syntax.text_of(value)) > _SHORT:
            body.append(syntax.assign(target, value))
            value = target
        value = syntax.infix(value, "+", itself)
    activation = found.activation
    if ends is not None:
        own = syntax.field(_self(), ACTIVATION)
        applied: ast.expr = syntax.call(own, value)
        if None in ends:
            if not isinstance(value, ast.Name):
                body.append(syntax.assign(target, value))
                value = target
            none = ast.Compare(own, [ast.Is()], [ast.Constant(None)])
            applied = ast.IfExp(none, value, syntax.call(own, value))
        value = applied
    elif activation is not None:
        activation.args = [value]
        value = activation
    method.body[:] = [*body, ast.Return(value)]


def _self() -> ast.expr:
    return ast.Name("self", ast.Load())


def _free_for(found: Core, method: ast.FunctionDef) -> bool:
    """Whether `x` is an argument that is not read after the value is computed."""
    return any(a.arg == "x" for a in method.args.args)
