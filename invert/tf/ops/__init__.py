"""Building blocks of TensorFlow op rules: nodes, op definitions, state."""
