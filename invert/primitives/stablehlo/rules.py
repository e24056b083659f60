"""Importing this module fills the registry with every StableHLO, CHLO and Shardy rule."""

from invert.primitives.stablehlo import (
    calls,
    chlo,
    collective,
    compiled,
    control,
    elementwise,
    indexing,
    linear,
    random,
    reduction,
    refused,
    shape,
    sharding,
    sort,
)

FAMILIES = (
    elementwise,
    shape,
    reduction,
    indexing,
    linear,
    random,
    sort,
    control,
    calls,
    chlo,
    collective,
    compiled,
    sharding,
    refused,
)
