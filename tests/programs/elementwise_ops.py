"""Modules of elementwise ops: op -> (text, arguments), all dtypes of an op in one module."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.programs.stablehlo_text import main, tensor, type_of

FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
COMPLEX = (np.complex64, np.complex128)
SIGNED = (np.int8, np.int16, np.int32, np.int64)
UNSIGNED = (np.uint8, np.uint16, np.uint32, np.uint64)
INTS = (*SIGNED, *UNSIGNED)
BOOL = (np.bool_,)
NUMBERS = (*INTS, *FLOATS, *COMPLEX)
WIDE = (np.float32, np.float64)

Module = tuple[str, list[np.ndarray]]


def values(dtype: Any, kind: str = "", turn: int = 0) -> np.ndarray:
    """Five values of a type; `kind` restricts them to the domain of an op."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return np.roll(np.array([True, False, True, True, False]), turn)
    if dtype.kind in "iu":
        picked = np.array([1, 0, 7, 3, 5] if dtype.kind == "u" else [-3, 0, 7, -1, 2], dtype)
        if kind == "nonzero":
            picked = np.array([1, 2, 7, 3, 5] if dtype.kind == "u" else [-3, 2, 7, -1, 4], dtype)
        if kind == "small":
            picked = np.array([1, 0, 2, 3, 1], dtype)
        if not turn and not kind:
            picked[1] = np.iinfo(dtype).max
        return np.roll(picked, turn)
    picked = {
        "": [-1.7, 0.0, 0.4, 2.5, 1.25],
        "positive": [0.3, 1.0, 0.4, 2.5, 3.25],
        "unit": [-0.7, 0.0, 0.4, 0.9, -0.25],
        "above one": [1.0, 1.5, 2.25, 4.0, 8.5],
        "nonzero": [-1.5, 0.25, 2.0, -0.75, 1.25],
        "special": [-np.inf, np.nan, np.inf, -0.0, 2.5],
    }[kind]
    result = np.roll(np.array(picked), turn).astype(dtype)
    if dtype.kind == "c":
        result = (result + 1j * np.roll(result, 1)).astype(dtype)
    return result


def elementwise(
    name: str, dtypes: Any, arity: int = 1, kind: str = "", result: Any = None, attrs: str = ""
) -> Module:
    """One module that applies the op to an array of each dtype."""
    args: list[np.ndarray] = []
    lines, results = [], []
    for i, dtype in enumerate(dtypes):
        operands = []
        for turn in range(arity):
            operands.append(f"%a{len(args)}")
            args.append(values(dtype, kind if turn == 0 or kind != "" else "", turn))
        types = ", ".join(type_of(x) for x in args[-arity:])
        out = type_of(args[-1]) if result is None else tensor(result(np.dtype(dtype)), (5,))
        lines.append(f'%r{i} = "{name}"({", ".join(operands)}) {attrs} : ({types}) -> {out}')
        results.append(out)
    return main("\n".join(lines), args, results), args


def real_of(dtype: np.dtype) -> Any:
    return {"complex64": np.float32, "complex128": np.float64}.get(dtype.name, dtype)


def complex_of(dtype: np.dtype) -> Any:
    return {"float32": np.complex64, "float64": np.complex128}[dtype.name]


def to_bool(dtype: np.dtype) -> Any:
    return np.bool_


_FC = (*FLOATS, *COMPLEX)
_NB = (*BOOL, *NUMBERS)

# op -> (dtypes, operands, domain, dtype of the result)
STABLEHLO: dict[str, tuple[Any, int, str, Any]] = {
    "abs": ((*SIGNED, *FLOATS, *COMPLEX), 1, "", real_of),
    "add": (_NB, 2, "", None),
    "and": ((*BOOL, *INTS), 2, "", None),
    "atan2": (FLOATS, 2, "", None),
    "cbrt": (FLOATS, 1, "", None),
    "ceil": (FLOATS, 1, "", None),
    "complex": (WIDE, 2, "", complex_of),
    "cosine": (_FC, 1, "", None),
    "count_leading_zeros": (INTS, 1, "", None),
    "divide": (NUMBERS, 2, "nonzero", None),
    "exponential": (_FC, 1, "", None),
    "exponential_minus_one": (_FC, 1, "", None),
    "floor": (FLOATS, 1, "", None),
    "imag": ((*WIDE, *COMPLEX), 1, "", real_of),
    "is_finite": (FLOATS, 1, "special", to_bool),
    "log": (_FC, 1, "positive", None),
    "log_plus_one": (_FC, 1, "positive", None),
    "logistic": (_FC, 1, "", None),
    "maximum": (_NB, 2, "", None),
    "minimum": (_NB, 2, "", None),
    "multiply": (_NB, 2, "", None),
    "negate": ((*INTS, *FLOATS, *COMPLEX), 1, "", None),
    "not": ((*BOOL, *INTS), 1, "", None),
    "or": ((*BOOL, *INTS), 2, "", None),
    "popcnt": (INTS, 1, "", None),
    "power": ((*INTS, *FLOATS), 2, "positive", None),
    "real": ((*WIDE, *COMPLEX), 1, "", real_of),
    "remainder": ((*INTS, *FLOATS), 2, "nonzero", None),
    "round_nearest_afz": (FLOATS, 1, "", None),
    "round_nearest_even": (FLOATS, 1, "", None),
    "rsqrt": (_FC, 1, "positive", None),
    "shift_left": (INTS, 2, "small", None),
    "shift_right_arithmetic": (INTS, 2, "small", None),
    "shift_right_logical": (INTS, 2, "small", None),
    "sign": ((*SIGNED, *FLOATS, *COMPLEX), 1, "", None),
    "sine": (_FC, 1, "", None),
    "sqrt": (_FC, 1, "positive", None),
    "subtract": (NUMBERS, 2, "", None),
    "tan": (_FC, 1, "unit", None),
    "tanh": (_FC, 1, "", None),
    "xor": ((*BOOL, *INTS), 2, "", None),
}

