"""The Arrow schema of the records that readers return, with the types of `sparklog.log.state.view.COLUMNS`."""

from __future__ import annotations

import pyarrow as pa

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
RECORD_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        # Kafka's timestamps in milliseconds are stored without loss. The Spark adapter casts them to microseconds, with
        # saturation.
        pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
