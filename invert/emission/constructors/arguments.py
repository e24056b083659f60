"""The arguments of a constructor: which sizes are arguments, and what they are called."""

from __future__ import annotations

import ast
import collections
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from invert.emission.constructors.derived import expression
from invert.emission.constructors.initializers import Initializers
from invert.emission.constructors.sizes import (
    CHANNELS,
    DIM,
    FEATURES,
    GATES,
    HEADS,
    HIDDEN,
    KERNEL_SIZE,
    KV_HEADS,
    OUTPUTS,
    ROWS,
    SIDES,
    SIZES,
    STEPS,
)
from invert.emission.equinox_nn.construct import native_of
from invert.emission.expressions import literals
from invert.emission.layers.flattened import flattened
from invert.emission.layers.library_names import without_number
from invert.emission.layers.proportions import factor
from invert.emission.layers.shared import OPTIONS, Class
from invert.emission.layers.tree import Node
from invert.emission.python import syntax
from invert.emission.python.naming import Names, snake, stem
from invert.emission.python.syntax import number
from invert.ir.sizes import Shape
from invert.ir.types import Var

# Options of a layer, passed by keyword.
BY_KEYWORD = OPTIONS | {KERNEL_SIZE, *SIDES}
# Names that libraries give layers of features and of channels.
_AUTOMATIC = re.compile(r"dense|linear|conv([1-3]d)?(_transpose)?")
# Stands for the arguments of a layer that a node lacks.
MISSING = object()


