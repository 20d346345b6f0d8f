"""`sparklog repartition`: a topic with another number of partitions, by key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from click import BadParameter

from sparklog.cli.locations import open_root
from sparklog.cli.options import QuietOption, RootOption, whole_number
from sparklog.cli.parameters import Argument, Commands, Option
from sparklog.cli.terminal import Output, printable
from sparklog.errors import Conflict
from sparklog.output import StatusLine

if TYPE_CHECKING:
    from sparklog.tools.repartition.run import Repartitioned

app = Commands()
PAUSE_SECONDS = 1.0
"""Between two looks of --follow at a topic that has nothing new."""


@app.add("repartition", "sparklog repartition orders --to orders-12 --partitions 12 --root /data/log")
def repartition(
    topic: Annotated[str, Argument(metavar="TOPIC", help="The topic to copy; it stays as it is.")],
    to: Annotated[str, Option(metavar="NEW-NAME", help="The topic to create, or to go on with.", show_default=False)],
    partitions: Annotated[int, whole_number("-p", low=1, text="Of the new topic.", default=False)],
    root: RootOption,
    follow: Annotated[bool, Option("-f", help="Go on with what comes later, until interrupted.")] = False,
    move_groups: Annotated[bool, Option(help="At the end, set the groups' offsets in the new topic.")] = False,
    quiet: QuietOption = False,
) -> Output:
    """Copy a topic into one with another number of partitions, each record to the partition of its key.

    Each record once, also if the command is killed and run again: it goes on where it was. Keys, values, times,
    headers and the order of each key are kept; a record without a key goes to its partition modulo the new number.
    To cut over, stop the writers of the old topic, run it with --move-groups, and start all on the new one.
    """
    from sparklog.tools.repartition.run import repartition as run

    if follow and move_groups:
        raise BadParameter("expected one of --follow and --move-groups: groups are moved when writers have stopped")
    opened = open_root(root)
    total = 0
    with StatusLine("repartition", quiet=quiet) as status:

        def progress(records: int) -> None:
            status(f"{total + records:,} records copied")

        while True:
            made = run(opened, topic, to, partitions=partitions, move_groups=move_groups, progress=progress)
            if not follow:
                break
            total += made.records
            if not made.records:
                opened.env.sleep(PAUSE_SECONDS)
    failures = [Conflict(f"group '{item.group}' is not moved: {item.problem}") for item in made.groups if item.problem]
    return Output.of_lines(made, *_lines(made, move_groups), failures=failures)


def _lines(made: Repartitioned, move_groups: bool) -> list[str]:
    new = f"{made.topic} ({made.partitions} partitions)"
    lines = [f"Copied {made.records:,} records of {made.source} to {new}, which has {made.total:,} of them."]
    if made.waiting:
        lines.append(f"{made.waiting:,} offsets are in open transactions, or after them: run it again once they ended.")
    for item in made.groups:
        if not item.problem:
            again = f"reads at most {item.again:,} records again" if item.again else "reads no record again"
            lines.append(f"Group {printable(item.group)} goes on in {made.topic}, and {again}.")
    if not move_groups:
        lines.append(
            f"To cut over: stop the writers of {made.source}, run this again with --move-groups, and start writers and "
            f"groups on {made.topic}."
        )
    return lines
