"""Rewrites for speed: values, derivatives, kinds of operands, the table."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert
from invert import patterns
from invert.patterns import optimized
from tests.patterns.recovery import equations

ALL = optimized.stage(lambda name, kind: True).patterns


def calls(function: Callable[..., Any], *args: Any) -> set[str]:
    """The functions that a program calls, and its primitives."""
    eqns = jax.make_jaxpr(function)(*args).jaxpr.eqns
    return {e.params["name"] if e.primitive.name == "jit" else e.primitive.name for e in eqns}


def sample(*shape: int, dtype: Any = np.float32, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def close(a: Any, b: Any, rtol: float) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        x, y = (np.asarray(v, np.float64) for v in (x, y))
        np.testing.assert_allclose(x, y, rtol, atol=rtol * max(1.0, np.abs(y).max(initial=0)))


def check(
    function: Callable[..., Any], name: str, *args: Any, rtol: float = 2e-6, twice: bool = False,
    rewrites: Any = ALL,
) -> None:  # fmt: skip
    """The rewritten function has equal values and derivatives, optionally of second order."""
    fast = invert.rewrite(function, rewrites)
    assert name in calls(fast, *args)
    tangents = tuple(sample(*a.shape, dtype=a.dtype, seed=7) for a in args)

    def results(f: Any) -> Any:
        def gradient(*args: Any) -> Any:
            return jax.grad(lambda *a: jnp.sum(jnp.sin(f(*a))), range(len(args)))(*args)

        second = jax.jvp(gradient, args, tangents)[1] if twice else ()
        return jax.jvp(f, args, tangents), gradient(*args), second

    close(
        jax.jit(results, static_argnums=0)(fast), jax.jit(results, static_argnums=0)(function), rtol
    )


def conv(
    *, strides: Any = (1, 1), padding: Any = "SAME", groups: int = 1, dilation: Any = (1, 1),
    spread: Any = (1, 1), numbers: Any = ("NHWC", "HWIO", "NHWC"),
) -> Callable[..., Any]:  # fmt: skip
    return functools.partial(
        lax.conv_general_dilated, window_strides=strides, padding=padding, lhs_dilation=spread,
        rhs_dilation=dilation, dimension_numbers=numbers, feature_group_count=groups,
    )  # fmt: skip


X = sample(2, 9, 7, 6)
DEPTHWISE = {
    "same": (conv(groups=6), (3, 3, 1, 6)),
    "valid": (conv(groups=6, padding="VALID"), (3, 3, 1, 6)),
    "strided": (conv(groups=6, strides=(2, 3)), (3, 3, 1, 6)),
    "dilated": (conv(groups=6, dilation=(2, 3), padding=((1, 3), (4, 2))), (3, 2, 1, 6)),
    "cropped": (conv(groups=6, padding=((-1, 2), (0, -2))), (2, 3, 1, 6)),
    "multiplied": (conv(groups=6, strides=(2, 1)), (3, 5, 1, 18)),
    "transposed": (conv(groups=6, spread=(2, 3), padding=((1, 2), (2, 1))), (3, 3, 1, 6)),
    "one tap": (conv(groups=6, strides=(2, 2)), (1, 1, 1, 6)),
    "as large as its input": (conv(groups=6, padding="VALID"), (7, 7, 1, 6)),
}


@pytest.mark.parametrize("case", DEPTHWISE)
def test_depthwise(case: str) -> None:
    function, shape = DEPTHWISE[case]
    check(function, "depthwise_conv", X, sample(*shape, seed=1), twice=case == "strided")


@pytest.mark.parametrize("case", [name for name in DEPTHWISE if name != "multiplied"])
def test_shifted(case: str) -> None:
    """Derivatives are those of the convolution; several results per channel are left alone."""
    function, shape = DEPTHWISE[case]
    alone = optimized.stage(lambda name, kind: True, {"depthwise_conv"}).patterns
    kernel = sample(*shape, seed=1)
    check(function, "shifted_conv", X, kernel, twice=case == "strided", rewrites=alone)
    x, wide = X.astype("bfloat16"), kernel.astype("bfloat16")
    check(function, "shifted_conv", x, wide, rtol=3e-2, rewrites=alone)
    multiplied, shape = DEPTHWISE["multiplied"]
    fast = invert.rewrite(multiplied, alone)
    assert "shifted_conv" not in calls(fast, X, sample(*shape))


def test_the_derivative_by_a_kernel_holds_no_copies_of_the_image() -> None:
    """XLA would keep a shifted copy of the image for each position in the window."""
    x, kernel = sample(4, 40, 30, 16), sample(5, 5, 1, 16, seed=1)
    fast = invert.rewrite(conv(groups=16), ALL)
    pull = jax.jit(lambda x, kernel, g: jax.vjp(lambda k: fast(x, k), kernel)[1](g))
    compiled = pull.lower(x, kernel, x).compile()
    memory = compiled.memory_analysis()
    assert memory is not None and memory.temp_size_in_bytes < 4 * x.nbytes


@pytest.mark.parametrize(
    ("dtype", "rtol"), [("float16", 4e-3), ("bfloat16", 3e-2), ("float64", 1e-14)]
)
def test_dtypes(dtype: str, rtol: float) -> None:
    with jax.enable_x64(dtype == "float64"):
        x = X.astype(dtype)
        check(conv(groups=6), "depthwise_conv", x, sample(3, 3, 1, 6, dtype=dtype), rtol=rtol)
        check(conv(groups=3), "grouped_conv", x, sample(3, 3, 2, 6, dtype=dtype), rtol=rtol)
        check(conv(), "flat_product", x, sample(1, 1, 6, 4, dtype=dtype), rtol=rtol)
        check(lambda x: window(x, 0.0, lax.add, (1, 3, 2, 1)), "sum_pool", x, rtol=rtol)


def test_half_precision_adds_in_single_precision() -> None:
    """A sum of 49 products in bfloat16 would lose most digits."""
    x, kernel = (
        jnp.ones((1, 9, 9, 2), jnp.bfloat16),
        jnp.full((7, 7, 1, 2), 1.0078125, jnp.bfloat16),
    )
    fast = invert.rewrite(conv(groups=2, padding="VALID"), ALL)
    assert np.all(
        np.asarray(fast(x, kernel), np.float32) == np.float32(jnp.bfloat16(49 * 1.0078125))
    )


LAYOUTS = {
    "one size": (("NWC", "WIO", "NWC"), (2, 9, 6), (3, 1, 6), 6, "depthwise_conv"),
    "three sizes": (
        ("NDHWC", "DHWIO", "NDHWC"), (2, 4, 3, 5, 6), (2, 3, 2, 1, 6), 6, "depthwise_conv",
    ),
    "channels first": (("NCHW", "OIHW", "NCHW"), (2, 6, 9, 7), (6, 1, 3, 3), 6, "depthwise_conv"),
    "mixed": (("CHNW", "IOWH", "WNHC"), (6, 9, 2, 7), (1, 12, 2, 3), 6, "depthwise_conv"),
    "groups, channels first": (
        ("NCHW", "OIHW", "NCHW"), (2, 6, 9, 7), (4, 3, 3, 2), 2, "grouped_conv",
    ),
    "groups, one size": (("NWC", "WIO", "NWC"), (2, 9, 6), (3, 2, 9), 3, "grouped_conv"),
    "results first": (("NHWC", "HWIO", "NCHW"), (2, 9, 7, 6), (1, 1, 6, 5), 1, "flat_product"),
}  # fmt: skip


@pytest.mark.parametrize("case", LAYOUTS)
def test_layouts(case: str) -> None:
    numbers, x, kernel, groups, name = LAYOUTS[case]
    ones = (1,) * (len(x) - 2)
    function = conv(strides=ones, dilation=ones, spread=ones, groups=groups, numbers=numbers)
    check(function, name, sample(*x), sample(*kernel, seed=1))


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (conv(groups=3), (3, 3, 2, 6)),
        (conv(groups=2, strides=(2, 3), padding="VALID", dilation=(2, 1)), (2, 3, 3, 8)),
        (conv(groups=3), (1, 1, 2, 3)),
    ],
)
def test_groups(function: Any, shape: tuple[int, ...]) -> None:
    check(function, "grouped_conv", X, sample(*shape, seed=1), twice=shape[-1] == 8)


@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
def test_pointwise(strides: tuple[int, int]) -> None:
    check(conv(strides=strides), "flat_product", X, sample(1, 1, 6, 4, seed=1), twice=True)


@pytest.mark.parametrize(
    ("function", "x", "kernel"),
    [
        (conv(strides=(2, 3), padding="VALID"), X, (1, 1, 6, 4)),
        (conv(strides=(9, 1)), X, (1, 1, 6, 8)),
        (conv(strides=(3, 2), numbers=("NHWC", "OIHW", "NCHW")), X, (4, 6, 1, 1)),
        (
            conv(strides=(2,), dilation=(1,), spread=(1,), numbers=("NWC", "WIO", "NWC")),
            X[0],
            (1, 6, 1),
        ),
    ],
    ids=["two strides", "one row is left", "other order", "one size"],
)
def test_strided(function: Any, x: jax.Array, kernel: tuple[int, ...]) -> None:
    """Values and the gradient by the input are those of the convolution, bit for bit."""
    alone = optimized.stage(lambda name, kind: True, {"pointwise_conv"}).patterns
    k = sample(*kernel, seed=1)
    check(function, "strided_conv", x, k, twice=True, rewrites=alone)
    fast = invert.rewrite(function, alone)
    x = x.at[(0,) * x.ndim].set(jnp.nan).at[(-1,) * x.ndim].set(jnp.inf)

    def pulled(f: Any) -> Any:
        y, pull = jax.vjp(lambda x: f(x, k), x)
        return y, pull(jnp.ones_like(y))

    for a, b in zip(*(jax.jit(pulled, static_argnums=0)(f) for f in (fast, function)), strict=True):
        np.testing.assert_array_equal(a, b)
    half = x.astype("bfloat16"), k.astype("bfloat16")
    close(fast(*half), function(*half), 0.0)


def test_strided_convolutions_of_larger_windows_are_left_alone() -> None:
    alone = optimized.stage(lambda name, kind: True, {"pointwise_conv"}).patterns
    for function, shape in (
        (conv(strides=(2, 2)), (1, 3, 6, 4)),
        (conv(strides=(2, 2), padding=((0, 1), (0, 0))), (1, 1, 6, 4)),
        (conv(strides=(2, 2), spread=(2, 1), padding=((0, 0), (0, 0))), (1, 1, 6, 4)),
        (conv(strides=(2, 2), groups=2), (1, 1, 3, 4)),
        (conv(), (1, 1, 6, 4)),
    ):
        fast = invert.rewrite(function, alone)
        assert "strided_conv" not in calls(fast, X, sample(*shape))


IMAGES = sample(2, 6, 8, 6)
FEW = {
    "same": (conv(), IMAGES, (3, 3, 6, 4)),
    "valid": (conv(padding="VALID"), IMAGES, (3, 3, 6, 4)),
    "uneven": (conv(padding=((0, 2), (1, 1))), IMAGES, (3, 3, 6, 4)),
    "dilated": (conv(dilation=(2, 1)), IMAGES, (3, 3, 6, 4)),
    "one axis": (conv(), IMAGES, (1, 3, 6, 4)),
    "large": (conv(), IMAGES, (5, 3, 6, 4)),
    "other order": (conv(numbers=("NHWC", "OIHW", "NCHW")), IMAGES, (4, 6, 3, 3)),
    "one size": (
        conv(strides=(1,), dilation=(1,), spread=(1,), numbers=("NWC", "WIO", "NWC")),
        IMAGES[0],
        (3, 6, 2),
    ),
}


def only(name: str) -> Any:
    return optimized.stage(lambda rewrite, kind: rewrite == name).patterns


@pytest.mark.parametrize("name", ["narrow_conv", "paired_conv"])
@pytest.mark.parametrize("case", FEW)
def test_few_results(case: str, name: str) -> None:
    function, x, shape = FEW[case]
    kernel = sample(*shape, seed=1)
    check(function, name, x, kernel, twice=True, rewrites=only(name))
    half = x.astype("bfloat16"), kernel.astype("bfloat16")
    check(function, name, *half, rtol=3e-2, rewrites=only(name))


@pytest.mark.parametrize("special", [np.nan, np.inf])
@pytest.mark.parametrize("column", [0, 3, 4, 7])
def test_few_results_among_nan(special: float, column: int) -> None:
    """NaN stays in the window, and with two results at once it reaches the other one of the two."""
    kernel = sample(3, 3, 6, 4, seed=1)
    x = IMAGES.at[0, 2, column, 1].set(special)
    narrow, paired = (invert.rewrite(conv(), only(n)) for n in ("narrow_conv", "paired_conv"))
    wanted = ~np.isfinite(conv()(x, kernel))
    np.testing.assert_array_equal(~np.isfinite(narrow(x, kernel)), wanted)
    both = wanted.reshape(2, 6, 4, 2, 4).any(3, keepdims=True)
    np.testing.assert_array_equal(
        ~np.isfinite(paired(x, kernel)), np.repeat(both, 2, 3).reshape(wanted.shape)
    )

    def slope(function: Any) -> Any:
        return jax.grad(lambda k: jnp.sum(function(x, k)))(kernel)

    wanted = ~np.isfinite(slope(conv()))
    np.testing.assert_array_equal(~np.isfinite(slope(paired)), wanted)
    # Elements at the edge meet places of the kernel that no window puts on them, times zero.
    if column in (0, 7):
        wanted = np.broadcast_to(wanted.any((0, 1)), wanted.shape)
    np.testing.assert_array_equal(~np.isfinite(slope(narrow)), wanted)


@pytest.mark.parametrize("name", ["narrow_conv", "paired_conv", "winograd_conv"])
def test_convolutions_for_several_kernels(name: str) -> None:
    """Derivatives can be mapped and differentiated again."""
    kernel = sample(3, 3, 6, 4, seed=1)
    fast = invert.rewrite(conv(), only(name))

    def loss(function: Any, kernel: Any, x: Any) -> Any:
        return jnp.sum(jnp.sin(function(x, kernel)))

    def derivatives(function: Any) -> Any:
        one = functools.partial(loss, function)
        several = jax.vmap(jax.grad(one, (0, 1)), (0, None))
        return jax.hessian(one)(kernel, IMAGES), several(jnp.stack([kernel, -kernel]), IMAGES)

    close(derivatives(fast), derivatives(conv()), 2e-5)


@pytest.mark.parametrize(
    ("name", "function", "x"),
    [
        ("narrow_conv", conv(strides=(2, 2)), IMAGES),
        ("narrow_conv", conv(spread=(2, 2), padding=((1, 1), (1, 1))), IMAGES),
        ("paired_conv", conv(dilation=(1, 2)), IMAGES),
        ("paired_conv", conv(padding=((1, 1), (1, 2))), IMAGES),
        ("paired_conv", conv(padding=((1, 1), (3, 3))), IMAGES),
        ("paired_conv", conv(), IMAGES[:, :, :7]),
    ],
    ids=["strides", "dilated input", "dilated", "odd results", "wide padding", "odd sizes"],
)
def test_few_results_that_are_left_alone(name: str, function: Any, x: jax.Array) -> None:
    assert calls(invert.rewrite(function, only(name)), x, sample(3, 3, 6, 4)) == {
        "conv_general_dilated"
    }


WINOGRAD = {
    "same": (conv(), (2, 6, 8), 5, 4),
    "valid": (conv(padding="VALID"), (2, 6, 8), 5, 4),
    "odd and uneven": (conv(padding=((0, 1), (2, 1))), (2, 6, 7), 5, 4),
    "one place": (conv(), (2, 1, 1), 3, 3),
    "image by image": (conv(), (2, 33, 32), 4, 3),
    "many channels": (conv(), (2, 4, 3), 130, 128),
    "image by image, many channels": (conv(padding="VALID"), (1, 34, 33), 130, 128),
    "one size": (
        conv(strides=(1,), dilation=(1,), spread=(1,), numbers=("NWC", "WIO", "NWC")),
        (2, 9), 5, 4,
    ),
    "three sizes": (
        conv(strides=(1,) * 3, dilation=(1,) * 3, spread=(1,) * 3,
             numbers=("NDHWC", "DHWIO", "NDHWC")),
        (2, 4, 3, 5), 3, 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WINOGRAD)
def test_winograd(case: str) -> None:
    function, sizes, channels, results = WINOGRAD[case]
    window = (3,) * (len(sizes) - 1)
    kernel = sample(*window, channels, results, seed=1) / (3 ** len(window) * channels) ** 0.5
    x = sample(*sizes, channels)
    check(
        function, "winograd_conv", x, kernel, rtol=1e-5, twice=True, rewrites=only("winograd_conv")
    )


def test_winograd_beside_plain_sums() -> None:
    """Its error is like that of the convolution, also where terms cancel."""
    kernel, x = sample(3, 3, 64, 64, seed=1), sample(2, 12, 12, 64) + 10
    fast = invert.rewrite(conv(), only("winograd_conv"))
    with jax.enable_x64(True):
        wanted = np.asarray(conv()(*(jnp.asarray(v, np.float64) for v in (x, kernel))))

    def error(function: Any) -> Any:
        return np.sqrt(np.mean((np.asarray(jax.jit(function)(x, kernel)) - wanted) ** 2))

    assert error(fast) < 2 * error(conv())


@pytest.mark.parametrize("special", [np.nan, np.inf])
@pytest.mark.parametrize("column", [0, 3, 4, 7])
@pytest.mark.parametrize("channels", [6, 128])
def test_winograd_among_nan(channels: int, column: int, special: float) -> None:
    """The same results are not finite; at edges more of a kernel's gradient, with many channels."""
    kernel = sample(3, 3, channels, channels, seed=1)
    x = sample(2, 6, 8, channels).at[0, 2, column, 1].set(special)
    fast = invert.rewrite(conv(), only("winograd_conv"))
    wanted = ~np.isfinite(conv()(x, kernel))
    np.testing.assert_array_equal(~np.isfinite(fast(x, kernel)), wanted)
    z = sample(*wanted.shape, seed=2)
    dx, dk = jax.vjp(conv(), x, kernel)[1](z)
    fast_dx, fast_dk = jax.vjp(fast, x, kernel)[1](z)
    close(fast_dx, dx, 1e-5)
    wanted, found = ~np.isfinite(dk), ~np.isfinite(fast_dk)
    if channels == 128 and column in (0, 7):
        assert found[wanted].all()
        assert found.sum() > wanted.sum()
        found = found.any((0, 1))
        wanted = wanted.any((0, 1))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("function", "x", "window"),
    [
        (conv(strides=(2, 2)), IMAGES, (3, 3)),
        (conv(dilation=(2, 1)), IMAGES, (3, 3)),
        (conv(padding=((3, 3), (1, 1))), IMAGES, (3, 3)),
        (conv(), IMAGES, (3, 5)),
        (conv(), IMAGES.astype("bfloat16"), (3, 3)),
    ],
    ids=["strides", "dilated", "wide padding", "another window", "bfloat16"],
)
def test_left_alone_by_winograd(function: Any, x: jax.Array, window: tuple[int, int]) -> None:
    fast = invert.rewrite(function, only("winograd_conv"))
    assert calls(fast, x, sample(*window, 6, 4, dtype=x.dtype)) == {"conv_general_dilated"}


