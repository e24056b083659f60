"""Gradients of a container: compared with autodiff, and kept where they differ."""
