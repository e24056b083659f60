"""Weights on disk: shards, types, what is trained."""

from __future__ import annotations

import ast
import dataclasses
import errno
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import invert
from invert.emission import reader
from invert.modules import save
from invert.modules.save import byte_count
from tests.emission.models import ramp, recovered, with_params
from tests.emission.test_modules import in_another_process


def _layered(*, fixed: tuple[str, ...] = ()) -> Any:
    """Three layers of 48 bytes of weights each, and a scale of their own."""

    def apply(params, x):
        for name in ("first", "second", "third"):
            with jax.named_scope(name):
                x = jnp.tanh(x @ params[name]["kernel"]) * params[name]["scale"]
        return x

    def weights(seed):
        return {"kernel": ramp(3, 3) + seed, "scale": ramp(3) - seed}

    params = {n: weights(i) for i, n in enumerate(("first", "second", "third"))}
    entry = with_params(apply, params, ramp(2, 3))
    flagged = [dataclasses.replace(p, trainable=p.name not in fixed) for p in entry.params]
    assert {p.name for p in flagged} >= set(fixed)
    return recovered(dataclasses.replace(entry, params=tuple(flagged)))


def test_weights_without_numbers_are_saved(tmp_path: Path) -> None:
    weight = np.zeros((0, 3), np.int8)
    module = invert.from_exported(
        jax.export.export(jax.jit(lambda x: x @ weight))(jnp.zeros((5, 0), jnp.int8)).serialize()
    )
    invert.save(module, tmp_path)
    assert invert.load(tmp_path)(jnp.zeros((5, 0), jnp.int8)).shape == (5, 3)


def test_a_package_is_loaded_where_implicit_transfers_are_refused(tmp_path: Path) -> None:
    invert.save(_layered(), tmp_path)
    with jax.transfer_guard("disallow"):
        loaded = invert.load(tmp_path)
    assert jax.tree.leaves(eqx.filter(loaded, eqx.is_array))


