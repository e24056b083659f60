"""Layers whose names begin alike, such as `down1_conv1` and `down1_conv2`, become one layer.

So do those that end with the same number, `filter_1` and `gate_1`, if there are several such
groups.
"""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence, Set

from invert.emission.layers.cut import (
    NUMBER,
    Assign,
    Layer,
    LayerCall,
    Path,
    calls,
    common_prefix,
    layers_in,
    scope_of,
)
from invert.emission.layers.library_names import (
    CONV_BLOCK,
    KINDS_OF_LAYERS,
    is_automatic,
    without_number,
)
from invert.emission.layers.links import Links, ordered, users_of
from invert.emission.layers.tree import called
from invert.emission.layers.wrap import wrap, wrapped
from invert.emission.python.naming import camel, snake
from invert.ir import kinds
from invert.ir.graph import is_var
from invert.ir.order import reached
from invert.ir.types import Atom, Eqn, Literal, Var

_CONV = "conv"
# The least number of pairs of convolution and normalization that become layers.
_FEW = 2
# The names of layers, by their products, in place of a number.
_PRODUCTS = {"conv_general_dilated": _CONV, "dot_general": "linear", "gather": "embedding"}
# The largest number of inputs, and of steps that complete a group, such as those of `silu`.
_MOST_INPUTS, _MOST_STEPS = 3, 5
# The largest number of steps that join the results of groups, as the pools and sums of a cell.
_MOST_JOINING = 50
_SEPARATORS = re.compile(r"[._]")
# A role and a number, `gate_0_1`; the results that such a group may have, as a skip connection.
_NUMBERED = re.compile(r"(.*?[A-Za-z]\d?)_(\d[\d_]*)")
_MOST_RESULTS = 2
# Numbers alone, or the places of blocks in stages: `3a`.
_COUNTED = re.compile(r"[\d_]*|\d+[a-z]")


def group(layer: Layer, parameters: Mapping[Var, Path], others: Set[str]) -> None:
    """Make layers of calls whose names begin alike, longest prefixes first.

    Prefixes among `others` make no layers. Convolutions and normalizations that a library named by
    kind and number become pairs.
    """
    _pair(layer, parameters)
    _group_by_number(layer, parameters)
    done = set(others)
    made: set[Layer] = set()
    several = _families(layer, _names(layer, parameters))
    while found := _next(layer, _names(layer, parameters), done, made, several):
        prefix, members, region = found
        inner = [layer.steps[i] for i in members]
        fields = _fields(inner, list(members.values()), prefix[-1])
        for step, field in zip(inner, fields, strict=True):
            assert isinstance(step, LayerCall)
            step.layer.field, step.layer.kind = field, without_number(field)
        call = wrap(layer, region, prefix[:-1], parameters, min(members))
        if prefix[:-1].isdigit():
            call.layer.kind = _kind(call) or "layer"
            call.layer.field = f"{call.layer.kind}{prefix[:-1]}"
        _sort_results(call)
        made.add(call.layer)
    _share(made, parameters)
    for stem in several:
        _complete([s for s in layer.steps if isinstance(s, LayerCall) and s.layer in made
                   and _family_of(f"{s.layer.name}_") == stem])  # fmt: skip


# `res3_`, whose family is `res`.
_MEMBER = re.compile(r"(.*[A-Za-z])_?\d+[._]")


def _family_of(prefix: str) -> str:
    """The family of a numbered prefix, or `""`."""
    found = _MEMBER.fullmatch(prefix)
    return "" if found is None else found[1]


def _families(layer: Layer, names: Mapping[int, str]) -> set[str]:
    """The families of prefixes of which several are groups of two results, and none has one."""
    links = Links(layer.steps, layer.outputs)
    counts: dict[str, list[int]] = collections.defaultdict(list)
    for prefix in _prefixes(layer, names):
        if family := _family_of(prefix):
            members = {i for i, name in names.items() if f"{name}{prefix[-1]}".startswith(prefix)}
            region = _region(layer, links, members, results=_MOST_RESULTS)
            connected = region is not None and _is_connected(links, region)
            counts[family].append(len(links.ends(region)) if region and connected else 0)
    return {f for f, n in counts.items() if n.count(_MOST_RESULTS) > 1 and 0 not in n}


