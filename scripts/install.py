"""Run pip and show its progress: python install.py <pip arguments>.

The script runs with any Python 3 and without other packages. pip alone prints hundreds of lines or, with --quiet,
nothing for minutes. This script prints one line for each download of at least one megabyte, with the elapsed time and
the total size. If it has not printed a line for ten seconds, it prints the number of installed packages or, before
packages are installed, the last line of pip. If pip fails, the script prints the complete output of pip.
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
    """Return the exit code of pip."""
    process = subprocess.Popen([*PIP, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=read, args=(process, lines), daemon=True).start()
    progress = Progress()
    while True:
        try:
            line = lines.get(timeout=max(0.0, progress.shown_at + SILENT_SECONDS - time.monotonic()))
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
    """Put the lines of pip into the queue, followed by None."""
    for line in process.stdout or ():
        lines.put(line)
    lines.put(None)


def packages() -> "set[str]":
    """Return the names of the .dist-info directories, one for each completely installed package."""
    return {name for name in os.listdir(SITE) if name.endswith(".dist-info")}


class Progress:
    """The output of pip, and the progress that is shown_at."""

    def __init__(self) -> None:
        self.started = self.shown_at = time.monotonic()
        self.before = packages()
        self.output: list[str] = []
        self.total_megabytes = 0.0

    def add(self, line: str) -> None:
        """Add a line of pip. Show the line if it is about a large download or a long step."""
        self.output.append(line)
        match = DOWNLOAD.match(line)
        size = float(match.group(2)) * MEGABYTES[match.group(3)] if match else 0.0
        self.total_megabytes += size
        if match and size >= 1:
            self.show(f"{match.group(1)} ({size:.0f} MB), {self.total_megabytes:.0f} MB so far")
        elif line.startswith(STEPS):
            self.show(line.split("(")[0].split(":")[0].strip().lower())

    def now(self) -> str:
        """Return the current progress, which does not depend on the format of pip's lines."""
        done = len(packages() - self.before)
        if done:
            return f"packages installed: {done}"
        return " ".join(self.output[-1].split())[:100] if self.output else "starting pip"

    def show(self, text: str) -> None:
        self.shown_at = time.monotonic()
        print(f"  {self.shown_at - self.started:3.0f} s  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
