"""Names classes after their layers, or after what they compute."""

from __future__ import annotations

import ast
import collections
import re
import string
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from invert.emission.constructors.starts import EMBEDDINGS
from invert.emission.layers.library_names import KINDS_OF_LAYERS, without_letter
from invert.emission.layers.memory import MEMORY
from invert.emission.layers.shared import Class
from invert.emission.layers.tree import Node
from invert.emission.python import syntax
from invert.emission.python.naming import Names, camel, spelled
from invert.ir.types import Var

# The name of an argument that a layer only adds to a function of another one.
RESIDUAL = "residual"
_PRODUCT = " @ "
_PRODUCTS = (_PRODUCT, "einsum(", "tensordot(", "flat_product(", "dot_product_attention(")
# The layer that a text computes, and its name in Keras.
_CALLED = (
    ("conv_general_dilated", "Conv", "Conv"),
    ("conv_transpose", "ConvTranspose", "ConvTranspose"),
    (_PRODUCT, "Linear", "Dense"),
    ("flat_product(", "Linear", "Dense"),
    ("tensordot", "Linear", "DenseGeneral"),
    ("einsum", "Linear", "DenseGeneral"),
    ("rsqrt", "Norm", "Norm"),
    (".at[x].get(", "Embedding", "Embedding"),
    ("jnp.take(self.", "Embedding", "Embedding"),
    ("jnp.sqrt(var", "Norm", "Norm"),
    ("jnp.sqrt(mean_square", "Norm", "Norm"),
)
# Means over parts of an array that is reshaped into groups.
_OF_GROUPS = re.compile(r"(\w) = x\.reshape\((.*\n)+ +mean = jnp\.mean\(\1, axis=\(")
_LOOKUP = re.compile(r"return self\.\w+\[x\]")
# A block whose name is a letter.
_BLOCK = "Block"
# Blocks in a row, where the blocks are called so.
_STACK = "Stack"


_ATTENTION, _CELL = "Attention", "Cell"
# The sines and cosines of positions or times at several frequencies.
_SINUSOIDS = "SinusoidalEmbedding"
_WAVES = re.compile(r"jnp\.concatenate\(\[jnp\.(sin\(.*, jnp\.cos|cos\(.*, jnp\.sin)\(")
# The classes of products that an attention consists of.
_LINEAR = ("Linear", "Dense", "EinsumDense", "DenseGeneral", "LinearGeneral", "AttentionOutput")
_ATTENDS = re.compile(r"\b(softmax|dot_product_attention)\(")
# Blocks of such products and other layers.
_OF_PRODUCTS = tuple(f"{name}{_BLOCK}" for name in _LINEAR)
# Squeeze-and-excitation: features scaled by a function of their means over the image.
_SQUEEZE = re.compile(r"jnp\.mean\(x, axis=\(1, 2\), keepdims=True\)(.*\n)+ +return x \* ")
_SQUEEZE_EXCITE = "SqueezeExcite"
# Normalization, convolution and pooling between the dense blocks of a network.
_TRANSITION = re.compile(r"return avg_pool\((self\.|x, )")
# Names of the layer that makes the input of a residual block fit its result.
_SHORTCUTS = frozenset(("shortcut", "skip", "downsample", "residual"))
# Branches whose results are joined.
_INCEPTION = "Inception"
_BRANCHES = re.compile(r"jnp\.concatenate\(\[branch(1|_pool), ")
# Kinds of layers that consist of others.
_OF_LAYERS = frozenset(("Mlp", "MLP", "Block", "Layer"))
_EMBEDDINGS = "Embeddings"
_TABLES = frozenset(("Embed", "Embedding", _EMBEDDINGS))
# Names of containers, which say nothing about what is inside.
_CONTAINERS = frozenset(("Sequential", "Functional"))
# Names of layers without parameters; a layer that has some gets another one.
_BARE = frozenset(("Pool", "Pooling", "Add", "Concat", "Concatenate"))
_SPELLED_KINDS = frozenset(map(spelled, KINDS_OF_LAYERS))
# Short names of normalizations.
_NORMS = re.compile(r"(Layer|Ln|Bn|Rms|Batch)?(Norm|Ln|Bn|N)?(alization)?")


