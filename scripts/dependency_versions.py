"""Print versions of the dependencies in pyproject.toml: `python dependency_versions.py lowest|installed`.

lowest     the lowest allowed version of each package as a pip constraint, for example `numpy==1.26`
installed  the versions that are installed for this Python, in one line
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
RANGE = re.compile(r'"([\w.-]+)(?:\[[\w,-]+\])?>=([\w.]+),<[\w.]+"')


def lowest_versions() -> dict[str, str]:
    """Return the lower bound of each version range. Regular expressions are used, because Python 3.10 has no TOML
    parser.
    """
    return dict(sorted(RANGE.findall(PYPROJECT.read_text())))


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that are installed for this Python."""
    found = {}
    for name in lowest_versions():
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    if arguments == ["lowest"]:
        print("\n".join(f"{name}=={low}" for name, low in lowest_versions().items()))
    elif arguments == ["installed"]:
        python = sys.version.split()[0]
        print(", ".join(f"{name} {number}" for name, number in {"Python": python, **installed_versions()}.items()))
    else:
        print(f"expected lowest or installed, found {' '.join(arguments) or 'nothing'}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
