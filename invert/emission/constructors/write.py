"""Writes the `__init__` of classes: arrays to train from scratch, and the layers inside.

Sizes that differ between the layers of a class are its arguments. A kernel gets the initializer of
its library, by name: `glorot_uniform` in Keras, `lecun_normal` elsewhere. Summands are zeros,
factors are ones, and a small constant of the program keeps its value.
"""

from __future__ import annotations

import ast
import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import jax.numpy as jnp
import numpy as np

from invert.emission.constructors import repeats, stages, widths
from invert.emission.constructors.arguments import BY_KEYWORD, MISSING, Arguments
from invert.emission.constructors.derived import expression, mentions, without_derived
from invert.emission.constructors.initializers import Initializers, Made, places
from invert.emission.constructors.keys import in_64_bits, slot, with_keys
from invert.emission.constructors.sizes import (
    DEPTH,
    EXPANSION,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INPUTS,
    KERNEL_SIZE,
    KV_HEADS,
    OUTPUTS,
    SIDES,
    STEPS,
)
from invert.emission.equinox_nn.construct import native_of
from invert.emission.expressions import literals, tables
from invert.emission.layers.native import Native
from invert.emission.layers.proportions import ratios
from invert.emission.layers.shared import (
    ACTIVATION,
    IDENTITY,
    RESIDUAL,
    Class,
    static_type,
)
from invert.emission.layers.tree import Node
from invert.emission.python import syntax
from invert.emission.python.naming import Names, stem
from invert.emission.python.syntax import call, field_of, number
from invert.ir.types import Var

# Options whose default is what most layers have.
_USUAL = frozenset(("padding", RESIDUAL))
# The number of sizes that are given without their names.
_MOST_UNNAMED = 3
_BOUND = 0.05


def write(
    inits: Initializers,
    cls: Class,
    sizes: Mapping[tuple[str, ...], str],
    taken: Iterable[str],
    *,
    whole: bool = False,
) -> ast.FunctionDef | None:
    """The `__init__` of a class; `None` for one without fields.

    **Arguments:**

    - `sizes`: names of sizes that differ between the layers of the class.
    - `taken`: names that its arguments may not have.
    - `whole`: whether it is the class of the model, whose arguments have defaults.
    """
    nodes = [d.node for d in cls.drafts]
    if not nodes[0].fields:
        inits.written[cls] = Made({}, keyed=False, places=places(cls))
        return None
    names = Names({*taken, "key", "keys", "k"})
    writing = _Writing(inits, nodes, sizes, names, cls, whole=whole)
    function, inits.written[cls] = writing.run()
    return function


