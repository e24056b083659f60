"""Layers whose names begin alike, such as `down1_conv1` and `down1_conv2`, become one layer."""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping, Sequence, Set

from invert.emission.layers.cut import NUMBER, Assign, Layer, LayerCall, Path, scope_of
from invert.emission.layers.order import ordered
from invert.emission.layers.tree import called
from invert.emission.layers.wrap import wrapped
from invert.emission.python.naming import camel, snake
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
_CONV, _BLOCK = "conv", "conv_block"
# The least number of pairs of a convolution and a normalization that become layers.
_FEW = 2
_PRODUCTS = {"conv_general_dilated": _CONV, "dot_general": "linear", "gather": "embedding"}
# The largest number of inputs, and of steps that complete a group, such as those of `silu`.
_MOST_INPUTS, _MOST_STEPS = 3, 5
_SEPARATORS = re.compile(r"[._]")


def group(layer: Layer, parameters: Mapping[Var, Path]) -> None:
    """Makes layers of the calls in a layer whose names begin alike, the longest prefixes first.

    Convolutions and normalizations that a library named by kind and number become pairs.
    """
    _pair(layer, parameters)
    done: set[str] = set()
    made: set[Layer] = set()
    while True:
        names = _names(layer, parameters)
        found = [p for p in _prefixes(layer, names) if p not in done]
        if not found:
            return
        prefix = max(found, key=lambda p: len(_SEPARATORS.findall(p)))
        done.add(prefix)
        members, region = _group(layer, names, prefix, made)
        if region is None:
            continue
        inner = [layer.steps[i] for i in members]
        fields = _fields(inner, [_rest(names[i], prefix) for i in members], prefix[-1])
        for step, field in zip(inner, fields, strict=True):
            assert isinstance(step, LayerCall)
            step.layer.field, step.layer.kind = field, re.sub(r"_?\d+$", "", field)
        rest = [(i, s) for i, s in enumerate(layer.steps) if i not in region]
        call = wrapped(layer, sorted(region), prefix[:-1], parameters, ())
        if prefix[:-1].isdigit():
            call.layer.kind = _kind(call) or "layer"
            call.layer.field = f"{call.layer.kind}{prefix[:-1]}"
        layer.steps = ordered([*rest, (members[0], call)])
        made.add(call.layer)


def _pair(layer: Layer, parameters: Mapping[Var, Path]) -> None:
    """Makes a layer of each convolution, its normalization and activation, if there are several."""
    users: dict[Atom, list[int]] = collections.defaultdict(list)
    for i, step in enumerate(layer.steps):
        for atom in filter(is_var, step.invars):
            users[atom].append(i)
    pairs = [
        (i, users[v][0])
        for i, step in enumerate(layer.steps)
        if _is_plain(step, _CONV, parameters) and len(step.outvars) == 1
        for v in step.outvars
        if v not in layer.outputs
        and len(users[v]) == 1
        and _is_plain(layer.steps[users[v][0]], "norm", parameters)
    ]
    calls = [i for i, s in enumerate(layer.steps) if isinstance(s, LayerCall)]
    if [calls] == list(map(list, pairs)):
        _name_pair(layer, pairs[0])  # this is such a layer
    regions = [_region(layer, set(pair)) for pair in pairs]
    if len(pairs) < _FEW or None in regions:
        return
    steps = list(enumerate(layer.steps))
    for number, (pair, region) in enumerate(zip(pairs, regions, strict=True), 1):
        assert region is not None
        _name_pair(layer, pair)
        call = wrapped(layer, sorted(region), f"{_BLOCK}_{number}", parameters, ())
        steps = [(i, s) for i, s in steps if i not in region] + [(pair[0], call)]
    layer.steps = ordered(sorted(steps, key=lambda s: s[0]))


def _name_pair(layer: Layer, pair: Sequence[int]) -> None:
    for i, field in zip(pair, (_CONV, "norm"), strict=True):
        step = layer.steps[i]
        assert isinstance(step, LayerCall)
        step.layer.field = step.layer.kind = field


def _is_plain(step: Eqn, kind: str, parameters: Mapping[Var, Path]) -> bool:
    """Whether a step is the only call of a layer of a kind that has no name of its own."""
    if not isinstance(step, LayerCall) or step.layer.block or step.layer.listed:
        return False
    own = [s for s in step.layer.steps if isinstance(s, LayerCall)]
    name = step.layer.field or called(step.layer, parameters)
    return not own and _kind(step) == kind and camel(name) in KINDS_OF_LAYERS


