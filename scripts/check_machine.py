"""Check that this host meets the requirements. If not, print one line to stderr and exit with code 1.

The script runs with any Python 3 and without other packages.

    python3 scripts/check_machine.py            check Python and Java
    python3 scripts/check_machine.py python     check only this Python
"""

import os
import re
import subprocess
import sys

MIN_PYTHON = (3, 10)
MIN_JAVA = 17


def python_problem() -> "str | None":
    """Return the reason why this interpreter is not suitable, or None."""
    found = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info[:2] < MIN_PYTHON:
        return (
            "sparklog requires Python 3.10 or newer, found " + found + " (" + sys.executable + "): make PYTHON=<path>"
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return "Python " + found + " (" + sys.executable + ") cannot create virtual environments; install python3-venv"
    return None


def java_problem() -> "str | None":
    """Return the reason why Spark cannot start, or None. Like Spark, check JAVA_HOME and then the PATH."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    required = "Spark requires Java 17 or newer"
    remedy = "; install Java (for example openjdk-17-jre-headless) and add it to the PATH or set JAVA_HOME"
    try:
        process = subprocess.Popen([java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output = process.communicate()[0].decode("utf-8", "replace")
    except OSError:
        return required + ", but " + java + " was not found" + remedy
    version = re.search(r'version "(?:1\.)?([0-9]+)', output)
    if version is None:
        return required + ", but " + java + " -version prints: " + " ".join(output.split())[:80] + remedy
    if int(version.group(1)) < MIN_JAVA:
        return required + ", found Java " + version.group(1) + " (" + java + ")" + remedy
    return None


def main(arguments: "list[str]") -> int:
    """Return the exit code, which is 0 if all requirements are met."""
    problem = python_problem() or (None if arguments == ["python"] else java_problem())
    if problem is None:
        return 0
    sys.stderr.write(problem + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
