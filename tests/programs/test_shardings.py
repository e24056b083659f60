"""Shardings of parameters and arguments: reported, loaded and saved by parts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import invert
from invert.stablehlo.ops import shardings
from invert.stablehlo.ops.shardings import Layout, Tiling


def _python(code: str, *arguments: str, devices: int = 8) -> str:
    flags = f"--xla_force_host_platform_device_count={devices}"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize(
    ("text", "dims", "manual"),
    [
        ("{replicated}", None, ()),
        ("{manual}", None, None),
        ("{devices=[2,1,4]<=[8] last_tile_dim_replicate}", (((4, 2),), ()), ()),
        ("{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}", (((1, 4),), ()), ()),
        ("{devices=[8,1]0,4,1,5,2,6,3,7}", (((1, 4), (4, 2)), ()), ()),
        ("{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}", ((), ()), ((4, 2),)),
    ],
)
def test_annotations_of_gspmd(text: str, dims: object, manual: object) -> None:
    layout = shardings.tiling(text)
    assert layout is not None and layout[:2] == (dims, manual)


@pytest.mark.parametrize(
    "text",
    [
        "{maximal device=0}",
        "{devices=[2,1]1,0}",  # begins elsewhere
        "{devices=[4]0,2,1,3,5}",
        "{devices=[99999999999]<=[99999999999]}",
        "{devices=[2,2]<=[4]T(1,1)}",
        "",
    ],
)
def test_annotations_that_no_mesh_has(text: str) -> None:
    assert shardings.tiling(text) is None


def test_annotations_as_protocol_buffers() -> None:
    # type OTHER, two by one tiles, devices 0 and 1
    assert shardings.text_of(b"\x08\x03\x1a\x02\x02\x01\x22\x02\x00\x01") == "{devices=[2,1]0,1}"
    assert shardings.text_of(b"") == "{replicated}"


def test_the_coarsest_mesh() -> None:
    layout = Layout(8)
    layout.add(((4, 2),))
    layout.name(("rows",), ((4, 2),))
    mesh = layout.mesh()
    assert mesh is not None and dict(mesh.shape) == {"rows": 2, "x": 4}
    assert shardings.axes_of(mesh, ((1, 8),)) == ("rows", "x")
    spec = shardings.tiled_spec(mesh, Tiling((((1, 4), (4, 2)), ())), ())
    assert spec == PartitionSpec(("x", "rows"), None)
    layout.name_rest(("rows", "columns"), (1, 8))
    named = layout.mesh()
    assert named is not None and dict(named.shape) == {"rows": 2, "columns": 4}
    layout.add(((3, 2),))
    assert layout.mesh() is None


_SAVE = """
import sys, jax, jax.numpy as jnp, numpy as np, jax.export, invert
from tests.emission.models import recovered
from jax.sharding import AxisType, PartitionSpec as P
where = sys.argv[1]
w = np.arange(96, dtype=np.float32).reshape(8, 12)
module = invert.from_exported(jax.export.export(jax.jit(lambda x: jnp.tanh(x @ w)))(
    jax.ShapeDtypeStruct((4, 8), np.float32)))
invert.save(module, where + "/plain")
mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
(name,) = [n for n in invert.load(where + "/plain").__dict__]
on_mesh = invert.load(where + "/plain", mesh=mesh, shardings={name: P("data", "model")})
(array,) = jax.tree_util.tree_leaves(on_mesh)
assert {s.data.shape for s in array.addressable_shards} == {(4, 3)}
x = np.ones((4, 8), np.float32)
assert np.allclose(on_mesh(x), np.tanh(x @ w), atol=1e-6)
invert.save(on_mesh, where + "/again")
read = lambda name: open(f"{where}/{name}/weights.safetensors", "rb").read()
assert read("plain") == read("again")
for specs, words in (
    ({name: P(("data", "model"), "model")}, "uses the axis 'model' twice"),
    ({name: P("nowhere")}, "has no axis 'nowhere'"),
    ({name: P(None, ("data", "model"))}, "12 elements, which is not divisible by the 8 devices"),
    ({"other": P("data")}, "no parameter fits the pattern 'other'"),
    ({name: P("data", None, None)}, "has 2 dimensions, but its spec"),
):
    try:
        invert.load(where + "/plain", mesh=mesh, shardings=specs)
    except invert.MeshError as error:
        import re
        assert re.search(words, str(error)), error
    else:
        raise AssertionError(specs)
