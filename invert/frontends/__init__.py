"""Front ends: each reads one container and hands over entry points."""