def _sort_results(call: LayerCall) -> None:
    """In one order for all groups: sums, then the results of layers by their names."""
    roles: dict[Atom, str] = {}
    for step in call.layer.steps:
        if isinstance(step, LayerCall):
            roles |= dict.fromkeys(step.outvars, step.layer.field)
    call.layer.outputs.sort(key=lambda v: roles.get(v, ""))
    call.outvars = call.layer.results


def _complete(calls: Sequence[LayerCall]) -> None:
    """Make a group that lacks the layer that updates its input return the input unchanged.

    The last block of a network with skip connections often lacks this layer, since nothing would
    use its result.
    """
    whole = max(calls, key=lambda c: len(c.outvars), default=None)
    for call in calls:
        if whole is None or len(call.invars) != len(whole.invars):
            continue
        own, lacking = call.layer, {*_layers(whole.layer)} - {*_layers(call.layer)}
        changes = {j: i for j in range(len(whole.outvars))
                   if (i := _changed(whole.layer, j, lacking)) is not None}  # fmt: skip
        if len(call.outvars) + len(changes) == len(whole.outvars):
            for j, i in changes.items():
                own.outputs.insert(j, own.inputs[i])
                call.outvars.insert(j, Var(own.inputs[i].aval))


def _layers(layer: Layer) -> list[str]:
    return [inner.field for inner in layers_in(layer)]


def _changed(layer: Layer, j: int, lacking: Set[str]) -> int | None:
    """The input that a result updates by adding the output of a layer in `lacking`, if any."""
    step = next((s for s in layer.steps if layer.outputs[j] in s.outvars), None)
    if step is None or step.primitive.name not in ("add", "sub"):
        return None
    made = {v for s in layer.steps if isinstance(s, LayerCall) and s.layer.field in lacking
            for v in s.outvars}  # fmt: skip
    inputs = [layer.inputs.index(a) for a in step.invars if is_var(a) and a in layer.inputs]
    return inputs[0] if len(inputs) == 1 and made.intersection(step.invars) else None


def _group_by_number(layer: Layer, parameters: Mapping[Var, Path]) -> None:
    """Make layers of the calls whose names end with the same number.

    Before, of those that end with the same words and number, as `conv1_left_1` and `conv2_left_1`,
    if there are several alike of one number, and of those that contain such groups.
    """
    made: set[Layer] = set()
    words = max((n.count("_") for n in _names(layer, parameters).values()), default=0)
    for count in range(words, 0, -1):
        names = _names(layer, parameters)
        groups: dict[str, dict[str, Layer]] = {}
        own = {i: s.layer.name for i, s in enumerate(layer.steps)
               if isinstance(s, LayerCall) and s.layer in made}  # fmt: skip
        for i, name in {**names, **own}.items():
            step, role, end = layer.steps[i], *_split(name, count)
            assert isinstance(step, LayerCall)
            if not end or (is_automatic(name) and step.layer not in made):
                continue
            # A group of groups is part of no other one that has the same number.
            if not made.intersection(layers_in(step.layer)):
                groups.setdefault(end, {})[role] = step.layer
        for end in _alike(layer, groups, made):
            if len(groups[end]) < len(names):
                _group_by_end(layer, parameters, end, groups[end], made)


def _split(name: str, count: int) -> tuple[str, str]:
    """The role of a layer and the last words of its name, or `""` if they tell no group."""
    words = name.split("_")
    role, end = "_".join(words[:-count]), "_".join(words[-count:])
    found = _NUMBERED.fullmatch(name)
    told = found is not None and (end.endswith(found[2]) or f"_{found[2]}".endswith(f"_{end}"))
    return role, end if told and re.search("[A-Za-z]", role) else ""