class Arguments:
    """The arguments of one constructor, with their values for each of the nodes that share it.

    **Arguments:**

    - `sizes`: names of sizes that differ between the nodes.
    - `names`: the names that are taken.
    - `whole`: whether it is the constructor of the model.

    **Attributes:**

    - `columns`: the values of each argument, one for each node.
    - `followers`: sizes that follow from arguments, with their values.
    - `hidden`: the fields whose layers take the hidden size, and as what.
    - `current`: the field that is written.
    """

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
        self.inits, self.nodes, self.sizes, self.names = inits, nodes, sizes, names
        self.cls = cls
        self.statics = {name: _sides(name, c) for name, c in cls.statics.items()}
        self.columns: dict[str, tuple[Any, ...]] = {}
        self.followers: dict[str, tuple[ast.expr, tuple[Any, ...]]] = {}
        self.hidden: set[tuple[str, str]] = set()
        self.current = ""
        self.has_layers = bool(nodes[0].nodes)
        self._flattened = dict(flattened(nodes))
        self._channels = {image[-1] for _, image in flattened(nodes[:1])}

    @functools.cached_property
    def varies(self) -> bool:
        """Return whether the text of the class holds for parameters of other sizes."""
        twins = [(d.node, d.twin.node) for d in self.cls.drafts if d.twin is not None]
        return any(_shapes(node) != _shapes(twin) for node, twin in twins)

    def value(self, column: tuple[Any, ...], wanted: str) -> ast.expr:
        """An argument from its values in all nodes: a number, or an argument of this one."""
        if wanted == HEADS and column[0] < self.columns.get(HEADS, column)[0]:
            wanted = KV_HEADS
        is_choice = self._is_choice(column, wanted)
        if self._are_columns_of_heads(column, wanted):
            wanted, is_choice = HEADS, True
        if all(v == column[0] for v in column) and not is_choice:
            return expression(column[0])
        if self.whole and self.inits.width and (multiple := self._of_width(column)) is not None:
            return multiple
        if (product := self._of_image(column)) is not None:
            return product
        if self.whole and len({*column}) > 1 and column in self.inits.sums:
            return self._sum(self.inits.sums[column])
        named = self._size(column)
        own = {} if named is None or named in self.statics else {named: column}
        if (chosen := self._chosen(column)) is not None:
            return chosen
        if self.has_layers and (multiple := self._multiple(column, named or stem(wanted))):
            return multiple
        for name, values in {**self.columns, **own, **self.statics}.items():
            if values == column and name != GATES and _is_of(column, values):
                return self._argument(name, column)
        if (multiple := self._of_known(column)) is not None:
            return multiple
        wanted = stem(wanted)
        if self.has_layers and wanted in (*FEATURES, CHANNELS, HIDDEN):
            wanted = self._of_inside(column, wanted)
        # A name of another size is left to it, even if that comes later.
        return self._argument(Names({*self.names.taken, *self.sizes.values()}).new(wanted), column)

    def _argument(self, name: str, column: tuple[Any, ...]) -> ast.expr:
        """The argument of this name, which may be a new one."""
        self.columns.setdefault(name, column)
        self.names.taken.add(name)
        return ast.Name(name, ast.Load())

    def _is_choice(self, column: tuple[Any, ...], wanted: str) -> bool:
        """Return whether a number is an argument even where all nodes share it: that of heads."""
        if wanted not in (HEADS, KV_HEADS) or not self.varies or self.cls in self.inits.counted:
            return False
        if self.has_layers and {*column} == {1}:  # of a single head
            return False
        return not ((self.whole or wanted == KV_HEADS) and wanted in self.inits.as_numbers)

    def _of_known(self, column: tuple[Any, ...]) -> ast.expr | None:
        """A size as a small multiple, or a part, of one that has a name."""
        if not all(type(v) is int for v in column):
            return None
        named = {n: k for k, n in self.sizes.items() if n != GATES}
        whole = {
            n: tuple(map(int, k))
            for n, k in named.items()
            if all(map(str.isdigit, k)) and stem(n) in SIZES
        }
        bases = {**self.columns, **whole}
        for name, values in bases.items():
            if not all(type(v) is int and v > 0 for v in values):
                continue
            for k in range(2, 9):
                if all(v == k * w for v, w in zip(column, values, strict=True)):
                    return syntax.infix(number(k), "*", self._argument(name, values))
                # One that is not an argument yet may be a multiple by chance.
                known = name in self.columns and self.varies
                pairs = zip(column, values, strict=True)
                if known and all(k * v == w for v, w in pairs):
                    return syntax.infix(ast.Name(name, ast.Load()), "//", number(k))
        return None

    def _are_columns_of_heads(self, column: tuple[Any, ...], wanted: str) -> bool:
        """Return whether a table, such as one of biases of scores, has a column for each head.

        Where the attentions have a fixed number of heads, their biases do, too.
        """
        node = self.nodes[0].fields.get(self.current)
        if wanted not in OUTPUTS or not isinstance(node, Node) or node not in self.inits.of:
            return False
        if not self._is_choice(column, HEADS):
            return False
        if all(stem(name) != ROWS for name in self.inits.made(node)[0].arguments):
            return False
        inner = [v for v in self.nodes[0].fields.values() if isinstance(v, Node)]
        nodes = [n for v in inner for n in (v.nodes if v.listed else [v]) if n in self.inits.of]
        made = [self.inits.made(n) for n in nodes if native_of(n) is None]
        heads = {m.arguments[HEADS][i] for m, i in made if HEADS in m.arguments}
        return heads == {*column} and self.cls not in self.inits.heads_apart

    def _of_inside(self, column: tuple[Any, ...], wanted: str) -> str:
        """The name here of a size that the layers inside call `wanted`."""
        taken, field = {*self.names.taken, *self.sizes.values()}, snake(self.current)
        if not self.whole:
            usual = CHANNELS if column[0] in self._channels else HIDDEN
            counted = re.search(r"_\d+$", self.current) is not None
            if usual not in taken or counted:
                return usual
            inside = self.nodes[0].fields.get(self.current)
            if not isinstance(inside, Node) or not inside.nodes:
                return f"{field}_{DIM}"
            return f"{field}_out" if wanted in OUTPUTS else f"{field}_{HIDDEN}"
        inside = self.nodes[0].fields.get(self.current)
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
            if any(c == column and stem(n) in (*OUTPUTS, HIDDEN) for n, c in made.items()):
                yield snake(field).split("_")

    def given_to(self, column: tuple[Any, ...], parameter: str) -> ast.expr:
        """The value of a parameter of the current layer."""
        value = self.value(column, parameter)
        if isinstance(value, ast.Name) and value.id == HIDDEN:
            self.hidden.add((self.current, parameter))
        if isinstance(value, ast.Constant) and stem(parameter) in FEATURES:
            axes = self._flattened.get(column[0], ())
            value = ast.parse(" * ".join(map(str, axes)), mode="eval").body if axes else value
        return value

    def _of_width(self, column: tuple[Any, ...]) -> ast.expr | None:
        """`dim` or `2 * dim`, if a size is the width of the model or its multiple."""
        width = self.inits.width
        if not all(type(n) is int and n % w == 0 for n, w in zip(column, width, strict=True)):
            return None
        ratios = {n // w for n, w in zip(column, width, strict=True)}
        if len(ratios) != 1:
            return None
        (ratio,) = ratios
        if (product := self._of_image(column)) is not None:
            return product
        own = self._argument(DIM, width)
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
        for base, values in self.columns.items():
            own = ast.Name(base, ast.Load())
            found = None
            if (k := factor(column, values)) is not None:
                found = syntax.infix(number(k), "*", own)
            elif (k := factor(values, column)) is not None:
                found = syntax.infix(own, "//", number(k))
            if found is not None:
                self.followers[name] = found, column
                return found
        return None

    def _chosen(self, column: tuple[Any, ...]) -> ast.expr | None:
        """`"SAME" if pad_width is None else "VALID"`, if this holds in all nodes."""
        for name, values in self.statics.items():
            pairs = {(v is None, c) for v, c in zip(values, column, strict=True)}
            if len(pairs) == len(dict(pairs)) == 2 and all(type(c) is str for c in column):
                self.columns.setdefault(name, values)
                test = ast.Compare(ast.Name(name, ast.Load()), [ast.Is()], [ast.Constant(None)])
                missing, there = (literals.value(dict(pairs)[none]) for none in (True, False))
                return ast.IfExp(test, missing, there)
        return None

    def _size(self, column: tuple[Any, ...]) -> str | None:
        """The name of a size that differs between the layers."""
        named = self.sizes.get(tuple(map(str, column)))
        return KERNEL_SIZE if named in SIDES and self._are_sides(column) else named

    def _are_sides(self, column: tuple[Any, ...]) -> bool:
        """Return whether a size is that of all sides of a kernel: a line, square or cube."""
        for field in self.nodes[0].fields:
            arrays = [v for n in self.nodes if isinstance(v := n.fields.get(field), Var)]
            shapes = [*map(self.inits.shape, arrays)]
            if len(shapes) == len(column) and len(shapes[0]) > 2:
                axes = list(zip(*shapes, strict=True))
                if axes.count(column) == len(axes) - 2:
                    return True
        return False

    def completed(self, column: Sequence[Any], name: str) -> tuple[Any, ...]:
        """Values for nodes without a layer: those of an argument that fits, or what is most common.

        The size of a kernel is never taken for that of something else.
        """
        given = [v for v in column if v is not MISSING]
        if len(given) == len(column) or (type(given[0]) is bool and len(set(given)) == 1):
            return (given[0],) * len(column) if len(given) < len(column) else tuple(column)
        sizes = [tuple(int(n) if n.isdigit() else n for n in k) for k in self.sizes]
        for known in (*sizes, *self.columns.values(), *self._given()):
            if stem(name) != KERNEL_SIZE and all(
                a is MISSING or (a == b and type(a) is type(b))  # `1 == True`
                for a, b in zip(column, known, strict=True)
            ):
                return known
        ((usual, _),) = collections.Counter(given).most_common(1)
        return tuple(usual if a is MISSING else a for a in column)

    def _given(self) -> Iterator[tuple[Any, ...]]:
        """The options of the layers that all nodes have, such as strides, then their sizes."""
        columns = [pair for _, made in self._columns_of_layers() for pair in made.items()]
        yield from (column for name, column in columns if stem(name) in BY_KEYWORD)
        yield from (column for name, column in columns if stem(name) in FEATURES)

    def _columns_of_layers(self) -> Iterator[tuple[str, dict[str, tuple[Any, ...]]]]:
        """The arguments of the layers that all nodes have, by their fields."""
        for field, first in self.nodes[0].fields.items():
            nodes = [n.fields.get(field) for n in self.nodes]
            known = [n for n in nodes if isinstance(n, Node) and n in self.inits.of]
            if not isinstance(first, Node) or first.listed or len(known) < len(nodes):
                continue
            if native_of(first) is None:
                made = [self.inits.made(n) for n in known]
                names = made[0][0].arguments
                yield field, {n: tuple(m.arguments[n][i] for m, i in made) for n in names}

    def sort(self) -> None:
        """Sort arguments: sizes first, inputs before outputs, as in libraries."""
        places = {name: i for i, name in enumerate(SIZES)}

        def place(name: str) -> int:
            kind = "n_in" if name in self.inits.inputs else stem(name)
            told = (p for n, p in places.items() if kind.endswith(f"_{n}") and n != DIM)
            inside = places[HIDDEN] if kind.endswith(("_size", f"_{DIM}")) else len(places)
            return places.get(kind, next(told, inside))

        order = sorted(self.columns, key=place)
        self.columns = {name: self.columns[name] for name in order}


def _shapes(node: Node) -> list[Shape]:
    return [v.aval.shape for _, v in node.leaves()]


def _sides(name: str, column: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values of an argument, as one number where all axes that are not 1 agree."""
    if stem(name) not in STEPS or not all(isinstance(v, tuple) for v in column):
        return column
    axes = list(dict.fromkeys(zip(*column, strict=True)))
    longer = [axis for axis in axes if {*axis} != {1}]
    return (longer or axes)[0] if len(longer) < 2 else column


def _is_of(column: tuple[Any, ...], values: tuple[Any, ...]) -> bool:
    """Return whether equal values have equal types, as `1 == True` do not."""
    return [*map(type, column)] == [*map(type, values)]


def _common_end(one: Sequence[str], other: Sequence[str]) -> Sequence[str]:
    """The words with which both of two names end."""
    count = 0
    for a, b in zip(reversed(one), reversed(other), strict=False):
        if a != b:
            break
        count += 1
    return one[len(one) - count :]
