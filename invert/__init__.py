"""`invert` undoes the lowering of `jax2tf`: StableHLO and TF graphs become JAX programs again."""

from typing import TYPE_CHECKING

from invert._lazy import directory as _directory
from invert._lazy import public as _public

__version__ = "0.1.0"

if TYPE_CHECKING:
    from invert._public import *  # noqa: F403
else:
    # The command line prints its help without importing JAX. A type checker must not see this: to
    # it, every name would exist.
    __getattr__ = _public(__name__, globals())
    __dir__ = _directory(__name__)
