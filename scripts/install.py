"""Run pip and show what it downloads: python install.py <pip arguments>. Runs on any Python 3, with nothing installed.

pip alone prints hundreds of lines, or with --quiet nothing for minutes. This prints one line for each download of a
megabyte or more, with the time and the sum so far, and all of pip's output if it fails.
"""

import re
import subprocess
import sys
import time

DOWNLOAD = re.compile(r"^ *(?:Downloading|Using cached) (?:\S*/)?(\S+) \(([\d.]+) ([kMG]?B)\)")
MEGABYTES = {"B": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3}
STEPS = ("Building wheel", "Installing collected")


def main(arguments: "list[str]") -> int:
    """Return pip's exit code."""
    started = time.monotonic()
    output = []
    total = 0.0
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    process = subprocess.Popen([*pip, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in process.stdout or ():
        output.append(line)
        match = DOWNLOAD.match(line)
        size = float(match.group(2)) * MEGABYTES[match.group(3)] if match else 0.0
        total += size
        if match and size >= 1:
            show(started, f"{match.group(1)} ({size:.0f} MB), {total:.0f} MB so far")
        elif line.startswith(STEPS):
            show(started, line.split("(")[0].split(":")[0].strip().lower())
    code = process.wait()
    if code:
        sys.stderr.write("".join(output))
    return code


def show(started: float, text: str) -> None:
    print(f"  {time.monotonic() - started:3.0f} s  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
