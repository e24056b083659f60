"""Functions under the names and signatures of other packages."""

from invert._lazy import submodules as _submodules

__getattr__ = _submodules("invert.compat", "tf2jax")
