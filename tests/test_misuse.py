"""Arguments of the wrong kind are refused with an error that names them."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import invert


def identity(kind: str) -> invert.Module:
    return invert.from_stablehlo(
        f"func.func @main(%x: tensor<{kind}>) -> tensor<{kind}> {{ return %x : tensor<{kind}> }}"
    )


@pytest.mark.parametrize(
    ("kind", "held", "not_held"),
    [
        ("i1", [True], [1, 0.5]),
        ("i4", [True, -8, 7], [8, 1.0]),
        ("ui8", [0, 255], [-1, 256, 0.5, float("nan")]),
        ("i32", [2**31 - 1], [2**31, 2**40, 1.5, 1j]),
        ("f32", [True, 3, 0.5, float("inf")], [1j]),
        ("complex<f32>", [1, 0.5, 1j], []),
    ],
)
def test_python_numbers_that_a_type_does_not_hold(kind: str, held: Any, not_held: Any) -> None:
    module = identity(kind)
    for value in held:
        assert module(value) == value
    for value in not_held:
        with pytest.raises(invert.SignatureError, match="does not hold"):
            module(value)


def test_numbers_are_converted_on_request() -> None:
    text = "func.func @main(%x: tensor<i32>) -> tensor<i32> { return %x : tensor<i32> }"
    module = invert.from_stablehlo(text, config=invert.Config(strict_dtypes=False))
    assert module(1.5) == module(np.float32(1.5)) == 1


@pytest.mark.parametrize("strict", [True, False])
def test_keys_and_texts_are_not_converted(strict: bool) -> None:
    config = invert.Config(strict_dtypes=strict)
    key = jax.random.key(0)
    draw = jax.jit(lambda key, x: x + jax.random.normal(key))
    module = invert.from_exported(jax.export.export(draw)(key, np.float32(1)), config=config)
    assert module(key, 1.0) == draw(key, np.float32(1))
    others = (jax.random.key(0, impl="rbg"), np.float32(1), np.array("a"), 0)
    for args in (*((other, 1.0) for other in others), (key, key), (key, np.array("a"))):
        with pytest.raises(invert.SignatureError, match=r"dtype|does not hold"):
            module(*args)


def test_masked_arrays() -> None:
    masked = np.ma.masked_array(np.ones(3, np.float32), mask=[True, False, False])
    with pytest.raises(invert.SignatureError, match="masked array"):
        identity("3xf32")(masked)


@pytest.mark.parametrize("config", [None, {"verify": False}, "exact"])
def test_a_config_of_another_kind(config: Any) -> None:
    exported = jax.export.export(jax.jit(jnp.sin))(jnp.ones(3))
    for call in (
        lambda: invert.from_exported(exported, config=config),
        lambda: invert.from_stablehlo(exported.mlir_module(), config=config),
        lambda: invert.convert_graphdef(b"", ["x"], ["y"], config=config),
        lambda: invert.load("missing", config=config),
        lambda: invert.convert(jnp.sin, config=config),
    ):
        with pytest.raises(invert.SignatureError, match=f"config is a {type(config).__name__}"):
            call()


@pytest.mark.parametrize("path", ["a\0b", "a\ud800b", Path("a\0b")])
def test_text_that_is_no_path(path: Any) -> None:
    with pytest.raises(invert.MalformedModelError, match="is not a path"):
        invert.load(path)
    with pytest.raises(invert.SaveError, match="is not a path"):
        invert.save(identity("3xf32"), path)


def test_names_and_values_of_arguments() -> None:
    text = "func.func @main(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> }"
    with pytest.raises(invert.SignatureError, match="names is a int"):
        invert.from_stablehlo(text, names=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(invert.SignatureError, match=r"`params` has keys that are not text: \[3\]"):
        invert.from_stablehlo(text, params={3: np.float32(1)})  # pyright: ignore[reportArgumentType]


def test_values_are_a_mapping() -> None:
    module = identity("3xf32")
    for call in (lambda: invert.with_values(module, None), lambda: invert.assign(module, [1.0])):  # pyright: ignore[reportArgumentType]
        with pytest.raises(invert.SignatureError, match=r"values is a .*, not a mapping"):
            call()


def test_types_are_no_arguments() -> None:
    module = identity("3xf32")
    kind = jax.ShapeDtypeStruct((3,), np.float32)
    with pytest.raises(invert.SignatureError, match=r"'arg0' is a type; `jax\.eval_shape"):
        module(kind)
    assert jax.eval_shape(module, kind) == kind


def test_what_jax_makes_of_a_function_is_no_tensorflow_function() -> None:
    pytest.importorskip("tensorflow")
    traced = jax.jit(jnp.sin).trace(1.0)
    for given in (traced, traced.lower(), traced.lower().compile()):
        with pytest.raises(invert.SignatureError, match=r"invert\.from_stablehlo"):
            invert.convert(given)
    with pytest.raises(invert.SignatureError, match=r"invert\.from_exported"):
        invert.convert(jax.export.export(jax.jit(jnp.sin))(1.0))


@pytest.mark.parametrize("missing", ["model.py", "weights.safetensors"])
def test_a_package_without_one_of_its_files(missing: str, tmp_path: Path) -> None:
    invert.save(identity("3xf32"), tmp_path / "package")
    (tmp_path / "package" / missing).unlink()
    with pytest.raises(invert.MalformedModelError, match=r"no model\.py next to weights"):
        invert.load(tmp_path / "package")


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Root may read everything."""
    root = os.name == "posix" and os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("hidden", ["weights.safetensors", "model.py", "."])
