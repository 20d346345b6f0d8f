"""The base of programs with a command line: declared options, errors in one line, and names of other tools."""
