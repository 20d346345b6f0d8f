"""An append file: its slices by the commit and by the footer, which must agree, and the footer by its slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from crc32c import crc32c

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.append_file import TAIL_BYTES, Footer, WrittenSlice, build_index, decode_footer
from sparklog.format.batch_scan import scan_headers
from sparklog.format.slice_columns import WRITTEN
from sparklog.log.read.fetch import SPAN_BYTES
from sparklog.log.state.slices import SliceFlag
from sparklog.maintenance.work_items import Progress
from sparklog.storage.store import Store
from sparklog.tools.verification.findings import FOOTER, SIZE, Counts, Finding
from sparklog.tools.verification.index_files import Batches
from sparklog.tools.verification.slice_checks import (
    Checked,
    Claim,
    CutOff,
    DataFile,
    Window,
    check_crc,
    read,
    unframed,
    walk,
)


def check_append_file(store: Store, file: DataFile, checked: Checked, progress: Progress) -> None:
    """Check an append file whole; findings and counts go into `checked`. `CutOff` if it is too short."""
    footer = _footer(store, file, checked)
    claims = list(file.claims)
    entries: dict[int, WrittenSlice] = {}
    if footer is not None:
        entries = {entry.position: entry for entry in footer.slices}
        claims += _unnamed(footer, file)
        for claim in file.claims:
            checked.findings += _against_footer(file.key, claim, entries.get(claim.position))
    counted = Counts(files=1, nbytes=file.footer_length)
    for run in _runs(sorted(claims, key=lambda claim: claim.position)):
        if len(run) == 1 and run[0].size > SPAN_BYTES:
            counted += _check_long_slice(store, file, run[0], entries.get(run[0].position), checked, progress)
        else:
            counted += _check_run(store, file, run, entries, checked, progress)
    checked.counts = counted


def _footer(store: Store, file: DataFile, checked: Checked) -> Footer | None:
    start = file.size - file.footer_length
    # One byte more, to see that the file ends there.
    data = store.get(file.key, start, file.footer_length + 1)
    if len(data) > file.footer_length:
        checked.findings.append(
            Finding(SIZE, file.key, f"expected {file.size} bytes, found more behind them", position=file.size)
        )
        data = data[: file.footer_length]
    if len(data) < file.footer_length:
        info = store.stat(file.key)
        raise CutOff(start + len(data) if info is None else info.size)
    try:
        return decode_footer(data, file_size=file.size, file=file.key)
    except (Corrupt, BadRequest) as error:
        checked.findings.append(_placed_footer(Finding.of(FOOTER, error, file.key), data, start))
        return None


def _placed_footer(finding: Finding, data: bytes, start: int) -> Finding:
    body, expected = data[:-TAIL_BYTES], int.from_bytes(data[-TAIL_BYTES : -TAIL_BYTES + 4], "big")
    crc = crc32c(body)
    if crc == expected:
        # The checksum does not cover length and magic of the tail; or it is a writer's fault.
        return replace(finding, position=start + len(data) - TAIL_BYTES + 4)
    flipped = finding.at_flipped_bit(start, len(body), crc, expected)
    return flipped or replace(finding, position=finding.position or start)


def _unnamed(footer: Footer, file: DataFile) -> list[Claim]:
    """The slices that only the footer knows; of their offsets in the log it says nothing."""
    named = {claim.position for claim in file.claims}
    return [
        Claim(
            **{column: getattr(entry, name) for name, column in WRITTEN.items()},
            position=entry.position,
            base=0,
            shift=0,
            append_time=-1,
            named=False,
        )
        for entry in footer.slices
        if entry.position not in named
    ]


def _against_footer(key: str, claim: Claim, entry: WrittenSlice | None) -> list[Finding]:
    """Commits and footer must say the same of a slice."""
    if entry is None:
        message = f"expected the footer to name the slice at byte {claim.position}, as the commit does"
        return [Finding(FOOTER, key, message, position=claim.position, offset=claim.base)]
    expected = {name: getattr(claim, column) for name, column in WRITTEN.items()} | {"offsets": claim.end - claim.shift}
    if claim.append_time >= 0:
        del expected["min_ts"], expected["max_ts"]
    wrong = [
        f"{_LABELS.get(name, name)} {value}, found {getattr(entry, name)}"
        for name, value in expected.items()
        if value != getattr(entry, name)
    ]
    if not wrong:
        return []
    message = f"the footer should say of the slice what the commit says: {'; '.join(wrong)}"
    return [Finding(FOOTER, key, message, position=claim.position, offset=claim.base)]


def _runs(claims: Sequence[Claim]) -> Iterator[list[Claim]]:
    """Slices that lie side by side and fit into one request; longer ones alone."""
    run: list[Claim] = []
    for claim in claims:
        if run and (
            claim.position != run[-1].position + run[-1].size
            or claim.position + claim.size - run[0].position > SPAN_BYTES
        ):
            yield run
            run = []
        run.append(claim)
    if run:
        yield run


def _check_run(
    store: Store,
    file: DataFile,
    run: Sequence[Claim],
    entries: dict[int, WrittenSlice],
    checked: Checked,
    progress: Progress,
) -> Counts:
    """Slices side by side, in one request: all at once if their checksums hold, else one by one."""
    start = run[0].position
    nbytes = run[-1].position + run[-1].size - start
    data = memoryview(read(store, file.key, start, nbytes))
    whole = all(
        crc32c(data[claim.position - start : claim.position - start + claim.size]) == claim.crc for claim in run
    )
    headers = scan_headers(data, whole=False) if whole else None
    starts = np.array([claim.position - start for claim in run], np.int64)
    if headers is None or headers.stop != "end" or not np.isin(starts, headers.position).all():
        counted = Counts()
        for claim in run:
            at = claim.position - start
            counted += _check_slice(file, claim, data[at : at + claim.size], entries.get(claim.position), checked)
        progress(counted.records, nbytes)
        return counted
    row_of = np.searchsorted(starts, headers.position, side="right") - 1
    window = Window(file, run, data, headers, row_of, start)
    checked.findings += window.wrong_batches()
    counted = window.count(checked)
    for row, claim in enumerate(run):
        entry = entries.get(claim.position)
        if entry is not None and (entry.index is not None or len(entry.aborted)):
            batches = Batches()
            batches.add(data, headers[row_of == row], -int(starts[row]))
            checked.findings += _against_index(file.key, claim, entry, batches)
    progress(counted.records, nbytes)
    return counted


def _check_slice(
    file: DataFile, claim: Claim, data: memoryview, entry: WrittenSlice | None, checked: Checked
) -> Counts:
    """One slice in memory, of which something is wrong."""
    before = len(checked.findings)
    headers = scan_headers(data, whole=False)
    if headers.stop != "end":
        checked.findings.append(unframed(file, claim, headers, claim.position))
    # Without the mark that the last batch is cut off.
    window = Window.of_one(file, claim, data, headers[: len(headers)], claim.position)
    if len(headers):
        checked.findings += window.wrong_batches()
    check_crc(file, claim, crc32c(data), checked, before)
    if len(checked.findings) > before:
        return Counts(slices=1, nbytes=len(data))
    return window.count(checked)


def _check_long_slice(
    store: Store, file: DataFile, claim: Claim, entry: WrittenSlice | None, checked: Checked, progress: Progress
) -> Counts:
    batches = Batches()
    counted = walk(store, file, claim, batches, checked, progress)
    if entry is not None and counted is not None:
        checked.findings += _against_index(file.key, claim, entry, batches)
    return counted or Counts(slices=1)


def _against_index(key: str, claim: Claim, entry: WrittenSlice, batches: Batches) -> list[Finding]:
    """The footer's index and aborted transactions of one slice against its batches; positions from its start."""
    position, _, stamp = batches.columns()
    offset = np.concatenate(batches.offset) if batches.offset else np.empty(0, np.int64)
    built = build_index(position, offset, stamp, claim.size)
    findings = []
    same = (built is None) == (entry.index is None)
    if same and built is not None and entry.index is not None:
        same = all(np.array_equal(getattr(built, name), getattr(entry.index, name)) for name in _INDEX_COLUMNS)
    if not same:
        findings.append(
            Finding(FOOTER, key, "the footer's index is not that of the slice's batches", position=claim.position)
        )
    for producer, last in zip(entry.aborted.producer_ids.tolist(), entry.aborted.last_offsets.tolist(), strict=True):
        if batches.aborts.get(last) != producer:
            message = f"the footer says that producer {producer} aborts at {last}; no such marker lies in the slice"
            findings.append(Finding(FOOTER, key, message, position=claim.position, offset=last + claim.shift))
    if bool(len(entry.aborted)) != bool(claim.flags & SliceFlag.KAFKA_ABORTED):
        message = "flag 16 and the footer's aborted transactions do not agree"
        findings.append(Finding(FOOTER, key, message, position=claim.position, offset=claim.base))
    return findings


_LABELS = {"nbytes": "size", "crc": "CRC-32C", "offsets": "end offset", "min_ts": "minTs", "max_ts": "maxTs"}
_INDEX_COLUMNS = ("position", "offset", "max_ts")
