"""Scripts of the maintainers: they make data files of the package. Nothing in the package uses them."""