"""


def test_saved_modules_on_a_mesh(tmp_path: Path) -> None:
    _python(_SAVE, str(tmp_path))


_OWN = """
import sys, jax, numpy as np, tensorflow as tf, invert
from jax.experimental import jax2tf
from jax.sharding import AxisType, PartitionSpec as P
where = sys.argv[1]
rng = np.random.default_rng(0)
params = {"up": {"kernel": rng.normal(size=(16, 32)).astype(np.float32)},
          "down": {"kernel": rng.normal(size=(32, 8)).astype(np.float32),
                   "bias": np.ones(8, np.float32)}}
def f(p, x):
    return jax.nn.relu(x @ p["up"]["kernel"]) @ p["down"]["kernel"] + p["down"]["bias"]
variables = jax.tree_util.tree_map_with_path(
    lambda path, v: tf.Variable(v, name="/".join(k.key for k in path)), params)
model = tf.Module()
model.held = jax.tree_util.tree_leaves(variables)
model.f = tf.function(lambda x: jax2tf.convert(f)(variables, x),
    input_signature=[tf.TensorSpec((4, 16), tf.float32)], autograph=False)
tf.saved_model.save(model, where + "/model")
mesh = jax.make_mesh((2, 4), ("data", "model"))  # of the type that is the default
specs = {"*up/kernel*": P(None, "model"), "*down/kernel*": P("model")}
module = invert.load(where + "/model", mesh=mesh, shardings=specs)
x = np.ones((4, 16), np.float32)
want = f(params, x)
assert str(module.report.certificate) == "exact"
assert np.allclose(module(x), want, atol=1e-4)
named = module.named_params()
assert {n: v.sharding.spec for n, v in named.items()} == {
    "down/bias": P(), "down/kernel": P("model"), "up/kernel": P(None, "model")}, named
assert module.shardings.params == {"down/kernel": P("model"), "up/kernel": P(None, "model")}
text = module.source
assert 'SPECS = {"up.kernel": P(None, "model"), "down.kernel": P("model")}' in text, text
assert text.count("lax.with_sharding_constraint") == 2 and "jax.nn.relu" in text
hlo = jax.jit(module).lower(x).compile().as_text()
assert "all-reduce" in hlo  # the sum over the parts of the rows of the second kernel
invert.save(module, where + "/saved")
again = invert.load(where + "/saved", mesh=mesh)
assert again.up.kernel.sharding.spec == P(None, "model")
assert np.allclose(again(x), want, atol=1e-4)
assert np.allclose(invert.load(where + "/saved")(x), want, atol=1e-4)
"""


def test_specs_of_ones_own(tmp_path: Path) -> None:
    _python(_OWN, str(tmp_path))


def test_shardings_need_a_mesh(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("")
    (tmp_path / "weights.safetensors").write_bytes(b"")
    with pytest.raises(invert.MeshError, match="Pass mesh="):
        invert.load(tmp_path, shardings={"*": PartitionSpec()})


_OLD = """
import jax, jax.export, numpy as np, invert
from jax._src.internal_test_util.export_back_compat_test_data import (
    export_with_multiple_meshes, export_with_specified_sharding, export_with_unspecified_sharding)
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
count = 0
for data in (export_with_specified_sharding, export_with_unspecified_sharding,
             export_with_multiple_meshes):
    for each in data.serializations:
        exported = jax.export.deserialize(each["exported_serialized"])
        module = invert.from_exported(bytes(each["exported_serialized"]))
        rng = np.random.default_rng(0)
        values = [rng.normal(size=a.shape).astype(a.dtype) for a in exported.in_avals]
        whole = NamedSharding(jax.make_mesh((2,), ("all",), axis_types=(AxisType.Auto,)), P())
        placed = [jax.device_put(v, whole) for v in values]
        put, _ = jax.tree_util.tree_unflatten(exported.in_tree, placed)
        want = jax.tree_util.tree_leaves(jax.jit(exported.call)(*put))
        got = jax.tree_util.tree_leaves(module(*put))
        assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(got, want, strict=True))
        assert any(s is not None for s in module.shardings.arguments + module.shardings.results)
        count += 1
