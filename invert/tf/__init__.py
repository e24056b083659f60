"""TensorFlow graphs: read, analysed and evaluated on JAX values."""
