"""Seeded damage to StableHLO files and jax.export artifacts.

A damaged file is either refused with one of this package's errors, or it is another program, which
the recovered module computes as XLA does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import random
import re
import resource
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import compiler
from jaxlib import xla_client
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

import invert
from invert._private.jax import lowered_module
from invert.ir.jaxprs import equations
from invert.stablehlo import parse_in_child
from invert.stablehlo.parse import parse_module
from tests.damaged_files import ANYWHERE

SECONDS = 60
_MOST_BYTES = 16 << 30
_MOST_STEPS = 100_000

# --- Programs -------------------------------------------------------------------------------------


def _small(x: Any, y: Any) -> Any:
    return x * 2.0 + y


def _located(x: Any, w: Any) -> Any:
    with jax.named_scope("Dense_0"):
        h = jax.nn.relu(x @ w)
    with jax.named_scope("Größe"):
        return {"mean": h.mean(0), "top": lax.top_k(h, 2)}


def loops(x: Any, w: Any) -> Any:
    def body(carry: Any, row: Any) -> Any:
        return jnp.sin(carry @ row), carry.sum()

    carry, sums = lax.scan(body, x, jnp.stack([w] * 3))
    table = jnp.asarray(np.arange(120) * 1j)
    return lax.sort(carry), sums, lax.cond(sums[0] > 0, lambda: table, lambda: -table)


def _solved(x: Any, b: Any) -> Any:
    return jnp.linalg.cholesky(x @ x.T + 4 * jnp.eye(4)), jnp.cumsum(b, axis=1)


def _drawn(x: Any, bits: Any) -> Any:
    key = jax.random.wrap_key_data(bits)
    return jax.random.uniform(key, (3,)) + x, x.astype(jnp.int8) // 3, x.at[1].add(2.0)


_F44 = jax.ShapeDtypeStruct((4, 4), jnp.float32)
_F3 = jax.ShapeDtypeStruct((3,), jnp.float32)
_KEY = jax.ShapeDtypeStruct((2,), jnp.uint32)
_PROGRAMS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (_small, (_F3, _F3)),
    (_located, (_F44, _F44)),
    (loops, (_F44, _F44)),
    (_solved, (_F44, _F44)),
    (_drawn, (_F3, _KEY)),
]

_OPAQUE = """module @jit_f attributes {mhlo.num_partitions = 1 : i32} {
  sdy.mesh @mesh = <["x"=1, "y"=1]>
  func.func public @main(%a: tensor<4xf32> loc("x"), %i: tensor<i32>) -> (tensor<4xf32>) {
    %0 = stablehlo.custom_call @some_target(%a) {api_version = 4 : i32, backend_config =
      {n = 3 : i64, name = "a"}} : (tensor<4xf32>) -> tensor<4xf32>
    %1 = sdy.sharding_constraint %a <@mesh, [{"x"}]> : tensor<4xf32>
    %2 = call @inner(%1) : (tensor<4xf32>) -> tensor<4xf32>
    %3 = "stablehlo.case"(%i) ({ stablehlo.return %2 : tensor<4xf32> }, {
      %4 = stablehlo.add %0, %2 : tensor<4xf32>
      stablehlo.return %4 : tensor<4xf32> }) : (tensor<i32>) -> tensor<4xf32>
    return %3 : tensor<4xf32>
  }
  func.func private @inner(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
    %1 = stablehlo.composite "my.thing" %a {composite_attributes = {k = 1.0 : f32, b = true},
      decomposition = @leaf} : (tensor<4xf32>) -> tensor<4xf32>
    %2 = stablehlo.multiply %1, %0 : tensor<4xf32> loc("jit(f)/inner"("file.py":3:1))
    return %2 : tensor<4xf32>
  }
  func.func private @leaf(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.tanh %a : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""


def _resized(x: Any, y: Any) -> Any:
    b, c = x.shape
    padded = jnp.pad(x, ((0, b % 3), (c // 2, 1)))
    flat = jnp.concatenate([x.reshape(-1), y])[: b * c // 2]
    part = lax.dynamic_slice(x, (x.sum().astype(int), 0), (b // 2, c))
    return padded, flat / (b * c - 1), part, jnp.broadcast_to(y[:1], (c, b)), jnp.arange(b - 1)


def _ordered(x: Any, y: Any) -> Any:
    # Without loops: one that damage makes endless cannot be stopped once XLA runs it.
    taken = jnp.take_along_axis(x, x.argmax(0)[None], 0), y[jnp.arange(3) * 2]
    return jnp.sort(x, 0), jnp.cumsum(x, 0), lax.top_k(y, 2), taken


def _factored(x: Any, y: Any) -> Any:
    q = jnp.einsum("bi,bj->bij", x[:, :2], x[:, :2]) + 4 * jnp.eye(2)
    signal = lax.conv_general_dilated(x[:, None], y[None, None, :2], (1,), [(0, 1)])
    summed = lax.reduce_window(x, 0.0, lax.add, (2, 1), (1, 1), "SAME")
    return jnp.linalg.cholesky(q), jnp.linalg.eigh(q)[0], signal, summed


@functools.cache
def _of_open_sizes() -> list[jax.export.Exported]:
    """Programs that compute sizes, and assert conditions on those of their arguments."""
    scope = jax.export.SymbolicScope(["b >= 2", "c >= 4", "mod(c, 2) == 0"])
    shapes = [jax.export.symbolic_shape(s, scope=scope) for s in ("b, c", "2*b + c")]
    avals = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
    programs = [_resized, _ordered, _factored]
    return [jax.export.export(jax.jit(f))(*avals) for f in programs]


def corpus() -> dict[str, list[bytes]]:
    """Whole files by format: text, bytecode, portable artifacts, jax.export artifacts.

    Also texts of modules of open sizes, which are turned into artifacts after the damage.
    """
    found: dict[str, list[bytes]] = {"text": [_OPAQUE.encode()], "bytecode": [], "artifact": []}
    found["export"] = []
    for function, avals in _PROGRAMS:
        module = lowered_module(function, *avals)
        found["text"].append(str(module.operation.get_asm(enable_debug_info=True)).encode())
        out = io.BytesIO()
        module.operation.write_bytecode(out)
        found["bytecode"].append(out.getvalue())
        exported = jax.export.export(jax.jit(function))(*avals)
        found["artifact"].append(exported.mlir_module_serialized)
        found["export"].append(bytes(exported.serialize(vjp_order=1)))
    b = jax.export.symbolic_shape("b, c")
    rows = jax.ShapeDtypeStruct((b[0], 4), jnp.float32)
    many = jax.export.export(jax.jit(_located), platforms=["cpu", "tpu"])(rows, _F44)
    found["export"].append(bytes(many.serialize()))
    found["artifact"].append(many.mlir_module_serialized)
    keyed = jax.export.export(jax.jit(lambda key, unused, *, n: jax.random.split(key, 2)))
    found["export"].append(bytes(keyed(jax.random.key(0), _F3, n=_F3).serialize()))
    found["open"] = [e.mlir_module().encode() for e in _of_open_sizes()]
    return found


# --- Damage ---------------------------------------------------------------------------------------

_VARINTS = (0, 1, 2, 3, 5, 0x7F, 0x80, 0xFE, 0xFF)
_WORDS = re.compile(rb"[\w.%@#]+")
_SIZES = re.compile(rb"dense<\[?(-?\d+)|stablehlo\.(add|subtract|multiply|divide|remainder)\b")
_OTHER_SIZES = (b"-1", b"0", b"1", b"3", b"-2147483648", b"2147483647", b"1000000000")
_OTHER_OPS = (b"add", b"subtract", b"multiply", b"divide", b"remainder", b"maximum", b"minimum")


def damage(rng: random.Random, form: str, files: dict[str, list[bytes]]) -> bytes:
    """One file with one to three damages."""
    data = bytearray(rng.choice(files[form]))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        kinds = [*ANYWHERE, *(_OF_TEXT if form in ("text", "open") else _OF_BYTES)]
        if form == "open":
            kinds = [*_OF_TEXT, *[_size] * 20]
        if form == "export":
            kinds += [_word, _word, _word]
        rng.choice(kinds)(rng, data, rng.choice(files[form]))
        if not data:
            break
    return bytes(data)


def _varint(rng: random.Random, data: bytearray, other: bytes) -> None:
    data[rng.randrange(len(data))] = rng.choice(_VARINTS)


def _word(rng: random.Random, data: bytearray, other: bytes) -> None:
    """Replace a number of a flatbuffer, an offset or a length, by another in the file."""
    if len(data) < 4:
        return
    at, source = (rng.randrange(len(data) // 4) * 4 for _ in range(2))
    new = data[source : source + 4]
    if rng.random() < 0.5:
        old = int.from_bytes(data[at : at + 4], "little")
        new = (old + rng.choice([-8, -4, -2, -1, 1, 2, 4, 8])).to_bytes(8, "little", signed=True)[
            :4
        ]
    data[at : at + 4] = new


def _token(rng: random.Random, data: bytearray, other: bytes) -> None:
    """Replace a word of a text by another one in it, or a number by a nearby one."""
    words = list(_WORDS.finditer(data))
    if not words:
        return
    old, new = rng.choice(words), rng.choice(words)[0]
    if old[0].isdigit() and rng.random() < 0.7:
        new = str(int(old[0][:9]) + rng.choice([-1, 1, 2, 100])).encode()
    data[old.start() : old.end()] = new


def _size(rng: random.Random, data: bytearray, other: bytes) -> None:
    """Replace a constant, or the op that computes a size."""
    found = list(_SIZES.finditer(data))
    if found:
        old = rng.choice(found)
        new = rng.choice(_OTHER_SIZES if old[1] else _OTHER_OPS)
        data[old.start(old.lastindex or 0) : old.end(old.lastindex or 0)] = new


def _lines(rng: random.Random, data: bytearray, other: bytes) -> None:
    lines = data.split(b"\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            del lines[i]
        case 1:
            lines.insert(j, lines[i])
        case 2:
            lines[i], lines[j] = lines[j], lines[i]
        case 3:
            lines.insert(j, rng.choice(other.split(b"\n")))
    data[:] = b"\n".join(lines)


_OF_TEXT = [_token] * 10 + [_lines] * 4
_OF_BYTES = [_varint] * 3
FORMS = ("text", "bytecode", "artifact", "export")


# --- What comes of it -----------------------------------------------------------------------------


def _with_xla(module: ir.Module, values: Sequence[Any]) -> list[np.ndarray]:
    device = jax.devices()[0]
    out = io.BytesIO()
    module.operation.write_bytecode(out)
    run = device.client.compile_and_load(
        out.getvalue(),
        xla_client.DeviceList((device,)),
        compiler.get_compile_options(num_replicas=1, num_partitions=1),
    )
    return [np.asarray(x) for x in run.execute([jax.device_put(x) for x in values])]


def _value(rng: np.random.Generator, shape: Sequence[Any], dtype: Any) -> Any:
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(3, impl=dtype._impl.name), shape)[...,]
    x = rng.normal(size=[n if isinstance(n, int) else 3 for n in shape]) * 3
    return np.asarray(np.abs(x) if np.dtype(dtype).kind == "u" else x).astype(dtype)


def same(have: Sequence[Any], want: Sequence[Any]) -> bool:
    """Whether arrays are equal up to rounding, since fused operations may be reordered."""
    if len(have) != len(want):
        return False
    for a, b in zip(have, want, strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        if a.dtype.kind in "fcV":
            wide = np.complex128 if a.dtype.kind == "c" else np.float64
            a, b = a.astype(wide), b.astype(wide)
            if not np.allclose(a, b, rtol=2e-3, atol=2e-3, equal_nan=True):
                return False
        elif not np.array_equal(a, b):
            return False
    return True


def _arrays(values: Any) -> list[np.ndarray]:
    def plain(x: Any) -> np.ndarray:
        is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(x) if is_key else x)

    return [plain(x) for x in jax.tree_util.tree_leaves(values)]


def outcome(form: str, blob: bytes) -> str:
    """`"refused"`, `"equal"`, `"not run"`, or a description of the mistake."""
    text = blob.decode(errors="surrogateescape") if form in ("text", "open") else blob
    if form == "open":
        return _outcome_of_open_sizes(text)
    try:
        module = (invert.from_exported if form == "export" else invert.from_stablehlo)(text)
    except invert.InvertError:
        return "refused"
    if isinstance(module, invert.Methods):
        return "not run: several functions"
    if form != "export" and any(None in s.shape for s in _specs(text)):
        return "not run: open sizes"  # XLA's compiler crashes on some
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        try:
            if form == "export":
                exported = jax.export.deserialize(bytearray(blob))
                values = [_value(rng, a.shape, a.dtype) for a in exported.in_avals]
                args, kwargs = jax.tree_util.tree_unflatten(exported.in_tree, values)
                run = functools.partial(exported.call, *args, **kwargs)
            else:
                parsed = parse_module(text)
                values = [_value(rng, s.shape, s.dtype) for s in _specs(text)]
                args, kwargs = tuple(values), {}
                run = functools.partial(_with_xla, parsed, values)
            with contextlib.suppress(invert.InvertError):
                if _may_run_on(jax.make_jaxpr(module)(*args, **kwargs)):
                    return "not run: a loop"  # which nothing interrupts inside of XLA
            want = _arrays(run())
        except Exception as error:  # noqa: BLE001  what XLA does not run says nothing
            return f"not run: {type(error).__name__}"
        try:
            have = _arrays(module(*args, **kwargs))
        except (invert.InvertError, NotImplementedError) as error:
            return f"not run: {type(error).__name__}"
    return "equal" if same(have, want) else "WRONG"


def _may_run_on(closed: Any) -> bool:
    """Whether damage made a loop depend on data, or run for very long."""
    return any(
        e.primitive.name == "while" or e.params.get("length", 0) > _MOST_STEPS
        for e in equations(closed.jaxpr)
    )


def _divides_integers(closed: Any) -> bool:
    """Whether arrays of integers are divided, which no undamaged program does."""
    return any(
        e.primitive.name in ("div", "rem")
        and e.outvars[0].aval.shape
        and np.issubdtype(e.outvars[0].aval.dtype, np.integer)
        for e in equations(closed.jaxpr)
    )


def _outcome_of_open_sizes(text: str) -> str:
    try:
        invert.from_stablehlo(text)
        blob = stablehlo.serialize_portable_artifact_str(text, stablehlo.get_current_version())
    except (invert.InvertError, ValueError):
        return "refused"
    found = None
    for whole in _of_open_sizes():
        exported = dataclasses.replace(whole, mlir_module_serialized=blob)
        with contextlib.suppress(invert.MalformedModelError):
            found = exported, invert.from_exported(exported)
            break
    if found is None:
        return "refused"
    exported, module = found
    results = []
    for b, c in ((3, 4), (2, 6)):
        rng = np.random.default_rng(b)
        args = [rng.normal(size=s).astype(np.float32) for s in ((b, c), (2 * b + c,))]
        try:
            jax.eval_shape(module, *args)
        except invert.InvertError:
            results.append("refused")
            continue
        if _divides_integers(jax.make_jaxpr(module)(*args)):
            results.append("not run: a division")  # by a constant zero ends XLA's compiler
            continue
        try:
            want = _arrays(exported.call(*args))
        except Exception as error:  # noqa: BLE001  what XLA does not run says nothing
            results.append(f"not run: {type(error).__name__}")
            continue
        if not same(_arrays(module(*args)), want):
            return "WRONG"
        results.append("equal")
    return max(results)


def _specs(text: bytes | str) -> Sequence[Any]:
    from invert.frontends.stablehlo import entry_points

    (entry,) = entry_points(text, config=invert.Config()).values()
    return entry.args


class _Late(BaseException):
    pass


def sweep(
    seed: int, first: int, last: int, show: bool = False, forms: Sequence[str] = FORMS
) -> Counter[str]:
    """Damage files `first` to `last` of a seed; raise at the first mistake."""
    # A size taken for memory fails here, rather than end the machine's other work.
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, most))
    warnings.simplefilter("error", invert.DefectWarning)
    parse_in_child._SECONDS = 3.0  # some damage makes the reader run forever
    files = corpus()

    def give_up(*_: Any) -> None:
        raise _Late

    # Of CPU time, since other processes may take most of a machine.
    signal.signal(signal.SIGPROF, give_up)
    counts: Counter[str] = Counter()
    for i in range(first, last):
        rng = random.Random(f"{seed} {i}")
        form = forms[i % len(forms)]
        blob = damage(rng, form, files)
        if show:
            print("at", i, flush=True)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        start = time.process_time()
        try:
            result = outcome(form, blob)
        except _Late:
            result = "LATE"
        except Exception as error:  # noqa: BLE001  the promise is that there is none
            place = "".join(traceback.format_tb(error.__traceback__)[-3:])
            result = f"FOREIGN {type(error).__name__}: {error}"[:300] + "\n" + place
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        counts[f"{form} {result.split(':')[0]}"] += 1
        if result.isupper() or result.startswith("FOREIGN"):
            message = f"damage {i} of seed {seed} ({form}): {result}"
            if not show:
                raise AssertionError(message)
            print(message, f"{time.process_time() - start:.1f} s", flush=True)
    return counts
