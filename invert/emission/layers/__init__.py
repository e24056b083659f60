"""A program cut into layers, and what these share."""