def name_classes(
    classes: Sequence[Class],
    of: Mapping[Node, Class],
    file: Names,
    names: dict[str, str],
    *,
    model: str,
    keras: bool,
    fields: Collection[str],
) -> None:
    """Names classes, the innermost first.

    **Arguments:**

    - `model`: the name of the outermost class, which names of others omit.
    - `fields`: the names of fields with a layer, which a class in an annotation cannot have.

    - `of`: the classes of nodes.
    - `file`: the names of the file.
    - `names`: receives the names by the placeholders for them.
    """
    own = {camel(d.node.name) for cls in classes for d in cls.drafts}
    fields_of = {inner: name for node in of for name, inner in _modules(node)}
    kinds: dict[str, str] = {}
    every: dict[Class, list[str]] = {}
    for cls in classes:
        every[cls] = _names_for(
            cls, lambda node: kinds.get(of[node].token, ""), model=model, keras=keras
        )
        if every[cls][0] in _CONTAINERS and (field := fields_of.get(cls.drafts[0].node)):
            every[cls].insert(0, camel(field))
        kinds[cls.token] = every[cls][0]
    for lettered in _lists(every):
        for cls, letter in zip(lettered, string.ascii_uppercase, strict=False):
            every[cls] = [f"{name}{letter}" for name in every[cls]]
    for cls, word in (*_holders(every, of, model).items(), *_with_memory(every, of)):
        every[cls] = [n if n.startswith(word) else f"{word}{n}" for n in every[cls]]
    counts = collections.Counter(wanted[0] for wanted in every.values())
    for cls, wanted in every.items():
        if counts[wanted[0]] > 1 and (number := _number(cls, wanted[0])):
            wanted = [f"{wanted[0]}{number}"]
        # The author may have given the name of a kind to another layer.
        free = [n for n in wanted if n not in file.taken and (n not in own or n == wanted[-1])]
        name = spelled((free or wanted[-1:])[0])
        if name in file.taken and _takes_residual(cls):
            name = f"Residual{name}"
        elif name in file.taken and _ends_with_state(cls):
            name = f"Final{name}"
        elif name in file.taken and name == _BLOCK and _has_list(cls):
            name = _STACK
        elif name in file.taken and name == model and cls.drafts[0].node.nodes:
            name = f"{name}{_BLOCK}"
        elif name in file.taken and (parts := _parts(cls, of, names)):
            name = parts
        if name in fields:
            name = f"{name}alization" if name.endswith("Norm") else f"{name}Layer"
        cls.definition.name = names[cls.token] = file.new(name)


def _modules(node: Node) -> Iterator[tuple[str, Node]]:
    """The modules in the fields of another one, with the names of these."""
    for name, value in node.fields.items():
        if isinstance(value, Node):
            yield from ((name, inner) for inner in (value.nodes if value.listed else [value]))


def _holders(
    names: Mapping[Class, Sequence[str]], of: Mapping[Node, Class], model: str
) -> dict[Class, str]:
    """Find what tells classes of one name apart: the layers that hold them, by name.

    The blocks of an encoder and of a decoder are `EncoderBlock` and `DecoderBlock`.
    """
    around = {inner: camel(node.name) for node in of for _, inner in _modules(node)}
    alike: dict[str, list[Class]] = collections.defaultdict(list)
    for cls, (name, *_) in names.items():
        alike[name].append(cls)
    found: dict[Class, str] = {}
    for classes in (own for own in alike.values() if len(own) > 1):
        held = [{around.get(d.node, "") for d in c.drafts if d.twin is None} for c in classes]
        told = [next(iter(own)) for own in held if len(own) == 1]
        if len(told) == len({*told} - {"", model}) == len(classes):
            found |= dict(zip(classes, told, strict=True))
    return found


# The most layers after which a class is named.
_FEW = 3


