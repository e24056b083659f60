"""Functions of a text: for classes without arrays, and for repeated steps."""
