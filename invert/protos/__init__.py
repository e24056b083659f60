"""TensorFlow's files without TensorFlow: messages, types, tensors and the definitions of ops."""