assert count >= 10, count
"""


def test_exports_of_older_releases() -> None:
    _python(_OLD, devices=2)


_WRONG = """
import jax, jax.export, numpy as np, invert
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
auto = AxisType.Auto
mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(auto, auto))
def on_shards(x):
    return jax.lax.psum(x, "y")
def f(x):
    return jax.shard_map(on_shards, mesh=mesh, in_specs=P("x", "y"), out_specs=P("x", None))(x)
x = np.ones((8, 8), np.float32)
module = invert.from_exported(jax.export.export(jax.jit(f))(x))
assert np.allclose(module(x), f(x))  # on the first eight devices
def fails(words, sizes, names, kind=auto):
    count = int(np.prod(sizes))
    kinds = (kind,) * len(sizes)
    other = jax.make_mesh(sizes, names, axis_types=kinds, devices=jax.devices()[:count])
    with jax.set_mesh(other):
        try:
            module(x)
        except invert.MeshError as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)
fails("has no axis 'y'", (2, 4), ("x", "z"))
fails("the axis 'x' of the mesh is of type Explicit", (2, 4), ("x", "y"), AxisType.Explicit)
fails("the axis 'y' has 2 devices, but the program's shard_map is for 4", (2, 2), ("x", "y"))
with jax.set_mesh(mesh):
    assert np.allclose(module(x), f(x))
    assert np.allclose(jax.jit(module.model)(x), f(x))
"""


def test_a_mesh_that_does_not_fit() -> None:
    _python(_WRONG)


_FEWER = """
import jax, jax.export, numpy as np, invert
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
auto = AxisType.Auto
mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(auto, auto))
def f(x):
    return jax.lax.with_sharding_constraint(x @ x, NamedSharding(mesh, P("x", "y"))) + 1
x = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
module = invert.from_exported(jax.export.export(jax.jit(f))(x))
for run in (module, module.model):
    assert np.allclose(run(x), x @ x + 1, atol=1e-5)  # on one device
    for sizes in ((2, 2), (1, 4), (4, 2)):
        count = sizes[0] * sizes[1]
        here = jax.devices()[: sizes[0] * sizes[1]]
        other = jax.make_mesh(sizes, ("x", "y"), axis_types=(auto, auto), devices=here)
        with jax.set_mesh(other):
            got = jax.jit(run)(x)
        assert np.allclose(got, x @ x + 1, atol=1e-5)
        assert len(got.sharding.device_set) == count
"""


def test_another_number_of_devices() -> None:
    """Axes left to the partitioner may have other sizes."""
    _python(_FEWER)


def test_vmap_and_jvp_of_shards() -> None:
    _python(_TRANSFORMED)


_TRANSFORMED = """
import jax, jax.export, jax.numpy as jnp, numpy as np, invert
from jax.sharding import AxisType, PartitionSpec as P
mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
def on_shards(x):
    gathered = jax.lax.all_gather(jnp.sin(x), "y", axis=1, tiled=True)
    moved = jax.lax.ppermute(gathered, "x", [(0, 1), (1, 0)])
    scaled = moved * jax.lax.axis_index("y")
    return jax.lax.psum_scatter(scaled, "y", scatter_dimension=1, tiled=True)
