"""The equation that marks where a container brings a derivative of its own.

`tf.custom_gradient` passes its results and its arguments through one op that names a gradient
function. Raising puts a marker in its place: an identity on the results that knows the arguments
and how the gradient is computed. It stands in the raw program only. A later stage compares the
gradient with what automatic differentiation gives and removes the marker or makes it a rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
from jax.interpreters import ad, batching, mlir

from invert._private.jax import Primitive
from invert.ir.types import Aval, Eqn, Value


class Gradient(Protocol):
    """The gradient function of a container.

    **Attributes:**

    - `location`: where it comes from.
    - `problem`: why it cannot be read; `""` where it can.
    - `convention`: `"jax"` or `"tensorflow"`, which differ for complex numbers: TensorFlow's
        gradients are the conjugates.
    - `nested`: whether it may hold gradient functions itself.
    """

    location: str
    problem: str
    convention: str
    nested: bool

    def __call__(
        self, captures: Sequence[Value], cotangents: Sequence[Value], *, nested: bool = False
    ) -> list[Any | None]:
        """The cotangents of the arguments; `None` for zero.

        **Arguments:**

        - `captures`: the values it uses, as the marker has them.
        - `cotangents`: one for each result that is a floating-point or complex number.
        - `nested`: whether gradient functions that this one holds itself are marked in turn.
        """
        ...

    def read_nested(self) -> None:
        """Reads the gradient functions inside this one. TensorFlow may export them for it, which
        JAX refuses while it traces."""
        ...


custom_gradient_p = Primitive("custom_gradient")
custom_gradient_p.multiple_results = True


def mark(
    gradient: Gradient, results: Sequence[Value], inputs: Sequence[Value], captures: Sequence[Value]
) -> list[Any]:
    """The results, marked as those of a function of `inputs` with this gradient."""
    return custom_gradient_p.bind(
        *results,
        *inputs,
        *captures,
        gradient=gradient,
        counts=(len(results), len(inputs), len(captures)),
    )


def parts(eqn: Eqn) -> tuple[list[Any], list[Any], list[Any]]:
    """Results, inputs and captures of a marker."""
    results, inputs, _ = eqn.params["counts"]
    atoms = list(eqn.invars)
    return atoms[:results], atoms[results : results + inputs], atoms[results + inputs :]


def is_differentiable(aval: Aval) -> bool:
    """Whether values of a type have tangents."""
    return jax.dtypes.issubdtype(aval.dtype, jax.numpy.inexact)


def _identity(*values: Value, counts: Sequence[int], **_: Any) -> list[Any]:
    return list(values[: counts[0]])


custom_gradient_p.def_impl(_identity)
custom_gradient_p.def_abstract_eval(_identity)
mlir.register_lowering(custom_gradient_p, mlir.lower_fun(_identity, multiple_results=True))


# A marker that is differentiated or batched before it was settled is the identity.
def _jvp(primals: Value, tangents: Value, *, counts: Sequence[int], **_: Any) -> Any:
    return _identity(*primals, counts=counts), _identity(*tangents, counts=counts)


def _batch(args: Value, dims: Any, *, counts: Sequence[int], **_: Any) -> Any:
    return _identity(*args, counts=counts), _identity(*dims, counts=counts)


ad.primitive_jvps[custom_gradient_p] = _jvp
batching.primitive_batchers[custom_gradient_p] = _batch
