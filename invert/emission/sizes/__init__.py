"""One text for all sizes: programs at several sizes, merged."""
