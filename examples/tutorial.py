# %% [markdown]
# # A Keras model becomes an Equinox module and is fine-tuned
#
# We take a small image classifier of Keras, turn it into JAX, read the code that comes out, give it a new head, train
# that with optax, and save the result for a process that has neither TensorFlow nor `invert`.
#
# It takes a minute on a laptop. As a notebook: `examples/tutorial.ipynb`.

# %% [markdown]
# ## The model
#
# It stands for a model that someone else trained. The first layer is frozen, as is common in transfer learning.

# %%
import keras

keras.utils.set_random_seed(0)
layers = keras.layers
original = keras.Sequential(
    [
        keras.Input((8, 8, 1), name="image"),
        layers.Conv2D(4, 3, strides=2, name="stem", trainable=False),
        layers.BatchNormalization(name="norm"),
        layers.ReLU(name="relu"),
        layers.GlobalAveragePooling2D(name="pool"),
        layers.Dense(8, "relu", name="hidden"),
        layers.Dense(3, name="head"),
    ],
    name="classifier",
)

# %% [markdown]
# ## One call
#
# A Keras model knows its inputs, so no example is needed. The batch stays open.

# %%
import invert

module = invert.convert(original)
print(module.summary())

# %% [markdown]
# The certificate is `exact`: lowered again, the recovered program is the one that was read, for every batch size. The
# module computes what the model does:

# %%
import numpy as np

images = np.random.default_rng(0).standard_normal((5, 8, 8, 1)).astype(np.float32)
np.testing.assert_allclose(module(images), original(images), rtol=1e-5, atol=1e-5)

# %% [markdown]
# ## The code
#
# `module.source` is the program as Python. Layers of Keras are classes, with their names and their weights.

# %%
print(module.emit(loader=False).source)

# %% [markdown]
# `module.model` is the module that this text defines. Its layers are ordinary fields, and every transformation of JAX
# works on it: here the derivative of each logit by each pixel, which JAX cannot get from a TensorFlow function.

# %%
import jax

net = module.model
jacobian = jax.vmap(jax.jacfwd(lambda image: net(image[None])[0]))(images)
print(jacobian.shape)

# %% [markdown]
# ## A new task
#
# Our task has three classes too: is an image bright at the top, in the middle or at the bottom? `eqx.tree_at` puts fresh
# weights in the head.

# %%
import equinox as eqx
import jax.numpy as jnp

kernel = 0.1 * jax.random.normal(jax.random.key(0), (8, 3))
net = eqx.tree_at(lambda m: (m.head.kernel, m.head.bias), net, (kernel, jnp.zeros(3)))


def batch(seed):
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 3, 64)
    noise = 0.3 * draw.standard_normal((64, 8, 8, 1))
    rows = np.arange(8)[None, :, None, None]
    bright = rows * 3 // 8 == labels[:, None, None, None]
    return (noise + bright * (1 + rows / 4)).astype(np.float32), labels


# %% [markdown]
# ## Training
#
# `invert.trainable` says which arrays the author trains. The frozen stem and the moving averages of the normalization
# are not among them.

# %%
import optax

flags = invert.trainable(net)
trained, rest = eqx.partition(net, flags)
optimizer = optax.adam(3e-2)
state = optimizer.init(trained)


@eqx.filter_jit
def step(trained, state, images, labels):
    def loss_of(trained):
        logits = eqx.combine(trained, rest)(images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = eqx.filter_value_and_grad(loss_of)(trained)
    updates, state = optimizer.update(grads, state)
    return eqx.apply_updates(trained, updates), state, loss


losses = []
for seed in range(150):
    trained, state, loss = step(trained, state, *batch(seed))
    losses.append(float(loss))
tuned = eqx.combine(trained, rest)

images, labels = batch(1000)
right = np.mean(np.argmax(tuned(images), -1) == labels)
print(f"loss {losses[0]:.1f} before, {losses[-1]:.1f} after; {right:.0%} of new images right")

# %% [markdown]
# The frozen layer has not changed:

# %%
assert eqx.tree_equal(tuned.stem, net.stem)
assert losses[-1] < losses[0] / 2 and right > 0.9

# %% [markdown]
# ## Saving
#
# The directory holds the source, the weights in a safetensors file, and a README.

# %%
import tempfile
from pathlib import Path

directory = Path(tempfile.mkdtemp())
invert.save(tuned, directory)
print(*sorted(p.name for p in directory.iterdir()))

# %% [markdown]
# ## Without TensorFlow and `invert`
#
# Another process needs jax, equinox, jaxtyping and safetensors.

# %%
import subprocess
import sys

program = """
import sys
for name in ("invert", "tensorflow", "keras"):
    sys.modules[name] = None  # an import of these would fail
import model, numpy as np
net = model.load()
np.save("out.npy", net(np.load("in.npy")))
"""
np.save(directory / "in.npy", images)
subprocess.run([sys.executable, "-c", program], cwd=directory, check=True)
print(np.array_equal(np.load(directory / "out.npy"), tuned(images)))

# %% [markdown]
# ## Next steps
#
# - [Fine-tune a model](howto/finetune.md): freezing, other heads.
# - [Random numbers, state and training mode](howto/state.md): batch statistics and dropout while training.
# - [What is guaranteed](guarantees.md).
