"""The interpreter of TensorFlow graphs: bodies, their evaluation, and the registry of rules."""
