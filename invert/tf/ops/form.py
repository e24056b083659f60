"""The common part of nodes of one op with equal attributes, computed once.

A model repeats its layers, and models repeat each other's ops: 1,087 nodes of a MobileNetV2 have
30 forms.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from invert._cache import Cache
from invert.protos.ops import Definition
from invert.protos.types import Attributes, AttrValue, NodeDef
from invert.tf.ops.definition import (
    Run,
    add_defaults,
    attribute_problems,
    dtypes_of,
    types_of,
    unusual,
)
from invert.tf.ops.node import decode_attr, functions_in

# Messages are not kept: each keeps the whole graph that it is a part of.
_PLAIN = (str, bytes, int, float, tuple, np.dtype, type(None))


class Form:
    """The attributes of a node that its op declares, and what follows from them.

    **Attributes:**

    - `definition`: the definition of the op.
    - `problems`: problems with the attributes; if there are any, no types are known.
    - `inputs`, `outputs`: the types of inputs and outputs.
    - `declared`: the names of the attributes.
    - `functions`: the library functions that they refer to.
    """

    __slots__ = ("_dtypes", "_unusual", "_values", "declared", "definition", "functions", "inputs",
                 "outputs", "problems")  # fmt: skip

    def __init__(self, attrs: Attributes, definition: Definition):
        self.definition = definition
        self.problems = list(attribute_problems(attrs, definition))
        sound = not self.problems
        self.inputs: list[Run] = list(types_of(definition.input_arg, attrs)) if sound else []
        self.outputs: list[Run] = list(types_of(definition.output_arg, attrs)) if sound else []
        self.declared = frozenset(a.name for a in definition.attr if a.name in attrs)
        self.functions = tuple(functions_in({n: attrs[n] for n in self.declared}, hints=False))
        self._values: dict[str, Any] = {}
        self._dtypes: list[np.dtype | None] | None = None
        self._unusual: Sequence[str] | None = None

    def value(self, name: str, attrs: Attributes) -> Any:
        """An attribute as a Python value, which nobody else holds."""
        if name in self._values:
            value = self._values[name]
        else:
            value = decode_attr(attrs[name])
            if not all(isinstance(v, _PLAIN) for v in (value if type(value) is list else [value])):
                return value
            self._values[name] = value
        return list(value) if type(value) is list else value

    def unusual(self, options: Mapping[str, AttrValue | None], attrs: Attributes) -> Sequence[str]:
        """The options of the op that differ from their defaults."""
        if self._unusual is None:
            self._unusual = unusual(attrs, options)
        return self._unusual

    @property
    def dtypes(self) -> Sequence[np.dtype | None]:
        """The dtypes of the outputs; `None` for references."""
        if self._dtypes is None:
            self._dtypes = list(dtypes_of(self.outputs))
        return self._dtypes


# By op and attributes.
_FORMS: Cache[Hashable, Form] = Cache(4096)
# Larger attributes are not kept.
_MOST_BYTES = 256


def form_of(node: NodeDef, definition: Definition) -> Form:
    """The form of a `NodeDef` proto, to which omitted attributes are added."""
    add_defaults(node, definition)
    attrs = node.attr
    texts: list[bytes] = []
    for attr in definition.attr:
        if attr.name not in attrs:
            return Form(attrs, definition)
        texts.append(attrs[attr.name].SerializeToString())
    key = node.op, tuple(texts)
    form = _FORMS.get(key)
    # Another library may define the op in another way.
    if form is None or form.definition is not definition:
        form = Form(attrs, definition)
        if max(map(len, texts), default=0) <= _MOST_BYTES:
            _FORMS[key] = form
    return form
