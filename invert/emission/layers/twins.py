"""Gives each class a second layer, of sizes that the program does not have.

The text of a class is written for all of its layers (see `shared`), so sizes that the layers of a
program happen to share become arguments too. A twin has other sizes wherever its ties require them.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from jax import lax

from invert._private.jax import open_jaxpr
from invert.emission.layers.cut import LayerCall
from invert.emission.layers.flattened import flattened
from invert.emission.layers.shared import (
    Class,
    Draft,
    Numbers,
    NumbersOf,
    fit,
    is_block,
    number_of,
    settle,
)
from invert.emission.layers.size_groups import (
    Group,
    Groups,
    columns_of,
    new_sizes,
    of_one_width,
    proportional,
    size_of,
    sizes_of_one,
    with_equal,
    with_lookups,
    with_words,
)
from invert.emission.layers.ties import Axis, Strided, Ties, TiesOf
from invert.emission.layers.tree import Node
from invert.emission.python import syntax
from invert.ir.jaxprs import sub_jaxprs
from invert.ir.sizes import DimSize, Shape, is_open
from invert.ir.types import Atom, Eqn, ShapedArray, Var

# The largest factor between the sizes of one argument.
_LARGEST_FACTOR = 8
# Numbers in a text that are sizes only by chance: small ones, and powers of ten.
_SMALL, _ROUND = 5, (10, 100, 1000, 10000)
# The sizes that a twin has in common with its class: none; those that no parameter has, such as
# lengths; those of kernels as well; all those of parameters, but no others; all (there is no twin).
_NO_SIZES, LENGTHS, _KERNELS, _PARAMETERS, ALL = range(5)

# The most sizes of a module that only holds arrays.
_MOST_HELD = 2

_NONE = Class("", [])


@dataclasses.dataclass
class Scaled:
    """The shapes of arrays where some groups of tied sizes are others.

    **Arguments:**

    - `sizes`: for each of these groups, its unit and the new one.
    - `strided`: the convolutions that have other strides.
    - `free`: whether no parameter has some of these sizes.
    - `half`: whether all convolutions are padded by half of their kernels.
    - `source`: the layer; `node`: its twin.
    """

    ties: Ties
    sizes: Mapping[Axis, tuple[int, int]]
    strided: Sequence[Strided] = ()
    free: bool = False
    half: bool = False
    source: Node = dataclasses.field(init=False)
    node: Node = dataclasses.field(init=False)

    def shape(self, v: Atom) -> Shape:
        """The shape of a variable of the layers."""
        shape = tuple(getattr(v.aval, "shape", ()))
        return (
            tuple(self.size(v, i, n) for i, n in enumerate(shape)) if isinstance(v, Var) else shape
        )

    def size(self, v: Var, i: int, n: DimSize) -> DimSize:
        """The size of an axis, which is `n` in the program."""
        axis = self.ties.axis(v, i)
        root = self.ties.root(axis)
        if root in self.sizes and isinstance(n, int):
            unit, new = self.sizes[root]
            return n // unit * new
        if root not in self._images:
            return n
        new = self._images[root]
        whole = next((size_of(a) for a in self.ties.sums if self.ties.root(a) == root), n)
        # A fraction of a sum, such as the features of one group, changes in proportion.
        return new if whole == n or not isinstance(n, int) else n * int(new) // whole

    def unit(self, v: Var, i: int) -> int:
        """The number of which all sizes tied to an axis are multiples, 0 for one that stays."""
        unit, _ = self.sizes.get(self.ties.root(self.ties.axis(v, i)), (0, 0))
        return unit

    def keeps(self, v: Var, i: int) -> bool:
        """Return whether the size of an axis is that of the program."""
        root = self.ties.root(self.ties.axis(v, i))
        sums = (self.ties.root(a) for a in self.ties.sums)
        return root not in self.sizes and not (root in self._images and root in sums)

    def is_number(self, v: Var, i: int) -> bool:
        """As `keeps`, apart from the sides of kernels."""
        kernels = map(self.ties.root, self.ties.kernels)
        return self.keeps(v, i) and self.ties.root(self.ties.axis(v, i)) not in kernels

    @functools.cached_property
    def sums(self) -> Mapping[tuple[int, ...], Sequence[tuple[int, ...]]]:
        """The sizes that are sums of others, here and in the twin, with these."""
        return {
            self._column(axis): [*map(self._column, parts)]
            for axis, parts in self.ties.sums.items()
            if self.ties.root(axis) in self._images
        }

    def _column(self, axis: Axis) -> tuple[int, ...]:
        old, root = size_of(axis), self.ties.root(axis)
        unit, new = self.sizes.get(root, (1, 1))
        return old, int(self._images.get(root, old // unit * new))

    @property
    def slides(self) -> bool:
        """Return whether kernels or strides over images are others."""
        return bool(self.strided) or any(self.ties.root(a) in self.sizes for a in self.ties.kernels)

    def strides(self, draft: Draft) -> tuple[int, ...]:
        """The other strides of a layer that is a convolution."""
        own = {e for layer in draft.node.layers for e in layer.steps}
        found = [s for s in self.strided if s.eqn in own]
        return tuple(n + 1 for n in found[0].strides) if len(found) == 1 else ()

    @functools.cached_property
    def _images(self) -> Mapping[Axis, DimSize]:
        """Sizes of images that follow from those of others, of kernels, or from strides."""
        ties, found = self.ties, dict[Axis, DimSize]()
        strided = {id(conv.eqn) for conv in self.strided}

        def size(axis: Axis) -> DimSize:
            unit, new = self.sizes.get(ties.root(axis), (1, 1))
            return found.get(ties.root(axis), size_of(axis) // unit * new)

        for axis, window in ties.windows.items():
            kernel, source = window.kernel, size(window.source)
            side = kernel if isinstance(kernel, int) else size(kernel)
            stride = window.stride + (id(window.eqn) in strided)
            old = kernel if isinstance(kernel, int) else size_of(kernel)
            if (source, side, stride) != (size_of(window.source), old, window.stride):
                found[ties.root(axis)] = window.rule(source, int(side), stride)
        for axis, parts in ties.sums.items():
            total = sum(int(size(part)) for part in parts)
            if total != size_of(axis) and not ties.is_fixed(axis):
                found[ties.root(axis)] = total
        return found


@dataclasses.dataclass
class Choice:
    """The decisions on the sizes of a model.

    **Attributes:**

    - `kept`: sizes of its parameters, arguments and results that stay.
    - `joined`: those that are one if they are equal, although its layers do not require that.
    - `one_width`: whether its widths are multiples of one; `None` if that has not been tried.
    - `adds`: whether its features may be sums.
    """

    kept: set[tuple[Var, int]] = dataclasses.field(default_factory=set, init=False)
    joined: set[tuple[Var, int]] = dataclasses.field(default_factory=set, init=False)
    one_width: bool | None = dataclasses.field(default=None, init=False)
    adds: bool = dataclasses.field(default=True, init=False)


@dataclasses.dataclass
class Twins:
    """Makes the twins of classes.

    **Arguments:**

    - `of`: the classes of nodes; receives those of the twins.
    - `is_kept`: whether a parameter keeps its shape, such as a table written as numbers.
    - `ties`: those of the layers.
    - `given`: which sizes a class has as they are, one of the levels above.
    - `outermost`: the class of the whole model, of which equal sizes are not one.
    - `choice`: what is decided on its sizes.
    - `read`: the integers of all layers, which only change here.

    **Attributes:**

    - `has_one_width`: whether its widths are multiples of one, if that is tried.
    """

    of: dict[Node, Class]
    is_kept: Callable[[Var], bool]
    ties: TiesOf
    given: dict[Class, int]
    outermost: Class | None = None
    choice: Choice = dataclasses.field(default_factory=Choice)
    read: NumbersOf = dataclasses.field(default_factory=NumbersOf)
    has_one_width: bool = dataclasses.field(default=False, init=False)
    _scaled: dict[Class, Scaled] = dataclasses.field(default_factory=dict)
    _known: dict[Class, dict[Node, int]] = dataclasses.field(default_factory=dict)

    def add(self, cls: Class) -> Scaled | None:
        """Add the twin of a class and of the layers inside; return its shapes, if any."""
        first = cls.drafts[0]
        # A layer may have the method of another one, see `lend.lend`.
        whole = (
            d
            for d in cls.drafts
            if d.node.layers and len(d.node.fields) == len(first.node.fields) and not d.absent
        )
        draft = next(whole, first)
        computes = bool(draft.node.layers and draft.methods)
        if self.given.get(cls) == ALL or not (computes or not draft.node.nodes):
            return None
        half = not draft.node.nodes and _are_padded_by_half(cls.drafts)
        if not draft.node.nodes and any(map(_is_causal, cls.drafts)):
            # The constructor computes the padding from the kernel; that of a twin would stay.
            self.given[cls] = max(self.given.get(cls, _NO_SIZES), _KERNELS)
        adds = self.choice.adds and cls is self.outermost
        ties = self.ties.of(draft.node.layers, half=half, adds=adds)
        for v, i in self._fixed(draft.node) if cls is self.outermost else ():
            ties.fix(v, i)
        fields = dict(self._fields(draft.node, kept=False))
        if any(fields.values()):  # a layer inside is for its sizes only
            self.given[cls] = _PARAMETERS
        for v in fields:
            for i in range(len(v.aval.shape)):
                ties.tie(v, i, v, i)
                if self.is_kept(v):
                    ties.fix(v, i)
        for vector, matrix in () if computes else _biases(cls.drafts):
            ties.tie(vector, 0, matrix, 1)
        axes = {ties.axis(v, i) for v in fields for i in range(len(v.aval.shape))}
        if cls is self.outermost:
            self._fix_arguments(draft.node, ties)
        ties.settle()
        sizes = self._sizes(cls, ties, axes)
        if not sizes or (not computes and len(sizes) > _MOST_HELD):
            return None
        own = set(map(ties.root, axes))
        level = self.given.get(cls, _NO_SIZES)
        strided = _strided(ties) if level < _KERNELS and cls is not self.outermost else []
        scaled = Scaled(ties, sizes, strided, free=not sizes.keys() <= own, half=half)
        if _Numbers(draft, scaled, self.read[draft]).has_values(self.read[draft].constants):
            self.given[cls] = self.weaker(cls, scaled)
            return self.add(cls)
        scaled.source, scaled.node = draft.node, self._twin(draft.node, scaled)
        self._scaled[cls] = scaled
        return scaled

    def weaker(self, cls: Class, scaled: Scaled, *, unnamed: bool = False) -> int:
        """The next level for a class whose twin fails.

        **Arguments:**

        - `unnamed`: whether sizes of parameters are the reason.
        """
        level = self.given.get(cls, _NO_SIZES)
        if level < _PARAMETERS and unnamed:
            return _PARAMETERS
        if level < LENGTHS and scaled.free:
            return LENGTHS
        if level < _KERNELS and scaled.slides:
            return _KERNELS
        return _PARAMETERS if level < _PARAMETERS else ALL

    def _fields(self, node: Node, *, kept: bool) -> Iterator[tuple[Var, bool]]:
        """The parameters of a module, and whether they are in a class without a twin."""
        level = self.given.get(self.of.get(node, _NONE), _NO_SIZES)
        kept = kept or (not node.listed and level >= _PARAMETERS)
        native = any(layer.native is not None for layer in node.layers)
        kept = kept or native or not (node.listed or node in self.of)
        for value in node.fields.values():
            if isinstance(value, Node):
                yield from self._fields(value, kept=kept)
            else:
                yield value, kept

    def _sizes(self, cls: Class, ties: Ties, fields: Set[Axis]) -> dict[Axis, tuple[int, int]]:
        """For each group of sizes that change, its unit and the new unit."""
        first = cls.drafts[0].node
        inner = first.nodes
        several = len(inner) > 1 or is_block(first)
        places = self._places(first, ties) if cls is self.outermost else None
        level = self.given.get(cls, _NO_SIZES)
        kernels = set(map(ties.root, ties.kernels))
        images = {ties.root(w.source) for w in ties.windows.values()}
        follow = {ties.root(a) for a in ties.windows}
        sums = {ties.root(a) for a in ties.sums}
        parts = {ties.root(a) for terms in ties.sums.values() for a in terms}
        # Of the model, equal sizes may be different ones.
        alike = inner and cls is not self.outermost
        kept = {size_of(a) for a in fields if ties.is_fixed(a)} if alike else set[DimSize]()
        known = Groups(ties, places, several=several)
        single = sizes_of_one(cls, ties) if alike else set[Axis]()
        for root, members in ties.groups():
            own = {size_of(a) for a in members if a in fields}
            group = Group({root}, [size_of(a) for a in members], own)
            slides = root in kernels
            # A size that no parameter has, such as a length, is not one: such axes broadcast.
            least = 1 if group.own else 2
            if root in sums or not all(type(n) is int and n >= least for n in group.sizes):
                continue
            if root in single or (group.own and level == _PARAMETERS):
                continue
            if not (group.own or root in parts) and (
                cls is self.outermost or level in (LENGTHS, _KERNELS) or root in follow
            ):
                continue
            if group.own & kept or (slides and (inner or level >= _KERNELS)):
                continue
            if slides and set(group.sizes) == {1} and any(size_of(a) != 1 for a in ties.kernels):
                continue  # of a pointwise kernel after a depthwise one
            known.add(group)
        found = known.found
        if cls is self.outermost:
            equal = {ties.root(ties.axis(v, i)) for v, i in self.choice.joined}
            found = with_lookups(with_words(found, first, ties), first, ties)
            found = with_equal(found, equal, first, ties)
        if self.choice.one_width and cls is self.outermost:
            merged = of_one_width(found, first, ties)
            self.has_one_width = merged is not None
            return new_sizes(found if merged is None else merged, kernels, images)
        flat = {count: image[-1] for count, image in flattened(first.walk())}
        own = {id(g): {flat.get(n, n) for n in g.own} for g in found if g.own}
        far = [g for g in found if g.own and max(own[id(g)]) > _LARGEST_FACTOR * min(own[id(g)])]
        if inner and far and cls is not self.outermost:
            return {}
        found = [g for g in found if g not in far] if inner else found
        groups = proportional(found, columns_of(cls, ties)) if several else found
        return new_sizes(groups, kernels, images)

    def _fixed(self, node: Node) -> Iterator[tuple[Var, int]]:
        """The sizes of the model that stay, with those that the layers inside have as numbers."""
        yield from self.choice.kept
        yield from self.numbers_inside(node, whole=True)

    def numbers_inside(self, node: Node, *, whole: bool) -> Iterator[tuple[Var, int]]:
        """The sizes that the layers inside a module have as numbers.

        **Arguments:**

        - `whole`: whether those of layers without any size as an argument are among them.
        """
        sources = functools.cache(lambda source: dict(source.leaves()))
        for inner in node.walk():
            scaled = self._scaled.get(self.of.get(inner, _NONE))
            if inner is node or inner.listed or (scaled is None and not whole):
                continue
            known = sources(scaled.source) if scaled is not None else {}
            for path, v in inner.leaves():
                for i in range(len(v.aval.shape)):
                    if scaled is None or scaled.keeps(known[path], i):
                        yield v, i

    def _fix_arguments(self, node: Node, ties: Ties) -> None:
        """Fix all sizes that are one argument of a layer inside, if one of them is fixed."""
        found: dict[Hashable, list[Axis]] = {}
        for axis, places in self._places(node, ties).items():
            for place in places:
                found.setdefault(place, []).append(axis)
        fixed: Set[Hashable] = frozenset()
        while (more := {p for p, a in found.items() if any(map(ties.is_fixed, a))}) != fixed:
            fixed = more
            for _, v, i in (axis for place in fixed for axis in found[place]):
                ties.fix(v, i)

    def _places(self, node: Node, ties: Ties) -> Mapping[Axis, set[Hashable]]:
        """For sizes, the arguments of the layers inside that they are, with their values.

        Layers without layers inside do not count, since they have nothing in common but their kind.
        """
        found: dict[Axis, set[Hashable]] = {}
        sources = functools.cache(lambda source: dict(source.leaves()))
        for inner in node.walk():
            scaled = self._scaled.get(self.of.get(inner, _NONE))
            if inner is node or scaled is None or not (inner.nodes or is_block(inner)):
                continue
            known = sources(scaled.source)
            for path, v in inner.leaves():
                for i, n in enumerate(v.aval.shape):
                    root = scaled.ties.root(scaled.ties.axis(known[path], i))
                    unit, new = scaled.sizes.get(root, (0, 0))
                    if unit:
                        value = n * unit // known[path].aval.shape[i]
                        place = (self.of[inner], new, value)
                        found.setdefault(ties.root(ties.axis(v, i)), set()).add(place)
        return found

    def _twin(self, node: Node, scaled: Scaled) -> Node:
        """A module of other sizes; its classes get it as a further layer."""
        fields: dict[str, Var | Node] = {}
        for name, value in node.fields.items():
            if isinstance(value, Node):
                fields[name] = self._twin(value, scaled)
            else:
                fields[name] = Var(ShapedArray(scaled.shape(value), value.aval.dtype))
        twin = dataclasses.replace(node, fields=fields)
        if (cls := self.of.get(node)) is not None:
            self.of[twin] = cls
            if (place := self._place(cls, node)) is not None:
                _add(cls, place, twin, scaled, self.read)
        return twin

    def _place(self, cls: Class, node: Node) -> int | None:
        """The number of a module's draft in its class."""
        known = self._known.setdefault(cls, {})
        for i in range(len(known), len(cls.drafts)):  # those that have come since
            known[cls.drafts[i].node] = i
        return known.get(node)


