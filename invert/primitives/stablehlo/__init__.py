"""The rules for StableHLO, CHLO, MHLO and Shardy ops, all of which this package registers."""

from invert.primitives.stablehlo import calls as calls
from invert.primitives.stablehlo import chlo as chlo
from invert.primitives.stablehlo import collective as collective
from invert.primitives.stablehlo import compiled as compiled
from invert.primitives.stablehlo import control as control
from invert.primitives.stablehlo import dynamic as dynamic
from invert.primitives.stablehlo import elementwise as elementwise
from invert.primitives.stablehlo import indexing as indexing
from invert.primitives.stablehlo import linear as linear
from invert.primitives.stablehlo import random as random
from invert.primitives.stablehlo import reduction as reduction
from invert.primitives.stablehlo import refused as refused
from invert.primitives.stablehlo import shape as shape
from invert.primitives.stablehlo import sharding as sharding
from invert.primitives.stablehlo import sort as sort
from invert.stablehlo.ops.registry import REGISTRY as REGISTRY

REGISTRY.freeze()
