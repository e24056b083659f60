"""Forty ordinary models, exported as their users do, come back as exported.

Both the recovered module and the package that `invert.save` writes are tested, the latter in a
process without TensorFlow and `invert`. They are compared with the original in its own framework:
values at sizes not chosen by the export, gradients, forward and second derivatives, ties, and which
parameters are trained.
"""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import invert
from tests.exports import flax_models as fx
from tests.exports import jax_models as jx
from tests.exports import keras_models as kr
from tests.exports import measure
from tests.exports.containers import (
    Original,
    Setting,
    blob,
    keras_archive,
    keras_convert,
    keras_export,
    of_jax,
    of_keras,
    orbax,
    saved_model,
    tf_function,
    tf_function_closed,
)

FIXED = Setting("", {"b": 4, "l": 6})
BATCH = Setting("b", {"b": 2, "l": 6})
BOTH = Setting("bl", {"b": 2, "l": 6})

# Sizes at which the models are judged; the last ones are larger than any that has to be tried.
BATCHES = (1, 2, 5, 16, 33)
LENGTHS = (3, 7, 5, 9, 12)

Build = Callable[[], Original]


def _jax(build: Any, container: Any, setting: Setting, params: str = "variables") -> Build:
    return lambda: of_jax(build(), container, setting, params=params)


def _keras(build: Any, container: Any, setting: Setting) -> Build:
    def make() -> Original:
        model, inputs = build()
        return of_keras(model, inputs, container, setting)

    return make


NO_GRADIENT = {"with_gradient": False}

# name: the model in its container, the sizes at which it was exported.
MODELS: dict[str, tuple[Build, Setting]] = {
    name: (make(build, container, setting, *rest), setting)
    for name, make, build, container, setting, *rest in [
        ("linen_mlp", _jax, fx.mlp, tf_function(), BATCH),
        ("linen_mlp_closed", _jax, fx.mlp, tf_function_closed, FIXED, "closed"),
        ("linen_mlp_closed_open", _jax, fx.mlp, tf_function_closed, BATCH, "closed"),
        ("linen_gelu_no_gradient", _jax, fx.gelu_net, tf_function(**NO_GRADIENT), BATCH),
        ("linen_cnn", _jax, fx.cnn, saved_model(), BATCH),
        ("linen_cnn_fixed", _jax, fx.cnn, saved_model(), FIXED),
        ("linen_resnet", _jax, fx.resnet, orbax(trained=True), BATCH),
        ("linen_encoder", _jax, fx.encoder, saved_model(), BOTH),
        ("linen_gpt", _jax, fx.gpt, blob(closed=False), BOTH, "argument"),
        ("linen_lstm", _jax, fx.tagger, saved_model(), BATCH),
        ("linen_gru", _jax, fx.gru_forecast, tf_function(), FIXED),
        ("linen_autoencoder", _jax, fx.autoencoder, saved_model(), BATCH),
        ("linen_mlp_orbax", _jax, fx.mlp, orbax(), BATCH),
        ("linen_words_orbax", _jax, fx.bag_of_words, orbax(), BOTH),
        ("nnx_mlp", _jax, fx.nnx_mlp, tf_function(), BATCH),
        ("nnx_cnn", _jax, fx.nnx_cnn, saved_model(), FIXED),
        ("nnx_gpt", _jax, fx.nnx_gpt, blob(closed=True), BOTH, "closed"),
        ("nnx_lstm", _jax, fx.nnx_lstm, orbax(trained=True), BATCH),
        ("haiku_mlp", _jax, jx.haiku_mlp, tf_function(), BATCH),
        ("haiku_cnn", _jax, jx.haiku_cnn, saved_model(), BATCH),
        ("haiku_lstm", _jax, jx.haiku_lstm, saved_model(), FIXED),
        ("haiku_transformer", _jax, jx.haiku_transformer, orbax(trained=True), BOTH),
        ("haiku_gelu_no_gradient", _jax, jx.haiku_gelu, saved_model(**NO_GRADIENT), FIXED),
        ("equinox_mlp", _jax, jx.equinox_mlp, blob(closed=False), BATCH, "argument"),
        ("equinox_cnn", _jax, jx.equinox_cnn, saved_model(), BATCH),
        ("equinox_gru", _jax, jx.equinox_gru, tf_function(), BATCH),
        ("equinox_attention", _jax, jx.equinox_attention, tf_function(), BATCH),
        ("plain_logistic", _jax, jx.logistic, tf_function(), FIXED),
        ("plain_mlp", _jax, jx.plain_mlp, blob(closed=True), BATCH, "closed"),
        ("plain_gpt", _jax, jx.plain_gpt, saved_model(), BOTH),
        ("plain_lstm", _jax, jx.plain_lstm, tf_function(), BOTH),
        ("plain_two_towers", _jax, jx.two_towers, saved_model(), BATCH),
        ("keras_mlp", _keras, kr.mlp, keras_archive, BATCH),
        ("keras_cnn", _keras, kr.cnn, keras_export, BATCH),
        ("keras_resnet", _keras, kr.resnet, keras_archive, BATCH),
        ("keras_lstm", _keras, kr.sentiment, keras_archive, BOTH),
        ("keras_gru", _keras, kr.forecast, keras_export, BATCH),
        ("keras_two_heads", _keras, kr.two_heads, keras_convert, BATCH),
        ("keras_gpt", _keras, kr.gpt, keras_convert, BOTH),
        ("keras_gpt_export", _keras, kr.gpt, keras_export, BOTH),
        ("keras_encoder", _keras, kr.encoder, keras_export, BOTH),
        ("keras_frozen_base", _keras, kr.frozen_base, keras_export, BATCH),
        ("keras_text_cnn", _keras, kr.text_cnn, keras_archive, BOTH),
    ]
}
FORBIDDEN = {n for n in MODELS if n.endswith(("no_gradient", "_orbax"))}
QUICK = {
    "linen_mlp",
    "linen_mlp_closed",
    "linen_gelu_no_gradient",
    "plain_logistic",
    "plain_mlp",
    "keras_mlp",
}
CASES = [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in MODELS]

