"""The base of command-line programs: declared options, one-line errors, and equivalents of other tools' options."""
