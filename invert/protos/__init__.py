"""Reads TensorFlow's files without TensorFlow: messages, types, tensors and op definitions."""
