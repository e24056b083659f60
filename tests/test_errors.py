"""Every kind of bad input gives one specific error that names op, place and remedy."""

from __future__ import annotations

import dataclasses
import functools
import pickle

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import invert

SPEC = jax.ShapeDtypeStruct((2, 3), np.float32)


def exported(f=jnp.sin, *specs, **kwargs):
    return jax.export.export(jax.jit(f), **kwargs)(*(specs or (SPEC,)))


def module(body: str, arguments: str = "%a: tensor<2xf32>", result: str = "tensor<2xf32>") -> str:
    return f"func.func public @main({arguments}) -> {result} {{\n{body}\n}}"


@pytest.mark.parametrize(
    ("blob", "reason"),
    [
        (b"", "is empty"),
        (b"\0", "byte 0 is null"),
        (b"ML\xefR", "the bytes end at 4 within a header"),
        (b"not a model", "text that is not StableHLO"),
        (bytes(1000), "byte 0 is null"),
    ],
)
def test_bytes_that_are_not_a_model(blob: bytes, reason: str) -> None:
    with pytest.raises(invert.MalformedModelError, match=reason):
        invert.from_stablehlo(blob)
    with pytest.raises(invert.MalformedModelError, match=r"not a serialized jax\.export"):
        invert.from_exported(blob)


def test_all_wrong_arguments_are_in_one_message() -> None:
    recovered = invert.from_exported(exported(lambda x, y, z: x + y + z, SPEC, SPEC, SPEC))
    good = np.zeros((2, 3), np.float32)
    with pytest.raises(invert.SignatureError) as caught:
        recovered(np.zeros((3, 2), np.float32), good.astype(np.int32), good)
    text = str(caught.value)
    assert "'x' has the shape [3, 2], expected [2, 3]" in text
    assert "'y' has the dtype int32, expected float32" in text
    assert "'z'" not in text


def test_wrong_trees_and_counts() -> None:
    spec = {"a": SPEC, "b": (SPEC, SPEC)}
    recovered = invert.from_exported(exported(lambda t: t["a"] + t["b"][0], spec))
    good = np.zeros((2, 3), np.float32)
    with pytest.raises(invert.SignatureError, match="structure"):
        recovered({"a": good, "b": [good, good]})
    with pytest.raises(invert.SignatureError, match="missing"):
        recovered()
    with pytest.raises(invert.SignatureError, match="too many"):
        recovered(good, good)
    with pytest.raises(invert.SignatureError, match="has the shape"):
        recovered({"a": "text", "b": (good, good)})


def test_equal_symbols_must_have_equal_sizes() -> None:
    (b,) = jax.export.symbolic_shape("b")
    spec = jax.ShapeDtypeStruct((b,), np.float32)
    recovered = invert.from_exported(exported(lambda x, y: x + y, spec, spec))
    with pytest.raises(invert.SignatureError, match="dimension 'b'"):
        recovered(np.zeros(2, np.float32), np.zeros(3, np.float32))


def test_unsupported_ops_are_listed_together() -> None:
    text = module(
        """%t = stablehlo.create_token : !stablehlo.token
%i:2 = "stablehlo.infeed"(%t) {infeed_config = ""} : (!stablehlo.token)
  -> (tensor<2xf32>, !stablehlo.token) loc("feeder")
%o = "stablehlo.outfeed"(%a, %t) {outfeed_config = ""} :
  (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token
%c = stablehlo.custom_call @xla_python_cpu_callback(%a) : (tensor<2xf32>) -> tensor<2xf32>
return %i#0 : tensor<2xf32>"""
    )
    with pytest.raises(invert.UnsupportedOpError) as caught:
        invert.from_stablehlo(text)
    problems = caught.value.problems
    assert [p.op for p in problems] == [
        "stablehlo.infeed",
        "stablehlo.outfeed",
        "stablehlo.custom_call @xla_python_cpu_callback",
    ]
    assert all(p.remedy for p in problems)
    assert "feeder" in problems[0].location


