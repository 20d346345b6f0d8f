"""The filter of `consume --header`, which selects records by their headers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from click import BadParameter

from sparklog.common.parsing import is_utf8


@dataclass(frozen=True)
class HeaderFilter:
    """The headers that a record must contain. If the value of a header is None, any value matches."""

    required: tuple[tuple[str, bytes | None], ...]

    @classmethod
    def of(cls, texts: Sequence[str]) -> HeaderFilter:
        """Parse `NAME=VALUE` or `NAME`. Raises a usage error for an empty name."""
        required = []
        for text in texts:
            name, equals, value = text.partition("=")
            if not name or not is_utf8(name):
                raise BadParameter(f"expected NAME=VALUE or NAME, found {text!r}", param_hint="'--header'")
            required.append((name, value.encode(errors="surrogateescape") if equals else None))
        return cls(tuple(required))

    def filter(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records that have all headers of the filter."""
        for batch in batches:
            mask = np.ones(batch.num_rows, bool)
            headers = batch.column("headers")
            parents, flat = pc.list_parent_indices(headers), headers.flatten()
            names, values = flat.field("key"), flat.field("value")
            for name, value in self.required:
                matches = pc.equal(names, name)
                if value is not None:
                    matches = pc.and_(matches, pc.fill_null(pc.equal(values, pa.scalar(value, values.type)), False))
                mask &= np.isin(np.arange(batch.num_rows), parents.filter(matches).to_numpy())
            if mask.any():
                yield batch.filter(pa.array(mask))