def unfit(
    written: Sequence[Class], scaled: Mapping[Class, Scaled], read: NumbersOf
) -> Iterator[Class]:
    """The classes whose twins, or the layers inside, do not share the text of their class."""
    inside = {outer: set(one.node.walk()) for outer, one in scaled.items()}
    for cls in written:
        drafts = [d for d in cls.drafts if d.twin is None]
        for outer, nodes in inside.items():
            more = [d for d in cls.drafts if d.twin is not None and d.node in nodes]
            if more and not fit([*drafts, *more], read):
                yield outer
            else:
                drafts += more


def _strided(ties: Ties) -> list[Strided]:
    """The convolutions whose results must have equal sizes, as on both sides of a shortcut."""
    groups: dict[Hashable, list[Strided]] = {}
    convs = {id(conv.eqn) for conv in ties.strided}
    pooled = {
        ties.root(axis)
        for axis, window in ties.windows.items()
        if window.stride != 1 and id(window.eqn) not in convs
    }
    for conv in ties.strided:
        key = tuple(map(ties.root, (*conv.old, *conv.new)))
        if pooled.isdisjoint(key):
            groups.setdefault((conv.strides, key), []).append(conv)
    found = [conv for group in groups.values() if len(group) > 1 for conv in group]
    made = {ties.root(a) for conv in found for a in conv.new}
    known = all(type(size_of(a)) is int and ties.root(a) not in made for c in found for a in c.old)
    return found if known else []


