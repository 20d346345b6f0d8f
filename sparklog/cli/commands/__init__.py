"""The commands of `sparklog`: a module for each command or for a family of them."""