def test_files_that_may_not_be_read_are_not_called_missing(hidden: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        package = Path(made, "package")
        exported = jax.export.export(jax.jit(lambda x, w: x @ w))(jnp.ones(3), jnp.ones((3, 2)))
        invert.save(invert.from_exported(exported, params={"w": jnp.ones((3, 2))}), package)
        (package / hidden).chmod(0)
        with unprivileged(), pytest.raises(invert.MalformedModelError, match="Permission denied"):
            invert.load(package)
        (package / hidden).chmod(0o755)


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("hidden", [".", "saved_model.pb", "variables"])
@pytest.mark.parametrize("named", [".", "saved_model.pb"])
def test_parts_of_a_saved_model_that_may_not_be_read(hidden: str, named: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        model = Path(made, "model")
        (model / "variables").mkdir(parents=True)
        (model / "saved_model.pb").write_bytes(b"")
        (model / hidden).chmod(0)
        with unprivileged(), pytest.raises(invert.MalformedModelError, match="Permission denied"):
            invert.load(model / named)
        (model / hidden).chmod(0o755)


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices of POSIX")
def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        for read in (invert.load, invert.from_stablehlo):
            with pytest.raises(invert.MalformedModelError, match="a pipe or a device") as error:
                read(path)
            assert "regular file" in error.value.remedy


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("gs://bucket/model", "download it"),
        ("https://host/model.keras", "download it"),
        ("~/missing", "expanduser"),
        ("missing", "Check that it exists"),
    ],
)
def test_paths_that_lead_nowhere(path: str, remedy: str) -> None:
    with pytest.raises(invert.MalformedModelError, match="does not exist") as error:
        invert.load(path)
    assert remedy in error.value.remedy


@pytest.mark.parametrize(
    ("file", "remedy"),
    [
        ("2/saved_model.pb", "such as .*2"),
        ("saved_model.cpb", "in several files"),
        ("other", "the directory that holds"),
    ],
)
def test_folders_around_a_model(file: str, remedy: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_bytes(b"")
    with pytest.raises(invert.MalformedModelError, match="is not a SavedModel") as error:
        invert.load(tmp_path)
    assert re.search(remedy, error.value.remedy)


def test_what_is_not_a_pattern() -> None:
    with pytest.raises(invert.PatternError, match="takes a pattern"):
        invert.explain(jnp.sin, jnp.sin, np.ones(3, np.float32))  # type: ignore[arg-type]


def test_compiler_options_of_another_platform() -> None:
    with pytest.raises(ValueError, match="'CPU' is not a platform"):
        invert.compiler_options("CPU")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "match"),
    [(max, "which arguments it takes"), (lambda x: np.ones(2) * np.asarray(x), "uses NumPy")],
)
def test_functions_that_tensorflow_cannot_trace(function: Any, match: str) -> None:
    pytest.importorskip("tensorflow")
    with pytest.raises(invert.SignatureError, match=match):
        invert.roundtrip(function, np.ones(2, np.float32))