DERIVATIVES = ("gradients of parameters", "gradients of inputs", "jvp", "hessian", "ties")
# Of the largest number: XLA fuses, and so rounds, two programs of the same arithmetic differently.
TOLERANCE = dict.fromkeys(DERIVATIVES, 1e-4) | {"values": 2e-5}


def job_of(original: Original, setting: Setting) -> measure.Job:
    """What to measure of a model, with the same numbers in every run."""
    rng = np.random.RandomState(1)

    def each(make: Any) -> Any:
        return jax.tree_util.tree_map(make, original.inputs)

    def point(sizes: Any) -> Any:
        return each(lambda i: i.array(sizes, rng) if hasattr(i, "array") else i)

    def ties(number: int) -> Any:
        return each(lambda i: i.ties(sizes[1], number) if hasattr(i, "ties") else i)

    def like(arrays: Any) -> list[np.ndarray]:
        return [rng.standard_normal(np.shape(v)).astype(np.float32) for v in arrays]

    sizes = [
        setting.sizes | {n: v for n, v in zip("bl", pair, strict=True) if n in setting.opened}
        for pair in zip(BATCHES, LENGTHS, strict=True)
    ]
    points = [point(s) for s in (sizes if setting.opened else sizes[:1])]
    at, tied = points[len(points) > 1], [ties(0), ties(1)]
    arrays, _ = measure.split(at)
    biases = [v.ndim == 1 and abs(float(v.mean())) < 0.5 for v in original.params]
    return measure.Job(
        params=original.params,
        tie_params=[v * (not b) for v, b in zip(original.params, biases, strict=True)],
        points=points,
        point=at,
        ties=tied,
        weights=[like(original.results(p)) for p in (at, *tied)],
        directions=[(like(original.params), like(arrays)) for _ in range(3)],
    )


