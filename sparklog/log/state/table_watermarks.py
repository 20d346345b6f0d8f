"""The journals of watermarks of tables, for catalogs that do not store the watermark with the table.

The journal `_watermarks/<table id>/_log` belongs to one table. Its latest entry contains the watermark of the table,
and the pending watermark of a commit whose outcome the journal does not contain yet. Watermarks are stored as in the
properties of a table. `sparklog.tables.root_watermark` describes the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparklog.log.journal.documents import TEXT, Member, StoredDocument, texts_by_text
from sparklog.log.journal.entry_log import ENTRY_MEMBERS, EntryKind, StateEntry
from sparklog.log.journal.names import WATERMARKS_FOLDER


@dataclass(frozen=True, slots=True)
class TableWatermark(StateEntry):
    """The watermark of a table.

    Attributes:
        watermark: The properties of the watermark, or none if the table did not have a watermark.
        pending: The properties of the watermark of a pending commit, or none if no commit is pending.
        based_on: The version of the table on which the pending commit is based. Its watermark is `watermark`.
    """

    watermark: Mapping[str, str] = field(default_factory=dict)
    pending: Mapping[str, str] = field(default_factory=dict)
    based_on: str = ""


TABLE_WATERMARK_JSON = StoredDocument(
    "entry",
    TableWatermark,
    *ENTRY_MEMBERS,
    Member("watermark", texts_by_text()),
    Member("pending", texts_by_text()),
    Member("basedOn", TEXT),
)
TABLE_WATERMARKS = EntryKind(
    folder=WATERMARKS_FOLDER,
    owner="table",
    what="watermarks",
    noun="table watermark",
    empty=TableWatermark,
    table=TABLE_WATERMARK_JSON,
    old_entry="table watermark",
)
