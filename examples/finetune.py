"""Fine-tunes a Keras model with optax: exported, loaded as an Equinox module, trained, saved.

The module is trained where Keras says that it may be, which leaves out the moving averages of the
normalization, and its first layer is frozen besides. It is saved as Python source with its weights,
and loaded in a process that has neither `invert` nor TensorFlow. Exits with 1 if the loss does not
fall, if what is frozen moves, or if the loaded module gives other outputs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import invert

STEPS = 60

# What another process does with what was saved: it may import neither invert nor TensorFlow.
_ALONE = """
import sys
for name in ("invert", "tensorflow", "keras"):
    sys.modules[name] = None
import model
import numpy as np
loaded = model.load()
np.save("outputs.npy", loaded(np.load("inputs.npy")))
"""


def export(path: str) -> None:
    """A small convolutional network of Keras, as it comes from somewhere else."""
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, strides=2, name="first"),
            layers.BatchNormalization(name="norm"),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(8, "relu", name="hidden"),
            layers.Dense(2, name="head"),
        ]
    )
    model.export(path, verbose=False)


def examples(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images with a bright upper or lower half, and which of the two it is."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, 64)
    images = 0.3 * rng.standard_normal((64, 8, 8, 1), np.float32)
    rows = np.arange(8)[None, :, None, None]
    return images + (rows // 4 == labels[:, None, None, None]) * (1 + rows / 8), labels


def loss_of(trained: Any, rest: Any, images: Any, labels: Any) -> Any:
    """Mean cross-entropy of a module that is cut in two."""
    logits = eqx.combine(trained, rest)(images)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def flags_of(module: Any) -> Any:
    """Which arrays are trained: those that Keras trains, without the first layer."""
    flags = invert.trainable(module)
    return eqx.tree_at(lambda m: (m.first.kernel, m.first.bias), flags, (False, False))


def fine_tune(module: Any) -> tuple[Any, list[float]]:
    """The module after `STEPS` steps of Adam, and the losses before each of them."""
    trained, rest = eqx.partition(module, flags_of(module))
    optimizer = optax.adam(3e-2)
    state = optimizer.init(trained)

    @eqx.filter_jit
    def step(trained: Any, state: Any, images: Any, labels: Any) -> tuple[Any, Any, Any]:
        loss, grads = eqx.filter_value_and_grad(loss_of)(trained, rest, images, labels)
        updates, state = optimizer.update(grads, state, trained)
        return eqx.apply_updates(trained, updates), state, loss

    losses = []
    for i in range(STEPS):
        images, labels = examples(i)
        trained, state, loss = step(trained, state, images.astype(np.float32), labels)
        losses.append(float(loss))
    return eqx.combine(trained, rest), losses


def reloaded(directory: Path, images: np.ndarray) -> np.ndarray:
    """The outputs of a saved module in another process."""
    np.save(directory / "inputs.npy", images)
    subprocess.run([sys.executable, "-c", _ALONE], cwd=directory, check=True)
    return np.load(directory / "outputs.npy")


def main() -> int:
    with tempfile.TemporaryDirectory() as where:
        export(f"{where}/keras")
        module = invert.load(f"{where}/keras")
        model, losses = fine_tune(module.model)
        print(f"loss {losses[0]:.3f} before, {losses[-1]:.3f} after {STEPS} steps")

        images, labels = examples(STEPS)
        images = images.astype(np.float32)
        right = float(jnp.mean(jnp.argmax(model(images), -1) == labels))
        print(f"{right:.0%} of new images right")

        frozen = eqx.filter(module.model, flags_of(module.model), inverse=True)
        still = eqx.filter(model, flags_of(model), inverse=True)
        unmoved = bool(eqx.tree_equal(frozen, still))
        count = len(jax.tree_util.tree_leaves(frozen))
        print(f"{count} arrays that are not trained: {'as they were' if unmoved else 'moved'}")

        saved = Path(where) / "tuned"
        invert.save(model, saved)
        same = np.array_equal(reloaded(saved, images), model(images))
        print(f"in another process: {'equal' if same else 'other outputs'}")
    return int(not (losses[-1] < losses[0] / 2 and unmoved and same))


if __name__ == "__main__":
    sys.exit(main())