def window(
    x: Any, start: float, function: Any, sizes: Any, strides: Any = None, padding: Any = "VALID"
) -> Any:
    return lax.reduce_window(
        x, np.array(start, x.dtype), function, sizes, strides or (1,) * x.ndim, padding
    )


POOLS = {
    "stride 1": ((1, 3, 3, 1), None, "SAME"),
    "strided": ((1, 3, 2, 1), (1, 2, 2, 1), "SAME"),
    "apart": ((1, 2, 3, 1), (1, 2, 3, 1), "VALID"),
    "one axis": ((1, 1, 4, 1), (1, 2, 1, 1), "VALID"),
    "batch and channels": ((2, 1, 3, 2), (1, 1, 1, 3), "VALID"),
    "padded": ((1, 3, 3, 1), (1, 3, 1, 1), ((0, 0), (2, 1), (0, 2), (0, 0))),
}


@pytest.mark.parametrize("case", POOLS)
def test_pools(case: str) -> None:
    sizes, strides, padding = POOLS[case]
    twice = case == "strided"

    def run(x: Any, start: float, function: Any) -> Any:
        return window(x, start, function, sizes, strides, padding)

    check(lambda x: run(x, -np.inf, lax.max), "max_pool", X, twice=twice)
    check(lambda x: run(x, 0.0, lax.add), "sum_pool", X, twice=twice)