def _alike(
    layer: Layer, groups: Mapping[str, Mapping[str, Layer]], made: Set[Layer]
) -> Iterator[str]:
    """The ends of names of which several groups use each other's results in the same way.

    **Arguments:**

    - `made`: the groups made before, by longer ends.
    """
    links = Links(layer.steps, layer.outputs)
    places = {s.layer: i for i, s in enumerate(layer.steps) if isinstance(s, LayerCall)}
    # A normalization before a layer and one after it are no groups of one kind.
    flows = {end: _flow(links, places, group) for end, group in groups.items() if len(group) > 1}
    several = collections.Counter(flows.values())
    numbers = {end: (flow, end.rpartition("_")[2]) for end, flow in flows.items()}
    together = collections.Counter(numbers.values())
    wholes = [flow for flow, n in several.items() if n > 1]
    for end, flow in flows.items():
        if _COUNTED.fullmatch(end):
            parts = (frozenset(p for p in w if {*p} <= groups[end].keys()) for w in wholes)
            fits = flow in parts
        else:
            fits = together[numbers[end]] > 1
        if fits or not made.isdisjoint(groups[end].values()):
            yield end


def _group_by_end(
    layer: Layer,
    parameters: Mapping[Var, Path],
    end: str,
    group: Mapping[str, Layer],
    made: set[Layer],
) -> None:
    """Make one layer of a group of calls, if they are one region, and add it to those made."""
    chosen = set(group.values())
    members = {
        i for i, s in enumerate(layer.steps) if isinstance(s, LayerCall) and s.layer in chosen
    }
    links = Links(layer.steps, layer.outputs)
    numbered = _COUNTED.fullmatch(end) is not None
    region = _joined(layer, links, members) if chosen & made or not numbered else None
    region = region or _region(layer, links, members, results=_MOST_RESULTS)
    if region is None or not _is_connected(links, region):
        return
    for role, inner in group.items():
        inner.field, inner.kind = role, inner.kind or without_number(inner.name)
    name = f"block_{end}" if numbered else end
    call = wrap(layer, region, name, parameters, min(members))
    _sort_results(call)
    made.add(call.layer)


def _joined(layer: Layer, links: Links, members: Set[int]) -> set[int] | None:
    """The steps of some layers, those before for them alone, and those that join their results.

    `None` if other layers are between them, or if these steps have many inputs or results.
    """

    def is_plain(i: int) -> bool:
        return not isinstance(layer.steps[i], LayerCall | Assign)

    region = links.between(members)
    if not all(map(is_plain, region - members)):
        return None
    constant: dict[int, set[int]] = {}  # the steps that need no value from outside, with theirs
    for i, needed in enumerate(links.before):
        if is_plain(i) and constant.keys() >= {*needed}:
            constant[i] = {i}.union(*(constant[j] for j in needed))
    for _ in range(_MOST_JOINING):
        if len(ends := links.ends(region)) == 1 or ends & links.results:
            break
        known = {j for i in region for j in links.before[i]} | region | constant.keys()
        following = sorted({j for i in ends for j in links.users[i]} - region)
        ready = [j for j in following if is_plain(j) and known.issuperset(links.before[j])]
        if not ready:
            return None
        region |= {ready[0]}.union(*(constant.get(j, ()) for j in links.before[ready[0]]))
    for i in range(max(region), -1, -1):
        own = is_plain(i) and i not in links.results and len({*links.before[i]} - {*constant}) < 2
        if own and links.users[i] and region.issuperset(links.users[i]):
            region.add(i)
    return region if _is_small(layer, links, region, results=1) else None


def _is_small(layer: Layer, links: Links, region: Set[int], *, results: int) -> bool:
    """Return whether some steps have few inputs, and at most this many results."""
    outside = {a for i in region for a in layer.steps[i].invars if is_var(a)}
    inside = {v for i in region for v in layer.steps[i].outvars}
    inputs = outside - inside - set(layer.parameters)
    few = sum(len(layer.steps[i].outvars) for i in links.ends({*region})) <= results
    return few and 0 < len(inputs) <= _MOST_INPUTS


def _flow(
    links: Links, places: Mapping[Layer, int], group: Mapping[str, Layer]
) -> frozenset[tuple[str, str]]:
    """The roles in a group, each with itself and with those whose results it needs.

    **Arguments:**

    - `places`: the steps that call layers; `group`: the layers by their roles.
    """
    needed = {role: links.needed(places[x]) for role, x in group.items()}
    return frozenset(
        (a, b) for a in group for b in group if a == b or places[group[a]] in needed[b]
    )


