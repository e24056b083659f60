"""Rules for TensorFlow ops, one table row or short function each."""

import importlib
import pkgutil

from invert.tf.fallback.eager import refused_inputs
from invert.tf.fallback.host import host_entry, text_entry
from invert.tf.interpreter.registry import REGISTRY as REGISTRY

# Every module registers its rules. What ops do with bounded arrays is declared for the rules of the
# others, so those come last.
_modules = [module.name for module in pkgutil.iter_modules(__path__)]
for _module in sorted(_modules, key=lambda name: name.startswith("bounded")):
    importlib.import_module(f"{__name__}.{_module}")

REGISTRY.complete(overrides=(text_entry,), fallbacks=(host_entry,), diagnose=refused_inputs)
