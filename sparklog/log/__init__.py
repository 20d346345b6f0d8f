"""The log: journals, the state of topics, reading and writing.

From the lowest layer up: `journal` creates and reads numbered objects and knows nothing of topics. `state` is what a
topic is at a version, and `decisions` has the outcomes of transactions. `read` and `write` use these. `topic` has the
handles that users work with.
"""