def _biases(drafts: Sequence[Draft]) -> Iterator[tuple[Var, Var]]:
    """Vectors and matrices of equal width, in a module that computes nothing."""
    fields = [{n: v for n, v in d.node.fields.items() if isinstance(v, Var)} for d in drafts]
    for (one, v), (other, w) in itertools.permutations(fields[0].items(), 2):
        if len(v.aval.shape) == 1 and len(w.aval.shape) == 2:
            shapes = [
                (f[one].aval.shape, f[other].aval.shape) for f in fields if {one, other} <= f.keys()
            ]
            if all(vector == matrix[1:] for vector, matrix in shapes):
                yield v, w


def _convolutions(draft: Draft) -> list[Eqn]:
    """The convolutions of a layer. Kernels of open size do not count: no parameter has one."""
    steps = (e for layer in draft.node.layers for e in layer.steps)
    found = (e for e in steps if e.primitive is lax.conv_general_dilated_p)
    return [e for e in found if not any(map(is_open, e.invars[1].aval.shape))]


def _channels(draft: Draft, scaled: Scaled, groups: int) -> set[int]:
    """The channels in the twin of the convolutions that have a kernel for each of `groups`."""
    found = set[int]()
    for eqn in _convolutions(draft):
        images, axis = eqn.invars[0], eqn.params["dimension_numbers"].lhs_spec[1]
        if eqn.params["feature_group_count"] == images.aval.shape[axis] == groups:
            found.add(int(scaled.shape(images)[axis]))
    return found


