"""Names values after the layer, function or argument that they come from.

Another form of an array keeps its name; a product is named after its factors, a call after its
function, other arithmetic after the operand of the same type.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from invert._private.jax import names_of
from invert.emission.python.naming import snake, stem
from invert.ir import kinds
from invert.ir.graph import is_var
from invert.ir.types import Atom, Eqn, Literal, Var

# Meaningless names, replaced by better ones if possible.
_BLANK = frozenset("a b c d e f g h x y z carry chosen state".split())
_BLANKS = re.compile(r"(x|y|z|carry|state|arg)_?\d+")

PLAIN = "y"
# The state of a recurrent layer.
_STATE = "h"
# The kind of a recurrent layer after a direction, as in `forward_lstm`.
_RECURRENT = re.compile(r"(?<=[a-z])_(lstm|gru|rnn)$")
# An intermediate sum, such as that of a residual block.
STREAM = "x"
_SUMS = ("add", "add_any")
# The scopes and functions in which JAX lowers the bodies of loops; the last one from jax 0.12 on.
LOOP_SCOPES = frozenset(("while", "body", "closed_call", "eval_jaxpr"))
# Scopes that JAX and TensorFlow create for control flow, and TensorFlow for single ops.
_CONTROL = LOOP_SCOPES | frozenset(
    "cond scan map case tensordot mat_mul bias_add moments convolution".split()
)
_BRANCH = re.compile(r"branch_\d+_fun")
# The hint for a product, which is named after its factors.
PRODUCT = "*"

# Nouns for what primitives compute.
NOUNS = {
    "exp": "exp", "log": "log", "reduce_sum": "total", "reduce_max": "largest",
    "reduce_min": "smallest", "iota": "positions", "gather": "rows",
    "sort": "ordered", "argmax": "index", "argmin": "index",
    "random_split": "keys", "random_bits": "bits", "random_seed": "key", "random_wrap": "key",
    "cholesky": "factor", "lu": "lu", "eigh": "vectors", "scan": "carry", "while": "state",
    "cond": "chosen", "top_k": "top", "sqrt": "sqrt", "rsqrt": "rsqrt",
    "sign": "sign", "dynamic_slice": "part", "concatenate": "joined",
    "logistic": "sigmoid", "conv_general_dilated": PLAIN,
    **dict.fromkeys((*kinds.COMPARISONS, "is_finite", "and", "or", "not"), "mask"),
    **{n: n for n in "tanh sin cos tan sinh cosh erf erf_inv erfc atan2 cumsum cumprod".split()},
}  # fmt: skip

# Those for the results of primitives with several.
RESULTS = {
    "top_k": ("values", "indices"), "qr": ("q", "r"), "lu": ("lu", "pivots", "permutation"),
    "eigh": ("vectors", "values"),
}  # fmt: skip

# Arrays of one number.
_FILLED = ((0, "zeros"), (1, "ones"))
FILLED = frozenset(name for _, name in _FILLED)
# The same array in another form.
FORMS = (kinds.MOVES - {"dynamic_slice"}) | kinds.IDENTITIES | kinds.CONVERSIONS
# Names of matrices that do not say what a product with them is.
_MATRIX = re.compile(r"\w{1,2}|.*(kernel|weight|matrix|table|embedding|param|proj)\w*|\w\w?_\w*")
# Longer names hide the expression.
_LONGEST = 28
# The longest name of a product after both of its factors.
_OF_TWO = 16


def says(name: str | None) -> bool:
    """Return whether a name is meaningful."""
    return bool(name) and name not in _BLANK and not _BLANKS.fullmatch(name or "")


def is_blank(name: str) -> bool:
    """Return whether a name is `x` or `y`, possibly with a number."""
    return re.fullmatch(r"[xy](_\d+)?", name) is not None


def of_layer(name: str) -> str:
    """A name for a layer's result: the last word of a long name."""
    words = snake(name, PLAIN).rstrip("_0123456789").split("_")
    if len("_".join(words)) > _LONGEST:
        words = words[-1:]
    while words and words[0].isdigit():
        words = words[1:]
    return "_".join(words) or PLAIN


