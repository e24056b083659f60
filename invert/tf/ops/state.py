"""Handles of mutable values, and the mapping to their current values.

Variables, tensor arrays and the key of the call all live in one mapping from handle to value.
Control flow runs its bodies on copies of it. Values that a body writes become further results of a
`cond`, or are carried by a loop. Values that it only reads are closed over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import MutableMapping

import numpy as np

from invert.ir.types import Value


@dataclasses.dataclass(frozen=True)
class Resource:
    """A handle: a tensor of type `resource`, or a reference to a variable.

    **Arguments:**

    - `kind`: `"variable"`, `"key"`, `"tensor_array"`, `"growing_tensor_array"`, `"stack"`, or
        another kind defined by a rule.
    - `name`: identifies it together with `kind`.
    - `dtype`, `shape`: type of the value, if known; sizes may be `None`.
    """

    kind: str
    name: str
    dtype: np.dtype | None = dataclasses.field(default=None, compare=False)
    shape: tuple[int | None, ...] | None = dataclasses.field(default=None, compare=False)


def is_reference(value: Value) -> bool:
    """Return whether `value` is a reference to a variable of TensorFlow 1."""
    return isinstance(value, Resource) and value.kind == "reference"


# Values are pytrees of JAX values; a missing handle has no value yet.
State = MutableMapping[Resource, Value]

# The key of the call, a typed PRNG key.
KEY = Resource("key", "key")
