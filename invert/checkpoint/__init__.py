"""TensorFlow's checkpoints: an index, which is a sorted table of entries, and shards of values."""
