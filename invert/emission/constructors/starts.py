"""Initial values of a program's arrays, for training from scratch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from invert.emission.expressions import tables
from invert.emission.layers.cut import plain_name
from invert.emission.layers.tree import split_name
from invert.emission.python.naming import stem
from invert.ir.types import Var

_ONES = frozenset("gamma scale var variance moving_variance running_var std gain".split())
_ZEROS = frozenset("bias beta mean moving_mean running_mean offset shift".split())
EMBEDDINGS = frozenset("embedding embeddings".split())
# Names that only Keras uses.
_KERAS = frozenset("gamma embeddings recurrent_kernel moving_variance".split())
# Larger constants are not written out, unless they are tables of integers with a short text.
_WRITTEN, _LARGEST_TABLE = 64, 1024


@dataclasses.dataclass(frozen=True)
class Starts:
    """The initial values of the arrays of a program.

    **Arguments:**

    - `names`: names of the parameters.
    - `values`: the arrays of constants that are not weights.
    - `scales`: parameters that arrays are multiplied by, element by element; those of several axes
        only scale larger arrays.
    - `held`: the parameters in the state.
    - `keras`: whether the program comes from Keras.
    - `lstm`: the biases of Keras's LSTMs, whose forget gates start at one.
    - `split`: kernels with one axis of inputs and two of outputs, such as heads and their features.
    - `added`: parameters that are only added or joined to others, such as those of positions, and
        those whose rows are looked up.
    - `inputs_first`: matrices that are only multiplied along their first axis.
    - `beside_one`: parameters that are only added to one, as in `x * (1 + scale)`.
    - `several`: kernels of several layers side by side, such as experts, along their first axis.
    - `outputs_first`: kernels of convolutions with the outputs before the inputs at the end.
    """

    names: Mapping[Var, str]
    values: Mapping[Var, Any]
    scales: Set[Var]
    held: Set[Var]
    keras: bool
    lstm: Set[Var] = frozenset()
    split: Set[Var] = frozenset()
    added: Set[Var] = frozenset()
    inputs_first: Set[Var] = frozenset()
    beside_one: Set[Var] = frozenset()
    several: Set[Var] = frozenset()
    outputs_first: Set[Var] = frozenset()

    def of(self, v: Var) -> str:
        """The name of an initializer, or `zeros`, `ones`, `forget`, `values`, `unknown`, `key`."""
        dtype = v.aval.dtype
        if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
            return "key"
        if v in self.values and self._is_written(v):
            return "values"
        name = stem(plain_name(self.names.get(v, ""))).lower()
        if v in self.values:
            return "unknown"
        if not jnp.issubdtype(dtype, jnp.inexact) or 0 in v.aval.shape:
            return "zeros"  # initializers divide by sizes
        if v in self.lstm:
            return "forget"
        if name in _ZEROS or v in self.beside_one:
            return "zeros"
        if name in _ONES or v in self.scales:
            return "ones"
        if len(v.aval.shape) < 2 or v in self.held:
            return "zeros"
        if name in EMBEDDINGS:
            return "uniform" if self.keras else "normal"
        if name == "recurrent_kernel":
            return "orthogonal"
        if self.keras:
            return "glorot_uniform"  # Keras counts the inputs of split kernels as JAX does
        if v in self.added:
            return "normal"
        if name == "weight" and v not in self.inputs_first:
            return "kaiming_uniform"
        if v in self.outputs_first:
            return "lecun_normal_transposed"
        if v in self.several:
            return "lecun_normal_each"
        return "lecun_normal_heads" if v in self.split else "lecun_normal"

    def _is_written(self, v: Var) -> bool:
        """Return whether a constant is short, or has a short text."""
        size = v.aval.size
        whole = jnp.issubdtype(v.aval.dtype, jnp.integer) and size <= _LARGEST_TABLE
        return size <= _WRITTEN or (whole and tables.is_table(np.asarray(self.values[v])))

    def unknown(self, variables: Iterable[Var]) -> list[Var]:
        """The constants that are too large to be written."""
        return [v for v in variables if self.of(v) == "unknown"]


def has_keras_names(names: Iterable[str]) -> bool:
    """Return whether arrays have names that only Keras uses, as in a frozen graph."""
    return not _KERAS.isdisjoint(stem(split_name(n)[-1]).lower() for n in names)
