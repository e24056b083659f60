"""A process that converts all day: bounded memory and time, independent threads."""

from __future__ import annotations

import gc
import linecache
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert
from invert.emission.python import load

X = jax.ShapeDtypeStruct((4,), np.float32)


def program(i: int) -> Callable[..., Any]:
    k = np.float32(i * 0.37 + 1)

    def function(x: Any, y: Any) -> Any:
        z = jnp.sin(x) * k + jnp.cumsum(y)
        steps = lax.fori_loop(0, 3, lambda j, c: c + k, x)
        return jax.nn.silu(z) + steps.sum(), jax.nn.softmax(z)

    return function


def artifact(i: int, x: jax.ShapeDtypeStruct = X) -> bytearray:
    return jax.export.export(jax.jit(program(i)))(x, x).serialize()


def test_a_program_is_freed_with_its_module() -> None:
    module = invert.from_exported(artifact(0))
    kept = weakref.ref(module.jaxpr)
    del module
    gc.collect()
    assert kept() is None


def test_no_cache_holds_a_module() -> None:
    def contexts() -> int:
        gc.collect()
        return sum(type(x).__name__ == "JaxIrContext" for x in gc.get_objects())

    artifacts = [artifact(i) for i in range(6)]
    counts = []
    for data in artifacts:
        invert.from_exported(data)
        counts.append(contexts())
    assert counts[2] == counts[-1]


def test_no_function_holds_the_module_it_was_lowered_to() -> None:
    artifacts = [artifact(i, jax.ShapeDtypeStruct((71 + i,), np.float32)) for i in range(6)]
    counts = []
    for data in artifacts:
        assert invert.from_exported(data).source
        gc.collect()
        counts.append(sum(type(x).__name__ == "JaxIrContext" for x in gc.get_objects()))
    assert counts[2] == counts[-1]


def test_programs_that_check_a_text_are_freed() -> None:
    def kept(first: int, last: int) -> int:
        for i in range(first, last):
            assert invert.from_exported(artifact(i)).source
        gc.collect()
        return sum(type(x).__name__ == "Jaxpr" for x in gc.get_objects())

    assert kept(0, 3) == kept(3, 6)


def test_modules_of_one_signature_share_their_class() -> None:
    one, two = (invert.from_exported(artifact(i)) for i in range(2))
    assert type(one) is type(two)
    x = np.arange(4, dtype=np.float32)
    for i, module in enumerate((one, two)):
        np.testing.assert_allclose(module(x, x)[1], program(i)(x, x)[1], rtol=1e-5, atol=1e-6)
    other = jax.export.export(jax.jit(lambda y, x: x - y))(X, X)
    assert type(invert.from_exported(other)) is not type(one)


def resident() -> float:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


@pytest.mark.slow
@pytest.mark.parametrize("source", [False, True])
def test_many_conversions(source: bool) -> None:
    """JAX keeps the classes of emitted modules: some 65 kB for each text."""
    count, warm = 300, 100
    artifacts = [artifact(i) for i in range(count)]
    for i, data in enumerate(artifacts):
        if i == warm:
            before, start = resident(), time.perf_counter()
        if i == 2 * warm:
            half = time.perf_counter() - start
        module = invert.from_exported(data)
        if source:
            assert module.source
    del module
    assert (resident() - before) / (count - warm) < (0.16 if source else 0.03)
    assert time.perf_counter() - start < 3 * half


@pytest.mark.parametrize("form", ["saved", "constant", "captured"])
def test_weights_are_held_once(form: str, tmp_path: Path) -> None:
    """Beside those of a model in memory; graph, message and given bytes are released."""
    tf = pytest.importorskip("tensorflow")

    def converted(width: int) -> tuple[float, float]:
        """The memory that a conversion adds, and that of the weights, in MB."""
        weights = [np.full((width, width), 0.1, np.float32) for _ in range(2)]
        for w in weights:
            w[0, 0] = 0  # not one repeated number
        held = [tf.constant(w) for w in weights] if form == "captured" else weights
        holder = tf.Module()
        holder.apply = tf.function(
            lambda x: tf.tanh(x @ held[0]) @ held[1],
            autograph=False,
            input_signature=[tf.TensorSpec((1, width))],
        )
        want = holder.apply(tf.ones((1, width)))
        if form == "saved":
            tf.saved_model.save(holder, str(tmp_path / str(width)))
        before = resident()
        load = form == "saved"
        module = invert.load(tmp_path / str(width)) if load else invert.convert(holder.apply)
        assert module.source
        found = module(np.ones((1, width), np.float32))
        added = resident() - before
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)
        return added, sum(w.nbytes for w in weights) / 2**20

    converted(300)  # what is imported and compiled on first use
    # Arrays of more than 32 MB, which malloc never takes from memory that was freed before.
    added, size = converted(3000)
    assert added < 1.5 * size


