"""Names of array axes in a class's annotations: features, images, gates, heads."""

from __future__ import annotations

import ast
import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence, Set

from invert.emission.constructors.sizes import GATES, HEAD_DIM, HEADS, HIDDEN, POSITIONS
from invert.emission.constructors.starts import EMBEDDINGS
from invert.emission.layers.shared import Draft, is_block
from invert.emission.python.naming import stem
from invert.emission.python.syntax import field_of
from invert.emission.sizes.expressions import text
from invert.ir.sizes import DimSize, dimension, dimensions

CONV = re.compile(r"\bconv_(general_dilated|transpose)\(")


_STATED = re.compile(r"dimension_numbers=\('(\w+)', '(\w+)', '(\w+)'\)")


def letters_of(texts: Iterable[str]) -> str:
    """The image axes of the first convolution in some texts, or `""`."""
    text = next((t for t in texts if CONV.search(t)), "")
    stated = _STATED.search(text)
    if stated is not None:
        return stated[1]
    return ("NHWC" if "conv_transpose(" in text else "NCHW") if text else ""


def _channel(letters: str, rank: int) -> int:
    """The axis of the channels of an image."""
    return 1 if letters.startswith("NC") and 3 <= rank <= 5 else rank - 1


def _held(drafts: Sequence[Draft]) -> set[tuple[str, ...]]:
    """The sizes of parameters of the layers inside, in all layers of a class."""
    every = [d.inner_shapes for d in drafts]
    common = [n for n in every[0] if all(n in shapes for shapes in every)]
    columns = (zip(*(shapes[n] for shapes in every), strict=False) for n in common)
    return {tuple(map(text, sizes)) for axes in columns for sizes in axes}


def _is_field(source: ast.expr | None) -> bool:
    return bool(field_of(source))


def is_table(field: str, text: str) -> bool:
    """Return whether rows of a field are looked up, in a class of this text."""
    lookups = f"self.{field}.at[", f"jnp.take(self.{field}, "
    rows = re.search(rf"\bself\.{field}\[[A-Za-z_]\w*\]", text)
    return rows is not None or any(sign in text for sign in lookups)


def order(
    pair: tuple[ast.expr, Sequence[tuple[str, tuple[int, ...]]], ast.expr | None],
) -> tuple[bool, float]:
    """Sort key: fields before arguments, kernels before biases, the recurrent kernel first."""
    _, column, source = pair
    field = isinstance(source, ast.Attribute)
    state = field_of(source) == _RECURRENT
    return not field, -len(column[0][1]) - 0.5 * state if field else 0


# What a text that multiplies matrices has in it.
_PRODUCTS = (" @ ", "einsum", "tensordot", "flat_product", "dot_general")
_RECURRENT = "recurrent_kernel"
# The number of different sizes whose differences are no coincidence.
_LEAST_JOINED = 3
_GROUPS = "feature_group_count="
_AXIS_NAMES = ("batch", "length")
# The names of the axes of attention kernels, by the axes that the results lack.
_HEADS: Mapping[tuple[bool, ...], tuple[str, str, str]] = {
    (True, False, False): ("n_in", HEADS, HEAD_DIM),
    (True, True, False): (HEADS, HEAD_DIM, "n_out"),
    (False, True, False): (HEADS, "n_in", HEAD_DIM),
}
_ATTENTION = re.compile(r"\b(softmax|dot_product_attention)\(")
_SPATIAL = ("d", "h", "w")
_LENGTHS = ("length", *_SPATIAL)
# The letters of the dimension numbers of images and kernels.
_AXES = {"N": "batch", "C": "c", "I": "c_in", "O": "c_out"}


