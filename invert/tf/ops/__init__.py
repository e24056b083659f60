"""What the rules of TensorFlow ops are written with: nodes, definitions, the registry."""
