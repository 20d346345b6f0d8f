"""The command line that all maintenance jobs share: which root and topics, by which settings and which clock.

    --root PATH  --topic NAME[,NAME...] (may be repeated)  --properties FILE  --now-ms MS  --dry-run  --json

| exit code | meaning                                                                              |
|-----------|--------------------------------------------------------------------------------------|
| 0         | done, also when there was nothing to do                                              |
| 1         | some of it failed or could not be done: the reason on stderr, everything else is done |
| 2         | wrong usage, a properties file with an error included: nothing was begun             |
| 130       | interrupted (Ctrl-C): what was committed stays                                       |
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sparklog.errors import BadRequest
from sparklog.log.journal.documents import INT64_MAX
from sparklog.log.journal.names import check_topic_name
from sparklog.maintenance.properties import settings_of
from sparklog.maintenance.work import Settings

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True, slots=True)
class Common:
    """What every maintenance job was told.

    * `topics`: names as given, each once; empty: all topics of the root
    * `now_ms`: the clock that was given, None: the store's own
    * `settings`: of the properties file over Kafka's defaults, without a clock (see `settings_at`)
    """

    root: str
    topics: tuple[str, ...]
    now_ms: int | None
    dry_run: bool
    as_json: bool
    settings: Settings

    def settings_at(self, store_ms: int) -> Settings:
        """The settings with their clock: the one that was given, else the store's."""
        return replace(self.settings, now_ms=store_ms if self.now_ms is None else self.now_ms)


def add_root_and_topics(parser: argparse.ArgumentParser) -> None:
    """Add the options of every job: which root, which topics."""
    parser.add_argument("--root", default=os.environ.get("SPARKLOG_ROOT"), help="the root; else SPARKLOG_ROOT")
    parser.add_argument(
        "--topic", action="append", metavar="NAME", help="only this topic; several with commas, or repeated (all)"
    )


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the shared options to a maintenance job's parser."""
    add_root_and_topics(parser)
    parser.add_argument(
        "--properties", metavar="FILE", help="defaults under Kafka's names, as conf/sparklog.properties"
    )
    parser.add_argument("--now-ms", type=_milliseconds, metavar="MS", help="the clock to go by (the store's)")
    parser.add_argument("--dry-run", action="store_true", help="change nothing, say what would be done and why")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of tables")


def root_and_topics(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> tuple[str, tuple[str, ...]]:
    """Root and topics of a parsed command line; ends the program with 2, by the parser, where they are wrong."""
    if not chosen.root:
        parser.error("give --root, or set SPARKLOG_ROOT")
    try:
        return chosen.root, _topics(chosen.topic)
    except BadRequest as error:
        parser.error(str(error))


def common(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> Common:
    """The shared options of a parsed command line; ends the program with 2, by the parser, where they are wrong."""
    root, topics = root_and_topics(parser, chosen)
    try:
        settings = Settings(0) if chosen.properties is None else settings_file(chosen.properties)
    except BadRequest as error:
        parser.error(str(error))
    return Common(root, topics, chosen.now_ms, chosen.dry_run, chosen.json, settings)


def settings_file(path: str) -> Settings:
    """The settings of a properties file, without a clock; `BadRequest` if it cannot be read or has an error.

    The file lies with the caller, like the command line itself, not in the store.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise BadRequest(f"the properties file {path} cannot be read: {error.strerror}; check --properties") from None
    return settings_of(text, path)


def _topics(given: Sequence[str] | None) -> tuple[str, ...]:
    names = [name.strip() for text in given or () for name in text.split(",")]
    if given and not any(names):
        raise BadRequest("--topic names no topic; leave it out to mean all topics")
    return tuple(dict.fromkeys(check_topic_name(name) for name in names if name))


def _milliseconds(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > INT64_MAX:
        raise argparse.ArgumentTypeError(f"expected milliseconds since 1970, found '{text}'")
    return int(text)
