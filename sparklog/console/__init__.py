"""What every program with a command line shares: declared options, errors as one line, the words of other tools."""
