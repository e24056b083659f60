"""Programs as data: jaxprs, graphs, and whether two of them are equal."""
