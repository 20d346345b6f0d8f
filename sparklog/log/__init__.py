"""The log itself, in six rooms, lowest first.

`journal` holds numbered objects and knows nothing of topics, `state` what a topic is at a version, `decisions` the
outcomes of transactions. `read` and `write` use these; `topic` has the handles that users hold.
"""
