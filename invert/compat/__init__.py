"""Functions under the names and signatures of other packages."""