@dataclasses.dataclass
class Dimensions:
    """Names of annotated sizes that differ between the layers of a class.

    Sizes that are equal in all layers share a name, except within one array.

    **Arguments:**

    - `images`: the axes of images, such as `"NHWC"`; `""` if it has no images.
    - `text`: the text of its methods; `products`: whether it multiplies matrices.
    - `given`: the numbers of features of its first argument; `passed`: those of its result too.
    - `lengths`: the second sizes of arguments that are sequences of features.
    - `bound`: the open dimensions that its arguments have.
    - `made`: all sizes of its results; `led`: those along their first axes.
    - `held`: the sizes of parameters of the layers inside.
    - `twins`: the places of the layers of other sizes, with those of the layers that they are of.
    - `recurrent`: whether it multiplies its state by a matrix with a column for each gate.
    - `block`: whether it holds the matrices of several products, so that equal sizes are one.
    """

    images: str
    text: str = ""
    given: Set[tuple[str, ...]] = frozenset()
    passed: Set[tuple[str, ...]] = frozenset()
    lengths: Set[tuple[str, ...]] = frozenset()
    bound: Set[str] = frozenset()
    made: Set[tuple[str, ...]] = frozenset()
    led: Set[tuple[str, ...]] = frozenset()
    inner: Set[tuple[str, ...]] = frozenset()
    held: Set[tuple[str, ...]] = frozenset()
    twins: Sequence[tuple[int, int]] = ()
    recurrent: bool = False
    products: bool = False
    block: bool = False
    names: dict[tuple[str, ...], list[str]] = dataclasses.field(default_factory=dict)
    taken: set[str] = dataclasses.field(default_factory=set)

    @staticmethod
    def of(drafts: Sequence[Draft], *, images: str) -> Dimensions:
        """The names for a class; `images`: the axes of the program's images, if any."""
        draft = drafts[0]
        text_ = "".join(draft.texts)
        conv = CONV.search(text_) is not None
        images = letters_of([text_]) or images
        ranks = {len(shape) for _, shape in draft.arrays}
        products = any(sign in text_ for sign in _PRODUCTS)
        features: dict[bool, set[tuple[str, ...]]] = {True: set(), False: set()}
        taken: set[str] = set()
        made: set[tuple[str, ...]] = set()
        led: set[tuple[str, ...]] = set()
        lengths: set[tuple[str, ...]] = set()
        # The sizes of the first and of the second axes of matrices.
        matrices: tuple[set[tuple[str, ...]], set[tuple[str, ...]]] = (set(), set())
        fields: list[list[tuple[DimSize, ...]]] = []
        places: dict[Draft | None, int] = {d: i for i, d in enumerate(drafts)}
        cell = stem(draft.node.name).lower().endswith("cell")
        for i, source in enumerate(draft.sources):
            shapes = [d.arrays[i][1] for d in drafts]
            if _is_field(source) and all(len(s) == 2 for s in shapes) and cell:
                fields.append(shapes)
            if _is_field(source) and all(len(s) == 2 for s in shapes):
                for known, sizes in zip(matrices, zip(*shapes, strict=True), strict=True):
                    known.add(tuple(map(text, sizes)))
            if isinstance(source, ast.Name) and all(len(s) == 3 for s in shapes):
                lengths.add(tuple(text(s[1]) for s in shapes))
            if source is None:
                sizes_ = [tuple(map(text, sizes)) for sizes in zip(*shapes, strict=False)]
                made.update(sizes_)
                led.update(sizes_[:1])
            first = source is None or not features[False]
            indices = source is not None and draft.arrays[i][0] in ("Int", "UInt", "Bool")
            if not _is_field(source) and all(shapes) and first and not indices:
                features[source is None].add(
                    tuple(text(s[_channel(images, len(s))]) for s in shapes)
                )
            # Open sizes that all layers have keep their names.
            taken.update(str(n) for s in zip(*shapes, strict=False) if len({*map(text, s)}) == 1
                         for n in map(text, s[:1]) if n.isidentifier())  # fmt: skip
        passed = features[True] & features[False]
        given = [a for a, s in zip(draft.arrays, draft.sources, strict=True) if s is not None]
        bound = {name for _, s in given for n in s if (name := dimension(n)) is not None}
        return Dimensions(
            images if conv or (not products and 4 in ranks) else "",
            text_,
            features[False],
            passed,
            lengths,
            bound,
            made,
            led,
            (matrices[0] & matrices[1]) - made - features[False],
            _held(drafts),
            [(i, places[d.twin]) for i, d in enumerate(drafts) if d.twin in places],
            any(
                [tuple(map(text, sizes)) in made for sizes in zip(*shapes, strict=True)]
                == [True, False]
                for shapes in fields
            ),
            products=products,
            block=is_block(draft.node),
            taken=taken,
        )

    def know(self, keys: tuple[str, ...], name: str) -> None:
        """Use the name that an inner layer gives to a size."""
        self.names[keys] = [self._new(name)]

    def texts(
        self,
        shapes: Sequence[tuple[DimSize, ...]],
        source: ast.expr | None,
        kind: str,
        *,
        whole: bool,
    ) -> list[str]:
        """The sizes of an array, given for all layers, in an annotation.

        **Arguments:**

        - `source`: the expression by which methods read it; `None` for a result.
        - `kind`: that of its dtype.
        - `whole`: whether it has the same number of axes in all layers.
        """
        texts: list[str] = []
        seen: collections.Counter[tuple[str, ...]] = collections.Counter()
        for axis, sizes in enumerate(shapes):
            keys = tuple(map(text, sizes))
            known = dimension(sizes[0]) is not None or dimensions(sizes[0]) <= self.bound
            if len(set(keys)) == 1 and known:
                texts.append(keys[0])
                continue
            names = self.names.setdefault(keys, [])
            # An open size is the same everywhere, and so are the sizes in a block.
            one = self.block or dimension(sizes[0]) is not None
            # Equal sizes that are others in a twin, and equal there, are one.
            one = one or (not _is_field(source) and any(keys[i] != keys[k] for i, k in self.twins))
            place = min(seen[keys], len(names) - 1) if one and names else seen[keys]
            if place == len(names):
                rank = len(shapes)
                if self.block and rank == 2 and _is_field(source):
                    wanted = "dim" if keys in self.passed else HIDDEN
                elif _is_field(source):
                    columns = [tuple(map(text, column)) for column in shapes]
                    wanted = self._of_field(axis, columns, field_of(source))
                    if wanted == "c_out" and keys in self.given and _GROUPS in self.text:
                        # A depthwise convolution.
                        wanted = "c" if keys in self.passed else "c_in"
                elif self.images and 3 <= rank <= 5:
                    wanted = self._of_image(axis, rank, keys, result=source is None)
                else:
                    features = axis == rank - 1 and (rank > 1 or not whole) and kind != "Int"
                    wanted = _AXIS_NAMES[axis] if axis < len(_AXIS_NAMES) else "n"
                    wanted = self._features(keys, "n", source is None) if features else wanted
                    if rank == 1 and keys in self.made - self.led:
                        wanted = _AXIS_NAMES[1]
                    elif rank == 1 and kind == "Float" and keys in self.held:
                        wanted = HIDDEN if "dim" in self.taken else "dim"
                # The state and all gates of a simple cell have one size.
                same = wanted == GATES and names == [HIDDEN]
                wanted = self._of_argument(wanted, source, rank)
                names.append(HIDDEN if same else self._new(wanted))
            texts.append(names[place])
            seen[keys] += 1
        return texts

    def _of_argument(self, wanted: str, source: ast.expr | None, rank: int) -> str:
        """`memory_length` for a second length, that of an argument `memory`."""
        name = source.id if isinstance(source, ast.Name) else ""
        named = len(name) > 1 and name.isalpha()
        # Beside an open batch, a first axis of a fixed size is that of a table.
        if wanted == "batch" and (self.taken & self.bound or (named and wanted in self.taken)):
            return f"num_{name}" if rank == 1 and named and name.endswith("s") else "n"
        if wanted not in self.taken or not named:
            return wanted
        return f"{name}_{wanted}" if wanted in _LENGTHS else wanted

    def _features(self, keys: tuple[str, ...], stem: str, result: bool) -> str:
        """The name of the number of features of an argument or a result."""
        if keys in self.passed:
            return "dim" if stem == "n" else stem
        if result and (more := self._joined(keys, f"{stem}_in")):
            return more
        # A skip connection has the size of the result.
        result = result or (f"{stem}_in" in self.taken and keys in self.made)
        return f"{stem}_out" if result else f"{stem}_in"

    def _joined(self, keys: tuple[str, ...], name: str) -> str:
        """`c_in+32`, if results have 32 features more than the input in every layer."""
        given = next((own for own, names in self.names.items() if name in names), ())
        numbers = [(int(n), int(m)) for n, m in zip(keys, given, strict=False)
                   if n.isdigit() and m.isdigit()]  # fmt: skip
        more = {n - m for n, m in numbers}
        several = len({n for n, _ in numbers}) >= _LEAST_JOINED and len(numbers) == len(keys)
        return f"{name}+{more.pop()}" if several and len(more) == 1 and min(more) > 0 else ""

    def first(self) -> dict[tuple[str, ...], str]:
        """A name for each size, but not for sums."""
        return {keys: names[0] for keys, names in self.names.items() if names[0].isidentifier()}

    def _of_image(self, axis: int, rank: int, keys: tuple[str, ...], *, result: bool) -> str:
        name = self._layout(rank)[0][axis]
        if name == "c":
            return self._features(keys, "c", result)
        # A skip connection has the size of the result.
        result = result or (name in self.taken and keys in self.made)
        return f"{name}_out" if result else name

    def _of_field(self, axis: int, columns: Sequence[tuple[str, ...]], field: str) -> str:
        """The name of a parameter's axis, given its sizes in all layers."""
        rank = len(columns)
        given = [column not in self.made for column in columns]  # in no result
        if self.images and 3 <= rank <= 5:
            name = self._layout(rank, field)[1][axis]
            if f"self.{_RECURRENT}" not in self.text:
                return name
            inner = HIDDEN if field == _RECURRENT else name
            return {"c_in": inner, "c_out": GATES}.get(name, name)
        if rank == 1:
            return "c" if self.images else "dim"
        if field == _RECURRENT and rank == 2:
            return (HIDDEN, GATES)[axis]
        if rank == 2 and (is_table(field, self.text) or (not self.text and field in EMBEDDINGS)):
            return ("num_embeddings", "n_out")[axis]
        first_rows = re.search(rf"self\.{field}\[:[a-z_]+\]", self.text)
        if rank == 2 and first_rows is not None and not self.products:
            return (POSITIONS, "dim")[axis]
        if rank == 2 and self.text and not self.products:
            rows = "length" if columns[0] in self.lengths else "rows"
            return (rows, "dim" if columns[1] in self.passed else "n")[axis]
        # The rows of a matrix that is used transposed, as in PyTorch, are the outputs.
        transposed = f"self.{field}.T" in self.text or self._is_left(field)
        if rank == 2 and self.recurrent:
            return (HIDDEN if not given[0] else "n_in", GATES)[axis]
        if rank == 3 and given == [False, True, True] and _ATTENTION.search(self.text):
            return (self._features(columns[0], "n", False), HEADS, HEAD_DIM)[axis]
        if rank == 3 and (self.products or not self.text):
            return _HEADS.get(tuple(given), ("n", "n", "n"))[axis]
        if rank == 2 and columns[axis] in self.inner:
            return HIDDEN
        return ("n_in", "n_out")[axis != transposed] if rank == 2 else "n"

    def _is_left(self, field: str) -> bool:
        """Return whether a matrix is multiplied by arrays, whose features are its last axis."""
        sign = rf"einsum\('\w(\w),\w*\1\w*->(?!\w*\1)\w+', self\.{field}\b|self\.{field} @ "
        return re.search(sign, self.text) is not None

    def _layout(self, rank: int, field: str = "") -> tuple[Sequence[str], Sequence[str]]:
        """Names of the axes of images and kernels, in the order of the convolution by a field."""
        used = re.search(rf"\bself\.{field}\b", self.text) if field else None
        stated = _STATED.search(self.text, used.start() if used is not None else 0)
        count = rank - 2
        spatial = _SPATIAL[-count:]
        sides = [f"k{axis}" for axis in spatial]
        first = _channel(self.images, rank) == 1
        images = ["batch", "c", *spatial] if first else ["batch", *spatial, "c"]
        kernels = ["c_out", "c_in", *sides] if first else [*sides, "c_in", "c_out"]
        if stated is not None and len(stated[1]) == rank:
            images = [_AXES.get(c, c.lower()) for c in stated[1]]
            kernels = [_AXES.get(c, f"k{c.lower()}") for c in stated[2]]
        if "transpose_kernel=True" in self.text:
            i, o = kernels.index("c_in"), kernels.index("c_out")
            kernels[i], kernels[o] = "c_out", "c_in"
        return images, kernels

    def _new(self, wanted: str) -> str:
        name, i = wanted, 2
        while name in self.taken:
            name, i = f"{wanted}_{i}", i + 1
        self.taken.add(name)
        return name
