"""Front ends: each reads one kind of container and returns entry points."""
