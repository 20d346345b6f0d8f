"""The log: journals, the state of topics, reading and writing.

The subpackages, from the lowest layer to the highest: `journal` creates and reads numbered objects, and does not depend
on topics. `state` defines the state of a topic at a version, and `decisions` contains the outcomes of transactions.
`read` and `write` use both. `topic` contains the public handles.
"""
