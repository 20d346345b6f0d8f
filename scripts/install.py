"""Run pip and show what it does: python install.py <pip arguments>. Runs on any Python 3, with nothing installed.

pip alone prints hundreds of lines, or with --quiet nothing for minutes. This prints one line for each download of a
megabyte or more, with the time and the sum so far; where it has printed nothing for ten seconds, how many packages are
installed by now, or pip's newest line before it gets to that; and all of pip's output if it fails.
"""

import os
import queue
import re
import subprocess
import sys
import sysconfig
import threading
import time

DOWNLOAD = re.compile(r"^ *(?:Downloading|Using cached) (?:\S*/)?(\S+) \(([\d.]+) ([kMG]?B)\)")
MEGABYTES = {"B": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3}
STEPS = ("Building wheel", "Installing collected")
PIP = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
SITE = sysconfig.get_path("purelib")
SILENT_SECONDS = 10


def main(arguments: "list[str]") -> int:
    """Return pip's exit code."""
    process = subprocess.Popen([*PIP, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=read, args=(process, lines), daemon=True).start()
    progress = Progress()
    while True:
        try:
            line = lines.get(timeout=max(0.0, progress.shown + SILENT_SECONDS - time.monotonic()))
        except queue.Empty:
            progress.show(progress.now())
            continue
        if line is None:
            break
        progress.add(line)
    code = process.wait()
    if code:
        sys.stderr.write("".join(progress.output))
    return code


def read(process: "subprocess.Popen[str]", lines: "queue.Queue[str | None]") -> None:
    """Hand on what pip prints, then None."""
    for line in process.stdout or ():
        lines.put(line)
    lines.put(None)


def packages() -> "set[str]":
    """Return the packages that are installed, by what pip leaves beside each when it is whole."""
    return {name for name in os.listdir(SITE) if name.endswith(".dist-info")}


class Progress:
    """The lines that pip has printed, and those of them that are shown."""

    def __init__(self) -> None:
        self.started = self.shown = time.monotonic()
        self.before = packages()
        self.output: list[str] = []
        self.megabytes = 0.0

    def add(self, line: str) -> None:
        """Keep a line of pip, and show it if it is about a large download or a long step."""
        self.output.append(line)
        match = DOWNLOAD.match(line)
        size = float(match.group(2)) * MEGABYTES[match.group(3)] if match else 0.0
        self.megabytes += size
        if match and size >= 1:
            self.show(f"{match.group(1)} ({size:.0f} MB), {self.megabytes:.0f} MB so far")
        elif line.startswith(STEPS):
            self.show(line.split("(")[0].split(":")[0].strip().lower())

    def now(self) -> str:
        """Return what pip is at; no line of pip need be known for it."""
        done = len(packages() - self.before)
        if done:
            return f"packages installed: {done}"
        return " ".join(self.output[-1].split())[:100] if self.output else "pip starts"

    def show(self, text: str) -> None:
        self.shown = time.monotonic()
        print(f"  {self.shown - self.started:3.0f} s  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