def f(x):
    return jax.shard_map(on_shards, mesh=mesh, in_specs=P("x", "y"), out_specs=P("x", "y"))(x)
rng = np.random.default_rng(0)
x, t = rng.normal(size=(2, 8, 8)).astype(np.float32)
module = invert.from_exported(bytes(jax.export.export(jax.jit(f))(x).serialize()))
with jax.set_mesh(mesh):
    for run in (module, module.model):
        for got, want in (
            (jax.vmap(run)(np.stack([x, t])), jax.vmap(f)(np.stack([x, t]))),
            (jax.jvp(run, (x,), (t,)), jax.jvp(f, (x,), (t,))),
            (jax.vjp(run, x)[1](t)[0], jax.vjp(f, x)[1](t)[0]),
            (jax.jit(jax.hessian(lambda s: run(x * s).sum()))(1.0),
             jax.jit(jax.hessian(lambda s: f(x * s).sum()))(1.0)),
        ):
            for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
                assert np.allclose(a, b, atol=1e-5), (a, b)
"""


def test_gradients_of_gradients_on_devices() -> None:
    """A function with a derivative rule whose rule is retraced for the mesh of the devices."""
    _python(_GRADIENTS)


_GRADIENTS = """
import jax, jax.export, jax.numpy as jnp, numpy as np, invert
from jax.sharding import Mesh, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("dp", "tp"))
def on_shards(x, up, down):
    return jax.lax.pmean(jax.lax.psum(jax.nn.relu(x @ up) @ down, "tp"), "dp")
def loss(up, down, x):
    specs = P("dp"), P(None, "tp"), P("tp", None)
    sharded = jax.shard_map(on_shards, mesh=mesh, in_specs=specs, out_specs=P())
    return jnp.mean(sharded(x, up, down) ** 2)
step = jax.value_and_grad(loss, (0, 1))
rng = np.random.default_rng(5)
args = [rng.normal(size=s).astype(np.float32) for s in ((16, 8), (8, 16), (8, 16))]
module = invert.from_exported(bytes(jax.export.export(jax.jit(step))(*args).serialize()))
def outer(run):
    sum_of = lambda *xs: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(run(*xs)))
    return jax.jit(jax.grad(sum_of))
for run in (module, module.model):
    assert np.allclose(outer(run)(*args), outer(step)(*args), atol=1e-4)
"""


def test_kept_rules_on_devices() -> None:
    _python(_KEPT_RULES, devices=4)


_KEPT_RULES = """
import jax, jax.export, jax.numpy as jnp, numpy as np, invert
from jax.sharding import AxisType, PartitionSpec as P
mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
@jax.custom_vjp
def clipped(x):
    return x + 0.5
clipped.defvjp(lambda x: (clipped(x), None), lambda _, dy: (jnp.clip(dy, -0.1, 0.1),))
@jax.custom_jvp
def tripled(x):
    return jnp.sin(x)
tripled.defjvp(lambda x, t: (tripled(*x), 3 * t[0] * jnp.cos(x[0])))
def on_shards(inner):
    def body(x, w):
        return inner(x @ w) * jax.lax.psum(x, "i")
    specs = P("i", None), P(None, None)
    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P("i", None))
rng = np.random.default_rng(0)
x, w, dy = (rng.normal(size=s).astype(np.float32) for s in ((8, 4), (4, 4), (8, 4)))
for f in (on_shards(clipped), on_shards(tripled), lambda x, w: clipped(on_shards(jnp.sin)(x, w))):
    module = invert.from_exported(bytes(jax.export.export(jax.jit(f))(x, w).serialize(vjp_order=1)))
    assert "kept as" in module.report.gradients[0]
    for got, want in zip(jax.vjp(module, x, w)[1](dy), jax.vjp(f, x, w)[1](dy), strict=True):
        assert np.allclose(got, want, atol=1e-5), (got, want)