def test_quantized_types() -> None:
    quantized = "tensor<2x!quant.uniform<i8:f32, 0.5>>"
    text = module(
        f"%q = stablehlo.uniform_quantize %a : (tensor<2xf32>) -> {quantized}\n"
        f"%r = stablehlo.uniform_dequantize %q : ({quantized}) -> tensor<2xf32>\n"
        "return %r : tensor<2xf32>"
    )
    with pytest.raises(invert.UnsupportedOpError, match="Dequantize the model") as caught:
        invert.from_stablehlo(text)
    assert [p.op for p in caught.value.problems] == ["!quant"]


def test_unknown_op_of_another_dialect() -> None:
    text = module("%r = math.sin %a : tensor<2xf32>\nreturn %r : tensor<2xf32>")
    with pytest.raises(invert.InvertError, match="math"):
        invert.from_stablehlo(text)


def test_stored_pointer_is_never_called() -> None:
    text = module(
        "%r = stablehlo.custom_call @xla_ffi_python_cpu_callback(%a) {api_version = 4 : i32, "
        "backend_config = {index = 281474976710656 : ui64}} : (tensor<2xf32>) -> tensor<2xf32>\n"
        "return %r : tensor<2xf32>"
    )
    with pytest.raises(invert.UnsupportedOpError, match="never used"):
        invert.from_stablehlo(text)


@pytest.mark.parametrize("target", ["__cudnn$fmhaSoftmax", "__gpu$xla.gpu.triton"])
def test_custom_calls_of_the_compiler_lower_for_its_platform(target: str) -> None:
    """XLA implements them itself, for GPUs only; they are not registered."""
    text = module(
        f'%r = "stablehlo.custom_call"(%a) {{call_target_name = "{target}"}} : (tensor<2xf32>) -> '
        "tensor<2xf32>\nreturn %r : tensor<2xf32>"
    )
    recovered = invert.from_stablehlo(text)
    assert recovered.report.opaque == {target: 1}
    traced = jax.jit(lambda x: recovered(x)).trace(np.zeros(2, np.float32))
    assert f"@{target}" in traced.lower(lowering_platforms=("cuda",)).as_text()
    with pytest.raises(invert.UnsupportedOpError, match="not registered for the platform 'cpu'"):
        traced.lower(lowering_platforms=("cpu",))


def test_unregistered_custom_call_converts_and_names_itself_when_run() -> None:
    text = module(
        "%r = stablehlo.custom_call @my_kernel(%a) : (tensor<2xf32>) -> tensor<2xf32>\n"
        "return %r : tensor<2xf32>"
    )
    recovered = invert.from_stablehlo(text)
    assert recovered.report.opaque
    x = np.zeros(2, np.float32)
    batched = functools.partial(jax.vmap(recovered), np.zeros((3, 2), np.float32))
    gradient = functools.partial(jax.grad(lambda x: recovered(x).sum()), x)
    for run in (functools.partial(recovered, x), batched, gradient):
        with pytest.raises(invert.UnsupportedOpError, match="my_kernel"):
            run()


def test_platform_that_the_module_is_not_for() -> None:
    both = exported(platforms=["cpu", "cuda"])
    with pytest.raises(invert.SignatureError, match="cpu, cuda"):
        invert.from_exported(both, config=invert.Config(platform="tpu"))