class _Writing:
    """One `__init__`, of the nodes that share a class."""

    def __init__(
        self,
        inits: Initializers,
        nodes: Sequence[Node],
        sizes: Mapping[tuple[str, ...], str],
        names: Names,
        cls: Class,
        *,
        whole: bool,
    ):
        self.whole = whole
        self.inits, self.nodes, self.names, self.cls = inits, nodes, names, cls
        self.args = Arguments(inits, nodes, sizes, names, cls, whole=whole)
        self.defaults: dict[str, Any] = {}
        # Arguments of layers that some nodes lack, with the field and the values there.
        self._unused: dict[str, tuple[str, int]] = {}
        self._slots = 0
        # The items of lists, with the number of their keys, by field.
        self._lists: dict[str, tuple[Sequence[repeats.Item], int]] = {}

    def run(self) -> tuple[ast.FunctionDef, Made]:
        body: list[ast.stmt] = []
        self.names.taken |= self.args.statics.keys()
        for field in self.nodes[0].fields:
            target = ast.Attribute(ast.Name("self", ast.Load()), field, ast.Store())
            self.args.current = field
            value = self._field([n.fields.get(field) for n in self.nodes])
            body.append(ast.Assign([target], value, lineno=0))
        arrays = [v for v in self.nodes[0].fields.values() if not isinstance(v, Node)]
        unknown = set(self.inits.starts.unknown(arrays))
        missing = [n for n, v in self.nodes[0].fields.items() if v in unknown]
        for name, column in self.args.statics.items():
            self.args.columns[name] = column
            target = ast.Attribute(ast.Name("self", ast.Load()), name, ast.Store())
            value: ast.expr = ast.Name(name, ast.Load())
            if column != (old := self.cls.statics[name]):
                axes = zip(*old, strict=True)
                value = syntax.tuple_of(value if axis == column else number(1) for axis in axes)
            body.append(ast.Assign([target], value, lineno=0))
        body = self._with_stages(body)
        body = in_64_bits(with_keys(repeats.consistent(body), self._slots))
        body, derived = without_derived(body, self._decisive(), self.args.followers)
        for name, column in derived.items():
            del self.args.columns[name]
            self.defaults.pop(name, None)
            if name in self.cls.statics:
                self.cls.statics[name] = column
        body = self._with_unused(body)
        body = self._with_numbers(body)
        if missing:
            *others, last = (f"`{name}`" for name in missing)
            text = f"The constant {last} has no values until it is loaded."
            if others:
                every = f"{', '.join(others)} and {last}"
                text = f"The constants {every} have no values until they are loaded."
            body.insert(0, syntax.docstring(text))
        body = self._with_kernel_size(self._with_expansion(self._with_widths(body)))
        if self.whole:
            body = widths.as_tuple(body, self.args.columns, self.names, {*self.args.sizes.values()})
        self.args.sort()
        self._add_defaults()
        self.defaults = {
            name: value
            for name, value in self.defaults.items()
            if self.inits.omitted(self.cls, self.args.columns[name], value)
        }
        if self.whole:
            self.defaults = {name: column[0] for name, column in self.args.columns.items()}
        return self._function(body)

    def _function(self, body: list[ast.stmt]) -> tuple[ast.FunctionDef, Made]:
        """The `__init__` of a body: sizes come first, options are given by name."""
        args = [syntax.argument("self")]
        key = [syntax.argument("key", syntax.name("PRNGKeyArray"))] if self._slots else []
        named = {
            name
            for name in self.args.columns
            if name in self.defaults
            or (name in self.args.statics and name != HIDDEN)  # which is a size too
            or stem(name) in BY_KEYWORD
            or (stem(name) in (HEADS, KV_HEADS, HEAD_DIM) and self.args.has_layers)
        }
        options = []
        for name, values in self.args.columns.items():
            chosen = options if name in named else args
            chosen.append(syntax.argument(name, static_type(values)))
        defaults = {n: expression(v) for n, v in self.defaults.items()}
        function = syntax.function(
            "__init__", args, body, keyword_only=[*options, *key], defaults=defaults
        )
        return function, Made(
            self.args.columns, bool(self._slots), named, self.defaults, places(self.cls)
        )

    def _decisive(self) -> dict[str, tuple[Any, ...]]:
        """The arguments that may be derived from others; in a convolution, only the padding."""
        if self.args.has_layers:
            return self.args.columns
        sides = {stem(n) for n in self.args.columns} & {*SIDES, KERNEL_SIZE}
        return {
            n: c
            for n, c in self.args.columns.items()
            if n in ("padding", "pad_width", "strides", "dilation") or stem(n) in sides
        }

    def _with_stages(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Write lists as calls of one function where that can make them."""
        calls: dict[str, ast.expr] = {}
        for fields, rule in stages.rules({f: items for f, (items, _) in self._lists.items()}):
            name = self.inits.names.new("stage")
            self.inits.stages.append(rule.function(name))
            calls |= zip(fields, rule.calls(name), strict=True)
            self._slots -= sum(self._lists[f][1] - 1 for f in fields)
        for statement in body:
            if isinstance(statement, ast.Assign) and (field := field_of(statement.targets[0])):
                statement.value = calls.get(field, statement.value)
        for name in (DEPTH, *(f"num_{field}" for field in calls)) if calls else ():
            if name in self.args.columns and not any(mentions(s, name) for s in body):
                del self.args.columns[name]  # a stage makes the layers
        return [*body]

    def _add_defaults(self) -> None:
        """Add the defaults of options: none, a neutral value, or what most layers have."""
        listed = any(layer.listed for node in self.nodes for layer in node.layers)
        for name, column in self.args.columns.items():
            if stem(name) in STEPS:
                one = (1,) * len(column[0]) if isinstance(column[0], tuple) else 1
                self.defaults.setdefault(name, one)
            flags = all(type(v) is bool for v in column)
            if None in column or flags:
                self.defaults.setdefault(name, None if None in column else False)
            most, count = collections.Counter(column).most_common(1)[0]
            usual = stem(name) in _USUAL or name.startswith("use_")
            usual = usual or (stem(name) == ACTIVATION and listed)
            if IDENTITY in column:
                self.defaults[name] = IDENTITY
            elif usual and 2 * count > len(column):
                self.defaults[name] = most

    def _with_widths(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Name an output size after its layer, if no other layer inside has that size.

        Nothing inside reads it then, so it is not hidden: the results may be joined with others.
        """
        uses = [n for s in body for n in syntax.names_in(s) if n.id == HIDDEN]
        outputs = {f for f, name in self.args.hidden if stem(name) in OUTPUTS}
        if len(uses) != 1 or len(self.args.hidden) != 1 or not outputs:
            return [*body]
        (field,) = outputs
        name = self.names.new(f"{field}_out")
        self.args.columns = {name if n == HIDDEN else n: c for n, c in self.args.columns.items()}
        return [syntax.substitute(s, {HIDDEN: ast.Name(name, ast.Load())}) for s in body]

    def _with_expansion(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Replace `hidden` by its ratio to the input size, if most layers share that."""
        hidden = self.args.columns.get(HIDDEN, ())
        inputs = {n: c for n, c in self.args.columns.items() if stem(n) in INPUTS}
        found = ((n, own) for n, c in inputs.items() if (own := ratios(hidden, c)) and {*own} > {1})
        name, column = next(found, ("", ())) if hidden else ("", ())
        if not column or HIDDEN in self.args.statics:
            return [*body]
        del self.args.columns[HIDDEN]
        own = self.names.new(EXPANSION)
        self.args.columns[own] = column
        ((self.defaults[own], _),) = collections.Counter(column).most_common(1)
        product = syntax.infix(syntax.name(own), "*", syntax.name(name))
        body = [_Compared({name, HIDDEN}, own).visit(s) for s in body]
        return [syntax.assign(syntax.name(HIDDEN), product), *body]

    def _with_kernel_size(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Make `kernel_size` of the sides of a kernel: a number if it is square."""
        sides = [name for name in self.args.columns if name in SIDES]
        if len(sides) < 2 or self.args.has_layers:
            return [*body]
        columns = zip(*(self.args.columns.pop(name) for name in sides), strict=True)
        self.args.columns[KERNEL_SIZE] = tuple(c[0] if len({*c}) == 1 else c for c in columns)
        square = f"({', '.join([KERNEL_SIZE] * len(sides))})"
        whole = f"{square} if isinstance({KERNEL_SIZE}, int) else {KERNEL_SIZE}"
        return [ast.parse(f"{', '.join(sides)} = {whole}").body[0], *body]

    def _with_unused(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Add defaults for the arguments of layers that some nodes lack.

        If the layer is there by a flag, `hidden is not None` takes its place.
        """
        tests: dict[str, ast.expr] = {}
        for name, (field, unused) in self._unused.items():
            others = (b for b in body if field not in _fields_set(b))
            if any(mentions(b, name) for b in others):
                continue
            flag = f"use_{field}"
            if flag not in self.args.columns or flag in tests:
                self.defaults[name] = unused
                continue
            columns = zip(self.args.columns[name], self.args.columns.pop(flag), strict=True)
            self.defaults.pop(flag, None)
            self.args.columns[name] = tuple(n if there else None for n, there in columns)
            own = ast.Name(name, ast.Load())
            tests[flag] = ast.Compare(own, [ast.IsNot()], [ast.Constant(None)])
        return [syntax.substitute(s, tests) for s in body]

    def _with_numbers(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Write sizes that never vary as numbers, unless that would be all of them.

        A layer whose other sizes are choices does not offer these.
        """
        own = [i for i, d in enumerate(self.cls.drafts) if d.twin is None]
        sizes = {
            name: column
            for name, column in self.args.columns.items()
            if all(type(n) is int for n in column) and name not in self.defaults
        }
        alike = {n: c[0] for n, c in sizes.items() if len({c[i] for i in own}) == 1}
        varies = len(alike) < len(sizes)
        alike = {n: v for n, v in alike.items() if stem(n) not in (HEADS, KV_HEADS, HEAD_DIM)}
        calls = [n for s in body for n in syntax.walk(s) if isinstance(n, ast.Call)]
        made = [c for c in calls if isinstance(c.func, ast.Name) and syntax.is_token(c.func.id)]
        # A number of heads that has to be one leaves the other sizes as they are.
        one = KV_HEADS in self.inits.as_numbers or self.cls in self.inits.counted
        numbers = (a.value for c in made for a in c.args if isinstance(a, ast.Constant))
        if all(one and n == 1 for n in numbers):
            # Sizes that its results show are those of the layers around it.
            outside = [*self._sizes_of_results()]
            alike = {
                n: v
                for n, v in alike.items()
                if varies
                and HIDDEN in n
                and not any(_are_multiples(c, self.args.columns[n]) for c in outside)
            }
        if not self.args.has_layers or self.whole:
            return [*body]
        for name in alike:
            del self.args.columns[name]
        return [syntax.substitute(s, {n: number(v) for n, v in alike.items()}) for s in body]

    def _sizes_of_results(self) -> Iterator[tuple[Any, ...]]:
        """The sizes of the results of the class, in all layers."""
        drafts = self.cls.drafts
        for i, source in enumerate(drafts[0].sources):
            if source is None:
                # From the last, since some may lack an axis of positions.
                yield from zip(*(d.arrays[i][1][::-1] for d in drafts), strict=False)

    def _key(self) -> ast.expr:
        """A key of its own, which is named when the number of keys is known."""
        self._slots += 1
        return slot(self._slots - 1)

    def _field(self, values: Sequence[Var | Node | None]) -> ast.expr:
        """The initial value of a field, given its variables in all nodes."""
        first = values[0]
        assert first is not None  # the first node has all fields
        if not isinstance(first, Node):
            shapes = [
                self.inits.shape(v)
                if isinstance(v, Var)
                else self.cls.shapes[node, self.args.current]
                for v, node in zip(values, self.nodes, strict=True)
            ]
            start = self._array(first, shapes)
            if None in values:
                name = self.names.new(f"use_{self.args.current}")
                self.args.columns[name] = tuple(v is not None for v in values)
                self.defaults[name] = True
                given = ast.Name(name, ast.Load())
                return ast.IfExp(given, start, ast.Constant(None))
            held = first in self.inits.starts.held
            return call("eqx.nn.StateIndex", start) if held else start
        nodes = [v if isinstance(v, Node) else None for v in values]
        if None in nodes:
            there = tuple(v is not None for v in values)
            same = (n for n, c in self.args.columns.items() if n.startswith("use_") and c == there)
            name = next(same, "") or self.names.new(f"use_{self.args.current}")
            self.args.columns[name], self.defaults[name] = there, False
            before = set(self.args.columns)
            start = self._module(nodes, self._key)
            for own in self.args.columns.keys() - before:
                unused = self.args.columns[own][nodes.index(None)]  # since the layer is missing
                if type(unused) is int:
                    self._unused[own] = self.args.current, unused
            return ast.IfExp(ast.Name(name, ast.Load()), start, ast.Constant(None))
        whole = [n for n in nodes if n is not None]
        return self._list(whole) if first.listed else self._module(whole, self._key)

    def _array(self, v: Var, shapes: Sequence[Sequence[int]]) -> ast.expr:
        start = self.inits.starts.of(v)
        dtype = [] if v.aval.dtype == np.float32 else [literals.dtype(v.aval.dtype)]
        if start == "key":
            return call("jax.random.key", number(0))
        if start == "values":
            return tables.array(np.asarray(self.inits.starts.values[v]))
        columns = list(zip(*shapes, strict=True))
        axes = [self.args.value(tuple(c), "n") for c in columns]
        shape = axes[0] if len(axes) == 1 else syntax.tuple_of(axes)
        if start == "unknown" and jnp.issubdtype(v.aval.dtype, jnp.inexact):
            return call("jnp.full", shape, syntax.name("jnp.nan"), *dtype)
        start = "zeros" if start == "unknown" else start
        if start in ("zeros", "ones"):
            return call(f"jnp.{start}", shape, *dtype)
        if start == "forget":
            return self._forget(tuple(s[0] for s in shapes), shape, dtype)
        if start == "uniform":
            bounds = {"minval": number(-_BOUND), "maxval": number(_BOUND)}
            return call("jax.random.uniform", self._key(), shape, *dtype, **bounds)
        return call(self.inits.function(start), self._key(), syntax.tuple_of(axes), *dtype)

    def _forget(self, column: tuple[int, ...], size: ast.expr, dtype: list[ast.expr]) -> ast.expr:
        """Zeros, and ones for the second of four gates."""
        alike = all(n == column[0] for n in column)
        ends: list[ast.expr] = [number(column[0] * k // 4) for k in (1, 2)]
        if not alike and isinstance(size, ast.BinOp):
            ends = [size.right, syntax.infix(number(2), "*", size.right)]
        elif not alike:
            ends = [syntax.infix(size, "//", number(4 // k)) for k in (1, 2)]
        gate = syntax.item(
            syntax.field(call("jnp.zeros", size, *dtype), "at"), syntax.slice_of(*ends)
        )
        return syntax.method(gate, "set", number(1.0))

    def _module(self, nodes: Sequence[Node | None], key: Callable[[], ast.expr]) -> ast.expr:
        """A module, or a stack of them."""
        first = nodes[0]
        assert first is not None  # the first node has all fields
        count = first.layers[0].count if first.layers else 0
        if not count:
            return self._new(nodes, key)
        keyed = self.inits.keyed(first)
        name = "key" if keyed else "_"
        body = self._new(nodes, lambda: ast.Name("key", ast.Load()))
        each = call("jax.random.split", key(), number(count)) if keyed else None
        each = each or call("jnp.arange", number(count))
        return call(call("eqx.filter_vmap", syntax.lambda_of([name], body)), each)

    def _new(self, nodes: Sequence[Node | None], key: Callable[[], ast.expr]) -> ast.expr:
        """A call of a class, which some of the nodes lack."""
        first = nodes[0]
        assert first is not None  # the first node has all fields
        native = native_of(first)
        if native is not None:
            natives = [n for node in nodes if node and (n := native_of(node)) is not None]
            return self._native(first, natives, key)
        init, _ = self.inits.made(first)
        made = [None if n is None else self.inits.made(n) for n in nodes]
        args: list[ast.expr] = []
        keywords: dict[str, ast.expr] = {}
        many = len(init.arguments.keys() - init.named) > _MOST_UNNAMED
        for name in init.arguments:
            own = [MISSING if m is None else m[0].arguments[name][m[1]] for m in made]
            if {*own} - {MISSING} == {init.defaults.get(name)}:
                own = [init.defaults[name]] * len(own)
            column = self.args.completed(own, name)
            if name not in init.named and not many:
                args.append(self.args.given_to(column, name))
            elif name not in init.defaults or any(v != init.defaults[name] for v in column):
                keywords[name] = self.args.given_to(column, name)
        if init.keyed:
            keywords["key"] = key()
        return call(syntax.name(self.inits.of[first].token), *args, **keywords)

    def _native(
        self, node: Node, natives: Sequence[Native], key: Callable[[], ast.expr]
    ) -> ast.expr:
        first = natives[0]
        keywords = {name: literals.value(value) for name, value in first.keywords}
        dtype = next(v for _, v in node.leaves()).aval.dtype
        if dtype != np.float32:
            keywords["dtype"] = literals.dtype(dtype)
        if first.keyed:
            keywords["key"] = key()
        columns = zip(*(n.args for n in natives), strict=True)
        args = [self.args.value(tuple(c), "n") for c in columns]
        return call(f"eqx.nn.{first.kind}", *args, **keywords)

    def _list(self, lists: Sequence[Node]) -> ast.expr:
        """A tuple of modules of one class."""
        rows = [node.nodes for node in lists]
        first = rows[0]
        keyed = self.inits.keyed(first[0])
        columns = list(zip(*rows, strict=True))
        k = ast.Name("k", ast.Load())
        before, slots, taken = dict(self.args.columns), self._slots, set(self.names.taken)
        each = [self._new(c, lambda: k) for c in columns]
        inner = [self._parameters(node) for node in first]
        by_position = repeats.by_position(each, inner)
        if by_position is not None:
            one_by_one = any(layer.indexed for layer in first[0].layers)
            count = number(len(first)) if one_by_one else self._depth(len(first))
            item, counts = by_position(count)
            if not counts:
                self._add_list(each, first, 1)
            items = call("jax.random.split", self._key(), count) if keyed else call("range", count)
            names = [*([repeats.PLACE] if counts else []), *(["k"] if keyed else [])] or ["_"]
            items = call("enumerate", items) if len(names) > 1 else items
            target = syntax.store(syntax.one_or_tuple([syntax.name(n) for n in names]))
            generator = ast.GeneratorExp(item, [ast.comprehension(target, items, [], 0)])
            return call("tuple", generator)
        self.args.columns, self._slots, self.names.taken = before, slots, taken
        calls = [self._new(c, self._key) for c in columns]
        self._add_list(calls, first, len(first))
        return repeats.tuple_of(calls, inner, {*self.names.taken, *self.args.columns})

    def _depth(self, count: int) -> ast.expr:
        """The number of modules in a tuple, an argument of the model."""
        if not self.whole or not self.args.varies:
            return number(count)
        lists = [v for v in self.nodes[0].fields.values() if isinstance(v, Node) and v.listed]
        name = self.names.new(DEPTH if len(lists) == 1 else f"num_{self.args.current}")
        # Its twin has one more.
        self.args.columns[name] = tuple(count + (d.twin is not None) for d in self.cls.drafts)
        return syntax.name(name)

    def _add_list(self, calls: Sequence[ast.expr], nodes: Sequence[Node], keys: int) -> None:
        """Note the items of the current field for a function of stages."""
        inner = [self._parameters(node) for node in nodes]
        if (items := repeats.items_of(calls, inner)) is not None:
            self._lists[self.args.current] = items, keys

    def _parameters(self, node: Node) -> repeats.Parameters:
        """The parameters of the constructor of a layer."""
        if native_of(node) is not None:
            return repeats.Parameters()
        init, _ = self.inits.made(node)
        names = sorted(init.arguments, key=lambda name: name in init.named)
        return repeats.Parameters(names, {n: expression(v) for n, v in init.defaults.items()})


def _are_multiples(column: tuple[Any, ...], values: tuple[Any, ...]) -> bool:
    """Return whether sizes are multiples of others by one number."""
    pairs = [*zip(column, values, strict=True)]
    if not all(type(n) is int and type(m) is int and m for n, m in pairs):
        return False
    return len({n / m for n, m in pairs}) == 1 and column[0] % values[0] == 0


def _fields_set(statement: ast.stmt) -> set[str]:
    nodes = (n for n in syntax.walk(statement) if isinstance(n, ast.Attribute))
    return {n.attr for n in nodes if isinstance(n.ctx, ast.Store)}


class _Compared(ast.NodeTransformer):
    """Writes `c_in != hidden` as `expansion != 1`."""

    def __init__(self, sizes: Set[str], ratio: str):
        self._sizes, self._ratio = sizes, ratio

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        sides = {n.id for n in syntax.names_in(node)}
        if sides == self._sizes and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            return ast.Compare(ast.Name(self._ratio, ast.Load()), node.ops, [number(1)])
        return node