def _group(
    layer: Layer, names: Mapping[int, str], prefix: str, made: Set[Layer]
) -> tuple[list[int], set[int] | None]:
    """The calls of layers with a prefix, and the steps of their region if there is one."""
    steps = layer.steps
    members = sorted(i for i, name in names.items() if f"{name}{prefix[-1]}".startswith(prefix))
    scopes = {i: name for i, s in enumerate(steps) if (name := _scope(s, layer))}
    named = {i for i, name in scopes.items() if name.startswith(prefix)}

    def numbered(name: str) -> bool:
        return re.match(r"\d", _rest(name, prefix)) is not None

    groups = {i for i in members if isinstance(s := steps[i], LayerCall) and s.layer in made}
    # `conv_in`, `conv_out` beside groups such as `conv_1`, or `conv` and `conv_bn`.
    rest = [i for i in members if not numbered(names[i])]
    others = {i for i in named if not numbered(scopes[i])}
    plain = [i for i in members if i not in groups]
    tries = ((members, named), (members, set[int]()), (rest, others), (plain, set[int]()))
    for chosen, around in tries:
        if len(chosen) > 1 and (region := _region(layer, set(chosen), around)) is not None:
            return chosen, region
    return members, None


def _scope(step: Eqn, layer: Layer) -> str:
    """The name, in a layer, of the layer without parameters that an equation comes from."""
    scope = () if isinstance(step, LayerCall | Assign) else scope_of(step)
    return scope[-1].removeprefix(f"{layer.name}_") if scope else ""


def _rest(name: str, prefix: str) -> str:
    """A name after the prefix of a group; `""` for the layer that the group is named after."""
    return f"{name}{prefix[-1]}"[len(prefix) :].removesuffix(prefix[-1])


def _names(layer: Layer, parameters: Mapping[Var, Path]) -> dict[int, str]:
    """The names that somebody chose for layers, by the numbers of the steps that call them."""
    counts = collections.Counter(s.layer for s in layer.steps if isinstance(s, LayerCall))
    wanted: dict[int, str] = {}
    for i, step in enumerate(layer.steps):
        if not isinstance(step, LayerCall) or counts[step.layer] > 1:
            continue
        inner = step.layer
        if not (inner.block or inner.listed or inner.same or NUMBER in inner.name):
            wanted[i] = inner.field or called(inner, parameters)
    others = [name for name in wanted.values() if camel(name) not in KINDS_OF_LAYERS]
    begins = {name[: found.end()] for name in others for found in _SEPARATORS.finditer(name, 1)}
    names: dict[int, str] = {}
    for i, name in wanted.items():
        step = layer.steps[i]
        # A convolution may have the normalization that is named after it.
        if camel(name) not in KINDS_OF_LAYERS or (_kind(step) == _CONV and f"{name}_" in begins):
            names[i] = name
    return names


def _prefixes(layer: Layer, names: Mapping[int, str]) -> list[str]:
    """The words, with a separator, with which the names of some layers begin, but not of all."""
    members: dict[str, list[int]] = {}
    for i, name in names.items():
        for found in _SEPARATORS.finditer(name, 1):
            members.setdefault(name[: found.end()], []).append(i)
    for i, name in names.items():
        # A convolution, and its normalization named after it.
        if _kind(layer.steps[i]) == _CONV and f"{name}_" in members:
            members[f"{name}_"].append(i)
    # Of the prefixes of the same names, only the longest.
    longest = {tuple(numbers): prefix for prefix, numbers in members.items()}
    count = sum(isinstance(s, LayerCall) for s in layer.steps)
    found = []
    for numbers, prefix in longest.items():
        rests = [_rest(names[i], prefix) for i in numbers]
        # Numbers alone count layers of one kind, except those of modules of PyTorch.
        counted = prefix.endswith("_") and all(re.fullmatch(r"[\d_]*", rest) for rest in rests)
        counted = counted and len({_kind(layer.steps[i]) for i in numbers}) == 1
        if 1 < len(numbers) < count and not counted:
            found.append(prefix)
    return found


def _kind(step: Eqn) -> str:
    """What a layer is called where its name is a number."""
    steps = step.layer.steps if isinstance(step, LayerCall) else []
    found = [_PRODUCTS.get(s.primitive.name) or _kind(s) for s in steps]
    products = [name for name in found if name in _PRODUCTS.values()]
    norm = any(s.primitive.name == "rsqrt" for s in steps) or "norm" in found
    return products[0] if products else "norm" if norm else ""


