"""Gradients that a container holds: compared with autodiff, and kept where they differ."""