def _is_connected(links: Links, region: Set[int]) -> bool:
    """Return whether steps use each other's values, rather than only the same inputs."""

    def beside(i: int) -> list[int]:
        return [j for j in (*links.before[i], *links.users[i]) if j in region]

    return len(reached([min(region)], beside)) == len(region)


def _share(made: Set[Layer], parameters: Mapping[Var, Path]) -> None:
    """Wrap the layers behind a concatenation that form a group elsewhere.

    The two convolutions after a U-Net's skip connection become the block of its encoder.
    """
    fields = {x: tuple(c.field for c in layers_in(x)) for x in made}
    several = {names for names, n in collections.Counter(fields.values()).items() if n > 1}
    for layer, own in fields.items():
        joined = {v for s in layer.steps if s.primitive.name == "concatenate" for v in s.outvars}
        for names in sorted(n for n in several if set(n) < set(own)):
            members = {
                i
                for i, s in enumerate(layer.steps)
                if isinstance(s, LayerCall) and s.layer.field in names
            }
            region = _region(layer, Links(layer.steps, layer.outputs), members)
            first = layer.steps[min(members)]
            if region is not None and len(first.invars) == 1 and first.invars[0] in joined:
                wrap(layer, region, _name(layer, members), parameters, min(members))
                break


def _name(layer: Layer, members: Set[int]) -> str:
    convolves = any(_kind(layer.steps[i]) == _CONV for i in members)
    return CONV_BLOCK if convolves else "block"


def _next(
    layer: Layer,
    names: Mapping[int, str],
    done: set[str],
    made: set[Layer],
    several: Set[str],
) -> tuple[str, dict[int, str], set[int]] | None:
    """A prefix, the rest of each layer's name, and the group's steps.

    Prefixes that were tried are added to `done`.

    **Arguments:**

    - `several`: the families of groups of several results.
    """
    links = Links(layer.steps, layer.outputs)
    prefixes = [p for p in _prefixes(layer, names) if p not in done]
    for prefix in sorted(prefixes, key=lambda p: -len(_SEPARATORS.findall(p))):
        done.add(prefix)
        results = _MOST_RESULTS if _family_of(prefix) in several else 1
        members, region = _group(layer, links, names, prefix, made, results)
        if region is not None:
            return prefix, {i: _rest(names[i], prefix) for i in members}, region
    return None


def _pair(layer: Layer, parameters: Mapping[Var, Path]) -> None:
    """Make a layer of each convolution, its normalization and activation, if there are several."""
    followed = list(_followed(layer))
    others = sum(isinstance(s, LayerCall) and _has_pair(s.layer) for s in layer.steps)
    told = {
        pair: (_called(layer.steps[pair[1]], parameters), _called(layer.steps[pair[0]], parameters))
        for pair in followed
    }
    pairs = [pair for pair, own in told.items() if _belongs(*own, beside=others > 0)]
    numbered = [pair for pair, own in told.items() if _same_number(*own)]
    if numbered and _has_named_pairs(parameters):
        pairs = sorted({*pairs, *numbered})
    calls = [i for i, s in enumerate(layer.steps) if isinstance(s, LayerCall)]
    if [calls] == list(map(list, pairs)):
        _name_pair(layer, pairs[0], parameters)
        return  # the layer is such a pair
    # A normalization elsewhere belongs to what follows it, and so may those without names.
    if sum(_is_single(s, "norm") for s in layer.steps) > len(pairs):
        pairs = [p for p in pairs if not is_automatic(_called(layer.steps[p[1]], parameters))]
    names = [_called(layer.steps[conv], parameters) for conv, _ in pairs]
    norms = [_called(layer.steps[norm], parameters) for _, norm in pairs]
    if len(pairs) + others < _FEW and all(map(is_automatic, (*names, *norms))):
        return
    links = Links(layer.steps, layer.outputs)
    regions = [_region(layer, links, set(pair)) for pair in pairs]
    if None in regions:
        return
    steps = list(enumerate(layer.steps))
    number = itertools.count(1)
    for pair, region, name, norm in zip(pairs, regions, names, norms, strict=True):
        assert region is not None
        if is_automatic(name) and is_automatic(norm) and len(pairs) > 1:
            name = f"{CONV_BLOCK}_{next(number)}"
        _name_pair(layer, pair, parameters)
        call = wrapped(layer, region, name, parameters)
        steps = [(i, s) for i, s in steps if i not in region] + [(pair[0], call)]
    layer.steps = ordered(sorted(steps, key=lambda s: s[0]))


