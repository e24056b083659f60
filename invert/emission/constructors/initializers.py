"""What the constructors of a file have in common: initializers, keys, and the arguments of each."""

from __future__ import annotations

import ast
import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

from invert.emission.constructors.sizes import HEADS
from invert.emission.constructors.starts import Starts
from invert.emission.equinox_nn.construct import native_of
from invert.emission.layers.shared import Class
from invert.emission.layers.tree import Node
from invert.emission.python import syntax
from invert.emission.python.naming import Names
from invert.ir.types import Var

_FIXED = frozenset(("zeros", "ones", "values", "unknown", "key", "forget"))
# Initializers with arguments. PyTorch's is that of `nn.Linear` and of convolutions, whose weights
# have outputs first; the bounds are those of Keras's embeddings.
_SPELLED = {
    "lecun_normal_heads": "jax.nn.initializers.lecun_normal(in_axis=0, out_axis=(1, 2))",
    "lecun_normal_each": "jax.nn.initializers.lecun_normal(batch_axis=0)",
    "lecun_normal_transposed": "jax.nn.initializers.lecun_normal(in_axis=-1, out_axis=-2)",
    "kaiming_uniform": (
        'jax.nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", in_axis=1, out_axis=0)'
    ),
}


@dataclasses.dataclass
class Made:
    """The `__init__` of a class.

    **Arguments:**

    - `arguments`: their names, with the values for each instance.
    - `keyed`: whether it takes a key.
    - `named`: those given by name; `defaults`: their default values.
    - `places`: the number of each instance.
    """

    arguments: dict[str, tuple[Any, ...]]
    keyed: bool
    named: Set[str] = frozenset()
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
    places: dict[Node, int] = dataclasses.field(default_factory=dict)


class Initializers:
    """Writes the constructors of a file, innermost class first.

    **Arguments:**

    - `of`: the classes of the nodes.
    - `shape`: the shape of a parameter, without the axes of stacks.
    - `functions`: receives the initializers that are used, by name.
    """

    def __init__(
        self,
        of: Mapping[Node, Class],
        starts: Starts,
        shape: Callable[[Var], Sequence[int]],
        names: Names,
    ):
        self.of, self.starts, self.shape, self.names = of, starts, shape, names
        self.functions: dict[str, str] = {}
        # Functions that make the lists of the class that was written last.
        self.stages: list[ast.FunctionDef] = []
        # The constructors that are written.
        self.written: dict[Class, Made] = {}
        # Arguments that the model does not have.
        self.as_numbers: set[str] = set()
        # Classes whose number of heads is fixed: it is one, or other arrays share it.
        self.counted: set[Class] = set()
        # The classes whose arguments and results have no axis of heads.
        self.heads_apart: set[Class] = set()
        # The width that all widths of the model are multiples of, in the model and its twin.
        self.width: tuple[int, ...] = ()
        # Sizes of the model that are sums, with their terms.
        self.sums: Mapping[tuple[int, ...], Sequence[tuple[int, ...]]] = {}
        # The names of the features of several inputs of the model.
        self.inputs: Sequence[str] = ()
        self._keyed: dict[Node, bool] = {}
        # The layers that one call makes, by class, field, and index in a list.
        self.sites: dict[tuple[Class, str, int], list[Node]] = collections.defaultdict(list)

    def restart(self) -> None:
        """Forget what has been written."""
        self.functions.clear()
        self.written.clear()

    def keyed(self, node: Node) -> bool:
        """Return whether the constructor of a module takes a key."""
        if node not in self._keyed:
            native = native_of(node)
            if native is not None:
                self._keyed[node] = native.keyed
            else:
                first = self.of[node].drafts[0].node if node in self.of else node
                own = [v for v in first.fields.values() if not isinstance(v, Node)]
                self._keyed[node] = any(self.starts.of(v) not in _FIXED for v in own) or any(
                    self.keyed(n) for n in first.nodes
                )
        return self._keyed[node]

    def made(self, node: Node) -> tuple[Made, int]:
        """The `__init__` of the class of a node, and which instance the node is."""
        made = self.written[self.of[node]]
        return made, made.places[node]

    def heads_in_arrays(self, cls: Class) -> int | None:
        """The number of heads, if some axis of an argument or a result may be that of the heads."""
        column = self.written[cls].arguments.get(HEADS, ())
        if len({*column}) != 1 or cls in self.heads_apart:
            return None
        layers = (layer for d in cls.drafts for layer in d.node.layers)
        arrays = [v for layer in layers for v in (*layer.inputs, *layer.results)]
        return column[0] if any(column[0] in v.aval.shape for v in arrays) else None

    def gather_sites(self, classes: Iterable[Class]) -> None:
        """Group the layers in `classes` by the call that makes them."""
        self.sites.clear()
        for outer in classes:
            for draft in outer.drafts:
                for field, inner in draft.node.fields.items():
                    if isinstance(inner, Node):
                        for i, node in enumerate(inner.nodes if inner.listed else [inner]):
                            self.sites[outer, field, i].append(node)

    def outer(self, cls: Class) -> set[Class]:
        """The classes whose fields hold layers of `cls`."""
        own = {d.node for d in cls.drafts}
        return {outer for (outer, _, _), nodes in self.sites.items() if not own.isdisjoint(nodes)}

    def omitted(self, cls: Class, column: tuple[Any, ...], default: Any) -> bool:
        """Return whether some call can omit the argument with these values."""
        at = places(cls)
        made = ([at[n] for n in nodes if n in at] for nodes in self.sites.values())
        return any(all(column[i] == default for i in own) for own in made if own)

    def function(self, name: str) -> ast.expr:
        """An initializer, which is a constant of the file."""
        if name not in self.functions:
            self.functions[name] = self.names.new(name)
        return syntax.name(self.functions[name])

    def constants(self) -> list[ast.stmt]:
        """`glorot_uniform = jax.nn.initializers.glorot_uniform()`, for each that is used."""
        return [
            syntax.assign(
                syntax.name(own),
                ast.parse(_SPELLED.get(name, f"jax.nn.initializers.{name}()"), mode="eval").body,
            )
            for name, own in self.functions.items()
        ]


def places(cls: Class) -> dict[Node, int]:
    """The number of each layer in its class."""
    return {d.node: i for i, d in enumerate(cls.drafts)}
