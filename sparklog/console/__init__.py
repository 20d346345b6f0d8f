"""The base of command-line programs: declared options, one-line errors, and equivalents of options of other tools."""