def _followed(layer: Layer) -> Iterator[tuple[int, int]]:
    """The convolutions whose result only a normalization takes, with that."""
    users = users_of(layer.steps)
    for i, step in enumerate(layer.steps):
        if not _is_single(step, _CONV) or len(step.outvars) != 1:
            continue
        (v,) = step.outvars
        if v not in layer.outputs and len(users[v]) == 1:
            (norm,) = users[v]
            if _is_single(layer.steps[norm], "norm"):
                yield i, norm


def _same_number(norm: str, conv: str) -> bool:
    """Return whether a convolution and a normalization have the same number: `conv1`, `bn1`.

    Such names tell which belong together, but not that the author made a layer of them.
    """
    one, other = (re.fullmatch(r"([a-z]+?)_?(\d+)", name) for name in (norm, conv))
    return bool(one and other and one[2] == other[2] and one[1] in _NORMS and other[1] in _CONVS)


def _has_named_pairs(parameters: Mapping[Var, Path]) -> bool:
    """Return whether names alone make pairs in the model: `stem_conv` or `stem`, and `stem_bn`."""
    every = {name for path in parameters.values() for name in path[:-1]}
    kinds_: dict[str, set[str]] = collections.defaultdict(set)
    for name in every:
        begin, _, kind = name.rpartition("_")
        kinds_[begin].add(kind)
    return any(
        begin and _NORMS & own and (own <= _NORMS if begin in every else own <= _NORMS | _CONVS)
        for begin, own in kinds_.items()
    )


def _has_pair(layer: Layer) -> bool:
    """Return whether a layer is a convolution and a normalization, with nothing else inside."""
    inside = [_kind(s) for s in layer.steps if isinstance(s, LayerCall)]
    return inside == [_CONV, "norm"]


# Short names of normalizations.
_SHORT = ("bn", "norm")
# Words for convolutions and for normalizations in the names of layers.
_CONVS, _NORMS = frozenset(("conv", "conv2d")), frozenset((*_SHORT, "batchnorm"))


def _belongs(norm: str, conv: str, *, beside: bool) -> bool:
    """Return whether a normalization is named automatically, or after its convolution.

    **Arguments:**

    - `beside`: whether the other convolutions of a layer are pairs with theirs.
    """
    own = _without_kind(norm, _NORMS)
    named = bool(own) and own in (conv, _without_kind(conv, _CONVS))
    named = named or any(norm == f"{conv}_{short}" for short in _SHORT)
    return is_automatic(norm) or named or (beside and norm in _SHORT)


def _without_kind(name: str, kinds: Set[str]) -> str:
    """`proj` for `conv_proj`; names that end with their kind begin alike, see `group`."""
    first, _, rest = name.partition("_")
    return rest if first.lower() in kinds else ""


def _name_pair(layer: Layer, pair: Sequence[int], parameters: Mapping[Var, Path]) -> None:
    """Name the fields of a pair `conv` and `norm`; classes keep their kinds' names.

    An author's `bn` stays, unless a library named some normalization of the program.
    """
    norm = _called(layer.steps[pair[1]], parameters)
    words = norm.split("_")
    every = {part for path in parameters.values() for part in path[:-1]}
    automatic = is_automatic(norm) or any("norm" in p.lower() and is_automatic(p) for p in every)
    own = next((w for w in map(without_number, words) if w in _SHORT), words[0])
    own = "norm" if automatic else own
    for i, field in zip(pair, (_CONV, own), strict=True):
        step = layer.steps[i]
        assert isinstance(step, LayerCall)
        name = step.layer.kind or _called(step, parameters)
        step.layer.field = field
        step.layer.kind = name if camel(name) in KINDS_OF_LAYERS else field