def test_invalid_options() -> None:
    with pytest.raises(ValueError, match="invalid options") as caught:
        invert.Config(
            dynamic_sizes="foo",  # pyright: ignore[reportArgumentType]
            platform="gpu",  # pyright: ignore[reportArgumentType]
            verify="no",  # pyright: ignore[reportArgumentType]
            bfloat16_constants=("float16",),  # pyright: ignore[reportArgumentType]
            extra_patterns=("scan",),
            patterns=("scan", "softmax"),
            disabled_patterns=("softmax", "stack"),
            max_scan=-3,
            progress="yes",  # pyright: ignore[reportArgumentType]
        )
    assert str(caught.value).splitlines()[1:] == [
        "  - platform='gpu': expected 'cpu', 'cuda', 'rocm', 'tpu' or None",
        "  - verify='no': expected True or False",
        "  - bfloat16_constants=('float16',): expected a tuple of 'float32' and 'float64'",
        "  - dynamic_sizes='foo': expected 'ids', 'pad' or 'error'",
        "  - progress='yes': expected a function or None",
        "  - extra_patterns=('scan',): expected a tuple of invert.Pattern",
        "  - disabled_patterns: 'softmax' is among patterns too",
        "  - max_scan=-3: expected 0 or more",
    ]


def test_patterns_that_do_not_exist() -> None:
    text = module("  return %a : tensor<2xf32>")
    config = invert.Config(
        disabled_patterns=("cumulatve", "stack"), patterns=("nothing like it", "scan")
    )
    with pytest.raises(ValueError, match="invalid options") as caught:
        invert.from_stablehlo(text, config=config)
    assert str(caught.value).splitlines()[1:] == [
        "  - patterns: no pattern is named 'nothing like it' (invert.patterns.names() lists them)",
        "  - disabled_patterns: no pattern is named 'cumulatve'; did you mean 'cumulative'? "
        "(invert.patterns.names() lists them)",
    ]


@pytest.mark.parametrize(
    ("name", "values", "wrong"),
    [
        ("patterns", (True, False, ("scan",), ()), ("scan", ["scan"], None, (1,))),
        ("max_scan", (0, 7), (True, 1.5, "7")),
        ("progress", (None, print), (3,)),
        ("platform", (None, "tpu"), ("TPU", 1, b"cpu")),
        ("disabled_patterns", ((), ("scan",)), ("scan", [])),
    ],
)
def test_each_option_takes_its_documented_values(name: str, values: tuple, wrong: tuple) -> None:
    for value in values:
        assert getattr(invert.Config(**{name: value}), name) == value
    for value in wrong:
        with pytest.raises(ValueError, match=name):
            invert.Config(**{name: value})


@pytest.mark.parametrize("evil", ["\x1b[2J", "\a", "\u202e", "\x9b1m", "\r"])
def test_names_of_a_model_do_not_reach_a_terminal_as_they_are(
    evil: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from invert.cli.terminal import Progress

    report = invert.from_stablehlo(module("  return %a : tensor<2xf32>")).report
    named = dataclasses.replace(report, entry=f"main{evil}", notes=(f"note{evil}",))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with Progress(True) as progress:
        progress(f"reading {evil}name")
    line = capsys.readouterr().err.replace("\r\x1b[K", "")
    texts = [
        str(named),
        str(invert.InvertError(f"name {evil}")),
        str(
            invert.UnsupportedOpError(
                [invert.Problem(f"tf.{evil}", "reason", f"node {evil}", "remedy")]
            )
        ),
        line,
    ]
    for text in texts:
        assert evil not in text
        assert evil.encode("unicode_escape").decode() in text


def test_a_remedy_follows_the_reason_also_in_another_process() -> None:
    for error, text in (
        (invert.MalformedModelError("a.pb is cut off"), "a.pb is cut off. The model is damaged"),
        (invert.MalformedModelError("a.pb is of TF9", remedy="Wait."), "a.pb is of TF9. Wait."),
        (invert.SaveError("the disk is full"), "the disk is full"),
        (
            invert.UnsupportedOpError([invert.Problem("tf.A", "is new")]),
            "  - tf.A: is new\nUse oth",
        ),
    ):
        assert text in str(error)
        if not isinstance(error, invert.UnsupportedOpError):
            assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert "new\n" not in str(
        invert.UnsupportedOpError([invert.Problem("tf.A", "is new", "", "B")])
    )
