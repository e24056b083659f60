"""Unreadable bytes and text give one specific error, never a crash."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import invert
from invert._private.jax import lowered_module
from invert._private.mlir import stablehlo_dialect
from invert.stablehlo import parse_in_child
from invert.stablehlo.parse import entry_function, parse_module
from tests.damaged_files import damaged
from tests.frontends.damage import loops

MUTATIONS = 500


def artifact() -> bytes:
    x = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    return jax.export.export(jax.jit(loops))(x, x).mlir_module_serialized


def bytecode() -> bytes:
    x = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    buffer = io.BytesIO()
    lowered_module(loops, x, x).operation.write_bytecode(buffer)
    return buffer.getvalue()


def text() -> bytes:
    x = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    module = lowered_module(loops, x, x)
    return str(module.operation.get_asm(enable_debug_info=True)).encode()


def fuzz(first: int, count: int) -> None:
    """Runs in a separate process, so that a crash does not end the tests."""
    parse_in_child._SECONDS = 3.0  # some damage makes the reader run forever
    corpus = [artifact(), bytecode(), text()]
    refused = 0
    for seed in range(first, first + count):
        rng = random.Random(seed)
        try:
            parse_module(damaged(rng.choice(corpus), rng, rng.choice(corpus)))
        except invert.MalformedModelError:
            refused += 1
    assert refused > count // 4
    print(f"refused {refused} of {count}")


def test_fuzz() -> None:
    code = (
        "import runpy\n"
        f"names = runpy.run_path({str(Path(__file__))!r}, run_name='fuzz')\n"
        f"names['fuzz'](0, {MUTATIONS})"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        errors="replace",
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.startswith("refused")
    assert not result.stderr  # MLIR's diagnostics go into the error, not to the terminal


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("make", [artifact, bytecode, text])
def test_reads_every_form(make, trusted: bool) -> None:
    module = parse_module(make(), trusted=trusted)
    assert module.operation.verify()
    names = {op.operation.name for op in entry_function(module).regions[0].blocks[0]}
    assert "stablehlo.while" in names
    if make is text:
        assert parse_module(text().decode(), trusted=trusted).operation.verify()


@pytest.mark.parametrize("data", [b"", "", " \n", b"\xff\x00\x01", b"abc\0def", b"ML\xefR"])
def test_not_a_module(data: bytes | str) -> None:
    with pytest.raises(invert.MalformedModelError, match="copy or export"):
        parse_module(data)


def test_other_texts() -> None:
    with pytest.raises(invert.MalformedModelError, match="text that is not StableHLO"):
        parse_module("import numpy as np\nprint('hello')\n")


def test_paths_and_lowered_functions(tmp_path: Path) -> None:
    def function(weight, x):
        return jnp.sin(weight @ x)

    x = np.ones((3, 3), np.float32)
    lowered = jax.jit(function).lower(x, x)
    path = tmp_path / "function.mlir"
    path.write_text(lowered.as_text())
    assert invert.from_stablehlo(path)(x, x).tolist() == function(x, x).tolist()
    assert invert.from_stablehlo(lowered)(weight=x, x=x).tolist() == function(x, x).tolist()
    with pytest.raises(invert.MalformedModelError, match=r"missing\.mlir does not exist"):
        invert.from_stablehlo(tmp_path / "missing.mlir")


def test_wrong_type() -> None:
    with pytest.raises(invert.MalformedModelError, match="a dict"):
        parse_module({})  # pyright: ignore[reportArgumentType]


def test_every_truncation() -> None:
    data = artifact()
    for size in range(0, len(data), 97):
        with pytest.raises(invert.MalformedModelError, match="copy or export it again"):
            parse_module(data[:size])
    with pytest.raises(invert.MalformedModelError, match=r"section \d at byte \d+ declares"):
        parse_module(data[:-1])


def test_syntax_error_says_where(capfd: pytest.CaptureFixture[str]) -> None:
    source = "func.func public @main() {\n  %0 = stablehlo.add %1\n  return\n}"
    with pytest.raises(invert.MalformedModelError, match=r"2:\d+.*") as caught:
        parse_module(source)
    assert "The StableHLO module cannot be read" in str(caught.value)
    for trusted in (False, True):
        with pytest.raises(invert.MalformedModelError, match=r"2:\d+"):
            parse_module(source, trusted=trusted)
    assert capfd.readouterr().err == ""


def test_unverified_module() -> None:
    source = """func.func public @main(%a: tensor<2xf32>) -> tensor<3xf32> {
      %0 = "stablehlo.abs"(%a) : (tensor<2xf32>) -> tensor<3xf32>
      return %0 : tensor<3xf32>
    }"""
    with pytest.raises(invert.MalformedModelError, match=r"stablehlo\.abs"):
        parse_module(source)


def test_entry() -> None:
    with pytest.raises(invert.MalformedModelError, match="no public function"):
        parse_module("module {}")
    several = parse_module("func.func @a() { return } func.func @b() { return }")
    with pytest.raises(invert.MalformedModelError, match="2 public functions"):
        entry_function(several)
    module = parse_module("func.func @only() { return } func.func private @b() { return }")
    assert entry_function(module).operation.attributes["sym_name"].value == "only"


def test_newer_version() -> None:
    data = artifact()
    old = data[5 : data.index(0, 5)]
    new = b"StableHLO_v9.99.9".ljust(len(old), b"0")[: len(old)]
    current = stablehlo_dialect.get_current_version()
    with pytest.raises(invert.MalformedModelError) as caught:
        parse_module(data.replace(old, new, 1))
    message = str(caught.value)
    assert "9.99.9" in message
    assert current in message
    assert "Upgrade jaxlib" in message


@pytest.mark.parametrize("depth", [10_000, 100_000])
def test_deep_nesting(depth: int) -> None:
    nested = [
        "func.func public @main(%a: " + "tuple<" * depth + "f32" + ">" * depth + ") { return }",
        "module attributes {a = " + "[" * depth + "]" * depth + "} {}",
        'func.func public @main() { "stablehlo.if"(%c) ({ ' * depth,
    ]
    for source in nested:
        with pytest.raises(invert.MalformedModelError, match="nested in the thousands"):
            parse_module(source)


def test_huge_splat_is_not_materialized() -> None:
    full = "tensor<1000000000000xf32>"
    module = parse_module(
        f"func.func public @main() -> {full} {{\n"
        f"  %0 = stablehlo.constant dense<1.0> : {full}\n  return %0 : {full}\n}}"
    )
    assert "dense<1.000000e+00>" in str(module)


def test_names_that_are_not_utf8() -> None:
    # Reading this name would end the process.
    with pytest.raises(invert.MalformedModelError, match="not UTF-8"):
        parse_module('func.func public @main() { return } loc("\\FF"("\\FE":1:1))')
    with pytest.raises(invert.MalformedModelError, match="not UTF-8"):
        parse_module('func.func public @"\\FF"() { return }')


def test_the_child_is_replaced_after_a_crash() -> None:
    depth = 100_000
    for _ in range(2):
        with pytest.raises(invert.MalformedModelError, match="crashed"):
            parse_module("module attributes {a = " + "[" * depth + "]" * depth + "} {}")
        parse_module("func.func @main() { return }")


def test_hanging_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    parse_module("func.func @main() { return }")
    monkeypatch.setattr(parse_in_child, "_SECONDS", 0.0)
    monkeypatch.setattr(parse_in_child, "_SECONDS_PER_BYTE", 0.0)
    body = "%0 = stablehlo.constant dense<1.0> : tensor<f32>\n".replace("%0", "%{}")
    source = "".join(body.format(i) for i in range(200_000))
    with pytest.raises(invert.MalformedModelError, match="more than 0 seconds"):
        parse_module(f"func.func @main() {{\n{source}return }}")


def test_child_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse_in_child, "_child", parse_in_child._child.__wrapped__)
    for executable in ("", "/does/not/exist"):
        with monkeypatch.context() as patched:
            patched.setattr(sys, "executable", executable)
            with pytest.raises(invert.InvertError, match="trusted=True"):
                parse_module("module {}")
    monkeypatch.setattr(parse_in_child, "READER_PRELUDE", "import no_such_module")
    with pytest.raises(invert.InvertError, match=r"exit code 1.*trusted=True"):
        parse_module("module {}")


def test_threads_share_one_child() -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                parse_module(data)
        except invert.MalformedModelError as e:
            errors.append(e)

    data = artifact()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
