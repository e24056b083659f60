"""Reads TensorFlow checkpoints: an index (a sorted table of entries) and shards of values."""
