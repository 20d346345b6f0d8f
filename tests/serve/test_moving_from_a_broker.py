"""Run the commands of docs/guides/from-a-broker.md with a Kafka log directory that has topics and a group."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import sparklog
from tests.support.command_line import invoke

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "from-a-broker.md").read_text()


def section(heading: str) -> str:
    return GUIDE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def blocks(heading: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", section(heading), re.MULTILINE | re.DOTALL)


class Shell:
    """Runs the commands of the guide with other paths. Files of redirections are in `folder`."""

    def __init__(self, folder: Path, paths: dict[str, Path]) -> None:
        self.folder = folder
        self._paths = paths

    def with_paths(self, text: str) -> str:
        for path, other in self._paths.items():
            text = text.replace(path, str(other))
        return text

    def run(self, heading: str) -> None:
        """Run the sparklog commands and the comparisons of a section. Other programs are skipped."""
        for line in "".join(blocks(heading, "sh")).splitlines():
            command, _, redirection = line.partition(" > ")
            words, *pipe = command.split(" | ")
            program, *arguments = shlex.split(self.with_paths(words))
            if program == "diff":
                first, second = ((self.folder / name).read_text() for name in arguments)
                assert first == second
                assert first.strip()
            elif program == "sparklog" and arguments[0] != "serve":
                result = invoke([str(self.folder / word) if word == "billing.csv" else word for word in arguments])
                assert result.exit_code == 0, (line, result.stderr)
                output = result.stdout
                if pipe:
                    assert pipe == ["cut -d, -f1-4"]
                    output = "".join(",".join(row.split(",")[:4]) + "\n" for row in output.splitlines())
                if redirection:
                    (self.folder / redirection).write_text(output)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Return a shell for a Kafka log directory with the topics orders and clicks, and the group billing."""
    source = sparklog.open(tmp_path / "source", create=True)
    for name, partitions in (("orders", 2), ("clicks", 1)):
        topic = source.create_topic(name, partitions=partitions, configs={"retention.ms": -1})
        topic.append([{"value": b"%d" % number, "partition": number % partitions} for number in range(6)])
    sparklog.Groups(source).group("billing").alter({"orders": {0: 1, 1: 2}, "clicks": {0: 3}})
    kafka = tmp_path / "kafka"
    sparklog.export_kafka(source, ["orders", "clicks"], str(kafka), groups=["billing"])
    (kafka / "consumer-groups.csv").unlink()
    properties = tmp_path / "server.properties"
    properties.write_text("num.partitions=3\n")
    return Shell(
        tmp_path,
        {
            "/opt/kafka/config/server.properties": properties,
            "/var/lib/kafka/data": kafka,
            "/data/log": tmp_path / "log",
            "/data/back": tmp_path / "back",
        },
    )


def test_an_import_and_a_return(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run("Move topics with an import")
    root = sparklog.open(shell.folder / "log")
    assert root.topics() == ["clicks", "orders"]
    shell.run("Check that nothing is missing")
    (program,) = blocks("Check that nothing is missing", "python")
    exec(compile(shell.with_paths(program), "from-a-broker.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["clicks 6 6", "orders 6 6"]
    root.topic("orders").append([{"value": b"later", "partition": 0}])
    shell.run("Go back")
    assert (shell.folder / "billing.csv").read_text().splitlines() == ["clicks,0,3", "orders,0,1", "orders,1,2"]
    back = sparklog.open_view(shell.folder / "back")
    assert back.topic("orders").scan(partitions=[0]).to_table()["value"].to_pylist() == [b"0", b"2", b"4", b"later"]


def test_offsets_of_a_group_after_a_mirror(shell: Shell) -> None:
    root = sparklog.open(shell.folder / "log", create=True)
    root.create_topic("orders", partitions=2).append([{"value": b"%d" % n, "partition": n % 2} for n in range(6)])
    (shell.folder / "billing.csv").write_text('"orders",0,1\n"orders",1,2\n')
    copied, by_time = blocks("Move topics with a mirror", "sh")
    group = sparklog.Groups(root).group("billing")
    for text, offsets in ((copied, [1, 2]), (by_time, [0, 0])):
        (command,) = (line for line in text.splitlines() if line.startswith("sparklog "))
        words = shlex.split(shell.with_paths(command).replace("billing.csv", str(shell.folder / "billing.csv")))[1:]
        assert invoke(words).exit_code == 0
        assert [each.offset for each in group.committed().values()] == offsets


def test_commands_have_the_options_they_use() -> None:
    options = invoke(["serve", "--help"]).output
    commands = re.findall(r"^sparklog serve.*$", GUIDE, re.MULTILINE)
    assert len(commands) == 2
    assert all(option in options for option in re.findall(r"(--[a-z-]+)", "\n".join(commands)))
