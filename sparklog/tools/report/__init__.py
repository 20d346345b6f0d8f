"""One page about a whole root: what is there, how far readers are, what maintenance would do, what needs attention."""
