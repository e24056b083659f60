"""Python as text: syntax trees, names, formatting."""
