"""Layers whose names begin alike, such as `down1_conv1` and `down1_conv2`, become one layer."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence

from invert.emission.layers.cut import NUMBER, Assign, Layer, LayerCall, Path
from invert.emission.layers.order import ordered
from invert.emission.layers.tree import called
from invert.emission.layers.wrap import wrapped
from invert.emission.python.naming import camel
from invert.ir import kinds
from invert.ir.graph import is_var
from invert.ir.types import Atom, Eqn, Literal, Var

# Names of layer types in libraries: they say what a layer is, not where it is used.
KINDS_OF_LAYERS = frozenset(
    """Dense Linear DenseGeneral LinearGeneral EinsumDense Conv Conv1d Conv2d Conv3d ConvTranspose
    Conv1dTranspose Conv2dTranspose Conv3dTranspose DepthwiseConv1d DepthwiseConv2d SeparableConv2d
    BatchNorm BatchNormalization LayerNorm LayerNormalization GroupNorm GroupNormalization RmsNorm
    RmsNormalization RMSNorm RMSNormalization InstanceNorm Norm Embed Embedding Embeddings Lstm Gru
    SimpleRnn LstmCell GruCell MultiHeadAttention MultiHeadDotProductAttention Attention Mlp MLP
    Block Layer""".split()
)
# What a layer multiplies its input by, and so what it is called where its name is a number.
_PRODUCTS = {"conv_general_dilated": "conv", "dot_general": "linear", "gather": "embedding"}
# The largest number of inputs, and of steps that complete a group, such as those of `silu`.
_MOST_INPUTS, _MOST_STEPS = 3, 5
_SEPARATORS = re.compile(r"[._]")


def group(layer: Layer, parameters: Mapping[Var, Path]) -> None:
    """Makes layers of the calls in a layer whose names begin alike, the longest prefixes first."""
    done: set[str] = set()
    made: set[Layer] = set()
    while found := _next(layer, _names(layer, parameters), done, made):
        prefix, members, region = found
        inner = [layer.steps[i] for i in members]
        fields = _fields(inner, [name.removeprefix(prefix) for name in members.values()])
        for step, field in zip(inner, fields, strict=True):
            assert isinstance(step, LayerCall)
            step.layer.field = field
        rest = [(i, s) for i, s in enumerate(layer.steps) if i not in region]
        call = wrapped(layer, sorted(region), prefix[:-1], parameters, ())
        layer.steps = ordered([*rest, (min(members), call)])
        made.add(call.layer)


def _next(
    layer: Layer, names: Mapping[int, str], done: set[str], made: set[Layer]
) -> tuple[str, Mapping[int, str], set[int]] | None:
    """A prefix, the calls whose names begin with it, and all steps of their group.

    Prefixes that were tried are added to `done`.
    """
    links = _Links.of(layer)
    prefixes = [p for p in _prefixes(layer, names) if p not in done]
    for prefix in sorted(prefixes, key=lambda p: -len(_SEPARATORS.findall(p))):
        done.add(prefix)
        members = {i: name for i, name in sorted(names.items()) if name.startswith(prefix)}
        region = _region(layer, links, set(members))
        if region is None:
            # `conv_in`, `conv_out` beside a group `conv_1`.
            members = {i: n for i, n in members.items() if not _calls_one_of(layer.steps[i], made)}
            region = _region(layer, links, set(members)) if len(members) > 1 else None
        if region is not None:
            return prefix, members, region
    return None


def _calls_one_of(step: Eqn, layers: set[Layer]) -> bool:
    return isinstance(step, LayerCall) and step.layer in layers


def _names(layer: Layer, parameters: Mapping[Var, Path]) -> dict[int, str]:
    """The names that somebody chose for layers, by the numbers of the steps that call them."""
    counts = collections.Counter(s.layer for s in layer.steps if isinstance(s, LayerCall))
    names: dict[int, str] = {}
    for i, step in enumerate(layer.steps):
        if not isinstance(step, LayerCall) or counts[step.layer] > 1:
            continue
        inner = step.layer
        if inner.block or inner.listed or inner.same or NUMBER in inner.name:
            continue
        name = inner.field or called(inner, parameters)
        if camel(name) not in KINDS_OF_LAYERS:
            names[i] = name
    return names


def _prefixes(layer: Layer, names: Mapping[int, str]) -> list[str]:
    """The words, with a separator, with which the names of some layers begin, but not of all."""
    members: dict[str, list[int]] = {}
    for i, name in names.items():
        for found in _SEPARATORS.finditer(name, 1):
            members.setdefault(name[: found.end()], []).append(i)
    # Of the prefixes of the same names, only the longest.
    longest = {tuple(numbers): prefix for prefix, numbers in members.items()}
    count = sum(isinstance(s, LayerCall) for s in layer.steps)
    found = []
    for numbers, prefix in longest.items():
        rests = [names[i].removeprefix(prefix) for i in numbers]
        # Numbers alone count layers of one kind, except those of modules of PyTorch.
        counted = prefix.endswith("_") and all(re.fullmatch(r"[\d_]+", rest) for rest in rests)
        counted = counted and len({_kind(layer.steps[i]) for i in numbers}) == 1
        if 1 < len(numbers) < count and not counted and all(rests):
            found.append(prefix)
    return found


def _kind(step: Eqn) -> str:
    """What a layer is called where its name is a number."""
    steps = step.layer.steps if isinstance(step, LayerCall) else []
    found = [_PRODUCTS[s.primitive.name] for s in steps if s.primitive.name in _PRODUCTS]
    return found[0] if found else "norm" if any(s.primitive.name == "rsqrt" for s in steps) else ""


def _fields(steps: Sequence[Eqn], rests: Sequence[str]) -> list[str]:
    """The names of layers after their prefix: `conv1` for the first of those with numbers alone."""
    found = [re.match(r"\d+[._]?(.*)", rest) for rest in rests]
    wanted = [
        rest if number is None else number[1] or _kind(step) or "layer"
        for step, rest, number in zip(steps, rests, found, strict=True)
    ]
    counts = collections.Counter(wanted)
    numbers: collections.Counter[str] = collections.Counter()
    fields: list[str] = []
    for name in wanted:
        numbers[name] += 1
        fields.append(f"{name}{numbers[name]}" if counts[name] > 1 else name)
    return fields


@dataclasses.dataclass(frozen=True)
class _Links:
    """How the steps of a layer depend on each other, by their numbers.

    **Arguments:**

    - `before`: for each step, those whose values it uses; `users` is the reverse.
    - `results`: those that make results of the layer.
    - `free`: those that compute something of parameters alone.
    - `assigns`: those that assign the state.
    """

    before: Mapping[int, set[int]]
    users: Mapping[int, set[int]]
    results: set[int]
    free: set[int]
    assigns: Sequence[int]

    @staticmethod
    def of(layer: Layer) -> _Links:
        makers: dict[Atom, int] = {v: i for i, s in enumerate(layer.steps) for v in s.outvars}
        held = set(layer.parameters)
        before: dict[int, set[int]] = {}
        users: dict[int, set[int]] = collections.defaultdict(set)
        free, assigns = set[int](), list[int]()
        results = {makers[a] for a in layer.outputs if is_var(a) and a in makers}
        for i, step in enumerate(layer.steps):
            atoms = [a for a in step.invars if is_var(a)]
            before[i] = {makers[a] for a in atoms if a in makers}
            for j in before[i]:
                users[j].add(i)
            if isinstance(step, Assign):
                assigns.append(i)
            elif not isinstance(step, LayerCall) and i not in results and held.issuperset(atoms):
                free.add(i)
        return _Links(before, dict(users), results, free, assigns)

    def between(self, members: set[int]) -> set[int]:
        """Some steps, and those on the ways from one of them to another."""
        after = _closure(members, self.users, range(max(members)))
        return members | (after & _closure(members, self.before, range(min(members), max(members))))

    def only_for(self, region: set[int]) -> set[int]:
        """The steps that make values for a region alone, and need no input."""
        needed = {j for i in region for j in self.before[i]}
        return {j for j in needed & self.free if self.users[j] <= region}

    def ends(self, region: set[int]) -> set[int]:
        """The steps whose values are used outside of a region."""
        return {i for i in region if i in self.results or self.users.get(i, set()) - region}


def _region(layer: Layer, links: _Links, members: set[int]) -> set[int] | None:
    """The steps of some layers, and those between them, if they have a single result.

    Values that only they need and an activation of the result belong to them, and in networks of
    convolutions a sum with the input.
    """
    steps, before, users = layer.steps, links.before, links.users
    region = links.between(members)
    if any(isinstance(steps[i], LayerCall) for i in region - members):
        return None
    region |= links.only_for(region)
    region |= {i for i in links.assigns if before[i] and before[i] <= region}
    convolves = any(_kind(steps[i]) == "conv" for i in members)
    grown, ends = set(region), links.ends(region)
    for _ in range(_MOST_STEPS):
        around = {j for i in grown for j in before[i]} if convolves or len(ends) > 1 else set[int]()
        following = {j for i in ends for j in users.get(i, set()) - grown}
        ready = [j for j in sorted(following) if before[j] <= grown | around]
        if ends & links.results or not ready or not _is_elementwise(steps[ready[0]]):
            break
        grown.add(ready[0])
        grown |= links.only_for(grown)
        ends = links.ends(grown)
        if len(ends) == 1:
            region = set(grown)
    outside = {a for i in region for a in steps[i].invars if is_var(a)}
    made_inside = {v for i in region for v in steps[i].outvars}
    inputs = outside - made_inside - set(layer.parameters)
    single = sum(len(steps[i].outvars) for i in links.ends(region)) == 1
    return region if single and 0 < len(inputs) <= _MOST_INPUTS else None


def _closure(start: set[int], following: Mapping[int, set[int]], within: range) -> set[int]:
    found: set[int] = set()
    pending = list(start)
    while pending:
        new = {i for i in following.get(pending.pop(), ()) if i in within} - found
        found |= new
        pending += new
    return found


def _is_elementwise(step: Eqn) -> bool:
    """Whether a step is an activation, or the sum of a shortcut."""
    if isinstance(step, LayerCall | Assign) or len(step.outvars) != 1:
        return False
    arrays = [a for a in step.invars if not isinstance(a, Literal) or a.aval.shape]
    shapes = {str(a.aval.shape) for a in (*arrays, *step.outvars)}
    called_ = len(arrays) == 1 and step.primitive.name in ("custom_jvp_call", "jit", "pjit")
    return len(shapes) == 1 and (called_ or step.primitive.name in kinds.ELEMENTWISE)
