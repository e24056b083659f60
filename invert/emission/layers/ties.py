"""Ties sizes of a layer that change together: of its arguments, kernels and results.

An axis is tied to the axes that must have the same size, up to a factor, for the layer to work: the
rows of a kernel to the features of the argument, half of an array to the whole.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeAlias

from invert._private.jax import is_jaxpr, open_jaxpr, scan_layout
from invert.emission.layers.cut import Assign, Layer, LayerCall
from invert.emission.layers.scans import step_of
from invert.emission.layers.stack import Pick, Run
from invert.emission.layers.state import Read, StateVar
from invert.emission.sizes.program import shape_of
from invert.ir import kinds
from invert.ir.graph import is_var
from invert.ir.sizes import DimSize, Shape
from invert.ir.types import AnyJaxpr, Atom, Eqn, Var
from invert.ir.value_and_grad import reads, value_and_grad_p

# An axis of a variable, in a call of the program that the variable is of.
Axis: TypeAlias = tuple[int, Var, int]


@dataclasses.dataclass(frozen=True)
class Window:
    """How the size of an image follows from that of another one.

    **Arguments:**

    - `source`: the axis of the other image.
    - `kernel`: the axis of the kernel, or its size.
    - `rule`: the size, given those of the source and of the kernel, and the stride.
    """

    eqn: Eqn
    source: Axis
    kernel: Axis | int
    stride: int
    rule: Callable[[DimSize, int, int], DimSize]


@dataclasses.dataclass(frozen=True)
class Strided:
    """A convolution with strides, and the axes of its images and of its result."""

    eqn: Eqn
    old: Sequence[Axis]
    new: Sequence[Axis]

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(self.eqn.params["window_strides"])


@dataclasses.dataclass(frozen=True)
class _Slide:
    """How a kernel slides along one axis of an image.

    **Arguments:**

    - `place`, `result`: the axis of the image and of the result.
    - `kernel`: the axis of the kernel, or its size; `size` is its size.
    - `same`: whether the padding is `"SAME"`.
    - `spread`: the dilation of the image, `dilation` that of the kernel.
    - `half`: whether the padding is half of the kernel, of any kernel.
    """

    place: int
    result: int
    kernel: Axis | int
    size: DimSize
    same: bool
    stride: int
    padding: tuple[int, int]
    spread: int
    dilation: int
    half: bool = False

    def rule(self, before: DimSize, after: DimSize) -> Callable[[DimSize, int, int], DimSize]:
        """A `Window`'s rule: padding as the text states it, by name if named."""
        (low, high), spread, dilation = self.padding, self.spread, self.dilation
        if spread != 1 and str(after) == str(before * spread):
            return lambda n, _k, _s: n * spread
        if spread != 1 and str(after) == str(before * spread + max(self.size - spread, 0)):
            return lambda n, k, _s: n * spread + max(k - spread, 0)
        if spread == 1 and self.same:
            return lambda n, _k, s: -(-n // s)
        if self.half:
            return lambda n, k, s: ((n - 1) * spread + 2 * (k // 2) - dilation * (k - 1)) // s + 1
        return lambda n, k, s: ((n - 1) * spread + low + high - dilation * (k - 1)) // s + 1


class Ties:
    """The ties between the axes of the arrays in some layers.

    **Arguments:**

    - `carried`: for layers in loops, the places of the arguments that are results of the step
        before, and of these results.
    - `half`: whether all convolutions are padded by half of their kernels.
    - `adds`: whether the features of arrays that are joined may be sums.

    **Attributes:**

    - `kernels`: axes of kernels that slide over images.
    - `windows`: axes of images whose sizes follow from others, in the order of the steps.
    - `strided`: the convolutions with strides.
    - `sums`: axes of features whose size is the sum of others, in the order of the steps.
    """

    def __init__(
        self,
        carried: Mapping[Layer, Sequence[tuple[int, int]]] | None = None,
        *,
        half: bool = False,
        adds: bool = False,
    ) -> None:
        self._carried, self._half, self._adds = carried or {}, half, adds
        self._above: dict[Axis, Axis] = {}
        self._fixed: set[Axis] = set()
        # The roots of these, for as many ties and fixed axes as there were.
        self._fixed_roots: tuple[object, set[Axis]] = None, set()
        self._joins = 0
        self._scope = 0
        self._scopes = itertools.count(1)
        self.kernels: list[Axis] = []
        self.windows: dict[Axis, Window] = {}
        self.strided: list[Strided] = []
        self.sums: dict[Axis, tuple[Axis, ...]] = {}
        # Axes that are different sizes even if equal, such as the heads of a kernel and their
        # features: those that a product sums over, or those that it leaves.
        self.apart: list[tuple[Axis, Axis]] = []

    def copied(self) -> Ties:
        """The same ties, to which others may be added."""
        new = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (dict, list, set)):
                setattr(new, name, value.copy())
        return new

    def axis(self, v: Var, i: int) -> Axis:
        """An axis of a variable of the layers."""
        return (0, v, i)

    def root(self, axis: Axis) -> Axis:
        """The axis that represents all axes tied to it."""
        above = self._above
        while axis in above and (near := above[axis]) != axis:
            if near in above:
                above[axis] = above[near]
            axis = near
        return axis

    def is_fixed(self, axis: Axis) -> bool:
        """Return whether the program gives a size as a number."""
        now = self._joins, len(self._fixed)
        if self._fixed_roots[0] != now:
            self._fixed_roots = now, set(map(self.root, self._fixed))
        return self.root(axis) in self._fixed_roots[1]

    def groups(self) -> Iterator[tuple[Axis, list[Axis]]]:
        """The axes that are tied together, without those that are fixed."""
        members: dict[Axis, list[Axis]] = {}
        for axis in (*self._above, *self._above.values()):
            members.setdefault(self.root(axis), []).append(axis)
        fixed = set(map(self.root, self._fixed))
        yield from (
            (root, list(dict.fromkeys(m))) for root, m in members.items() if root not in fixed
        )

    def settle(self) -> None:
        """Fix the sizes of images that determine fixed sizes, and the parts of fixed sums."""
        for axis, parts in reversed(self.sums.items()):
            if self.is_fixed(axis) or self.root(axis) in map(self.root, parts):
                self._fixed |= {axis, *parts}
        for axis, parts in self.sums.items():
            if all(map(self.is_fixed, parts)):
                self._fixed.add(axis)
        for axis, window in reversed(self.windows.items()):
            if self.is_fixed(axis):
                self._fixed.add(window.source)

    def fix(self, atom: Atom, axis: int | None = None) -> None:
        """Fix one or all sizes of an array."""
        if is_var(atom):
            axes = range(len(shape_of(atom))) if axis is None else [axis]
            for i in axes:
                own = (self._scope, atom, i)
                self._above.setdefault(own, own)
                self._fixed.add(own)

    def tie(self, a: Atom, i: int, b: Atom, j: int) -> None:
        """Tie an axis of one array to one of another."""
        if is_var(a) and is_var(b):
            self._join((self._scope, a, i), (self._scope, b, j))

    def _join(self, one: Axis, other: Axis) -> None:
        self._above.setdefault(one, one)
        self._above.setdefault(other, other)
        self._above[self.root(one)] = self.root(other)
        self._joins += 1

    def layer(self, layer: Layer) -> None:
        """Add the ties of a layer and of the layers inside."""
        for step in layer.steps:
            self._step(step)
        for i, k in self._carried.get(layer, ()):
            self._same(layer.inputs[i], layer.outputs[k])

    def _same(self, a: Atom, b: Atom) -> None:
        """Tie two names of one value."""
        if not isinstance(a, StateVar) and len(shape_of(a)) == len(shape_of(b)):
            for i in range(len(shape_of(a))):
                self.tie(a, i, b, i)

    def _step(self, eqn: Eqn) -> None:
        if isinstance(eqn, LayerCall):
            self._call(eqn)
        elif isinstance(eqn, Read):
            self._same(eqn.outvars[0], eqn.variable)
        elif isinstance(eqn, Assign):
            self._same(eqn.invars[-1], eqn.variable)
        elif kinds.computes(eqn) == "dot_general":
            self._product(eqn)
        elif (rule := _RULES.get(eqn.primitive.name)) is not None:
            rule(self, eqn)
        elif not self._alike(eqn) and not self._inside(eqn):
            for atom in (*eqn.invars, *eqn.outvars):
                self.fix(atom)

    def _call(self, call: LayerCall) -> None:
        layer = call.layer
        if isinstance(call, Pick):
            for i in range(len(shape_of(call.outvars[0]))):
                self.tie(call.outvars[0], i, call.invars[0], i + 1)
            return
        for a, b in zip(call.invars, layer.inputs, strict=False):
            self._same(a, b)
        self.layer(layer)
        if isinstance(call, Run):
            last = [layer.outputs[place] for _, place in call.carried]
            for v, a in zip(call.outvars, last, strict=False):
                self._same(v, a)
            for v, place in zip(call.outvars[len(last) :], call.collected, strict=False):
                for i in range(len(shape_of(layer.outputs[place]))):
                    self.tie(v, i + 1, layer.outputs[place], i)
            return
        for v, a in zip(call.outvars, layer.outputs, strict=False):
            self._same(v, a)

    def _alike(self, eqn: Eqn) -> bool:
        """Tie the arrays of an elementwise operation; return whether it is one."""
        whole = eqn.outvars[0]
        shape = tuple(map(str, shape_of(whole)))
        if any(tuple(map(str, shape_of(v))) != shape for v in eqn.outvars):
            return False
        pairs: list[tuple[Atom, int, int]] = []
        ones: list[tuple[Atom, int]] = []
        for a in eqn.invars:
            own = tuple(map(str, shape_of(a)))
            if len(own) > len(shape):
                return False
            for i, (n, m) in enumerate(zip(own, shape[len(shape) - len(own) :], strict=True)):
                if n not in ("1", m):
                    return False
                pairs += [(a, i, len(shape) - len(own) + i)] if n == m else []
                ones += [] if n == m else [(a, i)]
        for v in eqn.outvars[1:]:
            self._same(v, whole)
        for a, i, k in pairs:
            self.tie(a, i, whole, k)
        for a, i in ones:
            self.fix(a, i)
        return True

    def _inside(self, eqn: Eqn) -> bool:
        """Add the ties in a called program; return whether there is one."""
        inner = [p for p in eqn.params.values() if is_jaxpr(p)]
        if len(inner) != 1:
            return False
        own = open_jaxpr(inner[0]).invars
        # The program of a reduction takes numbers, which the arrays consist of.
        if [len(shape_of(v)) for v in own] != [len(shape_of(a)) for a in eqn.invars]:
            return False
        self._run(inner[0], eqn.invars, eqn.outvars)
        return True

    def _run(self, closed: AnyJaxpr, invars: Sequence[Atom], outvars: Sequence[Atom]) -> None:
        """Add the ties in a program on some operands."""
        jaxpr = open_jaxpr(closed)
        outer = self._scope
        with self._called():
            own = self._scope
            for step in jaxpr.eqns:
                self._step(step)
            pairs = [
                *zip(invars, jaxpr.invars, strict=True),
                *zip(outvars, jaxpr.outvars, strict=True),
            ]
            for a, b in pairs:
                if is_var(a) and is_var(b):
                    for i in range(len(shape_of(a))):
                        self._join((outer, a, i), (own, b, i))

    @contextlib.contextmanager
    def _called(self) -> Iterator[None]:
        outer, self._scope = self._scope, next(self._scopes)
        try:
            yield
        finally:
            self._scope = outer

    # The rules of primitives.

    def _derivatives(self, eqn: Eqn) -> None:
        """Some results, and derivatives of the types of the last operands."""
        jaxpr, count = eqn.params["jaxpr"], eqn.params["count"]
        cotangents, ends = eqn.params["cotangents"], eqn.params["ends"]
        split = reads(jaxpr, cotangents)
        results = eqn.outvars[: len(open_jaxpr(jaxpr).outvars)]
        self._run(jaxpr, eqn.invars[split:], results)
        if cotangents is not None:
            more = eqn.outvars[len(results) : len(eqn.outvars) - count]
            read = [*results, *eqn.invars[:split]]
            self._run(cotangents, read, [*results[:ends], *more])
        for a, v in zip(eqn.invars[-count:], eqn.outvars[-count:], strict=True):
            self._same(a, v)

    def _product(self, eqn: Eqn) -> None:
        (left, right), (out,) = eqn.invars, eqn.outvars
        (ours, theirs), (one, other) = kinds.product_axes(eqn)
        for i, j in zip(ours, theirs, strict=True):
            self.tie(left, i, right, j)
        for k, (i, j) in enumerate(zip(one, other, strict=True)):
            self.tie(left, i, out, k)
            self.tie(right, j, out, k)
        free = [(left, i) for i in range(len(shape_of(left))) if i not in (*ours, *one)]
        free += [(right, j) for j in range(len(shape_of(right))) if j not in (*theirs, *other)]
        for k, (operand, i) in enumerate(free, len(one)):
            self.tie(operand, i, out, k)
        sides = (left, ours), (right, theirs), *(
            (v, [i for operand, i in free if operand is v]) for v in (left, right)
        )  # fmt: skip
        for v, axes in sides:
            self.apart += itertools.pairwise((self._scope, v, i) for i in axes if is_var(v))

    def _convolution(self, eqn: Eqn) -> None:
        (images, kernel), (out,) = eqn.invars, eqn.outvars
        params = eqn.params
        numbers = params["dimension_numbers"]
        (n, c, *places), (c_out, c_in, *sides), (m, d, *results) = (
            numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec,
        )  # fmt: skip
        self.tie(images, n, out, m)
        groups, features = params["feature_group_count"], shape_of(images)[c]
        if groups == params["batch_group_count"] == 1:
            self.tie(images, c, kernel, c_in)
            self.tie(kernel, c_out, out, d)
        elif groups == features == shape_of(kernel)[c_out] and params["batch_group_count"] == 1:
            # Each channel has one kernel of its own.
            self.tie(images, c, kernel, c_out)
            self.tie(images, c, out, d)
            self.fix(kernel, c_in)
        else:
            for atom, axis in ((images, c), (kernel, c_out), (kernel, c_in), (out, d)):
                self.fix(atom, axis)
        if not is_var(kernel):
            return
        whole = all(n == 1 for n in params["lhs_dilation"])
        old = [(self._scope, images, i) for i in places] if is_var(images) else []
        new = [(self._scope, out, i) for i in results]
        same = _is_same(
            [shape_of(images)[i] for i in places], [shape_of(out)[i] for i in results],
            params["window_strides"], params["padding"],
        )  # fmt: skip
        if any(n != 1 for n in params["window_strides"]) and whole and old:
            for axis in (*old, *new):
                self._above.setdefault(axis, axis)
            self.strided.append(Strided(eqn, old, new))
        for k, side in enumerate(sides):
            own = (self._scope, kernel, side)
            self.kernels.append(own)
            self._above.setdefault(own, own)
            if shape_of(kernel)[side] == shape_of(kernel)[sides[0]]:
                self.tie(kernel, side, kernel, sides[0])
            slide = _Slide(
                places[k], results[k], own, shape_of(kernel)[side], same,
                params["window_strides"][k], params["padding"][k],
                params["lhs_dilation"][k], params["rhs_dilation"][k], self._half,
            )  # fmt: skip
            self._slide(eqn, slide)

    def _slide(self, eqn: Eqn, slide: _Slide) -> None:
        """Add how a kernel slides along one axis of an image."""
        images, out = eqn.invars[0], eqn.outvars[0]
        before, after = shape_of(images)[slide.place], shape_of(out)[slide.result]
        alike = str(before) == str(after) and slide.stride == slide.spread == 1
        if alike and (any(slide.padding) or slide.size == 1):
            self.tie(images, slide.place, out, slide.result)
        elif is_var(images):
            source = (self._scope, images, slide.place)
            rule = slide.rule(before, after)
            self._follow(Window(eqn, source, slide.kernel, slide.stride, rule), slide.result)

    def _follow(self, window: Window, result: int) -> None:
        axis = (self._scope, window.eqn.outvars[0], result)
        self.windows[axis] = window
        self._above.setdefault(axis, axis)
        self._above.setdefault(window.source, window.source)

    def _transpose(self, eqn: Eqn) -> None:
        for k, i in enumerate(eqn.params["permutation"]):
            self.tie(eqn.invars[0], i, eqn.outvars[0], k)

    def _broadcast(self, eqn: Eqn) -> None:
        x, (out,) = eqn.invars[0], eqn.outvars
        for i, k in enumerate(eqn.params["broadcast_dimensions"]):
            if str(shape_of(x)[i]) == str(shape_of(out)[k]):
                self.tie(x, i, out, k)
            else:
                self.fix(x, i)  # a 1 that is repeated
        for k in {*range(len(shape_of(out)))} - {*eqn.params["broadcast_dimensions"]}:
            if shape_of(out)[k] == 1:
                self.fix(out, k)

    def _reshape(self, eqn: Eqn) -> None:
        x, (out,) = eqn.invars[0], eqn.outvars
        old, new = shape_of(x), shape_of(out)
        last = old[-1:] == new[-1:] == (1,)
        if last:
            self.tie(x, len(old) - 1, out, len(new) - 1)
        for atom, shape in ((x, old), (out, new)):
            for i in range(len(shape) - last):
                if shape[i] == 1:
                    self.fix(atom, i)
        for ours, theirs in _blocks(old, new):
            if ours and theirs and 1 in (len(ours), len(theirs)):
                # The last factor grows with the whole, unless it is a number.
                i, k = self._last(x, ours), self._last(out, theirs)
                self.tie(x, i, out, k)
                ours = [n for n in ours if n != i]
                theirs = [n for n in theirs if n != k]
            for i in ours:
                self.fix(x, i)
            for k in theirs:
                self.fix(out, k)

    def _last(self, v: Atom, axes: Sequence[int]) -> int:
        """The last of some axes that is not fixed."""
        free = [i for i in axes if is_var(v) and not self.is_fixed((self._scope, v, i))]
        return (free or axes)[-1]

    def _squeeze(self, eqn: Eqn) -> None:
        x, (out,) = eqn.invars[0], eqn.outvars
        rank = len(shape_of(x))
        left = {d % rank for d in eqn.params["dimensions"]}
        for i in left:
            self.fix(x, i)
        for k, i in enumerate(i for i in range(rank) if i not in left):
            self.tie(x, i, out, k)

    def _reduce(self, eqn: Eqn) -> None:
        axes = eqn.params["axes"] if "axes" in eqn.params else eqn.params["dimensions"]
        for x, out in zip(eqn.invars, eqn.outvars, strict=False):
            for k, i in enumerate(i for i in range(len(shape_of(x))) if i not in axes):
                self.tie(x, i, out, k)

    def _parts(self, eqn: Eqn) -> None:
        """Slices tie axes of one size, also to every second element; features are fixed."""
        strides = eqn.params.get("strides") or ()
        for i in range(len(shape_of(eqn.invars[0]))):
            whole, part = (shape_of(v)[i] for v in (eqn.invars[0], eqn.outvars[0]))
            step = strides[i] if strides else 1
            if step > 1 and str(part * step) == str(whole):
                self.tie(eqn.invars[0], i, eqn.outvars[0], i)
            else:
                self._part(eqn, i)

    def _part(self, eqn: Eqn, i: int) -> bool:
        """As `_parts` for one axis; returns whether the axis stays free."""
        x, out = eqn.invars[0], eqn.outvars[0]
        if str(shape_of(x)[i]) == str(shape_of(out)[i]):
            self.tie(x, i, out, i)
        elif i == len(shape_of(x)) - 1:
            self.fix(x, i)
            self.fix(out, i)
        else:
            return True
        return False

    def _pad(self, eqn: Eqn) -> None:
        for i, (low, high, inside) in enumerate(eqn.params["padding_config"]):
            if self._part(eqn, i) and is_var(eqn.invars[0]) and not inside:
                source = (self._scope, eqn.invars[0], i)
                more = low + high
                self._follow(Window(eqn, source, 1, 1, lambda n, _k, _s, m=more: n + m), i)

    def _pool(self, eqn: Eqn) -> None:
        params = eqn.params
        shapes = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0])
        same = _is_same(*shapes, params["window_strides"], params["padding"])
        for i, (size, stride) in enumerate(
            zip(params["window_dimensions"], params["window_strides"], strict=True)
        ):
            padding, spread = params["padding"][i], params["base_dilation"][i]
            if size == stride == spread == 1 and not any(padding):
                self._part(eqn, i)
            else:
                dilation = params["window_dilation"][i]
                slide = _Slide(i, i, size, size, same, stride, padding, spread, dilation)
                self._slide(eqn, slide)

    def _along(self, eqn: Eqn) -> None:
        """Parts of an array."""
        axis = eqn.params["axis" if "axis" in eqn.params else "dimension"]
        parts = eqn.invars if eqn.primitive.name == "concatenate" else eqn.outvars
        whole = eqn.outvars[0] if eqn.primitive.name == "concatenate" else eqn.invars[0]
        sizes = {str(shape_of(p)[axis]) for p in parts}
        equal = len(sizes) == 1 and "1" not in sizes  # the number of parts is not a size
        features = eqn.primitive.name == "concatenate" and axis == len(shape_of(whole)) - 1
        places = [(self._scope, v, axis) for v in (whole, *parts) if is_var(v)]
        known = len(places) > len(parts) and all(type(v.aval.shape[i]) is int for _, v, i in places)
        adds = self._adds and features and known and not equal
        if adds:
            for place in places:
                self._above.setdefault(place, place)
            self.sums[places[0]] = tuple(places[1:])
        for part in parts:
            for i in range(len(shape_of(whole))):
                if i != axis or equal:
                    self.tie(part, i, whole, i)
                elif not adds:
                    self.fix(part, i)
                    self.fix(whole, i)

    def _stack(self, eqn: Eqn) -> None:
        """Arrays along a new axis, whose size is their number."""
        axis = eqn.params["axis"]
        whole, parts = eqn.outvars[0], eqn.invars
        if eqn.primitive.name == "unstack":
            whole, parts = eqn.invars[0], eqn.outvars
        self.fix(whole, axis)
        for part in parts:
            for i in range(len(shape_of(part))):
                self.tie(part, i, whole, i + (i >= axis))

    def _gather(self, eqn: Eqn) -> None:
        (x, _), (out,) = eqn.invars, eqn.outvars
        numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
        batching = numbers.operand_batching_dims
        inner = [i for i in range(len(shape_of(x))) if i not in numbers.collapsed_slice_dims]
        inner = [i for i in inner if i not in batching]
        for i, k in zip(inner, numbers.offset_dims, strict=True):
            if str(sizes[i]) == str(shape_of(x)[i]):
                self.tie(x, i, out, k)
            else:
                self.fix(x, i)
                self.fix(out, k)
        if any(sizes[i] != 1 for i in numbers.collapsed_slice_dims):
            self.fix(x)
        for i, k in zip(batching, numbers.start_indices_batching_dims, strict=True):
            self.tie(x, i, eqn.invars[1], k)
        indices = [k for k in range(len(shape_of(out))) if k not in numbers.offset_dims]
        for i, k in enumerate(indices):
            self.tie(eqn.invars[1], i, out, k)

    def _scatter(self, eqn: Eqn) -> None:
        x, indices, new = eqn.invars[:3]
        numbers = eqn.params["dimension_numbers"]
        self._same(x, eqn.outvars[0])
        batching = numbers.operand_batching_dims
        for i, k in zip(batching, numbers.scatter_indices_batching_dims, strict=True):
            self.tie(x, i, indices, k)
        single = {*numbers.inserted_window_dims, *batching}
        inner = [i for i in range(len(shape_of(x))) if i not in single]
        for i, k in zip(inner, numbers.update_window_dims, strict=True):
            if str(shape_of(x)[i]) == str(shape_of(new)[k]):
                self.tie(x, i, new, k)
            else:
                self.fix(x, i)
                self.fix(new, k)
        places = [k for k in range(len(shape_of(new))) if k not in numbers.update_window_dims]
        for i, k in enumerate(places):
            self.tie(indices, i, new, k)

    def _update(self, eqn: Eqn) -> None:
        x, new = eqn.invars[:2]
        self._same(x, eqn.outvars[0])
        for i, (n, m) in enumerate(zip(shape_of(x), shape_of(new), strict=True)):
            if str(n) == str(m):
                self.tie(x, i, new, i)
            elif m == 1:
                self.fix(new, i)

    def _top(self, eqn: Eqn) -> None:
        """The largest elements along an axis: their indices are numbers below its size."""
        x, along = eqn.invars[0], eqn.params["axis"]
        self.fix(x, along)
        for out in eqn.outvars:
            for i in range(len(shape_of(x))):
                if i == along:
                    self.fix(out, i)
                else:
                    self.tie(x, i, out, i)

    def _scan(self, eqn: Eqn) -> None:
        body = open_jaxpr(step_of(eqn.params["jaxpr"])[0])
        consts, carry = scan_layout(eqn.params)
        for step in body.eqns:
            self._step(step)
        for i, (a, b) in enumerate(zip(eqn.invars, body.invars, strict=True)):
            if i < consts + carry:
                self._same(a, b)
            else:
                self._rows(a, b)
        for i, (a, b) in enumerate(zip(eqn.outvars, body.outvars, strict=True)):
            if i < carry:
                self._same(a, b)
            else:
                self._rows(a, b)
        for a, b in zip(body.invars[consts : consts + carry], body.outvars, strict=False):
            self._same(a, b)
        stacked = [*eqn.invars[consts + carry :], *eqn.outvars[carry:]]
        for a in stacked[1:]:
            self.tie(stacked[0], 0, a, 0)

    def _rows(self, whole: Atom, row: Atom) -> None:
        for i in range(len(shape_of(row))):
            self.tie(whole, i + 1, row, i)

    def _none(self, eqn: Eqn) -> None:
        """Nothing is known, and nothing fixed."""


