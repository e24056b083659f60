"""Kinds of primitives: how they treat their operands, by name."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType

from invert._private.jax import open_jaxpr
from invert.ir.types import AnyJaxpr, Eqn

# Axes of both operands of a product: those that are summed over, and those of its batch.
DotDimensionNumbers = tuple[
    tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]
]

# Rearrange all elements into another shape, possibly repeating them.
LAYOUT = frozenset(("broadcast_in_dim", "reshape", "squeeze", "transpose"))
# May drop axes of size one.
DROPS = frozenset(("reshape", "squeeze"))
# Select some of the elements.
PARTS = frozenset(("dynamic_slice", "slice"))
# Move elements without computing any.
MOVES = LAYOUT | PARTS | {"rev"}
# Return the array itself.
IDENTITIES = frozenset(("copy", "optimization_barrier", "stop_gradient"))
# Convert or round the elements.
CONVERSIONS = frozenset(("convert_element_type", "reduce_precision"))
# Change the shape or dtype and keep the order of the elements.
SHAPING = (LAYOUT - {"transpose"}) | {"convert_element_type"}
COMMUTATIVE = frozenset(("add", "add_any", "and", "max", "min", "mul", "or", "xor"))
COMPARISONS = frozenset(("eq", "ge", "gt", "le", "lt", "ne"))
REDUCTIONS = frozenset(
    "reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor".split()
)
# Compute each element from those at the same position.
ELEMENTWISE = (
    COMMUTATIVE
    | COMPARISONS
    | CONVERSIONS
    | frozenset(
        "abs acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz "
        "complex conj cos cosh digamma div erf erf_inv erfc exp exp2 expm1 floor igamma igammac "
        "imag integer_pow is_finite lgamma log log1p log2 logistic neg nextafter not "
        "population_count pow real rem round rsqrt select_n shift_left shift_right_arithmetic "
        "shift_right_logical sign sin sinh sqrt square sub tan tanh".split()
    )
)
# Jointly linear in all operands; zero operands may occur among linear ones.
ADDITIVE = frozenset(("add", "add_any", "concatenate", "dynamic_update_slice", "pad", "sub"))
# Sum up products of elements.
CONTRACTIONS = frozenset(("conv_general_dilated", "dot_general"))
# Linear in each operand with the others fixed.
PRODUCTS = CONTRACTIONS | {"mul"}
# Linear in the first operand with the others, indices or a divisor, fixed.
LINEAR = MOVES | frozenset(
    "convert_element_type copy cumsum div gather neg reduce_sum reduce_window_sum split".split()
)
# Calls whose derivative has a rule of its author.
WITH_RULES = frozenset(("custom_jvp_call", "custom_vjp_call"))
# What `jax.checkpoint` binds.
CHECKPOINT = "remat2"
# Calls, and the parameter with the program of each. The last two wrap the body of a `scan` in the
# loop that JAX traces for it, in jax 0.10 and 0.12.
CALLS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("jit", CHECKPOINT), "jaxpr"),
        **dict.fromkeys((*WITH_RULES, "closed_call", "eval_jaxpr"), "call_jaxpr"),
    }
)
# What the functions of `fast` compute.
_FAST: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("depthwise_conv", "shifted_conv", "grouped_conv"),
                *("strided_conv", "narrow_conv", "paired_conv", "winograd_conv"),
                "transposed_conv",
            ),
            "conv_general_dilated",
        ),
        "flat_product": "dot_general",
        "max_pool": "reduce_window_max",
        "sum_pool": "reduce_window_sum",
        "two_pass_argmax": "argmax",
        "two_pass_argmin": "argmin",
    }
)


def called(eqn: Eqn, calls: Container[str] = CALLS) -> AnyJaxpr | None:
    """The program of a call that is one of `calls`."""
    name = eqn.primitive.name
    return eqn.params[CALLS[name]] if name in CALLS and name in calls else None


def product_axes(eqn: Eqn) -> DotDimensionNumbers:
    """The axes that a product sums over, and those of its batch, for either operand."""
    if eqn.primitive.name == "dot_general":
        return eqn.params["dimension_numbers"]
    x, y, result = (len(v.aval.shape) for v in (*eqn.invars, *eqn.outvars))
    axes = (x + y - result) // 2
    return (tuple(range(x - axes, x)), tuple(range(axes))), ((), ())


def computes(eqn: Eqn) -> str:
    """The primitive that an equation computes, itself or by a call of a function of `fast`."""
    name = eqn.primitive.name
    if name != "jit" or (computed := _FAST.get(eqn.params["name"])) is None:
        return name
    return computed if computed != "dot_general" or _is_flat_product(eqn) else name


def _is_flat_product(eqn: Eqn) -> bool:
    """Return whether a call is a product of two matrices; an author may use the name, too."""
    names = [e.primitive.name for e in open_jaxpr(eqn.params["jaxpr"]).eqns]
    if not {*names} <= {"reshape", "dot_general"} or names.count("dot_general") != 1:
        return False
    if len(eqn.invars) != 2 or len(eqn.outvars) != 1:
        return False
    (ours, theirs), _ = product_axes(eqn)
    x, y, result = (v.aval.shape for v in (*eqn.invars, *eqn.outvars))
    summed = [str(x[i]) for i in ours] == [str(y[i]) for i in theirs]
    kept = (*x[: len(x) - len(ours)], *y[len(ours) :])
    return bool(ours) and summed and [*map(str, result)] == [*map(str, kept)]
