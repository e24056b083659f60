"""Does the recovered program run as fast as the original?

    python benchmarks/speed.py [program ...] [--dtype float32 bfloat16] [--batch N ...] [--no-step]
        [--optimized] [--seconds N]

A program is one of the cases here, or a file with the source of a recovered model and the shape of
its input, `ResNet50.py:224x224x3` or `BERT.py:128:int32`; its weights are random. Each is exported
for the platform of this process, and for a CPU and a GPU together, and recovered from both; forward
and with a step's gradients of a mean square by the first argument. All are compiled in one process
and run in turn, so that whatever else the machine does falls on all. Printed are the time of the
recovered program over that of the original, by the smallest of the rounds and by the median of the
ratios of each round, and whether the results are equal bit for bit. `--optimized` adds the program
that `invert.optimize` makes for this platform, over the recovered one.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import flax.linen as nn
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from _transformer import apply, parameters

import invert

ROUNDS = 21
SECONDS_PER_RUN = 0.02
BACKEND = jax.default_backend()
HERE: Any = {"gpu": "cuda"}.get(BACKEND, BACKEND)
LARGE = BACKEND != "cpu"
RNG = np.random.default_rng(0)


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    return scale * RNG.standard_normal(shape, np.float32)


def mlp(params: Any, x: Any) -> Any:
    for w, b in params:
        x = jax.nn.gelu(x @ w + b)
    return x


def lstm(params: Any, x: Any) -> Any:
    """The last state over `x` of (length, batch, width)."""
    w, b = params

    def step(carry: Any, row: Any) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(jnp.concatenate([row, h], -1) @ w + b, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    zero = jnp.zeros_like(x[0])
    return jax.lax.scan(step, (zero, zero), x)[0][0]


def cumulative(w: Any, x: Any) -> Any:
    return jnp.cumsum(x, 0).sum() + jnp.sort(x @ w, 0)


class ResNet(nn.Module):
    """With batch statistics, as it trains."""

    width: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        norm = functools.partial(nn.BatchNorm, use_running_average=False)
        x = nn.relu(norm()(nn.Conv(self.width, (7, 7), 2, use_bias=False)(x)))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for i, k in itertools.product(range(4), range(2)):
            width, stride = self.width << i, 2 if i and not k else 1
            y = nn.relu(norm()(nn.Conv(width, (3, 3), stride, use_bias=False)(x)))
            y = norm()(nn.Conv(width, (3, 3), use_bias=False)(y))
            if y.shape != x.shape:
                x = norm()(nn.Conv(width, (1, 1), stride, use_bias=False)(x))
            x = nn.relu(x + y)
        return nn.Dense(10)(x.mean((1, 2)))


class Encoder(nn.Module):
    layers: int
    width: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for _ in range(self.layers):
            y = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(4)(y, y)
            y = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x)))
            x = x + nn.Dense(self.width)(y)
        return x


@dataclasses.dataclass(frozen=True)
class Case:
    """A function of parameters and one input."""

    function: Callable[[Any, Any], Any]
    params: Any
    x: np.ndarray


def of_flax(model: nn.Module, x: np.ndarray) -> Case:
    variables = jax.eval_shape(model.init, jax.random.key(0), x)
    function = functools.partial(model.apply, mutable="batch_stats")
    return Case(lambda v, x: function(v, x), weights(variables), x)


def weights(types: Any) -> Any:
    """Random weights; variances and scales are near one."""

    def fill(path: Any, like: Any) -> np.ndarray:
        name = jax.tree_util.keystr(path)
        if any(word in name for word in ("var", "scale", "gamma")):
            return (1 + np.abs(normal(*like.shape, scale=0.1))).astype(like.dtype)
        fan = math.prod(like.shape[:-1]) if len(like.shape) > 1 else 100
        return normal(*like.shape, scale=fan**-0.5).astype(like.dtype)

    return jax.tree_util.tree_map_with_path(fill, types)


WIDTH = 512 if LARGE else 64
CASES: dict[str, Callable[[], Case]] = {
    "mlp": lambda: Case(
        mlp,
        [(normal(n, n, scale=n**-0.5), normal(n)) for n in [1024 if LARGE else 128] * 4],
        normal(*((4096, 1024) if LARGE else (64, 128))),
    ),
    "resnet": lambda: of_flax(
        ResNet(64 if LARGE else 8), normal(*((32, 128, 128, 3) if LARGE else (2, 32, 32, 3)))
    ),
    "gpt": lambda: Case(
        jax.vmap(apply, (None, 0)),
        parameters(*((6, 512) if LARGE else (4, 128))),
        normal(*((8, 512, 512) if LARGE else (1, 64, 128))),
    ),
    "lstm": lambda: Case(
        lstm,
        (normal(2 * WIDTH, 4 * WIDTH, scale=WIDTH**-0.5), normal(4 * WIDTH)),
        normal(*((64, 64) if LARGE else (200, 8)), WIDTH),
    ),
    "encoder": lambda: of_flax(
        Encoder(*((6, 384) if LARGE else (2, 64))),
        normal(*((16, 196, 384) if LARGE else (2, 49, 64))),
    ),
    "cumsum and sort": lambda: Case(cumulative, np.eye(32, dtype=np.float32), normal(2000, 32)),
}


def of_source(text: str, batch: int) -> Case:
    """A recovered model's source, `FILE:SHAPE` or `FILE:SHAPE:int32`."""
    path, shape, *dtype = text.split(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # The model itself comes last.
    *_, model = (
        v for v in vars(module).values() if isinstance(v, type) and issubclass(v, eqx.Module)
    )
    types = eqx.filter_eval_shape(model, key=jax.random.key(0))
    arrays, rest = eqx.partition(types, lambda x: isinstance(x, jax.ShapeDtypeStruct))
    full = (batch, *map(int, shape.split("x")))
    x = RNG.integers(0, 1000, full).astype(np.int32) if dtype else normal(*full)
    return Case(lambda a, x: eqx.combine(a, rest)(x), weights(arrays), x)


def cast(tree: Any, dtype: str) -> Any:
    def one(x: Any) -> Any:
        return jnp.asarray(x, dtype if jnp.issubdtype(x.dtype, jnp.floating) else x.dtype)

    return jax.tree.map(one, tree)


def step(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The gradients of the mean square of the first result by the parameters, and that mean."""

    def loss(params: Any, x: Any) -> Any:
        y = jax.tree.leaves(f(params, x))[0]
        return jnp.mean(jnp.square(y.astype(jnp.float32)))

    return jax.value_and_grad(loss, allow_int=True)


@dataclasses.dataclass(frozen=True)
class Programs:
    """What one case gives, compiled: `(what, name) -> program`."""

    compiled: dict[tuple[str, str], Callable[..., Any]]
    notes: list[str]


def recovered(case: Case, dtype: str, what: Sequence[str], optimized: bool) -> Programs:
    params, x = cast((case.params, case.x), dtype)
    modules, texts = {}, {}
    for name, platforms in (("recovered", [HERE]), ("cpu, cuda", ["cpu", "cuda"])):
        exported = jax.export.export(jax.jit(case.function), platforms=platforms)(params, x)
        module = invert.from_exported(exported, config=invert.Config(platform=HERE))
        modules[name], texts[name] = module, str(module.jaxpr)
    module = modules["recovered"]
    notes = [f"certificate {module.report.certificate.kind}"]
    if module.report.opaque:
        notes.append(f"opaque: {dict(module.report.opaque)}")
    if texts["recovered"] == texts["cpu, cuda"]:
        notes.append("the same from an export for both platforms")
        del modules["cpu, cuda"]
    if optimized:
        target: Literal["cpu", "gpu"] = "cpu" if HERE == "cpu" else "gpu"
        fast = invert.optimize(module, target, verify=False)
        found = {
            k: n for k, n in fast.report.rewrites.items() if module.report.rewrites.get(k) != n
        }
        notes.append(f"optimized: {found}")
        if found:
            modules["optimized"] = fast
    functions = {
        "original": case.function,
        **{k: (lambda *a, m=m: m(*a)) for k, m in modules.items()},
    }
    compiled = {}
    for kind, (name, f) in itertools.product(what, functions.items()):
        compiled[kind, name] = jax.jit(step(f) if kind == "step" else f).lower(params, x).compile()
    return Programs(compiled, notes)


def seconds(run: Callable[..., Any], args: Any, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count - 1):
        run(*args)
    jax.block_until_ready(run(*args))
    return (time.perf_counter() - start) / count


def times(runs: dict[str, Callable[..., Any]], args: Any) -> dict[str, list[float]]:
    for run in runs.values():
        seconds(run, args, 1)
    first = next(iter(runs.values()))
    count = max(1, int(SECONDS_PER_RUN / seconds(first, args, 3)))
    found: dict[str, list[float]] = {k: [] for k in runs}
    for i in range(ROUNDS):
        for k in runs if i % 2 else reversed(runs):
            found[k].append(seconds(runs[k], args, count))
    return found


def gap(a: Any, b: Any) -> str:
    """`equal` bit for bit, or the largest difference over the largest number."""
    largest = 0.0
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        if x.tobytes() != y.tobytes():
            x, y = x.astype(np.float64), y.astype(np.float64)
            largest = max(largest, float(np.max(np.abs(x - y)) / max(np.max(np.abs(y)), 1e-30)))
    return f"{largest:.1e}" if largest else "equal"


def rows(name: str, case: Case, dtype: str, programs: Programs) -> Iterator[str]:
    args = cast((case.params, case.x), dtype)
    print(f"{name} {dtype}: {'; '.join(programs.notes)}", flush=True)
    for what in dict.fromkeys(kind for kind, _ in programs.compiled):
        runs = {k: run for (kind, k), run in programs.compiled.items() if kind == what}
        found, results = times(runs, args), {k: run(*args) for k, run in runs.items()}
        again = gap(runs["original"](*args), results["original"])
        for k in list(runs)[1:]:
            base = "recovered" if k == "optimized" else "original"
            middle = statistics.median(a / b for a, b in zip(found[k], found[base], strict=True))
            smallest = min(found[k]) / min(found[base])
            yield (
                f"{name:16} {dtype:9} {what:8} {k:10} / {base:10} {smallest:6.3f} {middle:6.3f}   "
                f"{1e3 * min(found[base]):8.3f} ms  {gap(results[k], results[base])}"
                f" (twice: {again})"
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", nargs="*", metavar="program")
    parser.add_argument("--dtype", nargs="*", default=["float32"])
    parser.add_argument("--batch", nargs="*", type=int, default=[1], help="of models in files")
    parser.add_argument("--no-step", action="store_true")
    parser.add_argument("--optimized", action="store_true")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no more after this")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    what = ["forward"] if options.no_step else ["forward", "step"]
    cases: list[tuple[str, Case]] = []
    for name in options.programs or CASES:
        if name in CASES:
            cases.append((name, CASES[name]()))
        else:
            stem = Path(name.split(":")[0]).stem
            cases += [(f"{stem} {n}", of_source(name, n)) for n in options.batch]
    some = [(n, c, d) for n, c in cases for d in options.dtype]
    together = os.cpu_count() or 1 if LARGE else 1
    print(f"{'program':16} {'type':9} {'':8} {'time over that of':23} {'least':>6} {'middle':>6}")
    for i in range(0, len(some), together):
        part = some[i : i + together]
        if time.monotonic() > end:
            print(f"out of time before {part[0][0]} {part[0][2]}")
            break
        with ThreadPoolExecutor(together) as threads:
            made = threads.map(lambda p: recovered(p[1], p[2], what, options.optimized), part)
        for (name, case, dtype), programs in zip(part, made, strict=True):
            for row in rows(name, case, dtype, programs):
                print(row, flush=True)


if __name__ == "__main__":
    main()
