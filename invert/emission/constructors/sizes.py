"""The names of the sizes that layers are made with, and their order."""

from __future__ import annotations

# The sizes of a recurrent layer: that of its state, and that of all gates.
HIDDEN, GATES = "hidden", "gates"
# The sizes of an attention.
HEADS, HEAD_DIM = "heads", "head_dim"
# The number of heads of keys and values where several heads of queries share them.
KV_HEADS = "kv_heads"
# The width of a model, and the number of its blocks.
DIM, DEPTH = "dim", "depth"
# The channels of an image that is flattened, and the size of what an encoder passes to a decoder.
CHANNELS, LATENT_DIM = "channels", "latent_dim"
# The channels, or the hidden sizes, of several layers.
WIDTHS = "widths"
# The hidden sizes, where the channels are several too.
HIDDEN_SIZES = "hidden_sizes"
# The number of positions of sequences.
LENGTH = "length"
# The number of rows of a table: of words, of positions, or of anything.
VOCABULARY, POSITIONS, ROWS = "vocab_size", "max_length", "num_embeddings"
# The rows of several tables.
VOCABULARIES = "vocab_sizes"
# The ratio of a hidden size to that of the inputs.
EXPANSION = "expansion"
# The sizes of the sides of a kernel.
SIDES = ("kd", "kh", "kw")
# The size of all of them.
KERNEL_SIZE = "kernel_size"
# The order of the sizes among the arguments.
SIZES = (
    *(VOCABULARY, VOCABULARIES, POSITIONS, ROWS, LENGTH, "rows"),
    *("n_in", "c_in", DIM, "n", "c", DEPTH, HEADS, KV_HEADS, HEAD_DIM),
    *(WIDTHS, HIDDEN_SIZES, CHANNELS, HIDDEN, LATENT_DIM, "n_out", "c_out"),
    *(KERNEL_SIZE, *SIDES),
)
# Sizes of an inner layer that the outer one does not show, unless it has them too.
FEATURES = frozenset(("n_in", "n_out", "c_in", "c_out", "dim", "n", "c"))

# The size of the inputs.
INPUTS = ("c_in", "n_in", "c", "n", "dim")

# Sizes that are equal where a layer passes on its input.
PAIRS = tuple((one, other) for one in INPUTS for other in ("c_out", "n_out", HIDDEN))
# The size of the outputs of a layer.
OUTPUTS = frozenset(("c_out", "n_out"))
# Options that are one number for all axes of images.
STEPS = frozenset(("strides", "dilation", "input_dilation"))
