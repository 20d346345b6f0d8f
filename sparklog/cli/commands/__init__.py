"""The modules with the commands of `sparklog`."""