def _is_single(step: Eqn, kind: str) -> bool:
    """Return whether a step calls a layer of a kind without inner layers."""
    if not isinstance(step, LayerCall) or step.layer.block or step.layer.listed:
        return False
    inside = any(isinstance(s, LayerCall) for s in step.layer.steps)
    return not inside and _kind(step) == kind


def _called(step: Eqn, parameters: Mapping[Var, Path]) -> str:
    """The preferred name of a called layer."""
    assert isinstance(step, LayerCall)
    return step.layer.field or called(step.layer, parameters)


def _group(
    layer: Layer,
    links: Links,
    names: Mapping[int, str],
    prefix: str,
    made: Set[Layer],
    results: int,
) -> tuple[list[int], set[int] | None]:
    """Calls of layers with a prefix, and the steps of their region, if any."""
    steps = layer.steps
    members = sorted(i for i, name in names.items() if f"{name}{prefix[-1]}".startswith(prefix))
    if results > 1:
        return members, _region(layer, links, set(members), results=results)
    scopes = {i: name for i, s in enumerate(steps) if (name := _scope(s, layer))}
    # The image is padded at the start of the network, as if the first layer were like all others.
    named = {
        i
        for i, name in scopes.items()
        if name.startswith(prefix) and (not _pads(steps[i]) or _follows_layers(links, i))
    }

    def numbered(name: str) -> bool:
        return re.match(r"\d", _rest(name, prefix)) is not None

    groups = {i for i in members if isinstance(s := steps[i], LayerCall) and s.layer in made}
    # `conv_in`, `conv_out` beside groups such as `conv_1`, or `conv` and `conv_bn`.
    rest = [i for i in members if not numbered(names[i])]
    others = {i for i in named if not numbered(scopes[i])}
    plain = [i for i in members if i not in groups]
    tries = ((members, named), (members, set[int]()), (rest, others), (plain, set[int]()))
    for chosen, around in tries:
        if len(chosen) > 1 and (region := _region(layer, links, set(chosen), around)) is not None:
            return chosen, region
    return members, None


def _pads(step: Eqn) -> bool:
    return step.primitive.name == "pad"


def _follows_layers(links: Links, i: int) -> bool:
    """Return whether a step needs what a layer computes, directly or through others."""
    return any(isinstance(links.steps[j], LayerCall) for j in links.needed(i))


def _scope(step: Eqn, layer: Layer) -> str:
    """The name of an equation's inner layer without parameters."""
    scope = () if isinstance(step, LayerCall | Assign) else scope_of(step)
    return scope[-1].removeprefix(f"{layer.name}_") if scope else ""


def _rest(name: str, prefix: str) -> str:
    """A name without the group's prefix; `""` for the layer it is named after."""
    return f"{name}{prefix[-1]}"[len(prefix) :].removesuffix(prefix[-1])


def _names(layer: Layer, parameters: Mapping[Var, Path]) -> dict[int, str]:
    """The author's names of layers, by the steps that call them."""
    counts = collections.Counter(s.layer for s in layer.steps if isinstance(s, LayerCall))
    wanted: dict[int, str] = {}
    for i, step in enumerate(layer.steps):
        if not isinstance(step, LayerCall) or counts[step.layer] > 1:
            continue
        inner = step.layer
        if not (inner.block or inner.listed or inner.same or NUMBER in inner.name):
            wanted[i] = _called(step, parameters)
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
    """Common prefixes of the names of some layers, but not all, with their separator."""
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
        counted = prefix.endswith("_") and all(_COUNTED.fullmatch(rest) for rest in rests)
        counted = counted and len({_kind(layer.steps[i]) for i in numbers}) == 1
        # `self_attention` and `self_attention_norm` are not parts of a `self`.
        shared = "_".join(common_prefix([names[i].split("_") for i in numbers]))
        extends = len(shared) > len(prefix) - 1 and shared in (names[i] for i in numbers)
        held = sum(_has_parameters(layer.steps[i]) for i in numbers)
        if 1 < len(numbers) < count and held > 1 and not counted and not extends:
            found.append(prefix)
    return found