def test_large_weights_are_split_into_shards(tmp_path: Path) -> None:
    module = _layered()
    invert.save(module, tmp_path, max_shard_size=100)
    names = sorted(p.name for p in tmp_path.glob("*.safetensors"))
    assert names == [f"weights-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index = json.loads((tmp_path / "weights.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 144
    held = {}
    for name in names:
        with safe_open(tmp_path / name, framework="numpy") as file:
            held |= dict.fromkeys(file.keys(), name)
            assert sum(file.get_tensor(k).nbytes for k in file.keys()) <= 100  # noqa: SIM118
    assert index["weight_map"] == held
    x = ramp(2, 3)
    loaded = invert.load(tmp_path)
    assert np.array_equal(loaded(x), module(x))
    assert np.array_equal(in_another_process(tmp_path, {"x": x})["x_out"], module(x))
    # Saved again as one file, no shard is left that would be read instead.
    invert.save(loaded, tmp_path)
    assert [p.name for p in tmp_path.glob("weights*")] == ["weights.safetensors"]
    assert np.array_equal(invert.load(tmp_path)(x), module(x))


def test_a_module_of_traced_arrays_is_refused(tmp_path: Path) -> None:
    arrays, rest = eqx.partition(_layered().model, eqx.is_array)
    with pytest.raises(invert.SaveError, match=r"is traced: call save outside of jax\.jit"):
        jax.jit(lambda traced: invert.save(eqx.combine(traced, rest), tmp_path))(arrays)
    assert not list(tmp_path.iterdir())


def test_an_array_larger_than_a_shard_gets_a_separate_one(tmp_path: Path) -> None:
    module = _layered()
    invert.save(module, tmp_path, max_shard_size="20B")
    assert len(list(tmp_path.glob("weights-*-of-00006.safetensors"))) == 6
    assert np.array_equal(invert.load(tmp_path)(ramp(2, 3)), module(ramp(2, 3)))


def test_an_index_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    invert.save(_layered(), tmp_path / "a", max_shard_size=100)
    index = tmp_path / "a" / "weights.safetensors.index.json"
    (tmp_path / "weights-00001-of-00002.safetensors").write_bytes(b"")
    index.write_text(index.read_text().replace('"weights-00001', '"../weights-00001'))
    with pytest.raises(invert.MalformedModelError, match=r"Invalid name.*\.\./weights"):
        invert.load(tmp_path / "a")


def _content(folder: Path) -> dict[str, bytes]:
    return {os.fspath(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.*")}


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(
    "stop", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
def test_a_package_is_saved_as_a_whole_or_not_at_all(
    stop: BaseException, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk and Ctrl-C, when the first of three files of weights has been written."""
    place = tmp_path / "package"
    if there:
        invert.save(_layered(), place, max_shard_size=100)
        (place / "other.txt").write_text("not of the package")
    before = _content(tmp_path)
    write, calls = save._write, itertools.count()

    def stopped(tensors: Any, path: Path) -> None:
        if next(calls):
            raise stop
        write(tensors, path)

    monkeypatch.setattr(save, "_write", stopped)
    with pytest.raises((invert.SaveError, KeyboardInterrupt)) as error:
        invert.save(_layered(), place, max_shard_size=50)
    assert _content(tmp_path) == before and place.exists() == there
    if isinstance(stop, OSError):
        assert str(place) in str(error.value) and "No space left" in str(error.value)
    monkeypatch.undo()
    invert.save(_layered(), place)
    added = {"model.py", "README.md", "weights.safetensors", *(["other.txt"] if there else [])}
    assert {p.name for p in place.iterdir()} == added
    assert [p.name for p in tmp_path.iterdir()] == ["package"]


def test_a_directory_that_cannot_be_written_is_a_save_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "package"):
        with pytest.raises(invert.SaveError, match=str(place)):
            invert.save(_layered(), place)

    def full(*args: Any, **keywords: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(invert.SaveError, match="No space left"):
        invert.save(_layered(), tmp_path / "package")
    assert not (tmp_path / "package").exists()


def _edited(folder: Path, edit: Callable[[dict[str, np.ndarray]], None]) -> None:
    arrays = load_file(folder / "weights.safetensors")
    edit(arrays)
    save_file(arrays, folder / "weights.safetensors")


def test_weights_of_another_module_are_refused(tmp_path: Path) -> None:
    invert.save(_layered(), tmp_path)

    def edit(arrays: dict[str, np.ndarray]) -> None:
        del arrays["first.kernel"]
        arrays["second.kernel"] = np.zeros((4, 3), np.float32)
        arrays["third.scale"] = np.zeros(3, np.int32)
        arrays["extra"] = np.zeros(3)

    _edited(tmp_path, edit)
    with pytest.raises(invert.MalformedModelError) as error:
        invert.load(tmp_path)
    for text in (
        "model.py", "weights.safetensors", "first.kernel is missing",
        r"second.kernel is float32(4, 3), not", "third.scale is int32(3,), not",
        "extra is not in the module",
    ):  # fmt: skip
        assert text in str(error.value)
    # The text on its own says the same without `invert`.
    assert isinstance(error.value.__cause__, ValueError)
    assert "first.kernel is missing" in str(error.value.__cause__)


def test_weights_of_other_dtypes_and_shapes_are_refused(tmp_path: Path) -> None:
    entry = with_params(
        lambda p, x: x * p["w"] + p["count"], {"w": ramp(3), "count": np.int32(2)}, ramp(3)
    )
    invert.save(recovered(entry, ramp(3)), tmp_path)
    right = load_file(tmp_path / "weights.safetensors")
    wrong = [
        ("count", np.float32(2.0), r"count is float32\(\), not int32\("),
        ("count", np.zeros(3, np.int32), r"count is int32\(3,\), not int32\("),
        ("w", np.float32(2.0), r"w is float32\(\), not float32\("),
        ("w", np.zeros((2, 3), np.float32), r"w is float32\(2, 3\), not float32\("),
    ]
    for name, value, said in wrong:
        save_file({**right, name: np.asarray(value)}, tmp_path / "weights.safetensors")
        with pytest.raises(invert.MalformedModelError, match=said):
            invert.load(tmp_path)
    save_file(right, tmp_path / "weights.safetensors")
    np.testing.assert_array_equal(invert.load(tmp_path)(ramp(3)), ramp(3) * ramp(3) + 2)


@pytest.mark.parametrize("size", [100, "1GB"])
def test_every_byte_of_an_array_counts(tmp_path: Path, size: int | str) -> None:
    module = _layered()
    invert.save(module, tmp_path, max_shard_size=size)
    for file in save.weight_files(tmp_path):
        data = file.read_bytes()
        for at in range(len(data) - 24, len(data)):
            file.write_bytes(data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :])
            with pytest.raises(
                invert.MalformedModelError, match=rf"\.\w+ in {file.name} are damag"
            ):
                invert.load(tmp_path)
        file.write_bytes(data)
    # Checksums are of the bytes that this file had: another program may write others.
    for file in save.weight_files(tmp_path):
        save_file({name: array * 2 for name, array in load_file(file).items()}, file)
    np.testing.assert_array_equal(invert.load(tmp_path).first.scale, module.model.first.scale * 2)


@pytest.mark.skipif(len(jax.devices()) > 1, reason="the mesh would cut the array")
def test_an_array_on_a_mesh_is_checked_where_a_device_has_all_of_it(tmp_path: Path) -> None:
    invert.save(_layered(), tmp_path)
    mesh = jax.make_mesh((1,), ("x",))
    assert invert.load(tmp_path, mesh=mesh).first.scale.shape == (3,)
    file = tmp_path / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(invert.MalformedModelError, match="are damaged"):
        invert.load(tmp_path, mesh=mesh)


def test_files_of_two_saves_are_not_mixed(tmp_path: Path) -> None:
    module = _layered()
    invert.save(module, tmp_path / "a", max_shard_size=100)
    doubled = jax.tree.map(lambda x: 2 * x, module.model)
    invert.save(doubled, tmp_path / "b", max_shard_size=100)
    first, second = save.weight_files(tmp_path / "a")
    content = second.read_bytes()
    second.write_bytes((tmp_path / "b" / second.name).read_bytes())
    with pytest.raises(invert.MalformedModelError, match="its files are of different saves"):
        invert.load(tmp_path / "a")
    save_file({**load_file(first), **load_file(second)}, second)
    with pytest.raises(invert.MalformedModelError, match=r"\w+\.\w+ is in several files"):
        invert.load(tmp_path / "a")
    second.write_bytes(content)
    invert.load(tmp_path / "a")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.full(3, 1.1), "w is float64, which needs jax_enable_x64"),
        (np.full(3, 2**40), r"w is int64\(3,\), not float32"),
    ],
)
def test_arrays_are_not_narrowed(tmp_path: Path, value: np.ndarray, reason: str) -> None:
    # A module that computes in 32 bits may be given wider weights, if the process has them.
    module = recovered(with_params(lambda p, x: x * p["w"], {"w": ramp(3)}, ramp(3)))
    invert.save(module, tmp_path)
    _edited(tmp_path, lambda arrays: arrays.update(w=value))
    with pytest.raises(invert.MalformedModelError, match=reason):
        invert.load(tmp_path)
    if value.dtype == np.float64:
        with jax.enable_x64(True):
            np.testing.assert_array_equal(invert.load(tmp_path).w, value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: (d / "weights.safetensors.index.json").write_text("{"),
        lambda d: (d / "weights.safetensors.index.json").write_bytes(b"\xff\xfe"),
        lambda d: (d / "weights.safetensors.index.json").write_text("{}"),
        lambda d: (d / "weights.safetensors.index.json").write_text('{"weight_map": {"a": 1}}'),
        lambda d: (d / "weights.safetensors.index.json").write_text('{"weight_map": {"a": "b"}}'),
        lambda d: (d / "weights-00001-of-00002.safetensors").write_bytes(b"x" * 99),
        lambda d: (d / "weights-00001-of-00002.safetensors").unlink(),
        lambda d: (d / "weights-00002-of-00002.safetensors").write_bytes(b""),
        lambda d: (d / "model.py").write_text("def"),
        lambda d: (d / "model.py").write_bytes(b"\xff"),
        lambda d: (d / "model.py").write_text("load = undefined"),
        lambda d: (d / "model.py").write_text(""),
    ],
)
def test_a_damaged_package_is_a_malformed_model_error(
    damage: Callable[[Path], Any], tmp_path: Path
) -> None:
    invert.save(_layered(), tmp_path, max_shard_size=100)
    damage(tmp_path)
    with pytest.raises(invert.MalformedModelError, match=str(tmp_path)):
        invert.load(tmp_path)


def test_bfloat16_is_bfloat16_to_other_readers(tmp_path: Path) -> None:
    value = np.asarray(jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3))
    module = recovered(with_params(lambda p, x: x + p["w"], {"w": value}, value))
    invert.save(module, tmp_path)
    with safe_open(tmp_path / "weights.safetensors", framework="numpy") as file:
        assert file.get_slice("w").get_dtype() == "BF16"


@pytest.mark.parametrize(
    ("text", "count"),
    [("5GB", 5 * 10**9), ("2GiB", 2**31), ("1.5kb", 1500), (7, 7), ("12 MB", 12 * 10**6)],
)
def test_sizes_of_shards(text: str | int, count: int) -> None:
    assert byte_count(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1", "5XB", "0", "1e3"])
def test_invalid_sizes_of_shards(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        byte_count(text)


@pytest.mark.parametrize(
    ("fixed", "endings"),
    [
        (("first/scale", "second/scale", "third/scale"), "('.scale',)"),
        (("first/scale", "first/kernel"), "('.first.kernel', '.first.scale')"),
    ],
)
def test_the_trained_arrays_are_kept(fixed: tuple[str, ...], endings: str, tmp_path: Path) -> None:
    module = _layered(fixed=fixed)
    assert f"fixed = {endings}" in module.source.replace('"', "'")
    invert.save(module, tmp_path)
    for model in (module.model, invert.load(tmp_path)):
        flags = invert.trainable(model)
        trained, rest = eqx.partition(model, flags)
        names = {"/".join(k.name for k in path) for path, _ in
                 jax.tree_util.tree_leaves_with_path(rest)}  # fmt: skip
        assert names == set(fixed)
        assert len(jax.tree_util.tree_leaves(trained)) == 6 - len(fixed)


def test_constants_and_statistics_are_not_trained() -> None:
    """A text says so without its loader too, and the module agrees."""
    table = np.asarray([0.5, 0.25, 2.0], np.float32)

    def run(params: Any, x: Any) -> Any:
        x = (x - params["batch_stats"]["norm"]["mean"]) @ params["params"]["out"]["kernel"]
        return x * jnp.asarray(table)

    flat = {
        "batch_stats/norm/mean": ramp(3),
        "params/out/kernel": ramp(3, 3),
    }
    tree = {"batch_stats": {"norm": {"mean": ramp(3)}}, "params": {"out": {"kernel": ramp(3, 3)}}}
    lowered = jax.jit(run).lower(tree, ramp(2, 3))
    module = invert.from_stablehlo(lowered, params=flat, names=[*flat, "x"])
    emission = module.emit(loader=False)
    assert "def trainable(" in emission.source and "def load(" not in emission.source
    for net in (module, emission.model):
        trained, _ = eqx.partition(net, invert.trainable(net))
        (kernel,) = jax.tree_util.tree_leaves(trained)
        np.testing.assert_array_equal(kernel, ramp(3, 3))


def test_the_text_has_no_filter_if_all_arrays_are_trained() -> None:
    module = _layered()
    assert "def trainable" not in module.source
    assert all(jax.tree_util.tree_leaves(invert.trainable(module.model)))


def test_what_the_source_could_not_read_is_refused(tmp_path: Path) -> None:
    kernel = np.arange(12, dtype=np.float32).reshape(3, 4)
    exported = jax.export.export(jax.jit(lambda x: jnp.tanh(x @ kernel)))(jnp.ones((2, 3)))
    model: Any = invert.from_exported(exported).model
    invert.save(model, tmp_path / "net")
    (name,) = (f for f in vars(model) if hasattr(getattr(model, f), "shape"))
    wider = eqx.tree_at(lambda m: getattr(m, name), model, jnp.ones((3, 5)))
    with pytest.raises(invert.SaveError, match=rf"{name} is float32\[3, 5\], expected \[3, 4\]"):
        invert.save(wider, tmp_path / "net")
    other = eqx.tree_at(lambda m: getattr(m, name), model, {"a": jnp.ones(2)})
    with pytest.raises(
        invert.SaveError, match=rf"{name} is missing; {name}\['?a'?\]?|{name}.a is not"
    ):
        invert.save(other, tmp_path / "net")
    np.testing.assert_array_equal(getattr(invert.load(tmp_path / "net"), name), kernel)


def test_a_fixed_array_whose_path_is_the_end_of_another() -> None:
    class Norm(eqx.Module):
        scale: jax.Array
        bias: jax.Array

    class Net(eqx.Module):
        scale: jax.Array
        norm: Norm
        bias: jax.Array

    x = jnp.ones(2)
    paths = [["norm", "scale"], ["bias"]]
    for fixed, wanted in (
        ([["scale"]], [False, True, True, True]),
        ([["scale"], ["norm", "bias"]], [False, True, False, True]),
    ):
        tree = ast.Module(reader.trainable("Net", fixed, paths), [])
        names: dict[str, Any] = {"jax": jax, "Net": Net}
        exec(ast.unparse(ast.fix_missing_locations(tree)), names)
        assert jax.tree_util.tree_leaves(names["trainable"](Net(x, Norm(x, x), x))) == wanted


def test_a_package_has_no_signatures(tmp_path: Path) -> None:
    module = invert.from_stablehlo(jax.jit(jnp.sin).lower(1.0))
    invert.save(module, tmp_path / "saved")
    with pytest.raises(invert.SignatureError, match="written by invert"):
        invert.load(tmp_path / "saved", signature="main")


def test_the_program_of_a_package_cannot_be_converted_otherwise(tmp_path: Path) -> None:
    """An option without effect is refused; those that change no program are taken."""
    module = invert.from_stablehlo(jax.jit(jnp.sin).lower(ramp(3)))
    invert.save(module, tmp_path / "package")
    with pytest.raises(invert.SignatureError, match="max_scan, optimize of the config"):
        invert.load(tmp_path / "package", config=invert.Config(optimize="cpu", max_scan=3))
    unverified = invert.load(tmp_path / "package", config=invert.Config(verify=False))
    assert jnp.array_equal(unverified(ramp(3)), module(ramp(3)))
