"""Registers the rules for StableHLO, CHLO, MHLO and Shardy ops."""

import importlib
import pkgutil

from invert.stablehlo.ops.registry import REGISTRY as REGISTRY

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

REGISTRY.freeze()