_RULES: Mapping[str, Callable[[Ties, Eqn], None]] = {
    "conv_general_dilated": Ties._convolution,
    "transpose": Ties._transpose,
    "broadcast_in_dim": Ties._broadcast,
    "reshape": Ties._reshape,
    "squeeze": Ties._squeeze,
    "concatenate": Ties._along,
    "split": Ties._along,
    "stack": Ties._stack,
    "unstack": Ties._stack,
    "gather": Ties._gather,
    **dict.fromkeys(
        ("scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max"),
        Ties._scatter,
    ),
    "dynamic_update_slice": Ties._update,
    "top_k": Ties._top,
    "scan": Ties._scan,
    value_and_grad_p.name: Ties._derivatives,
    "iota": Ties._none,
    "random_bits": Ties._none,
    "slice": Ties._parts,
    "dynamic_slice": Ties._parts,
    "pad": Ties._pad,
    **dict.fromkeys(("reduce_window_max", "reduce_window_sum", "reduce_window_min"), Ties._pool),
    **dict.fromkeys(
        ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or",
         "argmax", "argmin"), Ties._reduce,
    ),
}  # fmt: skip


def may_be_same(padding: Sequence[tuple[int, int]]) -> bool:
    """Return whether a padding may be `"SAME"`, for a convolution that does not enlarge images."""
    return all(0 <= low <= high <= low + 1 for low, high in padding)


