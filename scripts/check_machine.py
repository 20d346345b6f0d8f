"""Is this machine fit? One clear line on stderr and exit code 1 if not. Runs on any Python 3, with nothing installed.

python3 scripts/check_machine.py            Python and Java
python3 scripts/check_machine.py python     this Python alone
"""

import os
import re
import subprocess
import sys

MIN_PYTHON = (3, 10)
MIN_JAVA = 17


def python_problem() -> "str | None":
    """Why this interpreter will not do, or None."""
    found = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info[:2] < MIN_PYTHON:
        return "sparklog needs Python 3.10 or newer, found " + found + " (" + sys.executable + "): make PYTHON=<path>"
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return "Python " + found + " (" + sys.executable + ") cannot make virtual environments: install python3-venv"
    return None


def java_problem() -> "str | None":
    """Why Spark will not start, or None. Looks where Spark looks: JAVA_HOME, then PATH."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    wanted = "Spark needs Java 17 or newer"
    remedy = ": install one (say openjdk-17-jre-headless) and put it on PATH or into JAVA_HOME"
    try:
        process = subprocess.Popen([java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said = process.communicate()[0].decode("utf-8", "replace")
    except OSError:
        return wanted + ", found none (tried " + java + ")" + remedy
    version = re.search(r'version "(?:1\.)?([0-9]+)', said)
    if version is None:
        return wanted + ", but " + java + " -version says: " + " ".join(said.split())[:80] + remedy
    if int(version.group(1)) < MIN_JAVA:
        return wanted + ", found Java " + version.group(1) + " (" + java + ")" + remedy
    return None


def main(arguments: "list[str]") -> int:
    """Exit code: 0 if the machine is fit."""
    problem = python_problem() or (None if arguments == ["python"] else java_problem())
    if problem is None:
        return 0
    sys.stderr.write(problem + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