@pytest.fixture(scope="session")
def reader() -> Iterator[Callable[[Path], dict[str, Any]]]:
    """One process for all packages, which can import neither TensorFlow nor `invert`."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("PYTHONPATH", None)
    with subprocess.Popen(
        [sys.executable, "-I", measure.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:

        def read(directory: Path) -> dict[str, Any]:
            process.stdin.write(f"{directory}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"
            found = pickle.loads((directory / "result.pkl").read_bytes())
            return {k: measure.Raised(*v) if type(v) is tuple else v for k, v in found.items()}

        yield read
        process.stdin.close()


def check(name: str, got: Any, want: Any) -> None:
    """Fail if two results of one aspect differ."""
    if isinstance(got, measure.Raised):
        pytest.fail(f"{name}: {got.kind}\n{got.text}", pytrace=False)
    flat, reference = measure.leaves(got), measure.leaves(want)
    assert len(flat) == len(reference)
    for a, b in zip(flat, reference, strict=True):
        assert a.shape == b.shape
        largest = max(1.0, float(np.max(np.abs(b), initial=0)))
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE[name] * largest)


def check_forbidden(got: Any, want: Any, name: str) -> None:
    """Gradients that the author forbade: still an error, or dropped and right."""
    if not (isinstance(got, measure.Raised) and got.kind == "LookupError"):
        check(name, got, want)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", CASES)
def test_export(name, subtests, tmp_path, reader):
    build, setting = MODELS[name]
    original = build()
    job = job_of(original, setting)
    want = original.measure(job)
    for aspect, value in want.items():
        assert not isinstance(value, measure.Raised), f"the original: {aspect}: {value.text}"
    module = original.recover(tmp_path / "export")

    def compare(place: str, got: dict[str, Any], want: Any, trained: Any) -> None:
        with subtests.test(f"{place}: parameters"):
            assert -1 not in got["parameters"], "a parameter of the original is not a leaf"
        with subtests.test(f"{place}: trainable"):
            assert got["trainable"] == trained
        for aspect in TOLERANCE:
            with subtests.test(f"{place}: {aspect}"):
                # A function of the original's results does not depend on forbidden gradients.
                if name in FORBIDDEN and aspect in DERIVATIVES:
                    check_forbidden(got[aspect], want[aspect], aspect)
                else:
                    check(aspect, got[aspect], want[aspect])

    package = tmp_path / "package"
    with subtests.test("source"):
        assert module.source
        assert "fixed sizes only" not in module.source
    if setting.opened:
        with subtests.test("certificate for all sizes"):
            assert ">= 1" in module.report.certificate.sizes
    with subtests.test("saves"):
        invert.save(module, package)
    call, places = measure.as_call(module, job.params)
    # Each size is another program to recover, where the package is one for all of them.
    few = [1, len(job.points) - 1] if setting.opened else [0]
    got = measure.measure(call, job._replace(points=[job.points[i] for i in few]))
    spec = measure.leaves(invert.trainable(module))
    # Orbax trains only what it is told to train.
    trained = [t and not name.endswith("_orbax") for t in original.trained]
    got |= {"parameters": places, "trainable": [spec[i] for i in places if i >= 0]}
    compare("module", got, want | {"values": [want["values"][i] for i in few]}, trained)
    if name in FORBIDDEN:
        with subtests.test("module: gradients are forbidden"):
            assert measure.Raised in map(type, (got[a] for a in DERIVATIVES))
    if not (package / "model.py").exists():
        return
    (tmp_path / "job.pkl").write_bytes(pickle.dumps(job._asdict()))
    got = reader(tmp_path)
    with subtests.test("package: runs"):
        assert "runs" not in got, got["runs"].text
    if "runs" not in got:
        uniform = len(set(trained)) < 2
        compare("package", got, want, [True] * len(trained) if uniform else trained)


def test_every_kind_has_several_models():
    """The models here stay a fair sample of what people export."""
    assert len(MODELS) >= 40
    kinds = itertools.chain.from_iterable(n.split("_")[:1] for n in MODELS)
    counts = {k: sum(n.startswith(k) for n in MODELS) for k in kinds}
    assert min(counts.values()) >= 3