def _with_memory(
    names: Mapping[Class, Sequence[str]], of: Mapping[Node, Class]
) -> Iterator[tuple[Class, str]]:
    """Blocks that attend to a memory, beside others: a `CrossBlock`, or a `DecoderBlock`.

    The latter also has an attention to its input.
    """
    blocks = [cls for cls, (name, *_) in names.items() if name == _BLOCK and not _has_list(cls)]
    found = [c for c in blocks if any(syntax.is_named(s, MEMORY) for s in c.drafts[0].sources if s)]
    if len(found) != 1 or len(found) == len(blocks):
        return
    inner = (names.get(of[n], ("",))[0] for n in found[0].drafts[0].node.nodes if n in of)
    attentions = sum(name.endswith(_ATTENTION) for name in inner)
    yield found[0], "Cross" if attentions == 1 else "Decoder"


def _has_list(cls: Class) -> bool:
    fields = cls.drafts[0].node.fields.values()
    return any(isinstance(value, Node) and value.listed for value in fields)


def _parts(cls: Class, of: Mapping[Node, Class], names: Mapping[str, str]) -> str:
    """`EncoderDecoder` for a class that consists of these, or `""`."""
    inner = [names.get(of[node].token, "") for node in cls.drafts[0].node.nodes]
    short = all(re.fullmatch(r"[A-Z][a-z]+", name) for name in inner)
    return "".join(inner) if short and 1 < len(inner) <= _FEW and len(set(inner)) > 1 else ""


# Fields with the statistics of a batch normalization: a mean and a variance.
_STATISTICS = (("moving_mean", "running_mean", "mean"), ("moving_variance", "running_var", "var"))
_STORED = "Normalizes with the stored mean and variance, and does not update them."


def has_statistics(fields: Iterable[str]) -> bool:
    """Return whether some fields are those of a batch normalization."""
    return all(not set(fields).isdisjoint(names) for names in _STATISTICS)


def describe(definition: ast.ClassDef) -> None:
    """Add a docstring that says what a layer does not do, where a reader expects otherwise."""
    fields = {ast.unparse(s.target) for s in definition.body if isinstance(s, ast.AnnAssign)}
    body = syntax.text_of(definition)
    if has_statistics(fields) and "rsqrt(" in body and "StateIndex" not in body:
        definition.body.insert(0, syntax.docstring(_STORED))


def _lists(names: Mapping[Class, Sequence[str]]) -> list[list[Class]]:
    """Classes that share a name and whose members are in lists of mixed classes."""
    found: dict[str, list[Class]] = collections.defaultdict(list)
    for cls, (name, *_) in names.items():
        nodes = [d.node for d in cls.drafts if d.twin is None]
        if all(layer.mixed for node in nodes for layer in node.layers):
            found[name].append(cls)
    return [classes for classes in found.values() if len(classes) > 1]


def _number(cls: Class, name: str) -> str:
    """The number of the only layer of a class, if the class is named after it."""
    nodes = [d.node for d in cls.drafts if d.twin is None]
    found = re.fullmatch(r"(.*?)(\d+[a-z]?)", nodes[0].name)
    return found[2] if len(nodes) == 1 and found and camel(found[1]) == name else ""


