"""Peak memory of a conversion, from a SavedModel to saved source and weights, against the weights.

    python benchmarks/memory.py 300e6 --dtype bfloat16 --form constants

makes a model of so many random numbers, and prints the peak that converting it adds to what the
process holds after its imports, as a multiple of the size of the weights. Making, converting and
loading are a process each. The weights are variables; or constants of a SavedModel by jax2tf, whose
file holds them twice, for the gradient; or constants of a graph of TensorFlow, as bytes (`graph`)
or in a SavedModel (`functions`); or of a program by jax.export, or of one as text.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

# Numbers of one matrix at most; as in large models, no array is a large part of the whole.
_WIDEST = 4096


def layers_of(count: int) -> tuple[int, int]:
    """Width and number of the layers that hold about `count` numbers."""
    width = min(_WIDEST, max(8, int((count / 16) ** 0.5)))
    return width, max(1, round(count / (width * width + width)))


FORMS = ("variables", "constants", "graph", "functions", "exported", "text")


def write(path: str, count: int, dtype: str, form: str) -> None:
    """A model of residual layers: with variables, or with the weights in its program."""
    import jax
    import jax.export
    import jax.numpy as jnp
    import numpy as np
    import tensorflow as tf
    from jax.experimental import jax2tf

    width, layers = layers_of(count)
    rng = np.random.default_rng(0)
    kind = jnp.dtype(dtype)

    def values(*shape: int) -> Any:
        return (rng.standard_normal(shape, np.float32) / width**0.5).astype(kind)

    module: Any = tf.Module()
    weights = [{"kernel": values(width, width), "bias": values(width)} for _ in range(layers)]

    def apply(params: Any, x: Any) -> Any:
        for i, layer in enumerate(params):
            with jax.named_scope(f"layer_{i}"):
                x = x + jnp.tanh(x @ layer["kernel"] + layer["bias"])
        return x

    spec = tf.TensorSpec([2, width], tf.as_dtype(kind))

    def in_tensorflow(x: Any) -> Any:
        for layer in weights:
            x = x + tf.tanh(x @ tf.constant(layer["kernel"]) + tf.constant(layer["bias"]))
        return x

    if form == "graph":
        with tf.Graph().as_default() as graph:
            x = tf.compat.v1.placeholder(spec.dtype, spec.shape, "x")
            tf.identity(in_tensorflow(x), "y")
        Path(path).write_bytes(graph.as_graph_def().SerializeToString())
        return
    if form in ("exported", "text"):
        held = [{k: jnp.asarray(v) for k, v in layer.items()} for layer in weights]
        jitted, given = jax.jit(lambda x: apply(held, x)), jax.ShapeDtypeStruct((2, width), kind)
        if form == "exported":
            Path(path).write_bytes(jax.export.export(jitted)(given).serialize())
        else:
            module: Any = jitted.lower(given).compiler_ir()
            Path(path).write_text(module.operation.get_asm(large_elements_limit=None))
        return
    if form == "functions":
        module.f = tf.function(in_tensorflow, autograph=False, input_signature=[spec])
    elif form == "constants":
        held = [{k: jnp.asarray(v) for k, v in layer.items()} for layer in weights]
        converted = jax2tf.convert(lambda x: apply(held, x))
        module.f = tf.function(converted, autograph=False, input_signature=[spec])
    else:
        module.params = [
            {k: tf.Variable(v, name=f"layer_{i}/{k}") for k, v in layer.items()}
            for i, layer in enumerate(weights)
        ]
        converted = jax2tf.convert(apply)
        module.f = tf.function(
            lambda x: converted(module.params, x), autograph=False, input_signature=[spec]
        )
    tf.saved_model.save(module, path)


class Peak:
    """The largest resident memory of this process while it is watched, in bytes."""

    def __init__(self, *, mapped: bool = True) -> None:
        self.found: dict[str, int] = {}
        self._stage = ""
        self._mapped = mapped
        self._start = resident(mapped=mapped)
        threading.Thread(target=self._watch, daemon=True).start()

    def stage(self, name: str) -> None:
        self._stage = name

    def _watch(self) -> None:
        while True:
            now = resident(mapped=self._mapped) - self._start
            self.found[self._stage] = max(self.found.get(self._stage, 0), now)
            time.sleep(0.01)


def resident(*, mapped: bool = True) -> int:
    """Resident memory of this process, in bytes; without pages of mapped files, if so asked."""
    pages, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    return (pages if mapped else pages - shared) * os.sysconf("SC_PAGE_SIZE")


def read(source: str) -> Any:
    import invert

    if Path(source).is_dir():
        return invert.load(source)
    with Path(source).open("rb") as file:
        if file.read(6) == b"module":
            return invert.load(source)
    data = Path(source).read_bytes()
    return (
        invert.convert_graphdef(data, ["x:0"], ["y:0"])
        if data[:1] == b"\n"
        else invert.from_exported(data)
    )


def highest(process: str = "self") -> int:
    """The largest resident memory of a process so far, in bytes.

    `getrusage` would count the process that started it too.
    """
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def peak_of_children() -> int:
    """The largest resident memory of each child process that runs, in bytes, added up."""
    tasks = Path("/proc/self/task").iterdir()
    return sum(highest(c) for task in tasks for c in (task / "children").read_text().split())


def convert(source: str, target: str, form: str) -> None:
    """Converts and saves; prints what that took."""
    import tensorflow  # noqa: F401  what a conversion imports is no part of its peak

    import invert

    # Whatever is imported or started on first use, on a model of no size.
    with tempfile.TemporaryDirectory() as small:
        subprocess.run(
            [
                sys.executable,
                __file__,
                "1000",
                "--step",
                "write",
                "--model",
                f"{small}/m",
                "--form",
                form,
            ],
            check=True,
        )
        invert.save(read(f"{small}/m"), f"{small}/out")
    children = peak_of_children()
    start, peak = resident(), Peak()
    clock = time.process_time()
    peak.stage("load")
    module = read(source)
    peak.stage("source")
    lines = len(module.source.splitlines())
    peak.stage("save")
    invert.save(module, target)
    seconds = time.process_time() - clock
    found = {"peak": highest() - start, "stages": peak.found}
    found |= {"after": resident() - start, "children": peak_of_children() - children}
    print(json.dumps({**found, "seconds": seconds, "lines": lines}))


def load(target: str) -> None:
    """Reads what was saved, without `invert`; prints what that took."""
    import jax.numpy as jnp

    sys.path.insert(0, target)
    import model  # pyright: ignore[reportMissingImports]

    jnp.zeros(3).block_until_ready()
    # The file is mapped; the system takes its pages away again where memory is short.
    peak = Peak(mapped=False)
    peak.stage("load")
    module = model.load(f"{target}/weights.safetensors")
    time.sleep(0.05)
    print(json.dumps({"stages": peak.found}))
    del module


def step(name: str, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, __file__, *arguments, "--step", name],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else None


def measure(count: int, dtype: str = "float32", *, form: str = "variables") -> dict[str, Any]:
    """Makes, converts and loads a model; sizes are in bytes.

    **Returns:** `weights`, the size of the weights; `peak`, the most memory the conversion added;
        `children`, the most that it added to its child processes, such as the one that reads first;
        `load`, the most that loading the result added, without the pages of the mapped file;
        `stages`, the peak of each stage.
    """
    with tempfile.TemporaryDirectory() as where:
        common = ["--model", f"{where}/model", "--out", f"{where}/out", "--dtype", dtype]
        common += ["--form", form]
        step("write", str(count), *common)
        found = step("convert", str(count), *common)
        weights = sum(p.stat().st_size for p in Path(where, "out").glob("weights*"))
        loaded = step("load", str(count), *common)
    return found | {"weights": weights, "load": max(loaded["stages"].values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("count", nargs="?", type=lambda t: int(float(t)), default=30_000_000)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--form", choices=FORMS, default="variables")
    parser.add_argument("--step", choices=("write", "convert", "load"), help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.step == "write":
        write(options.model, options.count, options.dtype, options.form)
    elif options.step == "convert":
        convert(options.model, options.out, options.form)
    elif options.step == "load":
        load(options.out)
    else:
        found = measure(options.count, options.dtype, form=options.form)
        rows = {"weights": found["weights"], "peak of the conversion": found["peak"]}
        rows |= {f"  {name}": peak for name, peak in found["stages"].items() if name}
        rows["peak of its child processes"] = found["children"]
        rows |= {"held after it": found["after"], "peak of loading the result": found["load"]}
        for label, size in rows.items():
            print(f"{label:<28} {size / 1e6:>9.1f} MB {size / found['weights']:>6.2f} x")
        print(f"{found['seconds']:.1f} s of processor time, {found['lines']} lines of source")


if __name__ == "__main__":
    main()
