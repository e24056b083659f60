"""Writes the `__init__` of classes: arrays to train from scratch, and the layers inside.

Sizes that differ between the layers of a class are its arguments. A kernel gets the initializer of
its library, by name: `glorot_uniform` in Keras, `lecun_normal` elsewhere. Summands are zeros,
factors are ones, and a small constant of the program keeps its value.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import jax.numpy as jnp
import numpy as np

from invert.emission.constructors import repeats, stages, widths
from invert.emission.constructors.derived import expression, mentions, without_derived
from invert.emission.constructors.keys import in_64_bits, slot, with_keys
from invert.emission.constructors.sizes import (
    CHANNELS,
    DEPTH,
    DIM,
    EXPANSION,
    FEATURES,
    GATES,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INPUTS,
    KERNEL_SIZE,
    KV_HEADS,
    ROWS,
    SIZES,
)
from invert.emission.constructors.starts import Starts
from invert.emission.equinox_nn.construct import native_of
from invert.emission.expressions import literals, tables
from invert.emission.layers.flattened import flattened
from invert.emission.layers.library_names import without_number
from invert.emission.layers.native import Native
from invert.emission.layers.proportions import factor, ratios
from invert.emission.layers.shared import (
    ACTIVATION,
    IDENTITY,
    OPTIONS,
    RESIDUAL,
    Class,
    static_type,
)
from invert.emission.layers.tree import Node
from invert.emission.python import syntax
from invert.emission.python.naming import Names, snake, stem
from invert.emission.python.syntax import call, field_of, number
from invert.ir.types import Var

_SIDES = ("kd", "kh", "kw")
# Options of a layer, passed by keyword.
_OPTIONS = OPTIONS | {KERNEL_SIZE, *_SIDES}
# Options that are one number for all axes of images.
_STEPS = frozenset(("strides", "dilation", "input_dilation"))
_OUTPUTS = frozenset(("c_out", "n_out"))
# Names that libraries give layers of features and of channels.
_AUTOMATIC = re.compile(r"dense|linear|conv([1-3]d)?(_transpose)?")
# Options whose default is what most layers have.
_USUAL = frozenset(("padding", RESIDUAL))
# The number of sizes that are given without their names.
_MOST_UNNAMED = 3
# Stands for the arguments of a layer that a node lacks.
_MISSING = object()
_FIXED = frozenset(("zeros", "ones", "values", "unknown", "key", "forget"))
# Initializers with arguments. PyTorch's is that of `nn.Linear` and of convolutions, whose weights
# have outputs first; the bounds are those of Keras's embeddings.
_SPELLED = {
    "lecun_normal_heads": "jax.nn.initializers.lecun_normal(in_axis=0, out_axis=(1, 2))",
    "lecun_normal_each": "jax.nn.initializers.lecun_normal(batch_axis=0)",
    "lecun_normal_transposed": "jax.nn.initializers.lecun_normal(in_axis=-1, out_axis=-2)",
    "kaiming_uniform": (
        'jax.nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", in_axis=1, out_axis=0)'
    ),
}
_BOUND = 0.05


def _has_other_sizes(cls: Class) -> bool:
    """Return whether the text of a class holds for parameters of other sizes."""
    twins = [d for d in cls.drafts if d.twin is not None]
    shapes = [
        [[v.aval.shape for _, v in node.leaves()] for node in (d.node, d.twin.node)]
        for d in twins
        if d.twin is not None
    ]
    return any(one != other for one, other in shapes)


@dataclasses.dataclass
class _Made:
    """The `__init__` of a class.

    **Arguments:**

    - `arguments`: their names, with the values for each instance.
    - `keyed`: whether it takes a key.
    - `named`: those given by name; `defaults`: their default values.
    - `places`: the number of each instance.
    """

    arguments: dict[str, tuple[Any, ...]]
    keyed: bool
    named: Set[str] = frozenset()
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
    places: dict[Node, int] = dataclasses.field(default_factory=dict)


class Initializers:
    """Writes the `__init__` of the classes of a file, the innermost first.

    **Arguments:**

    - `of`: the classes of the nodes.
    - `shape`: the shape of a parameter, without the axes of stacks.
    - `functions`: receives the initializers that are used, by name.
    """

    def __init__(
        self,
        of: Mapping[Node, Class],
        starts: Starts,
        shape: Callable[[Var], Sequence[int]],
        names: Names,
    ):
        self.of, self.starts, self.shape, self.names = of, starts, shape, names
        self.functions: dict[str, str] = {}
        # Functions that make the lists of the class that was written last.
        self.stages: list[ast.FunctionDef] = []
        self._made: dict[Class, _Made] = {}
        # Arguments that the model does not have.
        self.as_numbers: set[str] = set()
        # The classes whose number of heads is that of other arrays too, or has to be one.
        self.counted: set[Class] = set()
        # The classes of whose arguments and results no axis is that of the heads.
        self.heads_apart: set[Class] = set()
        # The width of which all widths of the model are multiples, in it and its twin.
        self.width: tuple[int, ...] = ()
        # Sizes of the model that are sums of others, with these.
        self.sums: Mapping[tuple[int, ...], Sequence[tuple[int, ...]]] = {}
        # The names of the features of several inputs of the model.
        self.inputs: Sequence[str] = ()
        self._keyed: dict[Node, bool] = {}
        # By class, field, and index in a list.
        self.sites: dict[tuple[Class, str, int], list[Node]] = collections.defaultdict(list)

    def restart(self) -> None:
        """Forget what has been written."""
        self.functions.clear()
        self._made.clear()

    def keyed(self, node: Node) -> bool:
        """Return whether the constructor of a module takes a key."""
        if node not in self._keyed:
            native = native_of(node)
            if native is not None:
                self._keyed[node] = native.keyed
            else:
                first = self.of[node].drafts[0].node if node in self.of else node
                own = [v for v in first.fields.values() if not isinstance(v, Node)]
                self._keyed[node] = any(self.starts.of(v) not in _FIXED for v in own) or any(
                    self.keyed(n) for n in first.nodes
                )
        return self._keyed[node]

    def write(
        self,
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
            self._made[cls] = _Made({}, keyed=False, places=_places(cls))
            return None
        names = Names({*taken, "key", "keys", "k"})
        writing = _Writing(self, nodes, sizes, names, cls, whole=whole)
        function, self._made[cls] = writing.run()
        return function

    def made(self, node: Node) -> tuple[_Made, int]:
        """The `__init__` of the class of a node, and which instance the node is."""
        made = self._made[self.of[node]]
        return made, made.places[node]

    def heads_in_arrays(self, cls: Class) -> int | None:
        """The number of heads, if some axis of an argument or a result may be that of the heads."""
        column = self._made[cls].arguments.get(HEADS, ())
        if len({*column}) != 1 or cls in self.heads_apart:
            return None
        layers = (layer for d in cls.drafts for layer in d.node.layers)
        arrays = [v for layer in layers for v in (*layer.inputs, *layer.results)]
        return column[0] if any(column[0] in v.aval.shape for v in arrays) else None

    def gather_sites(self, classes: Iterable[Class]) -> None:
        """Group the layers in `classes` by the call that makes them."""
        self.sites.clear()
        for outer in classes:
            for draft in outer.drafts:
                for field, inner in draft.node.fields.items():
                    if isinstance(inner, Node):
                        for i, node in enumerate(inner.nodes if inner.listed else [inner]):
                            self.sites[outer, field, i].append(node)

    def outer(self, cls: Class) -> set[Class]:
        """The classes whose fields hold layers of `cls`."""
        own = {d.node for d in cls.drafts}
        return {outer for (outer, _, _), nodes in self.sites.items() if not own.isdisjoint(nodes)}

    def omitted(self, cls: Class, column: tuple[Any, ...], default: Any) -> bool:
        """Return whether some call can omit the argument with these values."""
        places = _places(cls)
        made = ([places[n] for n in nodes if n in places] for nodes in self.sites.values())
        return any(all(column[i] == default for i in own) for own in made if own)

    def function(self, name: str) -> ast.expr:
        """An initializer, which is a constant of the file."""
        if name not in self.functions:
            self.functions[name] = self.names.new(name)
        return syntax.name(self.functions[name])

    def constants(self) -> list[ast.stmt]:
        """`glorot_uniform = jax.nn.initializers.glorot_uniform()`, for each that is used."""
        return [
            syntax.assign(
                syntax.name(own),
                ast.parse(_SPELLED.get(name, f"jax.nn.initializers.{name}()"), mode="eval").body,
            )
            for name, own in self.functions.items()
        ]


class _Writing:
    """One `__init__`, of the nodes that share a class."""

    def __init__(
        self,
        all_: Initializers,
        nodes: Sequence[Node],
        sizes: Mapping[tuple[str, ...], str],
        names: Names,
        cls: Class,
        *,
        whole: bool,
    ):
        self.whole = whole
        self.all, self.nodes, self.sizes, self.names = all_, nodes, sizes, names
        self.cls = cls
        self.statics = {name: _sides(name, c) for name, c in cls.statics.items()}
        self.arguments: dict[str, tuple[Any, ...]] = {}
        self.defaults: dict[str, Any] = {}
        # Arguments of layers that some nodes lack, with the field and the values there.
        self._unused: dict[str, tuple[str, int]] = {}
        # Sizes that follow from arguments, with their values.
        self._followers: dict[str, tuple[ast.expr, tuple[Any, ...]]] = {}
        # The fields whose layers take the hidden size, and as what.
        self._hidden: set[tuple[str, str]] = set()
        self._has_layers = bool(nodes[0].nodes)
        self._flattened = dict(flattened(nodes))
        self._channels = {image[-1] for _, image in flattened(nodes[:1])}
        self._slots = 0
        self._current = ""  # the field that is written
        # The items of lists, with the number of their keys, by field.
        self._lists: dict[str, tuple[Sequence[repeats.Item], int]] = {}

    @functools.cached_property
    def _varies(self) -> bool:
        """Return whether the text of the class holds for parameters of other sizes."""
        return _has_other_sizes(self.cls)

    def run(self) -> tuple[ast.FunctionDef, _Made]:
        body: list[ast.stmt] = []
        self.names.taken |= self.statics.keys()
        for field in self.nodes[0].fields:
            target = ast.Attribute(ast.Name("self", ast.Load()), field, ast.Store())
            self._current = field
            value = self._field([n.fields.get(field) for n in self.nodes])
            body.append(ast.Assign([target], value, lineno=0))
        arrays = [v for v in self.nodes[0].fields.values() if not isinstance(v, Node)]
        unknown = set(self.all.starts.unknown(arrays))
        missing = [n for n, v in self.nodes[0].fields.items() if v in unknown]
        for name, column in self.statics.items():
            self.arguments[name] = column
            target = ast.Attribute(ast.Name("self", ast.Load()), name, ast.Store())
            value: ast.expr = ast.Name(name, ast.Load())
            if column != (old := self.cls.statics[name]):
                axes = zip(*old, strict=True)
                value = syntax.tuple_of(value if axis == column else number(1) for axis in axes)
            body.append(ast.Assign([target], value, lineno=0))
        body = self._with_stages(body)
        body = in_64_bits(with_keys(repeats.consistent(body), self._slots))
        body, derived = without_derived(body, self._decisive(), self._followers)
        for name, column in derived.items():
            del self.arguments[name]
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
            body = widths.as_tuple(body, self.arguments, self.names, {*self.sizes.values()})
        self._order()
        self._add_defaults()
        self.defaults = {
            name: value
            for name, value in self.defaults.items()
            if self.all.omitted(self.cls, self.arguments[name], value)
        }
        if self.whole:
            self.defaults = {name: column[0] for name, column in self.arguments.items()}
        return self._function(body)

    def _function(self, body: list[ast.stmt]) -> tuple[ast.FunctionDef, _Made]:
        """The `__init__` of a body: sizes come first, options are given by name."""
        args = [syntax.argument("self")]
        key = [syntax.argument("key", syntax.name("PRNGKeyArray"))] if self._slots else []
        named = {
            name
            for name in self.arguments
            if name in self.defaults
            or (name in self.statics and name != HIDDEN)  # which is a size too
            or stem(name) in _OPTIONS
            or (stem(name) in (HEADS, KV_HEADS, HEAD_DIM) and self._has_layers)
        }
        options = []
        for name, values in self.arguments.items():
            chosen = options if name in named else args
            chosen.append(syntax.argument(name, static_type(values)))
        defaults = {n: expression(v) for n, v in self.defaults.items()}
        function = syntax.function(
            "__init__", args, body, keyword_only=[*options, *key], defaults=defaults
        )
        places = _places(self.cls)
        return function, _Made(self.arguments, bool(self._slots), named, self.defaults, places)

    def _decisive(self) -> dict[str, tuple[Any, ...]]:
        """The arguments that may be derived from others; in a convolution, only the padding."""
        if self._has_layers:
            return self.arguments
        sides = {stem(n) for n in self.arguments} & {*_SIDES, KERNEL_SIZE}
        return {
            n: c
            for n, c in self.arguments.items()
            if n in ("padding", "pad_width", "strides", "dilation") or stem(n) in sides
        }

    def _with_stages(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Write lists as calls of one function where that can make them."""
        calls: dict[str, ast.expr] = {}
        for fields, rule in stages.rules({f: items for f, (items, _) in self._lists.items()}):
            name = self.all.names.new("stage")
            self.all.stages.append(rule.function(name))
            calls |= zip(fields, rule.calls(name), strict=True)
            self._slots -= sum(self._lists[f][1] - 1 for f in fields)
        for statement in body:
            if isinstance(statement, ast.Assign) and (field := field_of(statement.targets[0])):
                statement.value = calls.get(field, statement.value)
        for name in (DEPTH, *(f"num_{field}" for field in calls)) if calls else ():
            if name in self.arguments and not any(mentions(s, name) for s in body):
                del self.arguments[name]  # a stage makes the layers
        return [*body]

    def _add_defaults(self) -> None:
        """Add the defaults of options: none, a neutral value, or what most layers have."""
        listed = any(layer.listed for node in self.nodes for layer in node.layers)
        for name, column in self.arguments.items():
            if stem(name) in _STEPS:
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

        It is not a hidden size: the results are joined with others, for instance.
        """
        uses = [n for s in body for n in syntax.names_in(s) if n.id == HIDDEN]
        outputs = {f for f, name in self._hidden if stem(name) in _OUTPUTS}
        if len(uses) != 1 or len(self._hidden) != 1 or not outputs:
            return [*body]
        (field,) = outputs
        name = self.names.new(f"{field}_out")
        self.arguments = {name if n == HIDDEN else n: c for n, c in self.arguments.items()}
        return [syntax.substitute(s, {HIDDEN: ast.Name(name, ast.Load())}) for s in body]

    def _with_expansion(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Replace `hidden` by its ratio to the input size, if most layers share that."""
        hidden = self.arguments.get(HIDDEN, ())
        inputs = {n: c for n, c in self.arguments.items() if stem(n) in INPUTS}
        found = ((n, own) for n, c in inputs.items() if (own := ratios(hidden, c)) and {*own} > {1})
        name, column = next(found, ("", ())) if hidden else ("", ())
        if not column or HIDDEN in self.statics:
            return [*body]
        del self.arguments[HIDDEN]
        own = self.names.new(EXPANSION)
        self.arguments[own] = column
        ((self.defaults[own], _),) = collections.Counter(column).most_common(1)
        product = syntax.infix(syntax.name(own), "*", syntax.name(name))
        body = [_Compared({name, HIDDEN}, own).visit(s) for s in body]
        return [syntax.assign(syntax.name(HIDDEN), product), *body]

    def _with_kernel_size(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Make `kernel_size` of the sides of a kernel: a number if it is square."""
        sides = [name for name in self.arguments if name in _SIDES]
        if len(sides) < 2 or self._has_layers:
            return [*body]
        columns = zip(*(self.arguments.pop(name) for name in sides), strict=True)
        self.arguments[KERNEL_SIZE] = tuple(c[0] if len({*c}) == 1 else c for c in columns)
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
            if flag not in self.arguments or flag in tests:
                self.defaults[name] = unused
                continue
            columns = zip(self.arguments[name], self.arguments.pop(flag), strict=True)
            self.defaults.pop(flag, None)
            self.arguments[name] = tuple(n if there else None for n, there in columns)
            own = ast.Name(name, ast.Load())
            tests[flag] = ast.Compare(own, [ast.IsNot()], [ast.Constant(None)])
        return [syntax.substitute(s, tests) for s in body]

    def _with_numbers(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Write sizes as numbers that never vary, if that holds for some sizes and not for all.

        A layer that is made for certain sizes has no arguments for the others.
        """
        own = [i for i, d in enumerate(self.cls.drafts) if d.twin is None]
        sizes = {
            name: column
            for name, column in self.arguments.items()
            if all(type(n) is int for n in column) and name not in self.defaults
        }
        alike = {n: c[0] for n, c in sizes.items() if len({c[i] for i in own}) == 1}
        varies = len(alike) < len(sizes)
        alike = {n: v for n, v in alike.items() if stem(n) not in (HEADS, KV_HEADS, HEAD_DIM)}
        calls = [n for s in body for n in syntax.walk(s) if isinstance(n, ast.Call)]
        made = [c for c in calls if isinstance(c.func, ast.Name) and syntax.is_token(c.func.id)]
        # A number of heads that has to be one leaves the other sizes as they are.
        one = KV_HEADS in self.all.as_numbers or self.cls in self.all.counted
        numbers = (a.value for c in made for a in c.args if isinstance(a, ast.Constant))
        if all(one and n == 1 for n in numbers):
            # Only sizes inside of it are those of this model.
            outside = [*self._sizes_of_results()]
            alike = {
                n: v
                for n, v in alike.items()
                if varies
                and HIDDEN in n
                and not any(_are_multiples(c, self.arguments[n]) for c in outside)
            }
        if not self._has_layers or self.whole:
            return [*body]
        for name in alike:
            del self.arguments[name]
        return [syntax.substitute(s, {n: number(v) for n, v in alike.items()}) for s in body]

    def _sizes_of_results(self) -> Iterator[tuple[Any, ...]]:
        """The sizes of the results of the class, in all layers."""
        drafts = self.cls.drafts
        for i, source in enumerate(drafts[0].sources):
            if source is None:
                # From the last, since some may lack an axis of positions.
                yield from zip(*(d.arrays[i][1][::-1] for d in drafts), strict=False)

    def _order(self) -> None:
        """Sort arguments: sizes first, inputs before outputs, as in libraries."""
        places = {name: i for i, name in enumerate(SIZES)}

        def place(name: str) -> int:
            kind = "n_in" if name in self.all.inputs else stem(name)
            told = (p for n, p in places.items() if kind.endswith(f"_{n}") and n != DIM)
            inside = places[HIDDEN] if kind.endswith(("_size", f"_{DIM}")) else len(places)
            return places.get(kind, next(told, inside))

        order = sorted(self.arguments, key=place)
        self.arguments = {name: self.arguments[name] for name in order}

    def _key(self) -> ast.expr:
        """A separate key, named once all are known."""
        self._slots += 1
        return slot(self._slots - 1)

    def _field(self, values: Sequence[Var | Node | None]) -> ast.expr:
        """The initial value of a field, given its variables in all nodes."""
        first = values[0]
        assert first is not None  # the first node has all fields
        if not isinstance(first, Node):
            shapes = [
                self.all.shape(v) if isinstance(v, Var) else self.cls.shapes[node, self._current]
                for v, node in zip(values, self.nodes, strict=True)
            ]
            start = self._array(first, shapes)
            if None in values:
                name = self.names.new(f"use_{self._current}")
                self.arguments[name] = tuple(v is not None for v in values)
                self.defaults[name] = True
                given = ast.Name(name, ast.Load())
                return ast.IfExp(given, start, ast.Constant(None))
            held = first in self.all.starts.held
            return call("eqx.nn.StateIndex", start) if held else start
        nodes = [v if isinstance(v, Node) else None for v in values]
        if None in nodes:
            there = tuple(v is not None for v in values)
            same = (n for n, c in self.arguments.items() if n.startswith("use_") and c == there)
            name = next(same, "") or self.names.new(f"use_{self._current}")
            self.arguments[name], self.defaults[name] = there, False
            before = set(self.arguments)
            start = self._module(nodes, self._key)
            for own in self.arguments.keys() - before:
                unused = self.arguments[own][nodes.index(None)]  # since the layer is missing
                if type(unused) is int:
                    self._unused[own] = self._current, unused
            return ast.IfExp(ast.Name(name, ast.Load()), start, ast.Constant(None))
        whole = [n for n in nodes if n is not None]
        return self._list(whole) if first.listed else self._module(whole, self._key)

    def _array(self, v: Var, shapes: Sequence[Sequence[int]]) -> ast.expr:
        start = self.all.starts.of(v)
        dtype = [] if v.aval.dtype == np.float32 else [literals.dtype(v.aval.dtype)]
        if start == "key":
            return call("jax.random.key", number(0))
        if start == "values":
            return tables.array(np.asarray(self.all.starts.values[v]))
        columns = list(zip(*shapes, strict=True))
        axes = [self.value(tuple(c), "n") for c in columns]
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
        return call(self.all.function(start), self._key(), syntax.tuple_of(axes), *dtype)

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
        keyed = self.all.keyed(first)
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
        init, _ = self.all.made(first)
        made = [None if n is None else self.all.made(n) for n in nodes]
        args: list[ast.expr] = []
        keywords: dict[str, ast.expr] = {}
        many = len(init.arguments.keys() - init.named) > _MOST_UNNAMED
        for name in init.arguments:
            own = [_MISSING if m is None else m[0].arguments[name][m[1]] for m in made]
            if {*own} - {_MISSING} == {init.defaults.get(name)}:
                own = [init.defaults[name]] * len(own)
            column = self._completed(own, name)
            if name not in init.named and not many:
                args.append(self._given_to(column, name))
            elif name not in init.defaults or any(v != init.defaults[name] for v in column):
                keywords[name] = self._given_to(column, name)
        if init.keyed:
            keywords["key"] = key()
        return call(syntax.name(self.all.of[first].token), *args, **keywords)

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
        args = [self.value(tuple(c), "n") for c in columns]
        return call(f"eqx.nn.{first.kind}", *args, **keywords)

    def _list(self, lists: Sequence[Node]) -> ast.expr:
        """A tuple of modules of one class."""
        rows = [node.nodes for node in lists]
        first = rows[0]
        keyed = self.all.keyed(first[0])
        columns = list(zip(*rows, strict=True))
        k = ast.Name("k", ast.Load())
        before, slots, taken = dict(self.arguments), self._slots, set(self.names.taken)
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
        self.arguments, self._slots, self.names.taken = before, slots, taken
        calls = [self._new(c, self._key) for c in columns]
        self._add_list(calls, first, len(first))
        return repeats.tuple_of(calls, inner, {*self.names.taken, *self.arguments})

    def _depth(self, count: int) -> ast.expr:
        """The number of modules in a tuple, an argument of the model."""
        if not self.whole or not self._varies:
            return number(count)
        lists = [v for v in self.nodes[0].fields.values() if isinstance(v, Node) and v.listed]
        name = self.names.new(DEPTH if len(lists) == 1 else f"num_{self._current}")
        # Its twin has one more.
        self.arguments[name] = tuple(count + (d.twin is not None) for d in self.cls.drafts)
        return syntax.name(name)

    def _add_list(self, calls: Sequence[ast.expr], nodes: Sequence[Node], keys: int) -> None:
        """Note the items of the current field for a function of stages."""
        inner = [self._parameters(node) for node in nodes]
        if (items := repeats.items_of(calls, inner)) is not None:
            self._lists[self._current] = items, keys

    def _parameters(self, node: Node) -> repeats.Parameters:
        """The parameters of the constructor of a layer."""
        if native_of(node) is not None:
            return repeats.Parameters()
        init, _ = self.all.made(node)
        names = sorted(init.arguments, key=lambda name: name in init.named)
        return repeats.Parameters(names, {n: expression(v) for n, v in init.defaults.items()})

    def _completed(self, column: Sequence[Any], name: str) -> tuple[Any, ...]:
        """Values for nodes without a layer: those of an argument, or of the first node.

        The size of a kernel is no other argument's.
        """
        given = [v for v in column if v is not _MISSING]
        if len(given) == len(column) or (type(given[0]) is bool and len(set(given)) == 1):
            return (given[0],) * len(column) if len(given) < len(column) else tuple(column)
        sizes = [tuple(int(n) if n.isdigit() else n for n in k) for k in self.sizes]
        for known in (*sizes, *self.arguments.values(), *self._given()):
            if stem(name) != KERNEL_SIZE and all(
                a is _MISSING or (a == b and type(a) is type(b))  # `1 == True`
                for a, b in zip(column, known, strict=True)
            ):
                return known
        ((usual, _),) = collections.Counter(given).most_common(1)
        return tuple(usual if a is _MISSING else a for a in column)

    def _given(self) -> Iterator[tuple[Any, ...]]:
        """The options of the layers that all nodes have, such as strides, then their sizes."""
        columns = [pair for _, made in self._columns_of_layers() for pair in made.items()]
        yield from (column for name, column in columns if stem(name) in _OPTIONS)
        yield from (column for name, column in columns if stem(name) in FEATURES)

    def _columns_of_layers(self) -> Iterator[tuple[str, dict[str, tuple[Any, ...]]]]:
        """The arguments of the layers that all nodes have, by their fields."""
        for field, first in self.nodes[0].fields.items():
            nodes = [n.fields.get(field) for n in self.nodes]
            known = [n for n in nodes if isinstance(n, Node) and n in self.all.of]
            if not isinstance(first, Node) or first.listed or len(known) < len(nodes):
                continue
            if native_of(first) is None:
                made = [self.all.made(n) for n in known]
                names = made[0][0].arguments
                yield field, {n: tuple(m.arguments[n][i] for m, i in made) for n in names}

    def value(self, column: tuple[Any, ...], wanted: str) -> ast.expr:
        """An argument from its values in all nodes: a number, or an argument of this one."""
        if wanted == HEADS and column[0] < self.arguments.get(HEADS, column)[0]:
            wanted = KV_HEADS
        # A choice, as sizes are.
        given = wanted in (HEADS, KV_HEADS) and self._varies
        given = given and self.cls not in self.all.counted
        given = given and not (self._has_layers and {*column} == {1})  # of a single head
        whole = self.whole or wanted == KV_HEADS
        given = given and not (whole and wanted in self.all.as_numbers)
        if self._are_columns_of_heads(column, wanted):
            wanted, given = HEADS, True
        if all(v == column[0] for v in column) and not given:
            return expression(column[0])
        if self.whole and self.all.width and (multiple := self._of_width(column)) is not None:
            return multiple
        if (product := self._of_image(column)) is not None:
            return product
        if self.whole and len({*column}) > 1 and column in self.all.sums:
            return self._sum(self.all.sums[column])
        named = self._size(column)
        own = {} if named is None or named in self.statics else {named: column}
        if (chosen := self._chosen(column)) is not None:
            return chosen
        if self._has_layers and (multiple := self._multiple(column, named or stem(wanted))):
            return multiple
        for name, values in {**self.arguments, **own, **self.statics}.items():
            if values == column and name != GATES and _is_of(column, values):
                self.arguments.setdefault(name, column)
                self.names.taken.add(name)
                return ast.Name(name, ast.Load())
        if all(type(v) is int for v in column):
            named = {n: k for k, n in self.sizes.items() if n != GATES}
            whole = {
                n: tuple(map(int, k))
                for n, k in named.items()
                if all(map(str.isdigit, k)) and stem(n) in SIZES
            }
            bases = {**self.arguments, **whole}
            for name, values in bases.items():
                if not all(type(v) is int and v > 0 for v in values):
                    continue
                for k in range(2, 9):
                    if all(v == k * w for v, w in zip(column, values, strict=True)):
                        self.arguments.setdefault(name, values)
                        self.names.taken.add(name)
                        own = ast.Name(name, ast.Load())
                        return syntax.infix(number(k), "*", own)
                    # Others are multiples by chance.
                    known = name in self.arguments and self._varies
                    pairs = zip(column, values, strict=True)
                    if known and all(k * v == w for v, w in pairs):
                        return syntax.infix(ast.Name(name, ast.Load()), "//", number(k))
        wanted = stem(wanted)
        if self._has_layers and wanted in (*FEATURES, CHANNELS, HIDDEN):
            wanted = self._of_inside(column, wanted)
        # Names of other sizes are theirs, also of those that come later.
        name = Names({*self.names.taken, *self.sizes.values()}).new(wanted)
        self.names.taken.add(name)
        self.arguments[name] = column
        return ast.Name(name, ast.Load())

    def _are_columns_of_heads(self, column: tuple[Any, ...], wanted: str) -> bool:
        """Return whether a table, such as one of biases of scores, has a column for each head."""
        node = self.nodes[0].fields.get(self._current)
        if wanted not in _OUTPUTS or not isinstance(node, Node) or node not in self.all.of:
            return False
        if all(stem(name) != ROWS for name in self.all.made(node)[0].arguments):
            return False
        inner = [v for v in self.nodes[0].fields.values() if isinstance(v, Node)]
        nodes = [n for v in inner for n in (v.nodes if v.listed else [v]) if n in self.all.of]
        made = [self.all.made(n) for n in nodes if native_of(n) is None]
        heads = {m.arguments[HEADS][i] for m, i in made if HEADS in m.arguments}
        return heads == {*column} and self.cls not in self.all.heads_apart

    def _of_inside(self, column: tuple[Any, ...], wanted: str) -> str:
        """The name of a size of layers inside, which these call `wanted`."""
        taken, field = {*self.names.taken, *self.sizes.values()}, snake(self._current)
        if not self.whole:
            usual = CHANNELS if column[0] in self._channels else HIDDEN
            counted = re.search(r"_\d+$", self._current) is not None
            if usual not in taken or counted:
                return usual
            inside = self.nodes[0].fields.get(self._current)
            if not isinstance(inside, Node) or not inside.nodes:
                return f"{field}_{DIM}"
            return f"{field}_out" if wanted in _OUTPUTS else f"{field}_{HIDDEN}"
        inside = self.nodes[0].fields.get(self._current)
        if wanted in (CHANNELS, HIDDEN) and isinstance(inside, Node) and inside.nodes:
            return wanted  # a layer of layers says what it is
        if DIM not in taken:
            return DIM
        listed = isinstance(inside, Node) and inside.listed
        # An author's name says more, as in `code_size`; that of a list is not the name of a size.
        library = _AUTOMATIC.fullmatch(without_number(field)) is not None
        usual = CHANNELS if wanted in ("c_in", "c_out") else HIDDEN
        if field == HIDDEN or listed or library:
            return usual
        words = functools.reduce(_common_end, self._sharing(column), field.split("_"))
        name = "_".join(words) or field
        return f"{name}_size" if name.replace("_", "").isalpha() else usual

    def _sharing(self, column: tuple[Any, ...]) -> Iterator[list[str]]:
        """The words in the names of the layers that return arrays of a size."""
        for field, made in self._columns_of_layers():
            if any(c == column and stem(n) in (*_OUTPUTS, HIDDEN) for n, c in made.items()):
                yield snake(field).split("_")

    def _given_to(self, column: tuple[Any, ...], parameter: str) -> ast.expr:
        """The value of a parameter of the current layer."""
        value = self.value(column, parameter)
        if isinstance(value, ast.Name) and value.id == HIDDEN:
            self._hidden.add((self._current, parameter))
        if isinstance(value, ast.Constant) and stem(parameter) in FEATURES:
            axes = self._flattened.get(column[0], ())
            value = ast.parse(" * ".join(map(str, axes)), mode="eval").body if axes else value
        return value

    def _of_width(self, column: tuple[Any, ...]) -> ast.expr | None:
        """`dim` or `2 * dim`, if a size is the width of the model or its multiple."""
        width = self.all.width
        if not all(type(n) is int and n % w == 0 for n, w in zip(column, width, strict=True)):
            return None
        ratios = {n // w for n, w in zip(column, width, strict=True)}
        if len(ratios) != 1:
            return None
        (ratio,) = ratios
        if (product := self._of_image(column)) is not None:
            return product
        self.arguments.setdefault(DIM, width)
        self.names.taken.add(DIM)
        own = ast.Name(DIM, ast.Load())
        return own if ratio == 1 else syntax.infix(number(ratio), "*", own)

    def _sum(self, parts: Sequence[tuple[int, ...]]) -> ast.expr:
        """`3 * dim + n_in`, the features of arrays that are joined."""
        terms: list[ast.expr] = []
        for part, count in collections.Counter(parts).items():
            term = self.value(part, "n_in")
            terms.append(term if count == 1 else syntax.infix(number(count), "*", term))
        return functools.reduce(lambda a, b: syntax.infix(a, "+", b), terms)

    def _of_image(self, column: tuple[Any, ...]) -> ast.expr | None:
        """`4 * 4 * c_in`, for images of these sides that are flattened or made from vectors."""
        *sides, channels = self._flattened.get(column[0], (0,))
        count = math.prod(sides)
        whole = sides and all(type(n) is int and n % count == 0 for n in column)
        inside = tuple(n // count for n in column) if whole else ()
        if not inside or inside[0] != channels or inside == column or len({*inside}) == 1:
            return None
        text = ast.unparse(self.value(inside, CHANNELS))
        return ast.parse(" * ".join([*map(str, sides), text]), mode="eval").body

    def _multiple(self, column: tuple[Any, ...], name: str) -> ast.expr | None:
        """`4 * hidden` or `c_in // 4`, if this holds in all nodes."""
        for base, values in self.arguments.items():
            own = ast.Name(base, ast.Load())
            found = None
            if (k := factor(column, values)) is not None:
                found = syntax.infix(number(k), "*", own)
            elif (k := factor(values, column)) is not None:
                found = syntax.infix(own, "//", number(k))
            if found is not None:
                self._followers[name] = found, column
                return found
        return None

    def _chosen(self, column: tuple[Any, ...]) -> ast.expr | None:
        """`"SAME" if pad_width is None else "VALID"`, if this holds in all nodes."""
        for name, values in self.statics.items():
            pairs = {(v is None, c) for v, c in zip(values, column, strict=True)}
            if len(pairs) == len(dict(pairs)) == 2 and all(type(c) is str for c in column):
                self.arguments.setdefault(name, values)
                test = ast.Compare(ast.Name(name, ast.Load()), [ast.Is()], [ast.Constant(None)])
                missing, there = (literals.value(dict(pairs)[none]) for none in (True, False))
                return ast.IfExp(test, missing, there)
        return None

    def _size(self, column: tuple[Any, ...]) -> str | None:
        """The name of a size that differs between the layers."""
        named = self.sizes.get(tuple(map(str, column)))
        return KERNEL_SIZE if named in _SIDES and self._are_sides(column) else named

    def _are_sides(self, column: tuple[Any, ...]) -> bool:
        """Return whether a size is that of all sides of a kernel: a line, square or cube."""
        for field in self.nodes[0].fields:
            arrays = [v for n in self.nodes if isinstance(v := n.fields.get(field), Var)]
            shapes = [*map(self.all.shape, arrays)]
            if len(shapes) == len(column) and len(shapes[0]) > 2:
                axes = list(zip(*shapes, strict=True))
                if axes.count(column) == len(axes) - 2:
                    return True
        return False


def _places(cls: Class) -> dict[Node, int]:
    """The number of each layer in its class."""
    return {d.node: i for i, d in enumerate(cls.drafts)}


def _sides(name: str, column: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values of an argument, as one number where all axes that are not 1 agree."""
    if stem(name) not in _STEPS or not all(isinstance(v, tuple) for v in column):
        return column
    axes = list(dict.fromkeys(zip(*column, strict=True)))
    longer = [axis for axis in axes if {*axis} != {1}]
    return (longer or axes)[0] if len(longer) < 2 else column


def _is_of(column: tuple[Any, ...], values: tuple[Any, ...]) -> bool:
    """Return whether equal values are of the same types: `1 == True`."""
    return [*map(type, column)] == [*map(type, values)]


def _are_multiples(column: tuple[Any, ...], values: tuple[Any, ...]) -> bool:
    """Return whether sizes are multiples of others by one number."""
    pairs = [*zip(column, values, strict=True)]
    if not all(type(n) is int and type(m) is int and m for n, m in pairs):
        return False
    return len({n / m for n, m in pairs}) == 1 and column[0] % values[0] == 0


def _common_end(one: Sequence[str], other: Sequence[str]) -> Sequence[str]:
    """The words with which both of two names end."""
    count = 0
    for a, b in zip(reversed(one), reversed(other), strict=False):
        if a != b:
            break
        count += 1
    return one[len(one) - count :]


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
