"""Options of XLA's compiler that are measured to pay."""

from __future__ import annotations

import importlib.metadata
import platform as machine
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

Platform: TypeAlias = Literal["cpu", "gpu", "tpu"]

# Operations that XLA hands to a library of kernels, YNNPACK: by default products, convolutions and
# reductions.
_FLAG = "xla_cpu_experimental_ynn_fusion_type"
# The library's sums over rows are faster than XLA's own, on which gradients of biases and norms
# spend their time.
_FOR_GRADIENTS = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"

# Convolutions, products and softmax by oneDNN, which releases before 0.12 are built without, by
# minor version of jaxlib, as `benchmarks/models.py` measured. It computes the former together with
# the activation, which is 0 where XLA's is NaN.
_MEASURED: Mapping[str, Mapping[str, str]] = {
    "0.12": {"xla_cpu_use_onednn": "True", "xla_cpu_experimental_onednn_custom_call": "True"},
}
# Where they were measured.
_MACHINES = ("x86_64", "AMD64")


def compiler_options(
    platform: Platform = "cpu",
    *,
    gradient: bool = False,
    finite: bool = False,
) -> dict[str, str]:
    """Options of XLA for `jax.jit`, with which some programs on large batches run faster.

    They choose the kernels of convolutions, products and sums. Finite results are equal up to
    rounding. They pay in addition to `invert.optimize`, in batches of eight or more; in batches of
    one the defaults are often faster.

    **Arguments:**

    - `platform`: the platform that the program is compiled for.
    - `gradient`: whether the program computes gradients, as a step of training does.
    - `finite`: whether it may be taken for granted that no value is NaN or infinite. With jaxlib
        0.12, convolutions, products and `softmax` are then left to oneDNN, as in TensorFlow; where
        a value is NaN, the result may be a number.

    **Returns:** options by name; none without `finite`, and where none is known to pay: on a GPU or
    TPU, on processors other than x86, and with jaxlib other than 0.12.

    **Raises:** `ValueError` for another platform.

    ??? example

        ```python
        import equinox as eqx
        import invert

        options = invert.compiler_options("cpu", gradient=True, finite=True)
        gradient = eqx.filter_grad(lambda model, x: (model(x) ** 2).mean())
        gradient = eqx.filter_jit(gradient, compiler_options=options)
        ```
    """
    if platform not in get_args(Platform):
        raise ValueError(f"{platform!r} is not a platform: expected 'cpu', 'gpu' or 'tpu'")
    if not finite or platform != "cpu" or machine.machine() not in _MACHINES:
        return {}
    version = ".".join(importlib.metadata.version("jaxlib").split(".")[:2])
    if version not in _MEASURED:
        return {}
    return {_FLAG: _FOR_GRADIENTS if gradient else "", **_MEASURED[version]}
