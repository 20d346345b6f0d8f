"""Test the Dockerfile of the demo without Docker: the files that it copies and the modules that it runs exist.

`test_wheel.py` runs the demo like the image: from a wheel, in a directory that contains only `examples/`.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from fnmatch import fnmatch
from importlib.util import find_spec

from scripts.check_machine import MIN_JAVA
from tests.test_architecture import REPOSITORY
from tests.test_packaging import project


@dataclass
class Stage:
    """A stage of the Dockerfile, from a FROM to the next: the base, its name, and the instructions with their
    arguments.
    """

    base: str
    name: str = ""
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [arguments for name, arguments in self.steps if name == instruction]


def stages() -> list[Stage]:
    lines = [line for line in (REPOSITORY / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    found: list[Stage] = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        instruction, _, arguments = line.strip().partition(" ")
        if instruction == "FROM":
            base, _, name = arguments.partition(" AS ")
            found.append(Stage(base, name))
        elif instruction:
            found[-1].steps.append((instruction, " ".join(arguments.split())))
    return found


def copied(stage: Stage) -> list[str]:
    """Return the paths of the repository that a stage copies."""
    taken: list[str] = []
    for arguments in stage.all("COPY"):
        words = shlex.split(arguments)
        if not any(word.startswith("--from") for word in words):
            taken += [word for word in words if not word.startswith("--")][:-1]
    return taken


def is_ignored(path: str) -> bool:
    """Return True if .dockerignore excludes a path. The last matching line applies, and `!` includes the path again."""
    ignored = False
    for line in (REPOSITORY / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        if line.startswith("#") or not pattern:
            continue
        beginnings = ["/".join(path.split("/")[: i + 1]) for i in range(path.count("/") + 1)]
        names = path.split("/") if "**/" in line else beginnings
        if any(fnmatch(name, pattern) for name in names):
            ignored = not line.startswith("!")
    return ignored


def test_dockerfile_instructions_are_valid() -> None:
    names = {name for stage in stages() for name, _ in stage.steps}
    assert names <= {"RUN", "COPY", "ENV", "WORKDIR", "USER", "CMD"}
    assert [stage.name for stage in stages()] == ["build", ""]


def test_base_image_is_pinned_to_a_supported_python() -> None:
    (base,) = {stage.base for stage in stages()}
    tag = re.fullmatch(r"python:(3\.\d+)\.\d+-slim-(bookworm|trixie)", base)
    assert tag is not None, "name a release, to its last number, and Debian's name"
    assert f"Programming Language :: Python :: {tag[1]}" in project()["project"]["classifiers"]


def test_java_is_supported_and_apt_lists_are_removed() -> None:
    (install,) = [run for run in stages()[-1].all("RUN") if "apt-get" in run]
    java = re.search(r"openjdk-(\d+)-jre-headless", install)
    assert java is not None
    assert int(java[1]) >= MIN_JAVA
    assert "--no-install-recommends" in install
    assert install.endswith("rm -rf /var/lib/apt/lists/*"), "else it stays in the layer"


def test_copied_files_exist_and_are_not_ignored() -> None:
    for stage in stages():
        for path in copied(stage):
            assert (REPOSITORY / path).exists(), path
            assert not is_ignored(path), path
    assert is_ignored("tests/conftest.py")
    assert is_ignored(".venv/bin/python")
    assert is_ignored("sparklog/format/__pycache__/x.pyc")


def test_image_builds_the_wheel_from_all_sources() -> None:
    build, declared = stages()[0], project()
    sdist = declared["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]
    named = ["pyproject.toml", declared["project"]["readme"], *declared["project"]["license-files"]]
    assert sorted(copied(build)) == sorted({*sdist, *named})


def test_image_runs_as_another_user_and_shows_the_demo() -> None:
    last = stages()[-1]
    (user,) = last.all("USER")
    assert any(run.startswith("useradd") and run.endswith(user) for run in last.all("RUN"))
    after = [name for name, _ in last.steps][[name for name, _ in last.steps].index("USER") :]
    assert "COPY" not in after
    (command,) = last.all("CMD")
    program, script = json.loads(command)
    assert program == "python"
    assert any(script.startswith(path) and (REPOSITORY / script).is_file() for path in copied(last))


def test_modules_that_the_image_runs_exist() -> None:
    runs = [run for stage in stages() for run in stage.all("RUN")]
    modules = [module for run in runs for module in re.findall(r"python -m ([\w.]+)", run)]
    assert modules
    assert all(find_spec(module) is not None for module in modules)
