"""Rewrites the programs of modules to run faster, equal up to rounding."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Literal, TypeVar

import equinox as eqx
import jax

from invert._config import Config
from invert._private.jax import open_jaxpr
from invert._verify import after_change
from invert.ir import jaxprs
from invert.ir.types import Jaxpr, Value
from invert.modules.function import Function
from invert.modules.methods import Methods
from invert.modules.module import Module
from invert.modules.specializations import Specialization
from invert.patterns import optimized
from invert.rewriting.driver import Rewriter
from invert.rewriting.templates import raise_call

M = TypeVar("M", bound=Module | Methods)


def faster(stage: Specialization, params: Sequence[Value], config: Config) -> Specialization:
    """Return a recovered program, rewritten where it pays on the platform of `config.optimize`.

    It is compared with the original at `params`, values of its parameters.
    """
    start = time.perf_counter()
    rewriter = _rewriter(config)
    with jax.enable_x64(True):
        jaxpr = open_jaxpr(rewriter.run(stage.jaxpr))

    def settled(jaxpr: Jaxpr) -> Jaxpr:
        # More rewrites are decided at concrete sizes.
        with jax.enable_x64(True):
            return open_jaxpr(_rewriter(config).run(stage.settled(jaxpr)))

    report, counts = stage.report, dict(rewriter.counts)
    seconds = {**report.seconds, "optimize": time.perf_counter() - start}
    if not counts:
        note = f"found nothing that a rewrite would make faster on the {config.optimize}"
        report = dataclasses.replace(report, seconds=seconds, notes=(*report.notes, note))
        return dataclasses.replace(stage, report=report, settled=settled, _sized={})
    names = ", ".join(f"{n} x {name}" for name, n in sorted(counts.items()))
    report = dataclasses.replace(
        report,
        primitives=jaxprs.primitive_counts(jaxpr),
        rewrites=dict(sorted({**report.rewrites, **counts}.items())),
        certificate=after_change(
            report.certificate,
            f"optimized for the {config.optimize} by {names}",
            stage.jaxpr,
            jaxpr,
            [*stage.constants, *params],
            verify=config.verify,
        ),
        seconds=seconds,
        notes=(*report.notes, *rewriter.defects),
    )
    return dataclasses.replace(stage, jaxpr=jaxpr, report=report, settled=settled, _sized={})


def _rewriter(config: Config) -> Rewriter:
    stage = optimized.stage(optimized.pays_on(config.optimize), config.disabled_patterns)
    return Rewriter((stage,), raise_call)


def optimize(module: M, platform: Literal["cpu", "gpu"] = "cpu", *, verify: bool = True) -> M:
    """Rewrite the program of a module so that it runs faster on a platform.

    Depthwise convolutions become shifted products, and grouped ones one convolution per group.
    Those with a window of one become matrix products, or their derivatives do; transposed ones
    become a convolution for each part of their window, and those with three places along each axis
    Winograd's products. Pooling becomes shifted slices, and products whose result is transposed,
    such as attention weights times values, swap their operands. Those of rows with several axes
    become products of matrices, whose gradients are faster, and gradients of values that are
    normalized and added to the result are added up in another order. Each is done where
    measurements show that it pays for such operands: on a GPU, for depthwise convolutions with
    strides. Results and all derivatives are equal up to rounding. The report lists the rewrites,
    and the certificate is no longer `exact`. `invert.compiler_options` makes large batches of some
    models faster still.

    **Arguments:**

    - `module`: the result of a conversion.
    - `platform`: the platform to optimize for: `"cpu"` or `"gpu"`. The program runs on others too.
    - `verify`: whether to run both programs on random inputs and the parameters, for the largest
        error in the certificate.

    **Returns:** a module with the same arrays. `Config(optimize=...)` does the same during
    conversion.

    **Raises:** `TypeError` for anything but a recovered module; `ValueError` for other platforms.

    ??? example

        ```python
        import invert

        module = invert.optimize(invert.load("saved_model"), "cpu")
        print(module.report)  # rewritten: 17 x depthwise_conv, ...
        ```
    """
    if not isinstance(module, (Module, Methods)):
        raise TypeError(
            f"optimize takes the result of a conversion, not a {type(module).__name__}; "
            "for an emitted model, optimize the module that it was written from"
        )
    config = Config(optimize=platform, verify=verify)
    if config.optimize == "none":
        raise ValueError("optimize takes a platform, 'cpu' or 'gpu', not 'none'")
    named = module.named_params()

    def again(function: Function) -> Function:
        held = [named[p.name] for p in function.entry.params]
        params = [p.init if isinstance(p, eqx.nn.StateIndex) else p for p in held]
        return function.changed(lambda stage: faster(stage, params, config))

    if isinstance(module, Module):
        return dataclasses.replace(module, _function=again(module._function))
    functions = tuple((name, again(f)) for name, f in module._functions)
    return dataclasses.replace(module, _functions=functions)
