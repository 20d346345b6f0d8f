"""What a verification found, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.maintenance.progress import megabytes
from sparklog.tools.verification.findings import Finding, Orphan, Report


SHOWN = 20
"""Orphans shown by name; the JSON has all."""
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def summary(report: Report) -> str:
    """Problems one by one, then what nobody names, then the one line that says it all."""
    lines = [str(finding) for finding in report.findings]
    lines += _listed("named by nobody", report.orphans)
    lines += _listed("not sparklog's", report.foreign)
    lines += [f"no damage by itself: {note}" for note in report.notes]
    lines.append(_verdict(report))
    return "\n".join(lines)


def _listed(what: str, found: Sequence[Orphan]) -> list[str]:
    if not found:
        return []
    total = sum(each.size for each in found)
    lines = [f"{_count(len(found), 'file')} {what}, {megabytes(total)}:"]
    oldest = sorted(found, key=lambda each: -each.age_ms)
    lines += [f"  {each.file}  {each.size:,} bytes, {_age(each.age_ms)} old: {each.why}" for each in oldest[:SHOWN]]
    if len(found) > SHOWN:
        lines.append(f"  and {len(found) - SHOWN:,} younger ones (--json lists all)")
    return lines


def _verdict(report: Report) -> str:
    counts = report.counts
    parts = [
        _count(counts.topics, "topic"),
        _count(counts.commits, "commit"),
        _count(counts.checkpoints, "checkpoint"),
        _count(counts.entries, "entry", "entries"),
        _count(counts.files, "file"),
        _count(counts.slices, "slice"),
    ]
    if not report.quick:
        parts += [_count(counts.batches, "batch", "batches"), _count(counts.records, "record")]
    parts.append(f"{counts.nbytes:,} bytes")
    if counts.gaps:
        parts.append(f"{_count(counts.gaps, 'offset')} in gaps")
    looked = ", ".join(part for part in parts if not part.startswith("0 "))
    speed = f"{report.seconds:.1f} s"
    if counts.nbytes > 10_000_000:
        speed += f", {megabytes(round(counts.nbytes / max(report.seconds, 0.001)))}/s"
    if report.findings:
        files = len({finding.file for finding in report.findings})
        problems = _count(len(report.findings), "problem")
        return f"DAMAGED: {problems} in {_count(files, 'file')} of {report.location}; looked at {looked} ({speed})"
    if report.quick:
        return f"every file is there, none was opened: {looked} ({speed})"
    return f"every byte accounted for: {looked} ({speed})"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _age(ms: int) -> str:
    for unit, name in _UNITS:
        if ms >= unit:
            return f"{ms // unit:,} {name}"
    return f"{ms} ms"


def document(report: Report) -> dict[str, object]:
    """The same as one JSON object; ages in ms, sizes in bytes."""
    return {
        "location": report.location,
        "sound": report.sound,
        "quick": report.quick,
        "seconds": round(report.seconds, 3),
        "counts": report.counts.document(),
        "problems": [_finding_document(finding) for finding in report.findings],
        "orphans": [_orphan_document(each) for each in report.orphans],
        "foreign": [_orphan_document(each) for each in report.foreign],
        "notes": [_finding_document(note) for note in report.notes],
    }


def _finding_document(finding: Finding) -> dict[str, object]:
    return {
        "kind": finding.kind,
        "file": finding.file,
        "position": finding.position,
        "bit": finding.bit,
        "offset": finding.offset,
        "message": finding.message,
        "remedy": finding.remedy,
    }


def _orphan_document(each: Orphan) -> dict[str, object]:
    return {"file": each.file, "bytes": each.size, "ageMs": each.age_ms, "why": each.why}
