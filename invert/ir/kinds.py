"""What primitives do to their operands: the one table of kinds, by name."""

from __future__ import annotations

# All elements of an array in another shape, some of them several times.
LAYOUT = frozenset(("broadcast_in_dim", "reshape", "squeeze", "transpose"))
# Some of the elements.
PARTS = frozenset(("dynamic_slice", "slice"))
# The elements at other places, and none is computed.
MOVES = LAYOUT | PARTS | {"rev"}
# The array itself.
IDENTITIES = frozenset(("copy", "optimization_barrier", "stop_gradient"))
# The same numbers, rounded to another type or as one of another type.
CONVERSIONS = frozenset(("convert_element_type", "reduce_precision"))
COMMUTATIVE = frozenset(("add", "add_any", "and", "max", "min", "mul", "or", "xor"))
COMPARISONS = frozenset(("eq", "ge", "gt", "le", "lt", "ne"))
REDUCTIONS = frozenset(
    "reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor".split()
)
# Each element of the result is computed from the elements at its place alone.
ELEMENTWISE = (
    COMMUTATIVE
    | COMPARISONS
    | CONVERSIONS
    | frozenset(
        "abs acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz "
        "complex conj cos cosh digamma div erf erf_inv erfc exp exp2 expm1 floor igamma igammac "
        "imag integer_pow is_finite lgamma log log1p logistic neg nextafter not population_count "
        "pow real rem round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical "
        "sign sin sinh sqrt square sub tan tanh".split()
    )
)
# Linear in all operands together: zero operands may stand among linear ones.
ADDITIVE = frozenset(("add", "add_any", "concatenate", "dynamic_update_slice", "pad", "sub"))
# Linear in each operand where the others are fixed.
PRODUCTS = frozenset(("conv_general_dilated", "dot_general", "mul"))
# Linear in the first operand; the others, which are indices or a divisor, are fixed.
LINEAR = MOVES | frozenset(
    "convert_element_type copy cumsum div gather neg reduce_sum reduce_window_sum split".split()
)
