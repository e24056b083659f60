"""Parts of a program as the layers of `equinox.nn`."""