def _is_same(
    before: Sequence[DimSize],
    after: Sequence[DimSize],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> bool:
    """Return whether a padding is written as `"SAME"`."""
    sizes = zip(before, after, strides, strict=True)
    as_same = may_be_same(padding) and any(map(any, padding))
    return as_same and all(str(-(-n // s)) == str(m) for n, m, s in sizes)


class TiesOf:
    """The ties of some layers, worked out once.

    **Arguments:**

    - `carried`: as for `Ties`.
    """

    def __init__(self, carried: Mapping[Layer, Sequence[tuple[int, int]]]) -> None:
        self._carried = carried
        self._known: dict[Hashable, Ties] = {}

    def of(self, layers: Sequence[Layer], *, half: bool, adds: bool) -> Ties:
        """New ties of these layers; the options are those of `Ties`."""
        key = (*layers, half, adds)
        if key not in self._known:
            self._known[key] = ties = Ties(self._carried, half=half, adds=adds)
            for layer in layers:
                ties.layer(layer)
        return self._known[key].copied()


def carried(root: Layer) -> dict[Layer, list[tuple[int, int]]]:
    """Arguments of layers in loops that the previous step returns; see `Ties`."""
    found: dict[Layer, list[tuple[int, int]]] = {}
    for step in root.steps:
        if isinstance(step, LayerCall):
            found |= carried(step.layer)
        elif step.primitive.name == "scan":
            body = open_jaxpr(step_of(step.params["jaxpr"])[0])
            consts, count = scan_layout(step.params)
            states = list(zip(body.invars[consts : consts + count], body.outvars, strict=False))
            # Where a mask chooses, the result is one of the operands.
            chosen: dict[Atom, Sequence[Atom]] = {
                v: e.invars for e in body.eqns for v in e.outvars if not isinstance(e, LayerCall)
            }
            states += [(a, b) for a, after in states for b in chosen.get(after, ())]
            for inner in body.eqns:
                if isinstance(inner, LayerCall):
                    found |= carried(inner.layer)
                    found[inner.layer] = [
                        (i, k)
                        for i, a in enumerate(inner.invars)
                        for k, v in enumerate(inner.outvars)
                        if any(a is before and v is after for before, after in states)
                        and shape_of(inner.layer.inputs[i]) == shape_of(inner.layer.outputs[k])
                    ]
    return found


def _blocks(old: Shape, new: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Axes before and after a reshape with the same elements, except unit axes.

    All axes between open sizes that change are one block.
    """
    ours = [i for i, n in enumerate(old) if n != 1]
    theirs = [k for k, n in enumerate(new) if n != 1]
    while ours and theirs and str(old[ours[-1]]) == str(new[theirs[-1]]):
        yield [ours.pop()], [theirs.pop()]
    while ours and theirs:
        i, k = 1, 1
        if str(old[ours[0]]) != str(new[theirs[0]]):
            if not all(
                type(n) is int for n in (*(old[a] for a in ours), *(new[b] for b in theirs))
            ):
                break
            while (a := math.prod(int(old[n]) for n in ours[:i])) != (
                b := math.prod(int(new[n]) for n in theirs[:k])
            ):
                if a < b and i < len(ours):
                    i += 1
                elif k < len(theirs):
                    k += 1
                else:
                    break
        yield ours[:i], theirs[:k]
        ours, theirs = ours[i:], theirs[k:]
    if ours or theirs:
        yield ours, theirs