@pytest.mark.parametrize("case", POOLS)
def test_the_first_of_equal_numbers_has_the_derivative(case: str) -> None:
    """As after a ReLU, where most windows hold several zeros."""
    sizes, strides, padding = POOLS[case]

    def pool(x: Any) -> Any:
        return window(x, -np.inf, lax.max, sizes, strides, padding)

    x = jnp.maximum(jnp.round(X), 0)
    weights = sample(*pool(x).shape, seed=3)
    fast = invert.rewrite(pool, ALL)
    one, two = (jax.grad(lambda x, f=f: jnp.sum(f(x) * weights))(x) for f in (pool, fast))
    assert not np.array_equal(one, jnp.zeros_like(one))
    np.testing.assert_allclose(two, one, rtol=1e-6, atol=1e-6)


def test_nan_and_infinity() -> None:
    x = X.at[0, 3, 3, 0].set(jnp.nan).at[1, 4, 4, 1].set(jnp.inf).at[1, 0, 0, 2].set(-jnp.inf)
    for function, args in (
        (lambda x: window(x, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 1, 1), "SAME"), (x,)),
        (lambda x: window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 1, 1), "SAME"), (x,)),
        (conv(groups=6), (x, sample(3, 3, 1, 6))),
        (conv(groups=2), (x, sample(3, 3, 3, 4))),
    ):
        new = invert.rewrite(function, ALL)(*args)
        np.testing.assert_allclose(new, function(*args), rtol=1e-5, atol=1e-5)
        assert not np.all(np.isfinite(new))