def _has_parameters(step: Eqn) -> bool:
    if not isinstance(step, LayerCall):
        return False
    return bool(step.layer.parameters) or any(map(_has_parameters, calls(step.layer.steps)))


def _kind(step: Eqn) -> str:
    """The kind of a layer whose name is a number: its product, or `norm`."""
    norm = ""
    for inner in step.layer.steps if isinstance(step, LayerCall) else ():
        found = _PRODUCTS.get(kinds.computes(inner)) or _kind(inner)
        if found and found != "norm":
            return found
        if found or inner.primitive.name == "rsqrt":
            norm = "norm"
    return norm


def _fields(steps: Sequence[Eqn], rests: Sequence[str], separator: str) -> list[str]:
    """Names of layers after their prefix: `conv1` for number 1.

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


def _only_for(layer: Layer, links: Links, region: set[int]) -> set[int]:
    """The equations that compute something from parameters for a region alone."""
    held = set(layer.parameters)
    return {
        j
        for j in {j for i in region for j in links.before[i]} - links.results
        if not isinstance(step := layer.steps[j], LayerCall | Assign)
        and held.issuperset(filter(is_var, step.invars))
        and region.issuperset(links.users[j])
    }


def _region(
    layer: Layer,
    links: Links,
    members: set[int],
    named: Set[int] = frozenset(),
    *,
    results: int = 1,
) -> set[int] | None:
    """The steps of some layers and those between, if with one result.

    Values that only they need, a concatenation of their results and an activation of the result
    belong to them, and in networks of convolutions a padding before them and a sum with the input.

    **Arguments:**

    - `named`: equations whose scopes have the names of these layers.
    - `results`: the largest number of results.
    """
    steps = layer.steps
    region = links.between(members | named)
    if any(isinstance(steps[i], LayerCall) for i in region - members):
        return None
    region |= _only_for(layer, links, region)
    for i, step in enumerate(steps):
        if isinstance(step, Assign) and links.before[i] and region.issuperset(links.before[i]):
            region.add(i)
    convolves = any(_kind(steps[i]) == _CONV for i in members)
    grown, ends = set(region), links.ends(region)
    for _ in range(_MOST_STEPS):
        known = {v for i in grown for v in steps[i].outvars} | set(layer.parameters)
        if convolves or len(ends) > 1:
            known |= {a for i in grown for a in steps[i].invars if is_var(a)}
        following = {j for i in ends for j in links.users[i]} - grown
        ready = [j for j in sorted(following) if known.issuperset(filter(is_var, steps[j].invars))]
        if ends & links.results or not ready:
            break
        joins = len(ends) > 1 and steps[ready[0]].primitive.name == "concatenate"
        if not joins and not _is_elementwise(steps[ready[0]]):
            break
        grown.add(ready[0])
        grown |= _only_for(layer, links, grown)
        ends = links.ends(grown)
        if len(ends) <= results:
            region = set(grown)
    if convolves:
        region |= {
            j
            for j in {j for i in region for j in links.before[i]} - links.results
            if _pads(steps[j]) and _follows_layers(links, j) and region.issuperset(links.users[j])
        }
    return region if _is_small(layer, links, region, results=results) else None


def _is_elementwise(step: Eqn) -> bool:
    """Return whether a step is an activation, or the sum of a shortcut."""
    if isinstance(step, LayerCall | Assign) or len(step.outvars) != 1:
        return False
    arrays = [a for a in step.invars if not isinstance(a, Literal) or a.aval.shape]
    (whole,) = (v.aval.shape for v in step.outvars)
    # A gate of each channel is the same for all pixels.
    fits = all(
        len(a.aval.shape) == len(whole)
        and all(str(n) in ("1", str(m)) for n, m in zip(a.aval.shape, whole, strict=True))
        for a in arrays
    )
    called_ = len(arrays) == 1 and step.primitive.name in ("custom_jvp_call", "jit")
    return fits and (called_ or step.primitive.name in kinds.ELEMENTWISE)
