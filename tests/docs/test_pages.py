"""The documentation: its Python code runs, and its lists are complete."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf

import invert
from tests.frontends import test_torch_stablehlo as torch
from tools import measurements, speed

DOCS = Path(__file__).parents[2] / "docs"
# Pages whose blocks run one after the other; a block marked `py` is left out.
PAGES = [
    *sorted((DOCS / "howto").glob("*.md")),
    *(DOCS / f"{name}.md" for name in ("index", "migrate", "config", "errors")),
    DOCS.parent / "README.md",
]
# JAX runs already when an example asks to keep memory.
IN_ONE_PROCESS = pytest.mark.filterwarnings("ignore:JAX has already started")


class Two(tf.Module):
    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable(tf.ones([8, 3]), name="kernel")

    @tf.function(input_signature=[tf.TensorSpec([None, 8], name="x")])
    def encode(self, x):
        return x @ self.kernel

    @tf.function(input_signature=[tf.TensorSpec([None, 3], name="code")])
    def decode(self, code):
        return code @ tf.transpose(self.kernel)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the pages mention."""
    where = tmp_path_factory.mktemp("models")
    keras.utils.set_random_seed(0)
    dense = keras.layers.Dense
    net = [keras.Input((8,), name="features"), dense(16, "relu", name="hidden")]
    model = keras.Sequential([*net, dense(3, name="head")])
    model.save(where / "model.keras")
    model.export(str(where / "saved_model"), verbose=False)
    shutil.copytree(where / "saved_model", where / "path" / "to" / "saved_model")
    norm = keras.layers.BatchNormalization(name="norm")
    keras.Sequential([keras.Input((8,)), norm, dense(3)]).save(where / "normalized.keras")
    tf.saved_model.save(Two(), str(where / "two_functions"))
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 3], name="x")
        tf.identity(tf.nn.relu(x), name="y")
    (where / "frozen.pb").write_bytes(graph.as_graph_def().SerializeToString())
    (where / "forward.mlir").write_text(torch.MLP)
    np.savez(where / "state_dict.npz", **torch.state_dict())
    exported = jax.export.export(jax.jit(lambda x: jnp.cumsum(x)))(jnp.ones(4))
    (where / "exported.bin").write_bytes(exported.serialize())
    return where


def _blocks(text: str) -> Iterator[str]:
    yield from re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)


@IN_ONE_PROCESS
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_python_of_a_page_runs(page: Path, models: Path, monkeypatch) -> None:
    monkeypatch.chdir(models)
    blocks = list(_blocks(page.read_text(encoding="utf-8")))
    assert blocks
    # What a reader has at hand.
    names: dict[str, object] = {"x": np.ones((2, 8), np.float32)}
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)


ON_DEVICES = """
import sys
import jax
import jax.export
import jax.numpy as jnp
import keras
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
spec = P("data", "model")
summed = jax.shard_map(
    lambda x: jax.lax.psum(x, "model"), mesh=mesh, in_specs=spec, out_specs=P("data")
)
x = jnp.ones((4, 8))
names = {"x": x, "blob": jax.export.export(jax.jit(summed))(x).serialize()}
up, down = keras.layers.Dense(16, name="up"), keras.layers.Dense(8, name="down")
keras.Sequential([keras.Input((8,)), up, down]).export("model")
for block in sys.argv[1:]:
    exec(block, names)
assert names["again"].up.kernel.sharding.spec == P(None, "model")
"""


@pytest.mark.slow
def test_the_page_on_devices_runs(tmp_path: Path) -> None:
    """On eight devices, which a process has to ask for before it imports JAX."""
    flag = "--xla_force_host_platform_device_count=8"
    env = {**os.environ, "XLA_FLAGS": flag, "PYTHONPATH": str(DOCS.parent)}
    blocks = list(_blocks((DOCS / "devices.md").read_text(encoding="utf-8")))
    command = [sys.executable, "-c", ON_DEVICES, *blocks]
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert blocks and result.returncode == 0, result.stderr


EXAMPLES = [
    getattr(owner, name)
    for owner, names in (
        (invert, ["load", "convert", "roundtrip", "convert_graphdef", "from_stablehlo"]),
        (
            invert,
            [
                "values",
                "with_values",
                "assign",
                "from_exported",
                "optimize",
                "compiler_options",
                "keep_memory",
                "save",
                "trainable",
                "rewrite",
                "pattern",
                "explain",
                "Config",
                "EquationPattern",
            ],
        ),
        (invert.testing, ["assert_roundtrip"]),
    )
    for name in names
]


@IN_ONE_PROCESS
@pytest.mark.parametrize("function", EXAMPLES, ids=lambda f: f.__name__)
def test_the_reference_has_an_example_for_each_function(function, models, monkeypatch) -> None:
    monkeypatch.chdir(models)
    doc = function.__doc__
    assert "??? example" in doc
    text = doc[doc.index("??? example") :]
    blocks = list(_blocks("\n".join(line[8:] for line in text.splitlines())))
    assert blocks and all(function.__name__ in block for block in blocks)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, function.__name__, "exec"), names)


OTHERS = {"compat", "patterns", "testing", "__version__"}


def test_no_public_function_is_left_out() -> None:
    public = {n for n in dir(invert) if n.islower() and n not in OTHERS}
    assert public == {f.__name__ for f in EXAMPLES if f.__name__.islower()} - {"assert_roundtrip"}


def test_every_option_is_in_one_group_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \|", (DOCS / "config.md").read_text(), re.M)
    defaults = {f.name: f.default for f in dataclasses.fields(invert.Config)}
    assert {n: ast.literal_eval(v) for n, v in rows} == defaults
    assert len(rows) == len(defaults)


def test_the_commands_match_the_program() -> None:
    from invert.cli import _parser

    page = (DOCS / "cli.md").read_text()
    (commands,) = (a for a in _parser()._actions if a.dest == "command")
    for name, parser in commands.choices.items():
        begin = page.index(f"\n## {name}\n")
        text = page[: page.index("\n## ")] + page[page.index("\n## All commands\n") :]
        text += page[begin : page.index("\n## ", begin + 1)]
        flags = {f for a in parser._actions for f in a.option_strings if f.startswith("--")}
        assert {f for f in flags - {"--help"} if f not in text} == set(), name


def test_the_measurements_match_the_stored_ones() -> None:
    results = tomllib.loads(measurements.DATA.read_text(encoding="utf-8"))
    assert measurements.page(results) == measurements.PAGE.read_text(encoding="utf-8")
    assert speed.chart(speed.ratios()) == speed.CHART.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="nothing"):
        measurements.page({"environment": "", "measurement": [{"what": "nothing"}]})


def test_a_measurement_has_a_figure_or_a_table() -> None:
    common = {"group": "Speed", "what": "Time", "command": "`time`"}
    table = {**common, "columns": ["", "s"], "rows": [["cos", "1"]], "note": "Once."}
    page = measurements.page(
        {"environment": "", "measurement": [{**common, "figure": "2 s."}, table]}
    )
    assert "## Speed\n\n**Time**: 2 s.\n\nCommand: `time`\n" in page
    assert "**Time**\n\n|  | s |\n| --- | --- |\n| cos | 1 |\n\nOnce.\n\nCommand:" in page
    for wrong in ({**table, "rows": [["cos"]]}, {**table, "figure": "2 s."}):
        with pytest.raises(ValueError, match="Time"):
            measurements.page({"environment": "", "measurement": [wrong]})
