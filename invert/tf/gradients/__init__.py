"""Gradient functions of TensorFlow graphs."""
