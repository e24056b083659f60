"""Malicious `.keras` and HDF5 files, and files that declare more than they contain."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import sys
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import invert
from invert._child import Child
from invert.frontends import hdf5_in_child

keras = pytest.importorskip("keras")
h5py = pytest.importorskip("h5py")

Content = dict[str, bytes]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keras") / "model.keras"
    layers = [keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(2)]
    keras.Sequential([keras.Input((4,), batch_size=2), *layers]).save(path)
    return path


def content_of(path: Path) -> Content:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, content: Content) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)


def layer(**changes: Any) -> Callable[[Content, Path], None]:
    """Changes to the first dense layer; `config` is merged into its own."""

    def edit(content: Content, secret: Path) -> None:
        config = json.loads(content["config.json"])
        found = config["config"]["layers"][1]
        found["config"] |= changes.pop("config", {})
        found |= changes
        content["config.json"] = json.dumps(config).encode().replace(b"SECRET", bytes(secret))

    return edit


def weights(change: Callable[[Any, Path], None]) -> Callable[[Content, Path], None]:
    def edit(content: Content, secret: Path) -> None:
        data = io.BytesIO(content["model.weights.h5"])
        with h5py.File(data, "r+") as file:
            change(file, secret)
        content["model.weights.h5"] = data.getvalue()

    return edit


def _kernel(file: Any) -> Any:
    return file["layers/dense/vars"]


def _external_link(file: Any, secret: Path) -> None:
    del _kernel(file)["0"]
    _kernel(file)["0"] = h5py.ExternalLink(os.fspath(secret.with_suffix(".h5")), "x")


def _external_data(file: Any, secret: Path) -> None:
    del _kernel(file)["0"]
    place = [(os.fspath(secret), 0, 48)]
    _kernel(file).create_dataset("0", (4, 3), "f4", external=place)


def _virtual(file: Any, secret: Path) -> None:
    del _kernel(file)["0"]
    layout = h5py.VirtualLayout((4, 3), "f4")
    layout[:] = h5py.VirtualSource(os.fspath(secret.with_suffix(".h5")), "x", (4, 3))
    _kernel(file).create_virtual_dataset("0", layout)


def _large(file: Any, secret: Path) -> None:
    del _kernel(file)["0"]
    _kernel(file).create_dataset("0", (10**7, 10**5), "f4", chunks=(10, 10))


CASES: dict[str, Callable[[Content, Path], None]] = {
    "another module": layer(module="os", class_name="system"),
    "a module in a module": layer(module="keras.src.backend.os", class_name="system"),
    "a function of Keras": layer(module="keras.utils", class_name="get_file"),
    "no such class": layer(module="keras.layers", class_name="Missing"),
    "a lambda": layer(class_name="Lambda", module="keras.layers"),
    "a type": layer(config={"x": {"class_name": "__typespec__", "module": "builtins"}}),
    "a SavedModel": layer(class_name="TFSMLayer", module="keras.layers"),
    "a module that is a list": layer(module=["os"], class_name="system"),
    "vocabulary of a file": layer(class_name="StringLookup", config={"vocabulary": "SECRET"}),
    "outside": lambda content, secret: content.update({"../outside": b"x"}),
    "absolute": lambda content, secret: content.update({"/tmp/outside": b"x"}),
    "other weights": lambda content, secret: content.update(
        {"model.weights.npz": content.pop("model.weights.h5")}
    ),
    "external link": weights(_external_link),
    "external data": weights(_external_data),
    "virtual data": weights(_virtual),
    "large weights": weights(_large),
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_runs_and_no_other_file_is_read(case: str, archive: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(np.full(12, 7, np.float32)))
    with h5py.File(secret.with_suffix(".h5"), "w") as file:
        file["x"] = np.full((4, 3), 7, np.float32)
    content = content_of(archive)
    CASES[case](content, secret)
    write(tmp_path / "model.keras", content)
    before = sorted(tmp_path.parent.rglob("*"))
    with pytest.raises(invert.UnsupportedOpError) as error:
        invert.load(tmp_path / "model.keras")
    assert all(p.reason and p.remedy for p in error.value.problems)
    assert sorted(tmp_path.parent.rglob("*")) == before


def _bomb(path: Path, content: Content) -> None:
    write(path, content | {"assets/bomb": bytes(1 << 29)})


def _bomb_of_metadata(path: Path, content: Content) -> None:
    write(path, content | {"metadata.json": content["metadata.json"] + b" " * (1 << 29)})


def _bomb_that_says_less(path: Path, content: Content) -> None:
    name, text = "config.json", content["config.json"]
    write(path, content | {name: text + b" " * (1 << 29)})
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        local = archive.getinfo(name).header_offset
    for place in (local + 14, data.rindex(b"PK\x01\x02", 0, data.rindex(name.encode())) + 16):
        struct.pack_into("<I", data, place, zlib.crc32(text))
        struct.pack_into("<I", data, place + 8, len(text))
    path.write_bytes(data)


def _bomb_of_another_kind(path: Path, content: Content) -> None:
    write(path, content)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("assets/x", bytes(9), zipfile.ZIP_BZIP2)


@pytest.mark.parametrize(
    ("bomb", "message"),
    [
        (_bomb, "too many for this archive"),
        (_bomb_of_metadata, "too many for this archive"),
        (_bomb_that_says_less, "too many for this archive|Bad CRC"),
        (_bomb_of_another_kind, "packed in another way"),
    ],
)
def test_bombs_are_refused_before_they_are_unpacked(
    bomb: Callable[[Path, Content], None], message: str, archive: Path, tmp_path: Path
) -> None:
    bomb(tmp_path / "model.keras", content_of(archive))
    tracemalloc.start()
    with pytest.raises(invert.MalformedModelError, match=message):
        invert.load(tmp_path / "model.keras")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 26


def test_the_archive_itself_is_read(archive: Path, tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    want = keras.saving.load_model(archive)(x)
    write(tmp_path / "again.keras", content_of(archive))
    for path in (archive, tmp_path / "again.keras"):
        np.testing.assert_allclose(invert.load(path)(x), want, rtol=1e-6, atol=1e-6)


def test_a_layer_that_cannot_be_built_is_a_malformed_model_error(
    archive: Path, tmp_path: Path
) -> None:
    content = content_of(archive)
    layer(config={"units": 10**13})(content, tmp_path)
    write(tmp_path / "model.keras", content)
    with pytest.raises(invert.InvertError, match=r"model\.keras"):
        invert.load(tmp_path / "model.keras")
    shutil.copy(archive, tmp_path / "cut.keras")
    os.truncate(tmp_path / "cut.keras", 700)
    with pytest.raises(invert.InvertError, match=r"cut\.keras"):
        invert.load(tmp_path / "cut.keras")


@pytest.mark.parametrize(
    ("number", "change", "reason"),
    [
        # None of them is made, which would take all memory of a machine.
        (2, {"units": 10**9}, r"the variables of its configuration take 16000000\d+ bytes"),
        # The next layer does not take as many features, which Keras says once this one is made.
        (1, {"units": 10**8}, r"the variables of its configuration take 20000\d+ bytes"),
        (1, {"name": "é"}, "Keras cannot run the model: .* is not a valid scope name"),
    ],
)
def test_configurations_that_do_not_fit_the_weights(
    number: int, change: dict[str, Any], reason: str, archive: Path, tmp_path: Path
) -> None:
    content = content_of(archive)
    config = json.loads(content["config.json"])
    config["config"]["layers"][number]["config"] |= change
    content["config.json"] = json.dumps(config).encode()
    write(tmp_path / "model.keras", content)
    with pytest.raises(invert.MalformedModelError, match=f"(?s){reason}"):
        invert.load(tmp_path / "model.keras")
    dense = keras.layers.Dense(1, name="after")
    dense.build((None, 1))
    assert dense.kernel.path == "after/kernel"  # no scope of the model is still open


def test_what_keras_says_is_shortened_to_the_cause(archive: Path, tmp_path: Path) -> None:
    content = content_of(archive)
    layer(config={"unit": 3})(content, tmp_path)
    write(tmp_path / "model.keras", content)
    with pytest.raises(invert.MalformedModelError, match=r"layer 'dense\w*' \(Dense\): ") as error:
        invert.load(tmp_path / "model.keras")
    assert "unit" in str(error.value)
    assert len(error.value.reason) < 500


class Cubed(keras.layers.Layer):
    """A layer that is not registered with Keras."""

    def call(self, x: Any) -> Any:
        return x * x * x


def test_classes_of_the_caller(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), Cubed(), keras.layers.Dense(2)])
    model.save(tmp_path / "own.keras")
    with pytest.raises(invert.InvertError, match="custom_objects"):
        invert.load(tmp_path / "own.keras")
    config = invert.Config(custom_objects={"Cubed": Cubed})
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    module = invert.load(tmp_path / "own.keras", config=config)
    np.testing.assert_allclose(module(x), model(x), rtol=1e-6, atol=1e-6)


@keras.saving.register_keras_serializable(package="tests")
class Squared(keras.layers.Layer):
    """A layer that is registered with Keras."""

    def call(self, x: Any) -> Any:
        return x * x


def test_classes_that_are_registered(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), Squared()])
    model.save(tmp_path / "own.keras")
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(invert.load(tmp_path / "own.keras")(x), x * x)


def test_an_archive_without_metadata(archive: Path, tmp_path: Path) -> None:
    content = {k: v for k, v in content_of(archive).items() if k != "metadata.json"}
    write(tmp_path / "model.keras", content)
    assert invert.load(tmp_path / "model.keras").report.certificate.kind == "exact"


def test_weights_alone(archive: Path, tmp_path: Path) -> None:
    keras.saving.load_model(archive).save_weights(tmp_path / "model.weights.h5")
    with pytest.raises(invert.MalformedModelError, match=r"without a model.*load_weights"):
        invert.load(tmp_path / "model.weights.h5")


@pytest.fixture(scope="module")
def hdf5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keras") / "model.h5"
    image = keras.Input((4,), name="image")
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(3, activation="gelu")(image))
    both = keras.layers.Concatenate()([hidden, image])
    keras.Model({"image": image}, [keras.layers.Dense(2)(both), hidden]).save(path)
    return path


def test_hdf5_of_keras_3(hdf5: Path) -> None:
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    model = keras.saving.load_model(hdf5, compile=False)
    model.layers[2].moving_mean.assign(np.arange(3))
    model.save(hdf5)
    got = invert.load(hdf5)({"image": x})
    for part, want in zip(got, model({"image": x}), strict=True):
        np.testing.assert_allclose(part, want, rtol=1e-6, atol=1e-6)


def _set(**attributes: Any) -> Callable[[Any], None]:
    return lambda file: file.attrs.update(attributes)


def _layer(**changes: Any) -> Callable[[Any], None]:
    def edit(file: Any) -> None:
        config = json.loads(file.attrs["model_config"])
        dense = next(x for x in config["config"]["layers"] if x["class_name"] == "Dense")
        dense["config"] |= changes.pop("config", {})
        dense |= changes
        file.attrs["model_config"] = json.dumps(config)

    return edit


def _large_hdf5(file: Any) -> None:
    del file["model_weights/x"]
    file["model_weights"].create_dataset("x", (10**7, 10**5), "f4", chunks=(10, 10))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set(keras_version=3), "its keras_version is not a text"),
        (_set(model_config="{"), "is not a Keras model"),
        (_layer(class_name="Lambda"), "contains or names Python code"),
        (_layer(class_name="Missing"), r"Unknown layer: 'Missing'.*custom_objects"),
        (_layer(module="os", class_name="system"), "is not a class of Keras itself"),
        (_layer(config={"units": 10**9}), r"model\.h5: the variables .* too many"),
        (lambda file: file.attrs.__delitem__("keras_version"), "keras_version"),
        (lambda file: file.__delitem__("model_weights"), "Keras cannot load the model"),
        (lambda file: file["model_weights"].update(x=1) or _large_hdf5(file), "claim to take"),
        (
            lambda file: file.update({"model_weights/x": h5py.ExternalLink("/etc/passwd", "x")}),
            "are stored in another file",
        ),
    ],
)
def test_damaged_hdf5(
    change: Callable[[Any], None], message: str, hdf5: Path, tmp_path: Path
) -> None:
    path = shutil.copy(hdf5, tmp_path)
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(invert.InvertError, match=f"(?s){message}"):
        invert.load(path)


def test_files_of_keras_2_need_tf_keras(
    hdf5: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shutil.copy(hdf5, tmp_path)
    with h5py.File(path, "r+") as file:
        file.attrs["keras_version"] = "2.12.0"
    monkeypatch.setitem(sys.modules, "tf_keras", None)
    with pytest.raises(invert.MissingDependencyError, match=r"Keras 2\.12\.0, and needs tf_keras"):
        invert.load(path)


def test_cut_hdf5(hdf5: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    data = hdf5.read_bytes()
    for size in range(8, len(data), len(data) // 12):
        path.write_bytes(data[:size])
        with pytest.raises(invert.MalformedModelError, match=r"model\.h5"):
            invert.load(path)


# A worker that dies of each file, as the HDF5 library does of some.
DIES = """
import os, sys
sys.stdout.buffer.write(bytes(8))
sys.stdout.buffer.flush()
sys.stdin.buffer.read(16)
os.abort()
"""


@pytest.mark.parametrize("kind", ["h5", "keras"])
def test_a_crash_of_the_hdf5_library_is_an_error(
    kind: str, hdf5: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = Child(["-c", DIES], start_seconds=60.0)
    monkeypatch.setattr(hdf5_in_child, "_child", lambda: child)
    with pytest.raises(invert.MalformedModelError, match=r"is damaged: the HDF5 library crashed"):
        invert.load(hdf5 if kind == "h5" else archive)


def test_all_of_an_hdf5_file_is_read_in_the_child(hdf5: Path, tmp_path: Path) -> None:
    """Damage of the values themselves: a chunk that cannot be unpacked."""
    path = tmp_path / "model.h5"
    shutil.copy(hdf5, path)
    with h5py.File(path, "r+") as file:
        values = np.arange(4096.0).reshape(64, 64)
        file.create_dataset("more", data=values, chunks=(64, 64), compression="gzip")
        place = file["more"].id.get_chunk_info(0).byte_offset
    data = bytearray(path.read_bytes())
    data[place : place + 64] = bytes(64)
    hdf5_in_child.check(hdf5.read_bytes(), "model.h5", 1 << 20)
    with pytest.raises(invert.MalformedModelError, match=r"model\.h5 is damaged: OSError"):
        hdf5_in_child.check(bytes(data), "model.h5", 1 << 20)