def of_field(name: str) -> str:
    """A name for the result of a field's layer: the field's, unless long."""
    own = _RECURRENT.sub("", snake(name, PLAIN))
    return own if len(own) <= _LONGEST else of_layer(name)


def noun(
    eqn: Eqn,
    atoms: Sequence[Atom],
    names: Mapping[Atom, str],
    path: Sequence[str],
    *,
    product: bool = False,
    fields: Mapping[Var, str],
) -> str:
    """A name for the result of an equation.

    **Arguments:**

    - `atoms`: its operands, or those of its group.
    - `names`: the names of values so far.
    - `path`: name scopes of the layer, which are not used as names.
    - `fields`: the names of values that are fields of the module.
    """
    primitive = eqn.primitive.name
    known = [(a, names[a]) for a in atoms if is_var(a) and says(names.get(a))]
    if product or kinds.computes(eqn) == "dot_general":
        if any(is_var(a) and names.get(a) == _STATE for a in atoms):
            return "recurrent"
        own = [name for a in atoms if is_var(a) and (name := fields.get(a))]
        if len(own) == 1 and not known and not _MATRIX.fullmatch(own[0]):
            return own[0]  # as the result of a layer of that name
        both = "_".join(dict.fromkeys(name for _, name in known))
        return both if len(known) == 2 and len(both) <= _OF_TWO else of_scope(eqn, path)
    if primitive == "layer":
        return STREAM
    if primitive in NOUNS:
        return NOUNS[primitive]
    if primitive == "broadcast_in_dim" and isinstance(eqn.invars[0], Literal):
        return next((name for n, name in _FILLED if eqn.invars[0].val == n), PLAIN)
    if primitive in FORMS:
        return known[0][1] if known else of_scope(eqn, path)
    if mixes(eqn, atoms, fields):
        return STREAM if primitive in _SUMS else PLAIN
    if primitive == "neg":
        return PLAIN  # `-loss` is not a loss
    if primitive == "sub" and isinstance(eqn.invars[0], Literal):
        of_mask = bool(known) and stem(known[0][1]).endswith("mask")
        return "inverse_mask" if of_mask else of_scope(eqn, path)
    out = _type(eqn.outvars[0])
    if primitive == "select_n":
        # It is one of the chosen values, not the selector.
        chosen = {a for a in eqn.invars[1:] if is_var(a)}
        known = [(a, name) for a, name in known if a in chosen]
    # A value other than the result of `conv_1` is `conv`.
    alike = [stem(name) for a, name in known if _type(a) == out]
    return alike[0] if alike else of_scope(eqn, path)


def mixes(eqn: Eqn, atoms: Sequence[Atom], fields: Collection[Atom] = ()) -> bool:
    """Return whether a result combines several arrays."""
    name = eqn.primitive.name
    if len(eqn.outvars) != 1 or name not in kinds.ELEMENTWISE:
        return False
    out = _type(eqn.outvars[0])
    arrays = {a for a in atoms if is_var(a) and a not in fields}
    sums = name in _SUMS and all(getattr(a.aval, "shape", ()) for a in arrays)
    return len(arrays if sums else {a for a in arrays if _type(a) == out}) > 1


def _type(v: Atom) -> tuple[object, object]:
    return getattr(v.aval, "shape", None), getattr(v.aval, "dtype", None)


def of_scope(eqn: Eqn, path: Sequence[str]) -> str:
    """The innermost name scope, unless it is the layer's."""
    if getattr(eqn, "source_info", None) is None or not hasattr(eqn, "ctx"):
        return PLAIN
    scopes = names_of(eqn)
    if not scopes or scopes[-1] in path or of_layer(scopes[-1]) in _CONTROL:
        return PLAIN
    if not re.fullmatch(r"[A-Za-z]\w*", scopes[-1]) or _BRANCH.fullmatch(scopes[-1]):
        return PLAIN
    return of_layer(scopes[-1])