def _names_for(cls: Class, kinds: Callable[[Node], str], *, model: str, keras: bool) -> list[str]:
    """Names for a class, best first: the name of all its nodes, otherwise what it computes.

    Names that only give a layer's position, such as `head`, come after what it computes.

    **Arguments:**

    - `kinds`: the names of the classes of nodes inside.
    """
    names = [camel(without_letter(d.node.name)) for d in cls.drafts if d.twin is None]
    names = [_without_model(name, model) for name in names] if keras else names
    counts = collections.Counter(names)
    wanted = list(counts)
    if not cls.drafts[0].methods and len(wanted) > 1:
        words = [camel(name) for name in cls.drafts[0].node.fields]
        return ["And".join(words)]
    if not cls.drafts[0].methods and {*cls.drafts[0].node.fields} < EMBEDDINGS and len(wanted) == 1:
        return ["Embedding", *wanted]  # whose rows are looked up where they are used
    kind = _kind(cls, kinds, keras=keras)
    inner = [name for node in cls.drafts[0].node.nodes if (name := kinds(node))]
    block = _block(inner, cls.drafts[0].node.fields)
    if len(wanted) == 1 and (wanted[0] in inner or _is_depthwise_block(inner)):
        return [block]
    if len(wanted) == 1:
        (name,) = wanted
        false = kind == "RmsNorm" and _NORMS.fullmatch(name) and "Rms" not in name
        bare = name in _BARE or (name == "Block" and kind == _INCEPTION)
        if kind and (false or len(name) < 3 or bare):
            return [_SQUEEZE_EXCITE if (name, kind) == ("Se", "Mlp") else kind]
        if inner and len(name) == 1:
            return [_BLOCK]
        if name in ("Mlp", "MLP") and inner and all(n in _TABLES for n in inner):
            return [_EMBEDDINGS]
        if name == "Self":
            return ["Projections"]  # of an attention whose scores are computed outside
        return _said(name, kind, cls)
    known = [n for n, _ in counts.most_common() if n in KINDS_OF_LAYERS]
    if not cls.drafts[0].node.nodes:
        other = _OF_LAYERS if kind in ("", "Embedding") else _OF_LAYERS | _TABLES
        known = [n for n in known if n not in other]
    if known and known[0] in inner:
        return [block]
    if known:
        false = kind == "RmsNorm" and _NORMS.fullmatch(known[0]) and "Rms" not in known[0]
        return [kind if false or kind.endswith(known[0]) else known[0]]
    common = _common_name(wanted)
    if common in inner:
        return [block]
    if kind == "RmsNorm" and _NORMS.fullmatch(common) and "Rms" not in common:
        return [kind]
    if common and common.upper() != common and not common[-1].isdigit():
        return _said(common, kind, cls)
    ((most, _),) = counts.most_common(1)
    attends = not kind and _ATTENDS.search(syntax.text_of(cls.definition))
    return [f"{_ATTENTION}{_BLOCK}" if attends and block in _OF_PRODUCTS else kind or block or most]


def _block(inner: Sequence[str], fields: Collection[str]) -> str:
    """A name for a block of layers: `ResBlock`, or after the first that is not a normalization."""
    if not inner:
        return ""
    if any(n.startswith("Conv") for n in inner) and not _SHORTCUTS.isdisjoint(fields):
        return "ResBlock"
    first = next((n for n in inner if not n.endswith("Norm")), inner[0])
    return f"{first.removesuffix('Block')}Block"


def _is_depthwise_block(inner: Sequence[str]) -> bool:
    """Return whether layers inside are a depthwise convolution and its normalization."""
    return inner[:1] == ["DepthwiseConv"] and len(inner) == 2 and "Norm" in inner[1]


def _without_model(name: str, model: str) -> str:
    """`Stem` for the `ConvnextTinyStem` of a model called `ConvNeXtTiny`."""
    own = name[len(model) :] if name.lower().startswith(model.lower()) else ""
    return own if own[:1].isupper() and spelled(name) not in _SPELLED_KINDS else name


def _said(name: str, kind: str, cls: Class) -> list[str]:
    """A name from the program, preceded by the kind of the layer if that is more informative."""
    if kind == _SINUSOIDS and name.lower() in ("sin", "cos"):
        return [kind]
    if name and (kind.endswith(name) or name == f"{kind}s"):
        return [kind]  # `LayerNorm` for a `Norm`
    said = name in KINDS_OF_LAYERS or name.endswith(kind or name)
    return [name] if said or not _is_only(cls, kind) else [kind, name]


def _is_only(cls: Class, kind: str) -> bool:
    """Return whether a class is a layer of a kind and nothing else, judged by its parameters."""
    draft = cls.drafts[0]
    if kind == _ATTENTION:
        return True
    ranks = [len(v.aval.shape) for v in draft.node.fields.values() if isinstance(v, Var)]
    if draft.node.nodes or "lax.scan(" in "".join(draft.texts):
        return False
    matrices = sum(rank > 1 for rank in ranks)
    return not matrices if kind.endswith("Norm") else matrices == 1 and len(ranks) < 3


