"""Sizes in a text: the program with its open dimensions, and expressions of them."""
