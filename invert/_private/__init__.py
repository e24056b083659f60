"""Private parts of other packages, which may change with any release."""