def _kind(cls: Class, kinds: Callable[[Node], str], *, keras: bool) -> str:
    """The name of what a class computes, or `""`."""
    text = syntax.text_of(cls.definition)
    inner = list(dict.fromkeys(map(kinds, cls.drafts[0].node.nodes)))
    if len(inner) == 1 and inner[0].endswith(_CELL) and "lax.scan(" in text:
        return inner[0].removesuffix(_CELL)
    if inner:
        linear = all(name in _LINEAR for name in inner)
        products = sum(map(text.count, _PRODUCTS))
        if linear and products and _ATTENDS.search(text):
            return _ATTENTION
        if _SQUEEZE.search(text) and all(name in (*_LINEAR, "Conv") for name in inner):
            return _SQUEEZE_EXCITE
        if _BRANCHES.search(text):
            return _INCEPTION
        if _TRANSITION.search(text) and any(n == "Conv" for n in inner):
            return "Transition"
        chained = re.search(r"self\.\w+\(.* [-*+] |softmax\(", text) is None
        return "Mlp" if linear and len(inner) == 1 and not products and chained else ""
    if _is_depthwise(cls, text):
        return "SeparableConv" if text.count("conv_general_dilated(") == 2 else "DepthwiseConv"
    if _LOOKUP.search(text):
        return "Embedding"
    if _WAVES.search(text):
        return _SINUSOIDS
    for sign, name, other in _CALLED:
        if sign in text and not (sign == _PRODUCT and text.count(sign) > 1):
            centered = re.search(r"\b(mean|var) = ", text)
            if name == "Norm" and "mean_square = " in text and centered is None:
                return "RmsNorm"
            if name == "Norm" and "jnp.mean(x, axis=-1, keepdims=True)" in text:
                return "LayerNorm"
            if name == "Norm" and _OF_GROUPS.search(text):
                return "GroupNorm"
            fields = cls.drafts[0].node.fields
            if name == "Norm" and has_statistics(fields):
                return "BatchNorm"
            if name == "Linear" and any(
                isinstance(v, Var) and len(v.aval.shape) > 2 for v in fields.values()
            ):
                name, other = "LinearGeneral", "DenseGeneral"
            return other if keras else name
    return ""


def _is_depthwise(cls: Class, text: str) -> bool:
    """Return whether a layer convolves each channel with a separate kernel."""
    found = re.search(r"feature_group_count=(\d+)", text)
    kernels = (v.aval.shape for v in cls.drafts[0].node.fields.values() if isinstance(v, Var))
    return found is not None and any({1, int(found[1])} <= {*k} for k in kernels if len(k) > 2)


def _takes_residual(cls: Class) -> bool:
    return any(a.arg == RESIDUAL for m in cls.drafts[0].methods for a in m.args.args)


def _ends_with_state(cls: Class) -> bool:
    """Return whether a layer processes a sequence and returns only its final value."""
    sources = cls.drafts[0].sources
    shapes = [shape for _, shape in cls.drafts[0].arrays]
    given = [
        len(s) for s, source in zip(shapes, sources, strict=True) if isinstance(source, ast.Name)
    ]
    made = [len(s) for s, source in zip(shapes, sources, strict=True) if source is None]
    loops = "lax.scan(" in "".join(cls.drafts[0].texts)
    return loops and bool(given) and bool(made) and max(made) < given[0]


def _common_name(names: Sequence[str]) -> str:
    """The words that all names begin or end with: `Norm` for `PreNorm` and `PostNorm`."""
    words = [re.findall(r"[A-Z][a-z0-9]*|[a-z0-9]+", n) for n in names]
    for step in (1, -1):
        shared = [w[0] for w in zip(*(w[::step] for w in words), strict=False) if len(set(w)) == 1]
        if shared and all(w[::step][: len(shared)] == shared for w in words):
            return "".join(shared[::step])
    return ""
