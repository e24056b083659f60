"""The interpreter of TensorFlow graphs."""