"""


def test_annotation_types() -> None:
    mesh = shardings.mesh_of((2, 4), ("x", "y"))
    assert mesh.axis_types == (AxisType.Auto,) * 2
    found = shardings.shardy_shardings('<@mesh, [{"x"}, {"y", ?}, {?}, {}]>', {"mesh": mesh})
    unconstrained = PartitionSpec.UNCONSTRAINED
    assert found[0] is not None
    assert found[0].spec == PartitionSpec("x", "y", unconstrained, None)
    assert shardings.shardy_shardings('<@mesh, [{"x":(1)2}]>', {"mesh": mesh}) == [None]
    assert shardings.shardy_axes('#sdy<manual_axes{"x", "y"}>') == ("x", "y")
    inner = shardings.closed(found[0].spec, {"y"})
    assert inner == PartitionSpec(None, "y", None, None)
    assert np.prod(mesh.axis_sizes) == 8


_DROP_IN = """
import jax, numpy as np, tensorflow as tf
from jax.experimental import jax2tf
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from invert.compat import tf2jax
mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
lies = NamedSharding(mesh, P(None, "model")), NamedSharding(mesh, P("data"))
apply = jax.jit(lambda w, x: jax.nn.relu(x @ w), in_shardings=lies)
rng = np.random.default_rng(0)
w, x = (rng.normal(size=s).astype(np.float32) for s in ((16, 8), (4, 16)))
run = tf.function(jax2tf.convert(apply), autograph=False, jit_compile=True)
got = jax.jit(tf2jax.convert_functional(run, w, x))(w, x)
want = apply(w, x)
assert np.allclose(got, want, atol=1e-5)
assert len(got.sharding.device_set) == 8 and got.sharding.is_equivalent_to(want.sharding, 2)
"""


def test_the_drop_in_takes_the_devices_of_the_process() -> None:
    _python(_DROP_IN)


@pytest.mark.slow
def test_two_processes_load_their_own_parts(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    params = {
        name: {"kernel": rng.normal(size=shape).astype(np.float32)}
        for name, shape in (("a", (6, 24)), ("b", (24, 8)))
    }
    x = rng.normal(size=(4, 6)).astype(np.float32)

    def net(params, x):
        return jnp.tanh(x @ params["a"]["kernel"]) @ params["b"]["kernel"]

    weights = {f"{name}/kernel": layer["kernel"] for name, layer in params.items()}
    lowered = jax.jit(net).lower(params, x)
    module = invert.from_stablehlo(lowered, names=[*weights, "x"], params=weights)
    invert.save(module, tmp_path / "package")
    np.savez(tmp_path / "arrays.npz", x=x, y=net(params, x))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    flags = "--xla_force_host_platform_device_count=4"
    code = [sys.executable, "-m", "tests.programs.run_processes"]
    started = [
        subprocess.Popen(
            [*code, str(i), "2", str(port), str(tmp_path)],
            env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for i in range(2)
    ]  # fmt: skip
    for process in started:
        out, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors[-4000:]
        found = json.loads(out.splitlines()[-1])
        assert found["devices"] == 8
        assert found["here"] == [False, False]
        assert found["parts"] == [[6, 6], [24, 2]]
        assert found["gradients"] == [[6, 24], [24, 8]]
        assert found["gap"] < 1e-5
        assert "other processes" in found["refused"]


def test_shardings_over_parts_of_axes_are_reported() -> None:
    text = """
    module attributes {mhlo.num_partitions = 8 : i32} {
      sdy.mesh @mesh = <["x"=8]>
      func.func public @main(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
        %0 = sdy.sharding_constraint %a <@mesh, [{"x":(1)2}, {}]> : tensor<8x4xf32>
        %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<8x4xf32>
        return %1 : tensor<8x4xf32>
      }
    }
    """
    report = invert.from_stablehlo(text).report
    assert report.primitives["sharding_constraint"] == 1
    assert len(report.notes) == 1 and '"x":(1)2' in report.notes[0]
