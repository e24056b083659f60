"""Identifiers from names in files, and unique names."""

from __future__ import annotations

import builtins
import functools
import keyword
import re
import textwrap
import unicodedata
from collections.abc import Iterable

# Names that the text imports, keywords and builtins.
RESERVED = frozenset(
    {
        *keyword.kwlist,
        *keyword.softkwlist,
        *dir(builtins),
        *"jax jnp lax np eqx Array PRNGKeyArray PyTree self load safe_open Path".split(),
        *"key_data annotations get_args get_origin trainable json dataclasses".split(),
        *"Callable Iterator SafetensorError fnmatchcase crc32".split(),
        *"TypedDict jaxtyped beartype".split(),
        *"Bool Float Int UInt Complex Key Shaped BFloat16 Float16 Float32 Float64 Any".split(),
    }
)
_LONGEST = 64
# A program has few different names, each asked for many times.
_once = functools.lru_cache(maxsize=4096)
_LINE = 90


@_once
def identifier(text: str, fallback: str = "value") -> str:
    """An ASCII identifier that reads like `text` and is not a keyword or builtin.

    Only letters, digits and underscores remain.
    """
    plain = unicodedata.normalize("NFKD", text[:400]).encode("ascii", "ignore").decode()
    result = re.sub(r"\W+", "_", plain, flags=re.ASCII).strip("_")
    result = re.sub(r"__+", "_", result)[:_LONGEST].strip("_")
    if not result:
        return fallback
    if result[0].isdigit():
        result = f"{fallback}_{result}"
    return f"{result}_" if result in RESERVED else result


@_once
def snake(text: str, fallback: str = "value") -> str:
    """`SelfAttention_0` -> `self_attention_0`."""
    result = identifier(text, fallback)
    result = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", result).lower()
    result = re.sub(r"__+", "_", result)
    return f"{result}_" if result in RESERVED else result


@_once
def camel(text: str, fallback: str = "Layer", *, model: bool = False) -> str:
    """`self_attention_0` -> `SelfAttention`; the number of a layer is not part of its kind.

    That of a `model` is, if it follows a letter: `resnet50_1` -> `Resnet50`.
    """
    result = identifier(text, fallback)
    stem = re.sub(r"(_\d+)+$" if model else r"(_?\d+)+$", "", result) or result
    words = [w for w in stem.split("_") if w]
    name = "".join(w[0].upper() + w[1:] for w in words) or fallback
    if name[0].isdigit():
        name = fallback + name
    return f"{name}_" if name in RESERVED else name


# How the field writes names of models and layers.
_SPELLING = {
    name.capitalize(): name
    for name in (
        "ResNet DenseNet MobileNet EfficientNet NASNet RegNet ShuffleNet SqueezeNet ConvNeXt UNet "
        "VGG ViT GPT BERT LSTM GRU RNN CNN MLP VAE GAN DWConv PointNet WaveNet RealNVP DeepFM "
        "DCGAN CRNN TCN GCN OCR RWKV"
    ).split()
}
_SPELLED = re.compile(rf"({'|'.join(_SPELLING)})((?:[a-z]?\d+[a-z]?)*)(?![a-z])")


def spelled(name: str) -> str:
    """The name of a class as the field writes it: `Resnet50v2` -> `ResNet50V2`."""
    return _SPELLED.sub(lambda found: _SPELLING[found[1]] + found[2].upper(), name)


def comment(text: str) -> str:
    """One printable line for a docstring: without quotes, backslashes and control characters."""
    kept = "".join(c if c.isprintable() and c not in "\"'\\`" else " " for c in text[:4000])
    plain = " ".join(kept.encode("ascii", "replace").decode().split())
    return plain if len(plain) <= _LINE else plain[: _LINE - 4] + " ..."


def wrapped_comment(text: str, what: str = " ") -> list[str]:
    """Text as such lines, about ten at most; none if `what` is empty."""
    return [comment(line) for line in textwrap.wrap(text[:900], _LINE - 2)] if what else []


@_once
def stem(name: str) -> str:
    """A name without its numbers (Keras may append several)."""
    return re.sub(r"(_\d+)+$", "", name)


# Words in `s` that are not plurals: residual blocks are `res_0`.
_SINGULAR = frozenset(("bias", "gas", "pos", "res", "s"))


def singular(name: str) -> str:
    """`blocks` -> `block`, `mixes` -> `mix`, `cities` -> `city`."""
    if name.endswith(("xes", "ches", "shes", "sses")):
        return name[:-2]
    if name.endswith("ies") and not name.endswith("series"):
        return f"{name[:-3]}y"
    if name.endswith(("ss", "us", "is")) or name.rpartition("_")[2] in _SINGULAR:
        return name
    return name.removesuffix("s")


def item(name: str, number: str) -> str:
    """The name of a layer in a list: `layer_0` for `layers` and `0`."""
    return f"{singular(name)}_{number}"


def telling(name: str, others: Iterable[str]) -> str:
    """The only word by which a name differs from another one, or `""`."""
    words = name.split("_")
    for other in (o.split("_") for o in others):
        if len(other) == len(words):
            different = [w for w, v in zip(words, other, strict=True) if w != v]
            if len(different) == 1:
                return different[0]
    return ""


# A place in a list that is numbered itself, such as `layer2/0` in ResNets by PyTorch.
NUMBERED_LIST = re.compile(r"(.*[A-Za-z]\d+)_(\d+)")


def plural(name: str) -> str:
    """The name of several layers called `block_0`, `block_1`: `blocks`.

    Those of a list that is numbered itself have the name of that: `layer2` for `layer2_0`.
    """
    if (found := NUMBERED_LIST.fullmatch(name)) is not None:
        return snake(found[1])
    one = re.sub(r"[\W\d_]+$", "", snake(name, "layer"))
    if not one:
        return "layers"
    if len(one) == 1:
        return one  # a letter has no plural
    if one.endswith(("x", "ch", "sh", "ss")):
        return f"{one}es"
    if re.search(r"[^aeiou]y$", one):
        return f"{one[:-1]}ies"
    return one if one.endswith("s") else f"{one}s"


class Names:
    """The names used in one scope.

    **Arguments:**

    - `reserved`: names that are not made by appending a number.
    """

    def __init__(self, taken: Iterable[str] = (), reserved: Iterable[str] = ()):
        self.taken = set(taken)
        self._reserved = frozenset(reserved)
        self._next: dict[str, int] = {}

    def new(self, wanted: str) -> str:
        """`wanted`, with a number appended if it is taken."""
        name = wanted
        if name in self.taken or name in RESERVED:
            stem = wanted.rstrip("_")
            # Remembering the last number keeps this linear.
            i = self._next.get(stem, 2)
            while (name := f"{stem}_{i}") in self.taken or name in RESERVED | self._reserved:
                i += 1
            self._next[stem] = i + 1
        self.taken.add(name)
        return name

    def restore(self, earlier: Names) -> None:
        """Forget the names that are not among earlier ones."""
        self.taken, self._next = set(earlier.taken), dict(earlier._next)

    def free(self, name: str) -> None:
        self.taken.discard(name)