@pytest.mark.parametrize(("form", "most"), [("text", 3), ("lowered", 2.2)])
def test_weights_in_a_program_are_not_copied_as_text(
    form: str, most: float, tmp_path: Path
) -> None:
    """Text holds a weight in twice its bytes. It is read once, and not decoded."""
    peak = Path("/proc/self/clear_refs")
    if not peak.exists():
        pytest.skip("the highest memory of a process is not known here")

    def converted(width: int) -> tuple[float, float]:
        """The most memory that a conversion adds, and that of the weights, in MB."""
        weights = jnp.full((width, width), 0.1).at[0, 0].set(0)
        lowered = jax.jit(lambda x: x @ weights).lower(jnp.ones((1, width)))
        given: Any = lowered
        if form == "text":
            given = tmp_path / "program.mlir"
            module: Any = lowered.compiler_ir()
            given.write_text(module.operation.get_asm(large_elements_limit=None))
        before = resident()
        peak.write_text("5")  # the highest so far is that of now
        invert.from_stablehlo(given)
        status = Path("/proc/self/status").read_text()
        (highest,) = (int(n) for n in re.findall(r"VmHWM:\s*(\d+)", status))
        return highest / 2**10 - before, weights.nbytes / 2**20

    converted(300)
    added, size = converted(3000)
    assert added < most * size


def test_eight_threads() -> None:
    artifacts = [artifact(i) for i in range(8)]
    x = np.arange(4, dtype=np.float32)
    wrong: list[str] = []
    together = threading.Barrier(8)

    def work(i: int) -> None:
        together.wait()
        try:
            for _ in range(2):
                module = invert.from_exported(artifacts[i])
                assert f"{np.float32(i * 0.37 + 1):.3g}"[:3] in module.source
                for recovered in (module, module.model):
                    for have, want in zip(recovered(x, x), program(i)(x, x), strict=True):
                        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)
        except Exception as error:  # noqa: BLE001  whatever it is, the test has to hear of it
            wrong.append(f"thread {i}: {error!r}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("text", ["x = 1 / 0", "x ="])
def test_a_text_that_does_not_run_is_not_registered(text: str) -> None:
    before = set(sys.modules), set(linecache.cache)
    with pytest.raises((ZeroDivisionError, SyntaxError)), load.loading() as make:
        make(text, "a_text_that_does_not_run")
    assert set(sys.modules) == before[0]
    assert not [name for name in set(linecache.cache) - before[1] if "does_not_run" in name]


def test_drafts_of_one_text_are_one_module() -> None:
    """JAX keeps the classes of each module that was run."""
    with load.loading() as make:
        first = make("x = 1", "a_draft")
        assert make("x = 1", "a_draft") is first
        with pytest.raises(ZeroDivisionError):
            make("x = 1 / 0", "a_draft")
        assert "a_draft" not in sys.modules
        again = make("x = 1", "a_draft")
        assert again is sys.modules["a_draft"] and again is not first
        assert make("x = 2", "a_draft").x == 2 and again.x == 1
        load.forget(sys.modules["a_draft"])


def test_time_per_sort_does_not_grow_with_the_program() -> None:
    def seconds(count: int) -> float:
        def function(x: Any) -> Any:
            for _ in range(count):
                x = lax.sort(jnp.sin(x))
            return x

        exported = jax.export.export(jax.jit(function))(X)
        times = []
        for _ in range(2):
            start = time.process_time()
            invert.from_exported(exported)
            times.append(time.process_time() - start)
        return min(times) / count

    assert seconds(1000) < 3 * seconds(200)
