"""Modules of StableHLO as functions."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np

from invert._api import from_stablehlo
from invert._config import Config
from invert.modules.module import Module


@dataclasses.dataclass(frozen=True)
class MhloModule:
    """A module of StableHLO.

    **Arguments:**

    - `module`: its text.
    - `fun_name`: its name.
    - `assume_grad_fn`: no effect: the program is differentiated like any other.
    - `require_platform_index`: whether its first argument is a platform index.
    """

    module: str
    fun_name: str
    assume_grad_fn: bool = False
    require_platform_index: bool = False


@functools.lru_cache(maxsize=128)
def _converted(module: MhloModule) -> Module:
    return from_stablehlo(module.module, config=Config(verify=False))


def mhlo_apply(*args: object, module: MhloModule) -> jax.Array | tuple[jax.Array, ...]:
    """Call a module: one array, or a tuple of several.

    **Raises:** as `invert.from_stablehlo`.
    """
    found = _converted(module)
    if module.require_platform_index:
        args = (np.int32(0), *args)
    return found(*args)