def test_empty_batch() -> None:
    for function, shape in ((conv(groups=6), (3, 3, 1, 6)), (conv(), (1, 1, 6, 4))):
        kernel = sample(*shape)
        assert invert.rewrite(function, ALL)(X[:0], kernel).shape[0] == 0


def test_batches_of_kernels() -> None:
    """Under `jax.vmap` over the kernel, as in per-example gradients."""
    kernels = sample(4, 3, 3, 1, 6)
    function = conv(groups=6)
    one, two = (
        jax.vmap(f, (None, 0))(X, kernels) for f in (function, invert.rewrite(function, ALL))
    )
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)


LEFT = {
    "integers": (conv(groups=6), np.int32, (3, 3, 1, 6)),
    "an ordinary convolution": (conv(), np.float32, (5, 3, 6, 40)),
    "a strided convolution": (conv(strides=(2, 2)), np.float32, (3, 3, 6, 1)),
    "padding around a window of one": (conv(padding=((1, 1), (0, 0))), np.float32, (1, 1, 6, 4)),
    "a window of hundreds": (conv(groups=6), np.float32, (15, 15, 1, 6)),
    "groups that are spread": (
        conv(groups=3, spread=(2, 2), padding=((1, 1), (1, 1))), np.float32, (3, 3, 2, 6),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_left_as_they_are(case: str) -> None:
    function, dtype, shape = LEFT[case]
    x, kernel = (10 * X).astype(dtype), sample(*shape).astype(dtype)
    assert calls(invert.rewrite(function, ALL), x, kernel) == {"conv_general_dilated"}


P, V = sample(2, 3, 5, 7), sample(2, 7, 3, 4)
# Products whose result is transposed, with their operands.
PRODUCTS = {
    "weights and values": ("bhqk,bkhd->bqhd", P, V),
    "heads before lengths": ("bhqk,bhkd->bqhd", P, sample(2, 3, 7, 4)),
    "several axes": ("bhqk,bkhde->bqhde", P, sample(2, 7, 3, 4, 2)),
    "no transpose left": ("bhqk,bkhd->bhqd", P, V),
}


def values_first(equation: str, weights: jax.Array, values: jax.Array) -> Callable[..., Any]:
    """A product with `values` as its first operand, and its transpose."""
    inputs, _, output = equation.partition("->")
    one, two = inputs.split(",")
    batch = [n for n in output if n in one and n in two]
    terms = [n for n in one if n in two and n not in batch]
    made = [*batch, *(n for n in two if n not in one), *(n for n in one if n not in two)]
    numbers = tuple(
        (tuple(map(two.index, names)), tuple(map(one.index, names))) for names in (terms, batch)
    )

    def function(weights: jax.Array, values: jax.Array) -> jax.Array:
        product = lax.dot_general(values, weights, numbers, preferred_element_type=weights.dtype)
        return lax.transpose(product, tuple(map(made.index, output)))

    return function


@pytest.mark.parametrize("case", PRODUCTS)
def test_products_in_the_order_of_their_result(case: str) -> None:
    equation, weights, values = PRODUCTS[case]
    function = values_first(*PRODUCTS[case])
    np.testing.assert_allclose(
        function(weights, values), np.einsum(equation, weights, values), 1e-5, 1e-5
    )
    fast = invert.rewrite(function, ALL)
    eqns = jax.make_jaxpr(fast)(weights, values).jaxpr.eqns
    assert eqns[0].invars[0].aval.shape == weights.shape
    assert len(eqns) == (1 if case == "no transpose left" else 2)
    check(function, "dot_general", weights, values, twice=True)
    # It stays as it is from then on.
    again = jax.make_jaxpr(invert.rewrite(fast, ALL))(weights, values)
    assert str(again) == str(jax.make_jaxpr(fast)(weights, values))


LEFT_PRODUCTS = {
    "operands in order": "bhqk,bkhd->bqhd",
    "without a batch": "qk,kd->dq",
    "terms and nothing else": "bhk,bk->hb",
    "axes of both in turn": "bqrk,bkd->bqdr",
}


@pytest.mark.parametrize("case", LEFT_PRODUCTS)
def test_other_products_are_left(case: str) -> None:
    inputs, _, output = LEFT_PRODUCTS[case].partition("->")
    one, two = (sample(*(2 + "bhqkdr".index(n) for n in part)) for part in inputs.split(","))

    def function(x: jax.Array, y: jax.Array) -> jax.Array:
        batch = [n for n in output if all(n in part for part in inputs.split(","))]
        first, second = inputs.split(",")
        names = [*batch, *(n for n in first + second if (n in first) != (n in second))]
        terms = [n for n in first if n in second and n not in batch]
        numbers = tuple(
            (tuple(map(first.index, n)), tuple(map(second.index, n))) for n in (terms, batch)
        )
        return lax.transpose(lax.dot_general(x, y, numbers), tuple(map(names.index, output)))

    fast = jax.make_jaxpr(invert.rewrite(function, ALL))(one, two)
    assert str(fast) == str(jax.make_jaxpr(function)(one, two))


def test_a_product_that_is_read_twice_is_left_alone() -> None:
    def function(weights: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array]:
        numbers = ((1,), (3,)), ((0, 2), (0, 1))
        product = lax.dot_general(values, weights, numbers)
        return lax.transpose(product, (0, 3, 1, 2)), product

    fast = jax.make_jaxpr(invert.rewrite(function, ALL))(P, V)
    assert [e.primitive.name for e in fast.jaxpr.eqns] == ["dot_general", "transpose"]


ROWS = {
    "two axes of rows": ("bld,dn->bln", (2, 3, 5), (5, 4)),
    "an image": ("bhwd,dn->bhwn", (2, 3, 4, 5), (5, 3)),
    "heads": ("bld,dhk->blhk", (2, 3, 5), (5, 2, 4)),
    "heads joined": ("blhk,hkd->bld", (2, 3, 2, 4), (2, 4, 5)),
    "embeddings": ("bld,vd->blv", (2, 3, 5), (7, 5)),
    "no rows": ("bld,dn->bln", (0, 3, 5), (5, 4)),
    "no terms": ("bld,dn->bln", (2, 3, 0), (0, 4)),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", ROWS)
def test_rows_of_several_axes(case: str, dtype: str) -> None:
    """One product of matrices, in the gradients too."""
    equation, *shapes = ROWS[case]
    x, y = (sample(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes))

    def function(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.einsum(equation, x, y)

    fast = invert.rewrite(function, ALL)

    def gradients(x: jax.Array, y: jax.Array) -> Any:
        made, pull = jax.vjp(fast, x, y)
        return pull(made)

    made = jax.make_jaxpr(gradients)(x, y).jaxpr
    products = [e for e in equations(made) if e.primitive.name == "dot_general"]
    assert len(products) == 3 and all(e.outvars[0].aval.ndim == 2 for e in products)
    rtol = 2e-6 if dtype == "float32" else 3e-2
    check(function, "flat_product", x, y, rtol=rtol, twice=dtype == "float32")


@pytest.mark.parametrize(
    ("equation", "one", "two"),
    [
        ("ld,dn->ln", (3, 5), (5, 4)),
        ("bld,d->bl", (2, 3, 5), (5,)),
        ("bld,bdn->bln", (2, 3, 5), (2, 5, 4)),
        ("bdl,dn->bln", (2, 5, 3), (5, 4)),
        ("bld,nde->blne", (2, 3, 5), (4, 5, 6)),
    ],
    ids=["matrices", "a vector", "a batch of matrices", "terms first", "terms within"],
)
def test_products_that_are_not_of_rows(equation: str, one: Any, two: Any) -> None:
    function = functools.partial(jnp.einsum, equation)
    fast = invert.rewrite(function, ALL)
    x, y = sample(*one), sample(*two)
    assert str(jax.make_jaxpr(fast)(x, y)) == str(
        jax.make_jaxpr(invert.rewrite(function, ()))(x, y)
    )


def normalized(x: jax.Array) -> jax.Array:
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    return centered * lax.rsqrt(jnp.mean(jnp.square(centered), axis=-1, keepdims=True) + 1e-3)


def residual(x: jax.Array, kernels: jax.Array) -> jax.Array:
    for kernel in kernels:
        x = x + jnp.tanh(normalized(x) @ kernel)
    return x


def moments(x: jax.Array, kernels: jax.Array) -> jax.Array:
    """As Keras normalizes, which reads a value three times."""
    for kernel in kernels:
        mean = jnp.mean(x, axis=-1, keepdims=True)
        scale = lax.rsqrt(jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True) + 1e-3)
        x = x + jnp.tanh((x * scale - mean * scale) @ kernel)
    return x


def in_a_loop(x: jax.Array, kernels: jax.Array) -> jax.Array:
    return lax.scan(lambda x, w: (x + jnp.tanh(normalized(x) @ w), None), x, kernels)[0]


@pytest.mark.parametrize("function", [residual, moments, in_a_loop])
@pytest.mark.parametrize("shape", [(2, 3, 4), (5, 4), (0, 4), (2, 3, 2, 4)])
def test_a_sum_that_is_read_first(function: Any, shape: tuple[int, ...]) -> None:
    x, kernels = sample(*shape), sample(3, 4, 4, seed=1)
    only = [p for p in ALL if p.name == "gradient_order"]
    fast = invert.rewrite(function, only)
    assert str(jax.make_jaxpr(fast)(x, kernels)).count("optimization_barrier") == (
        1 if function is in_a_loop else 3
    )
    again = invert.rewrite(fast, only)
    assert str(jax.make_jaxpr(again)(x, kernels)) == str(jax.make_jaxpr(fast)(x, kernels))
    name = "scan" if function is in_a_loop else "optimization_barrier"
    check(function, name, x, kernels, twice=True, rewrites=only)
    assert np.array_equal(jax.jit(fast)(x, kernels), jax.jit(function)(x, kernels))
    many = sample(3, *shape)
    close(
        jax.vmap(fast, (0, None))(many, kernels), jax.vmap(function, (0, None))(many, kernels), 1e-6
    )


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="what XLA does on a CPU")
def test_gradients_of_blocks_are_not_computed_anew_in_each_other() -> None:
    """Per block, a compiled gradient has as many additions in a deep stack as in a flat one."""
    only = [p for p in ALL if p.name == "gradient_order"]

    def additions(function: Any, depth: int) -> float:
        args = sample(4, 8, 16), sample(depth, 16, 16, seed=1)
        slope = jax.grad(lambda *a: jnp.sum(jnp.sin(function(*a))), (0, 1))
        return jax.jit(slope).lower(*args).compile().as_text().count(" add(") / depth

    fast = invert.rewrite(residual, only)
    assert additions(fast, 10) < 1.2 * additions(fast, 4)
    assert additions(fast, 10) < 0.6 * additions(residual, 10)


@pytest.mark.parametrize(
    "function",
    [normalized, lambda x: x + jnp.sum(x, axis=-1, keepdims=True), lambda x: jnp.tanh(x) + x * x],
    ids=["nothing added", "one use more", "no sum"],
)
def test_where_no_sum_is_read_first(function: Any) -> None:
    assert "optimization_barrier" not in calls(invert.rewrite(function, ALL), sample(2, 3, 4))


def test_unmeasured_operands_are_left_alone() -> None:
    assert calls(invert.rewrite(conv(groups=6), optimized.stage(lambda *_: False).patterns), X,
                 sample(3, 3, 1, 6)) == {"conv_general_dilated"}  # fmt: skip
    assert not optimized.pays_on("abacus")("depthwise_conv", "float32 2d, taps <= 9")


def test_the_table_lists_existing_rewrites() -> None:
    """Each row has two ratios, and some pay on the CPU."""
    assert set(optimized.measured()) <= {"cpu", "gpu"}
    for rewrites in optimized.measured().values():
        assert rewrites.keys() <= set(optimized.names())
        rows = [row for kinds in rewrites.values() for row in kinds.values()]
        assert all(len(row) == 2 and min(row) > 0 for row in rows)
    assert optimized.pays_on("cpu")("depthwise_conv", "float32 2d, taps <= 9, channels <= 4096")
    assert optimized.pays_on("gpu")(
        "shifted_conv", "float32 2d, taps <= 9, channels <= 64, strided"
    )


def test_names_switch_them_off() -> None:
    names = [p.name for p in optimized.stage(lambda *_: True, ("max_pool",)).patterns]
    assert "max_pool" not in names and "sum_pool" in names
    patterns.check_names(invert.Config(disabled_patterns=("max_pool",)))
    with pytest.raises(ValueError, match="patterns: no pattern is named 'max_pool'"):
        patterns.check_names(invert.Config(patterns=("max_pool",)))


TRANSPOSED = {
    "even": (conv(spread=(2, 2), padding=((1, 1), (1, 1))), (2, 2, 6, 5)),
    "one place each": (conv(spread=(2, 3), padding=((1, 1), (2, 2))), (2, 3, 6, 5)),
    "uneven": (conv(spread=(2, 3), padding=((2, 1), (1, 2))), (3, 3, 6, 5)),
    "apart": (conv(spread=(4, 3), padding=((1, 2), (1, 1))), (2, 3, 6, 5)),
    "one axis": (conv(spread=(1, 2), padding=((1, 1), (3, 3))), (3, 4, 6, 5)),
    "cropped": (conv(spread=(2, 2), padding=((-1, 2), (0, -2))), (3, 2, 6, 5)),
    "other order": (
        conv(spread=(2, 2), padding=((2, 2), (1, 0)), numbers=("NWHC", "WHOI", "CNHW")),
        (3, 3, 5, 6),
    ),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_convolutions_over_zeros(name: str) -> None:
    function, shape = TRANSPOSED[name]
    check(function, "transposed_conv", X, sample(*shape, seed=1), twice=True)


def test_infinities_stay_in_the_same_places() -> None:
    """The rewrite adds no multiplication by zero, and drops none."""
    function, shape = TRANSPOSED["uneven"]
    x, kernel = X.at[0, 4, 3, 2].set(jnp.inf), sample(*shape, seed=1)
    before, after = (f(x, kernel) for f in (function, invert.rewrite(function, ALL)))
    np.testing.assert_array_equal(np.isfinite(before), np.isfinite(after))


@pytest.mark.parametrize(
    "function",
    [
        conv(spread=(2, 2), strides=(2, 1), padding=((2, 2), (2, 2))),
        conv(spread=(2, 2), dilation=(2, 2), padding=((2, 2), (2, 2))),
        conv(spread=(5, 1), padding=((2, 2), (2, 2))),
    ],
    ids=["strided", "dilated", "far apart"],
)
def test_other_convolutions_over_zeros_stay(function: Any) -> None:
    fast = invert.rewrite(function, ALL)
    assert "transposed_conv" not in calls(fast, X, sample(3, 3, 6, 5))


ARGS = {
    "last axis": ((5, 300), 1, np.int32),
    "other axis": ((200, 3, 4), 0, np.int32),
    "positions of 8 bits": ((3, 100), 1, np.int8),
}


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize("case", ARGS)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_two_passes_find_the_first_extremum(name: str, case: str, dtype: Any) -> None:
    shape, axis, index_dtype = ARGS[case]

    def function(x: jax.Array) -> jax.Array:
        return getattr(lax, name)(x, axis, index_dtype)

    fast = invert.rewrite(function, ALL)
    x = jnp.round(sample(*shape, dtype=dtype))  # many are equal
    assert f"two_pass_{name}" in calls(fast, x)
    rows = jnp.moveaxis(x, axis, -1)
    special = rows.at[0].set(jnp.nan).at[1, ..., 7].set(jnp.nan).at[1, ..., 3].set(jnp.inf)
    special = special.at[2].set(-jnp.inf).at[2, ..., 90:].set(-0.0)
    for values in (x, jnp.moveaxis(special, -1, axis), jnp.full_like(x, jnp.inf)):
        for run in (fast, jax.jit(fast)):
            found, expected = run(values), function(values)
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)


def test_a_search_among_unknown_numbers_is_left() -> None:
    for x in (jax.ShapeDtypeStruct(jax.export.symbolic_shape("a, n"), np.float32),
              jax.ShapeDtypeStruct((3, 300), np.int32)):  # fmt: skip
        fast = invert.rewrite(lambda x: lax.argmax(x, 1, np.int32), ALL)
        assert calls(fast, x) == {"argmax"}
