"""What is returned: modules, their functions, parameters and signatures, and how they are saved."""