def _fields(steps: Sequence[Eqn], rests: Sequence[str], separator: str) -> list[str]:
    """The names of layers after their prefix: `conv1` for a layer with the number 1.

    Those of PyTorch's sequences are counted, since the numbers count activations too.
    """
    found = [re.match(r"(\d+)[._]?(.*)", rest) for rest in rests]
    wanted = [
        snake((rest if number is None else number[2]) or _kind(step), "layer")
        for step, rest, number in zip(steps, rests, found, strict=True)
    ]
    counts = collections.Counter(wanted)
    numbers: collections.Counter[str] = collections.Counter()
    fields: list[str] = []
    for name, number in zip(wanted, found, strict=True):
        numbers[name] += 1
        own = number[1] if number is not None and separator != "." else str(numbers[name])
        many = counts[name] > 1 or (number is not None and separator != "." and not number[2])
        fields.append(f"{name}{own}" if many else name)
    return fields


def _region(layer: Layer, members: set[int], named: Set[int] = frozenset()) -> set[int] | None:
    """The steps of some layers, and those between them, if they have a single result.

    Values that only they need and an activation of the result belong to them, and in networks of
    convolutions a sum with the input.

    **Arguments:**

    - `named`: equations whose scopes have the names of these layers.
    """
    steps = layer.steps
    makers: dict[Atom, int] = {v: i for i, s in enumerate(steps) for v in s.outvars}
    before = [{makers[a] for a in s.invars if is_var(a) and a in makers} for s in steps]
    users: dict[int, set[int]] = collections.defaultdict(set)
    for i, made in enumerate(before):
        for j in made:
            users[j].add(i)
    results = {makers[a] for a in layer.outputs if is_var(a) and a in makers}
    chosen = members | named
    region = chosen | (_closure(chosen, users) & _closure(chosen, dict(enumerate(before))))
    region |= _only_for(region, before, users, results, layer)
    region |= {
        i
        for i, s in enumerate(steps)
        if isinstance(s, Assign) and before[i] and before[i] <= region
    }
    convolves = any(_kind(steps[i]) == _CONV for i in members)
    grown, ends = set(region), _ends(region, users, results)
    for _ in range(_MOST_STEPS):
        known = {v for i in grown for v in steps[i].outvars} | set(layer.parameters)
        if convolves or len(ends) > 1:
            known |= {a for i in grown for a in steps[i].invars if is_var(a)}
        following = {j for i in ends for j in users.get(i, set()) - grown}
        ready = [j for j in sorted(following) if known.issuperset(filter(is_var, steps[j].invars))]
        if ends & results or not ready or not _is_elementwise(steps[ready[0]]):
            break
        grown.add(ready[0])
        grown |= _only_for(grown, before, users, results, layer)
        ends = _ends(grown, users, results)
        if len(ends) == 1:
            region = set(grown)
    ends = _ends(region, users, results)
    calls = {i for i in region if isinstance(steps[i], LayerCall)}
    outside = {a for i in region for a in steps[i].invars if is_var(a)}
    made_inside = {v for i in region for v in steps[i].outvars}
    inputs = outside - made_inside - set(layer.parameters)
    whole = calls == members and sum(len(steps[i].outvars) for i in ends) == 1
    return region if whole and 0 < len(inputs) <= _MOST_INPUTS else None


def _closure(start: set[int], following: Mapping[int, set[int]]) -> set[int]:
    found: set[int] = set()
    pending = list(start)
    while pending:
        new = following.get(pending.pop(), set()) - found
        found |= new
        pending += new
    return found


def _only_for(
    region: set[int],
    before: Sequence[set[int]],
    users: Mapping[int, set[int]],
    results: set[int],
    layer: Layer,
) -> set[int]:
    """The steps that make values for a region alone, and need no input."""
    found: set[int] = set()
    free = set(layer.parameters)
    for i in reversed(range(len(before))):
        step = layer.steps[i]
        if i in region or i in results or isinstance(step, LayerCall | Assign):
            continue
        own = users.get(i) and users[i] <= region | found
        if own and not before[i] and all(a in free for a in step.invars if is_var(a)):
            found.add(i)
    return found


def _ends(region: set[int], users: Mapping[int, set[int]], results: set[int]) -> set[int]:
    """The steps whose values are used outside of a region."""
    return {i for i in region if i in results or users.get(i, set()) - region}


def _is_elementwise(step: Eqn) -> bool:
    """Whether a step is an activation, or the sum of a shortcut."""
    if isinstance(step, LayerCall | Assign) or len(step.outvars) != 1:
        return False
    arrays = [a for a in step.invars if not isinstance(a, Literal) or a.aval.shape]
    shapes = {str(a.aval.shape) for a in (*arrays, *step.outvars)}
    called_ = len(arrays) == 1 and step.primitive.name in ("custom_jvp_call", "jit", "pjit")
    return len(shapes) == 1 and (called_ or step.primitive.name in kinds.ELEMENTWISE)
