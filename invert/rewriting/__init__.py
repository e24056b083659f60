"""The engine that finds patterns in a program and replaces them by calls."""
