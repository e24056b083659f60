"""Kinds of primitives: how they treat their operands, by name."""

from __future__ import annotations

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
# Linear in each operand with the others fixed.
PRODUCTS = frozenset(("conv_general_dilated", "dot_general", "mul"))
# Linear in the first operand with the others, indices or a divisor, fixed.
LINEAR = MOVES | frozenset(
    "convert_element_type copy cumsum div gather neg reduce_sum reduce_window_sum split".split()
)