CHLO: dict[str, tuple[Any, int, str, Any]] = {
    "acos": (_FC, 1, "unit", None),
    "acosh": (_FC, 1, "above one", None),
    "asin": (_FC, 1, "unit", None),
    "asinh": (_FC, 1, "", None),
    "atan": (_FC, 1, "", None),
    "atanh": (_FC, 1, "unit", None),
    "bessel_i1e": (FLOATS, 1, "", None),
    "broadcast_add": (_NB, 2, "", None),
    "broadcast_and": ((*BOOL, *INTS), 2, "", None),
    "broadcast_atan2": (FLOATS, 2, "", None),
    "broadcast_complex": (WIDE, 2, "", complex_of),
    "broadcast_divide": (NUMBERS, 2, "nonzero", None),
    "broadcast_maximum": (_NB, 2, "", None),
    "broadcast_minimum": (_NB, 2, "", None),
    "broadcast_multiply": (_NB, 2, "", None),
    "broadcast_next_after": (WIDE, 2, "", None),
    "broadcast_or": ((*BOOL, *INTS), 2, "", None),
    "broadcast_polygamma": (WIDE, 2, "positive", None),
    "broadcast_power": (FLOATS, 2, "positive", None),
    "broadcast_remainder": ((*INTS, *FLOATS), 2, "nonzero", None),
    "broadcast_shift_left": (INTS, 2, "small", None),
    "broadcast_shift_right_arithmetic": (INTS, 2, "small", None),
    "broadcast_shift_right_logical": (INTS, 2, "small", None),
    "broadcast_subtract": (NUMBERS, 2, "", None),
    "broadcast_xor": ((*BOOL, *INTS), 2, "", None),
    "broadcast_zeta": (WIDE, 2, "above one", None),
    "conj": ((*WIDE, *COMPLEX), 1, "", None),
    "cosh": (_FC, 1, "", None),
    "digamma": (FLOATS, 1, "positive", None),
    "erf": (FLOATS, 1, "", None),
    "erf_inv": (WIDE, 1, "unit", None),
    "erfc": (FLOATS, 1, "", None),
    "is_inf": (FLOATS, 1, "special", to_bool),
    "is_neg_inf": (FLOATS, 1, "special", to_bool),
    "is_pos_inf": (FLOATS, 1, "special", to_bool),
    "lgamma": (FLOATS, 1, "positive", None),
    "mulhi": ((np.int32, np.uint32), 2, "", None),
    "next_after": (WIDE, 2, "", None),
    "polygamma": (WIDE, 2, "positive", None),
    "sinh": (_FC, 1, "", None),
    "square": ((*FLOATS, *COMPLEX), 1, "", None),
    "tan": (_FC, 1, "unit", None),
    "zeta": (WIDE, 2, "above one", None),
}

MODULES: dict[str, Module] = {
    f"{dialect}.{op}": elementwise(f"{dialect}.{op}", *row)
    for dialect, table in (("stablehlo", STABLEHLO), ("chlo", CHLO))
    for op, row in table.items()
}


def comparisons(name: str) -> Module:
    """Every direction on every dtype that has it, and the total order of floats."""
    dialect = name.partition(".")[0]
    lines: list[str] = []
    args: list[np.ndarray] = []
    rows = [(dtype, "", "") for dtype in (*BOOL, *INTS, *FLOATS, *COMPLEX)]
    total = f", compare_type = #{dialect}<comparison_type TOTALORDER>"
    for dtype, kind, attrs in [*rows, (np.float32, "special", ""), (np.float32, "special", total)]:
        args += [values(dtype, kind), values(dtype, kind, 1)]
        order = () if np.dtype(dtype).kind == "c" else ("LT", "LE", "GT", "GE")
        for direction in ("EQ", "NE", *order):
            a, b = len(args) - 2, len(args) - 1
            lines.append(
                f'%r{len(lines)} = "{name}"(%a{a}, %a{b}) {{comparison_direction = '
                f"#{dialect}<comparison_direction {direction}>{attrs}}} : "
                f"({type_of(args[a])}, {type_of(args[b])}) -> tensor<5xi1>"
            )
    return main("\n".join(lines), args, ["tensor<5xi1>"] * len(lines)), args


MODULES["stablehlo.compare"] = comparisons("stablehlo.compare")
MODULES["chlo.broadcast_compare"] = comparisons("chlo.broadcast_compare")