def _sides(eqn: Eqn, scaled: Scaled | None = None) -> list[int]:
    """The sizes of the kernel of a convolution, or those in the twin."""
    kernel = eqn.invars[1]
    shape = kernel.aval.shape if scaled is None else scaled.shape(kernel)
    return [int(shape[i]) for i in eqn.params["dimension_numbers"].rhs_spec[2:]]


def _are_padded_by_half(drafts: Sequence[Draft]) -> bool:
    """Return whether each layer is one convolution, padded by half of its kernel on all sides."""
    found = [*map(_convolutions, drafts)]
    return all(len(eqns) == 1 for eqns in found) and all(
        [*map(tuple, eqn.params["padding"])] == [(k // 2, k // 2) for k in _sides(eqn)]
        and all(k % 2 for k in _sides(eqn))
        and {*eqn.params["lhs_dilation"], *eqn.params["rhs_dilation"]} == {1}
        for eqns in found
        for eqn in eqns
    )


def _is_causal(draft: Draft) -> bool:
    """Return whether a layer is a convolution of a sequence that sees only earlier steps."""
    steps = [e for layer in draft.node.layers for e in layer.steps]
    padded: dict[Atom, Any] = {
        e.outvars[0]: e.params["padding_config"] for e in steps if e.primitive is lax.pad_p
    }
    for eqn in _convolutions(draft):
        config = padded.get(eqn.invars[0], ())
        widths = [(n - 1) * k for n, k in zip(_sides(eqn), eqn.params["rhs_dilation"], strict=True)]
        if len(widths) == 1 and widths[0] and (widths[0], 0, 0) in config:
            return True
    return False


def _add(cls: Class, place: int, node: Node, scaled: Scaled, read: NumbersOf) -> None:
    """Add the twin of one layer to its class."""
    draft = cls.drafts[place]
    arrays = [
        (
            kind,
            tuple(n if a is None else scaled.size(*a, n) for n, a in zip(shape, axes, strict=True)),
        )
        for (kind, shape), axes in zip(draft.arrays, draft.axes, strict=True)
    ]
    inner = [
        (expression, tuple(scaled.size(*a, n) for n, a in zip(shape, axes, strict=True)))
        for (expression, shape), axes in zip(draft.inner, draft.inner_axes, strict=True)
    ]
    twin = dataclasses.replace(draft, node=node, arrays=arrays, inner=inner, twin=draft)
    read[twin] = own = read[draft].copied()
    own.options[:] = _options(draft, scaled, own.options)
    _set_reshaped(own, draft, scaled)
    if own.constants:
        numbers = _Numbers(draft, scaled, own)
        for constant in own.constants:
            if (new := numbers.new(constant)) is not None:
                constant.value = new
    for name, values in cls.statics.items():
        cls.statics[name] = (*values, values[place])
    for name in cls.optional:
        if (draft.node, name) in cls.shapes:
            cls.shapes[node, name] = arrays[draft.place(name)][1]
    cls.drafts.append(twin)
    settle(cls.drafts, read)


def _options(
    draft: Draft, scaled: Scaled, options: Sequence[tuple[str, Any]]
) -> Iterator[tuple[str, Any]]:
    """The static arguments of the twin of a layer."""
    other = scaled.strides(draft) if [n for n, _ in options].count("strides") == 1 else ()
    for name, value in options:
        new = value
        if name == "strides":
            new = other or value
        elif name == "padding" and scaled.half and isinstance(value, tuple):
            # "SAME" holds for any kernel.
            sides = _sides(_convolutions(draft)[0], scaled)
            new = tuple((k // 2, k // 2) for k in sides)
        elif name == "groups" and len(news := _channels(draft, scaled, value)) == 1:
            (new,) = news
        yield name, new


def _set_reshaped(numbers: Numbers, draft: Draft, scaled: Scaled) -> None:
    """Write the new sizes in `x.reshape(batch, 16, 16, 4, 4)`, where two sizes may be 16."""
    steps = (s for layer in draft.node.layers if numbers.reshapes for s in layer.steps)
    made = [s.outvars[0] for s in steps if s.primitive.name == "reshape"]
    for places in numbers.reshapes:
        own = [None if i is None else numbers.constants[i] for i in places]
        news = {
            scaled.shape(v)
            for v in made
            if len(v.aval.shape) == len(own)
            and all(c is None or c.value == m for c, m in zip(own, v.aval.shape, strict=True))
        }
        # Arrays of equal shapes may have different ones in the twin.
        for constant, sizes in zip(own, zip(*news, strict=True), strict=False):
            if constant is not None and len({*sizes}) == 1:
                (new,) = {*sizes}
                constant.value = new if isinstance(new, int) else constant.value


class _Numbers:
    """The numbers in the text of a layer, and what they are in its twin.

    **Arguments:**

    - `integers`: those in the text, of the layer or of its twin.

    **Attributes:**

    - `sizes`: the sizes in the layer, with those that they have in the twin.
    """

    def __init__(self, draft: Draft, scaled: Scaled, integers: Numbers):
        self._draft, self._scaled = draft, scaled
        self._in_shapes = {id(integers.constants[i]) for i in integers.plain}
        self._steps = {id(s): s for layer in draft.node.layers for s in _every(layer.steps)}
        atoms = (a for s in self._steps.values() for a in _atoms(s))
        self._variables = {id(a): a for a in atoms if isinstance(a, Var)}
        inputs = (v for layer in draft.node.layers for v in layer.inputs)
        self.sizes = self._found(
            itertools.chain(inputs, *(_atoms(s) for x in draft.node.layers for s in x.steps))
        )

    def new(self, constant: ast.Constant) -> int | None:
        """The number in the twin, if it is clear.

        One that comes from an axis, or stands in the shape of an equation, is a size of that,
        whatever has that size elsewhere.
        """
        number = number_of(constant)
        for sizes in (self._at(constant), self.sizes):
            if len(news := sizes.get(number, ())) == 1:
                (new,) = news
                return new
        return None

    def _at(self, constant: ast.Constant) -> dict[int, set[int]]:
        origin = syntax.origin_of(constant)
        for v, axis in (
            (self._variables.get(o[0]), o[1]) for o in origin if not isinstance(o, int)
        ):
            if v is not None and isinstance(old := v.aval.shape[axis], int):
                return {old: {int(self._scaled.size(v, axis, old))}}
        if id(constant) not in self._in_shapes:
            return {}
        steps = (self._steps.get(o) for o in origin if isinstance(o, int))
        return self._found(a for s in steps if s is not None for a in _atoms(s))

    def _found(self, atoms: Iterable[Atom]) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for atom in atoms:
            for old, new in zip(
                getattr(atom.aval, "shape", ()), self._scaled.shape(atom), strict=True
            ):
                if type(old) is int:
                    found.setdefault(old, set()).add(int(new))
        return found

    def has_values(self, constants: Iterable[ast.Constant]) -> bool:
        """Return whether numbers in the text follow from a size, but would not change with it.

        Examples are the factor `1 / 49` of a mean, and `x / 8**0.5` if the head size is 8 and
        another size is 8 too.

        **Arguments:**

        - `constants`: the integers in the text.
        """
        draft, sizes = self._draft, self.sizes
        # Scores are divided by the root of a size, however small.
        scored = any("softmax(" in text for text in draft.texts)
        changing = [n for n, new in sizes.items() if new != {n} and n > 1 and n not in _ROUND]
        unclear = {n for n in changing if len(sizes[n]) > 1}
        nodes = [n for m in draft.methods for s in m.body for n in syntax.walk(s)]
        powers = [float(n) ** k for n in changing if n >= (2 if scored else _SMALL)
                  for k in (1, -1, 0.5, -0.5)]  # fmt: skip
        clear = {id(c) for c in constants if self._is_clear(c, changing)}
        # The exponent of a root is not a size.
        clear |= {
            id(n.right) for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Pow)
        }
        for node in nodes:
            if id(node) in clear:
                continue
            if isinstance(node, ast.BinOp):
                divides = scored and isinstance(node.op, ast.Div | ast.Pow)
                numbers = {_number(x) for x in (node.left, node.right) if id(x) not in clear}
                if any(n in unclear and n >= (2 if divides else _SMALL) for n in numbers if n):
                    return True
            value = _number(node)
            if isinstance(value, float) and any(
                math.isclose(abs(value), p, rel_tol=1e-6) for p in powers
            ):
                return True
        return False

    def _is_clear(self, constant: ast.Constant, changing: Sequence[int]) -> bool:
        return constant.value in changing and self.new(constant) is not None


def _every(steps: Iterable[Eqn]) -> Iterator[Eqn]:
    """Some steps, and those of the programs inside."""
    for step in steps:
        yield step
        if not isinstance(step, LayerCall):
            for inner in sub_jaxprs(step):
                yield from _every(open_jaxpr(inner).eqns)


def _atoms(step: Eqn) -> Sequence[Atom]:
    return (*step.invars, *step.outvars)


def _number(node: ast.AST) -> float | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
