"""Report of a repair: what was cured or would be, what was set aside, and what only a backup brings back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparklog.output import json_value
from sparklog.tools.verification.findings import Finding, Report
from sparklog.units import count


@dataclass(frozen=True, slots=True)
class Repaired:
    """One object that was cured or set aside: `how` in words; `aside`: where the bytes are that were there before."""

    file: str
    how: str
    aside: str | None = None


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The outcome. `executed` False: nothing was changed, `repaired` is what would be.

    `left`: damage that is still there, or would be; `before`: how many problems there were at first.
    """

    location: str
    executed: bool
    repaired: tuple[Repaired, ...]
    left: tuple[Finding, ...]
    before: int

    @property
    def sound(self) -> bool:
        """True if no damage is left."""
        return not self.left


def left_after(report: Report, files: Sequence[str]) -> tuple[Finding, ...]:
    """Return the findings of a report that the repair of these files does not cure."""
    return tuple(finding for finding in report.findings if finding.file not in files)


def summary(report: RepairReport) -> str:
    """Return what was done, file by file, what is left, and the verdict in one line."""
    lines = [f"{item.file}: {'' if report.executed else 'would be '}{item.how}" for item in report.repaired]
    lines += [f"left: {finding}" for finding in report.left]
    done = f"{count(len(report.repaired), 'file')} of {report.location}"
    left = f"{count(len(report.left), 'problem')} left that no rebuild cures" if report.left else "no damage is left"
    if not lines:
        lines.append(f"nothing to repair in {report.location}")
    elif report.executed:
        lines.append(f"repaired {done}; {left}")
    else:
        lines.append(f"would repair {done}: nothing was changed, --execute does it; {left}")
    return "\n".join(lines)


def document(report: RepairReport) -> dict[str, object]:
    """Return the report as one JSON object."""
    return {
        "location": report.location,
        "executed": report.executed,
        "sound": report.sound,
        "problems": report.before,
        "repaired": json_value(report.repaired),
        "left": json_value(report.left),
    }
