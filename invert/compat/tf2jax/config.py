"""The flags of tf2jax, and the options they map to.

They belong to the current context (`contextvars`), so that threads do not see each other's; a new
thread begins with the defaults.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, cast

import jax

from invert._config import Config

_DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "strict_shape_check": True,
        "strict_dtype_check": False,
        "force_const_float32_to_bfloat16": False,
        "force_const_float64_to_bfloat16": False,
        "convert_custom_gradient": True,
        "infer_relu_from_jax2tf": True,
        "infer_cumulative_reduction_from_jax2tf": True,
        "raise_on_prevent_gradient": True,
        "resize_bilinear_precision": "highest",
        "enable_checkify_for_asserts": False,
        "xlacallmodule_strict_checks": True,
        "disable_assert_in_tensor_list_get_item": False,
        "skip_variables_evaluation_inside_tf_tracing": False,
    }
)

_flags: contextvars.ContextVar[Mapping[str, object]] = contextvars.ContextVar(
    "tf2jax flags", default=_DEFAULTS
)

_NARROW: dict[Literal["float32", "float64"], str] = {
    "float32": "force_const_float32_to_bfloat16",
    "float64": "force_const_float64_to_bfloat16",
}

# Patterns disabled by flags.
_PATTERNS = {
    "infer_relu_from_jax2tf": "library_call",
    "infer_cumulative_reduction_from_jax2tf": "cumulative",
}


def get_config(name: str) -> object:
    """The value of a flag.

    **Raises:** `KeyError` for an unknown flag.
    """
    return _flags.get()[name]


def update_config(name: str, value: object) -> None:
    """Set a flag in the current context.

    **Raises:** `ValueError` for an unknown flag.
    """
    if name not in _DEFAULTS:
        raise ValueError(f"unknown flag {name!r}; the flags are {sorted(_DEFAULTS)}")
    _flags.set(MappingProxyType({**_flags.get(), name: value}))


def copy_config() -> Mapping[str, object]:
    """The values of all flags, by name."""
    return dict(_flags.get())


@contextlib.contextmanager
def override_config(name: str, value: object) -> Iterator[None]:
    """Set a flag within a `with` statement."""
    with override_configs({name: value}):
        yield


@contextlib.contextmanager
def override_configs(new_config: Mapping[str, object]) -> Iterator[None]:
    """Set several flags within a `with` statement."""
    before = _flags.get()
    for name, value in new_config.items():
        get_config(name)
        update_config(name, value)
    try:
        yield
    finally:
        _flags.set(before)


def narrows() -> bool:
    """Return whether constants of a type become bfloat16."""
    return any(get_config(flag) for flag in _NARROW.values())


def conversion() -> Config:
    """The options of a conversion, from the flags."""
    flags = _flags.get()
    off = [name for flag, name in _PATTERNS.items() if not flags[flag]]
    precision = flags["resize_bilinear_precision"]
    return Config(
        disabled_patterns=tuple(off),
        verify=False,
        custom_gradients="check" if flags["convert_custom_gradient"] else "ignore",
        prevent_gradient="error" if flags["raise_on_prevent_gradient"] else "warn",
        assertions="checkify" if flags["enable_checkify_for_asserts"] else "drop",
        bfloat16_constants=tuple(t for t in _NARROW if flags[_NARROW[t]]),
        # Also `None` or an enum member, as in `jax.image.resize`.
        strict_shapes=False,  # its flag is read in each call
        resize_precision=cast(Any, jax.lax.Precision(precision).name.lower()),
    )
