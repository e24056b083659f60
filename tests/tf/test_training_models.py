"""Ten exported training steps of the `keras.applications` families, compared with TensorFlow's.

The families are built by their own code, with fewer blocks and channels where that is an argument;
InceptionResNetV2, where it is not, needs too much memory. Dropout and stochastic depth are active:
Keras draws from a state that each step advances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.tf.training import STEPS, keras_step, precision, trained

keras: Any = pytest.importorskip("keras")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.drawn(1),
    # Keras warns about its own arguments.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="Keras runs on JAX"),
]


def source(name: str) -> Any:
    """A module of `keras.applications`, with more functions than it exports."""
    import importlib

    return importlib.import_module(f"keras.src.applications.{name}")


def resnet(version: int) -> Any:
    code = source("resnet")
    stack = getattr(code, f"stack_residual_blocks_v{version}")

    def blocks(x: Any) -> Any:
        x = stack(x, 4, 2, stride1=1, name="conv2")
        return stack(x, 8, 2, name="conv3")

    return code.ResNet(blocks, version == 2, True, weights=None, **HEAD, input_shape=(32, 32, 3))


def mobilenet_v3() -> Any:
    code = source("mobilenet_v3")

    def blocks(x: Any, kernel: int, activation: Any, se_ratio: float) -> Any:
        block = code._inverted_res_block
        x = block(x, 1, 8, 3, 2, se_ratio, code.relu, 0)
        x = block(x, 3, 8, 3, 1, None, code.relu, 1)
        return block(x, 3, 16, kernel, 2, se_ratio, activation, 2)

    return code.MobileNetV3(blocks, 16, (32, 32, 3), alpha=0.25, weights=None, **HEAD)


def application(name: str, size: int = 32, **arguments: Any) -> Callable[[], Any]:
    def make() -> Any:
        build = getattr(keras.applications, name)
        return build(weights=None, input_shape=(size, size, 3), **HEAD, **arguments)

    return make


HEAD: dict[str, Any] = {"classes": 5}
SCALED: dict[str, Any] = {
    "width_coefficient": 0.25,
    "depth_coefficient": 0.3,
    "default_size": 32,
    "weights": None,
}
SMALL: dict[str, Any] = {**HEAD, "input_shape": (32, 32, 3)}
FAMILIES: dict[str, Callable[[], Any]] = {
    "ConvNeXt": lambda: source("convnext").ConvNeXt(
        [1, 1, 2, 1], [4, 8, 8, 16], drop_path_rate=0.3, layer_scale_init_value=0.1, **SMALL
    ),
    "DenseNet": lambda: source("densenet").DenseNet([2, 2, 2, 2], weights=None, **SMALL),
    "EfficientNet": lambda: source("efficientnet").EfficientNet(**SCALED, **SMALL),
    "EfficientNetV2": lambda: source("efficientnet_v2").EfficientNetV2(
        **SCALED, **SMALL, name="efficientnetv2-s"
    ),
    "InceptionV3": application("InceptionV3", 75),
    "MobileNet": application("MobileNet", alpha=0.25),
    "MobileNetV2": application("MobileNetV2", alpha=0.35),
    "MobileNetV3": mobilenet_v3,
    "NASNet": lambda: source("nasnet").NASNet(
        (32, 32, 3), 96, 1, 8, weights=None, default_size=32, **HEAD
    ),
    "ResNet": lambda: resnet(1),
    "ResNetV2": lambda: resnet(2),
    "VGG": application("VGG16"),
    "Xception": application("Xception", 71),
}
OPTIMIZERS: list[Callable[[], Any]] = [
    lambda: keras.optimizers.Adam(1e-5),
    lambda: keras.optimizers.SGD(1e-4, momentum=0.9),
    lambda: keras.optimizers.AdamW(1e-5),
]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    keras.utils.set_random_seed(0)
    yield
    keras.backend.clear_session()


@pytest.mark.parametrize("name", FAMILIES)
def test_ten_steps(name, tmp_path):
    number = list(FAMILIES).index(name)
    rng = np.random.default_rng(number)
    with precision(keras, "float64"):
        model, optimizer = FAMILIES[name](), OPTIMIZERS[number % len(OPTIMIZERS)]()
        # Models that scale images themselves take bytes.
        largest = 255 if any(n in name for n in ("ConvNeXt", "Efficient", "NetV3")) else 1
        shape = (4, *model.input_shape[1:])
        batches = [
            (rng.uniform(0, largest, shape), rng.integers(0, 5, 4).astype(np.int32))
            for _ in range(STEPS)
        ]
        loss = keras.losses.SparseCategoricalCrossentropy()
        step, variables = keras_step(model, optimizer, loss, batches[0])
        found = trained(step, variables, batches, folder=tmp_path)
    print(f"\n{name}, {type(optimizer).__name__}: {found}")
    # Sums are in another order. Normalizations over a batch of four multiply rounding errors by up
    # to a hundred in each step; single precision would not be enough.
    assert found.first < 1e-9 and found.results < 1e-3 and found.variables < 1e-2
