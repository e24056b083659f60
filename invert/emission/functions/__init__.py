"""Functions of a text, in place of classes without arrays and of steps that methods repeat."""
