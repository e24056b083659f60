"""The annotations of a file: types of arrays and of lists of modules."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from invert.emission.axis_names import Dimensions, order
from invert.emission.layers.shared import Class, Draft
from invert.emission.python import syntax
from invert.emission.python.syntax import field_of
from invert.emission.sizes.expressions import text
from invert.ir.sizes import DimSize

# Type of jaxtyping for the kinds of dtype.
_KINDS = (
    (jnp.bool_, "Bool"),
    (jnp.unsignedinteger, "UInt"),
    (jnp.integer, "Int"),
    (jnp.floating, "Float"),
    (jnp.complexfloating, "Complex"),
    (jax.dtypes.prng_key, "Key"),
)


def kind_of(dtype: DTypeLike) -> str:
    """`Float` for `float32`."""
    for kind, name in _KINDS:
        if jax.dtypes.issubdtype(dtype, kind):
            return name
    return "Shaped"


def dimensions_of(shape: Sequence[DimSize]) -> str:
    """A shape as a jaxtyping string."""
    return " ".join(map(text, shape))


def sequence(kinds: Sequence[ast.expr], *, mixed: bool = False) -> ast.expr:
    """`tuple[kind, ...]`, or a tuple of several kinds."""
    inner = kinds if mixed else [kinds[0], ast.Constant(...)]
    return syntax.item(syntax.name("tuple"), syntax.tuple_of(inner))


# A tuple of modules of several classes names the class of each up to this length.
_FEW = 4


def shorten(kind: ast.expr, *, modules: bool) -> None:
    """Turn `tuple[A, B, A, A, B]` into `tuple[A | B, ...]`."""
    if not isinstance(kind, ast.Subscript) or ast.unparse(kind.value) != "tuple":
        return
    inner = kind.slice
    texts = [*map(ast.unparse, inner.elts)] if isinstance(inner, ast.Tuple) else []
    if len(texts) > _FEW or (modules and len(texts) > len({*texts}) == 1):
        either = ast.parse(" | ".join(dict.fromkeys(texts)), mode="eval")
        kind.slice = syntax.tuple_of([either.body, ast.Constant(...)])


def annotate(cls: Class, named: Dimensions) -> None:
    """Fill in the sizes in the annotations of a class."""
    columns = zip(*(d.arrays for d in cls.drafts), strict=True)
    first = cls.drafts[0]
    pairs = list(zip(first.annotations, map(list, columns), first.sources, strict=True))
    # Sizes of matrices and kernels are named first; biases reuse the names.
    for node, column, source in sorted(pairs, key=order):
        ranks = [len(shape) for _, shape in column]
        # Leading axes are written as `*batch` if some layers have more of them.
        kept = min(ranks) - (1 < min(ranks) < max(ranks))
        shapes = list(zip(*(shape[-kept:] if kept else () for _, shape in column), strict=True))
        texts = named.texts(shapes, source, column[0][0], whole=max(ranks) == min(ranks))
        texts = ["*batch", *texts] if min(ranks) < max(ranks) else texts
        assert isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple)
        node.slice.elts[1] = ast.Constant(" ".join(texts))


def name_sizes(cls: Class) -> None:
    """Name the sizes that methods read from arguments as annotated: `batch, _ = x.shape`.

    The text is the first layer's, whose open sizes may have other names.
    """
    for method in cls.drafts[0].methods:
        every = {a.arg: _axes(a.annotation) for a in method.args.args}
        axes = {name: own for name, own in every.items() if not any("*" in n for n in own)}
        inner = {n.arg for n in syntax.walk(method) if isinstance(n, ast.arg)}
        known = {n.id for n in syntax.names_in(method)} | inner
        given: dict[str, str] = {}
        for statement in method.body:
            match statement:
                case ast.Assign(
                    targets=[ast.Tuple(elts=targets)],
                    value=ast.Attribute(value=ast.Name(id=array), attr="shape"),
                ):
                    read = zip(targets, axes.get(array, ()), strict=False)
                case ast.Assign(
                    targets=[ast.Name() as target],
                    value=ast.Subscript(
                        value=ast.Attribute(value=ast.Name(id=array), attr="shape"),
                        slice=ast.Constant(value=int(k)),
                    ),
                ):
                    read = zip([target], axes.get(array, ())[k : k + 1], strict=False)
                case _:
                    continue
            for target, axis in read:
                if isinstance(target, ast.Name) and target.id not in ("_", axis):
                    given[target.id] = axis
        new = {name for name in given.values() if name.isidentifier() and name not in known}
        if len(new) == len(given) and inner.isdisjoint(given):
            syntax.rename(method, given)


def _axes(annotation: ast.expr | None) -> list[str]:
    """The names of the axes in `Float[Array, "batch length"]`."""
    match annotation:
        case ast.Subscript(slice=ast.Tuple(elts=[_, ast.Constant(value=str(text_))])):
            return text_.split()
    return []


def fields_axes(draft: Draft) -> dict[str, list[str]]:
    """The names of the axes of the arrays in the fields of a layer."""
    found: dict[str, list[str]] = {}
    for source, annotation in zip(draft.sources, draft.annotations, strict=True):
        if (field := field_of(source)) and isinstance(annotation, ast.Subscript):
            found[field] = _axes(annotation)
    return found
