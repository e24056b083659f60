"""Open sizes in emitted text: the program's dimensions, and expressions of them."""
