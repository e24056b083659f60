"""The `__init__` of classes."""
