"""One data file, every byte of it: an append file by its footer and by what versions say, a segment by that alone.

| bytes                               | are right if                                                                  |
|-------------------------------------|-------------------------------------------------------------------------------|
| a slice                             | its CRC-32C, which commits and footer agree on, holds                         |
| footer                              | its CRC-32C holds; its slices fill the file; its index is that of the batches |
| `.index`, `.timeindex`, `.txnindex` | the CRC-32C in the commit holds; their entries name batches                   |

A footer also tells of slices that no version names any more: they are checked as well. What is read is then decoded:
batches' own checksums, offsets, counts, times.
"""

from __future__ import annotations

from sparklog.errors import NotFound
from sparklog.storage.store import Store
from sparklog.tools.verification.append_file import check_append_file
from sparklog.tools.verification.findings import SIZE, Finding
from sparklog.tools.verification.reading import Checked, CutOff, DataFile, Progress
from sparklog.tools.verification.sealed_segment import check_segment


MOST_FINDINGS = 100
"""Of one file: beyond, it is not the single places that matter."""


def check_file(store: Store, file: DataFile, progress: Progress) -> Checked:
    """Read a file whole and hold it against all that is said of it."""
    checked = Checked(file)
    try:
        if file.sealed:
            check_segment(store, file, checked, progress)
        else:
            check_append_file(store, file, checked, progress)
    except NotFound:
        checked.gone = checked.gone or file.key
        checked.findings.clear()
    except CutOff as cut:
        checked.findings.append(
            Finding(SIZE, file.key, f"expected {file.size} bytes, found {cut.found}", position=cut.found)
        )
    del checked.findings[MOST_FINDINGS:]
    return checked
