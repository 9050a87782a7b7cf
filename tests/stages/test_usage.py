"""docs/usage.md: its commands are run, one after the other in one shell, and what they print is held against what the page shows.

Numbers, digests, times and the width of columns are the run's own; everything else has to be as it stands there. `...` on the
page stands for anything: alone on its line for any lines, else for a part of the line.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from copies import ROOT

PAGE = ROOT / "docs/usage.md"
PORT = "5001"
# Each command's output ends with this line, and its exit status.
_END = "--- end of"


@dataclass(frozen=True)
class Shown:
    """A command of the page, and what it shows of its output."""

    command: str
    output: str
    line: int


def shown(page: Path = PAGE) -> list[Shown]:
    found: list[Shown] = []
    text = page.read_text(encoding="utf-8")
    for block in re.finditer(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, block.start(1))
        for entry in re.split(r"^\$ ", block[1], flags=re.MULTILINE)[1:]:
            command, output = _split(entry)
            found.append(Shown(command, output, line + 1))
            line += entry.count("\n")
    return found


def _split(entry: str) -> tuple[str, str]:
    lines = entry.split("\n")
    last = 0
    # A command goes on where a line ends with a backslash, or a quote is open.
    while lines[last].endswith("\\") or "\n".join(lines[: last + 1]).count("'") % 2:
        last += 1
    return "\n".join(lines[: last + 1]), "\n".join(lines[last + 1 :])


def plain(text: str, root: Path | None = None) -> str:
    """Without what differs from run to run."""
    if root is not None:
        text = text.replace(str(root), "PROJECT")
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    text = re.sub(r"\b(?:\d+h)?(?:\d+m)?\d+s\b", "0s", text)
    text = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{7,64}\b", "x", text)
    text = re.sub(r"[-+−]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", "0", text)
    text = re.sub(r"\b(?:True|False|true|false)\b", "bool", text)
    text = re.sub(r"-{2,}", "--", text)
    # What is cut, and what a search finds, is the corpus's.
    text = re.sub(r"; 0 were too long for the model and were cut", "", text)
    text = re.sub(r"(  row 0)  .*", r"\1  text", text)
    return "\n".join(re.sub(r"[ \t]+", " ", line).strip() for line in text.splitlines() if line.strip())


def pattern(output: str) -> str:
    parts: list[str] = []
    for line in plain(output).splitlines():
        if line == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*?".join(map(re.escape, line.split("..."))) + r"\n")
    return "".join(parts)


def matches(output: str, printed: str, root: Path) -> bool:
    text = plain(printed, root)
    return re.fullmatch(pattern(output), text + "\n" if text else "") is not None


@pytest.fixture(scope="module")
def shell(committed: Path, queued: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A shell in a copy of the project after its first `dvc repro` and one experiment, as a user has it."""
    root = Path(shutil.copytree(committed, tmp_path_factory.mktemp("usage") / "project", symlinks=True))
    kept = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    environment = {**kept, "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    process = subprocess.Popen(
        ["bash"], cwd=root, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    yield root, process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def ran(process: subprocess.Popen[str], command: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{command}\necho; echo {_END} $?\n")
    process.stdin.flush()
    lines: list[str] = []
    for line in process.stdout:
        if line.startswith(_END):
            return "".join(lines)
        lines.append(line)
    raise AssertionError(f"the shell ended with {command}:\n{''.join(lines)}")


# No fault, but minutes that nobody has who runs the tests.
@pytest.mark.faults
@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_every_command_prints_what_the_page_shows(shell: tuple[Path, subprocess.Popen[str]], first: str, queued: str) -> None:
    root, process = shell
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # What takes minutes was run for all tests together.
    queueing = "dvc exp run --queue --name hot --set-param objective.temperature=0.1 && dvc exp run --run-all"
    recorded = {"dvc repro": first, queueing: queued}
    wrong: list[str] = []
    for one in shown():
        printed = recorded.pop(one.command, None)
        if printed is None:
            printed = ran(process, one.command.replace(PORT, port))
        if not matches(one.output, printed.replace(port, PORT), root):
            wrong.append(f"docs/usage.md:{one.line}: $ {one.command}\nshown:\n{plain(one.output)}\nprinted:\n{printed}")
    assert not wrong, "\n\n".join(wrong)
    assert not recorded, "the page no longer has these"


def test_what_the_page_shows_is_held_against_what_is_printed(tmp_path: Path) -> None:
    page, printed = "step 10 loss 0.5\n...\ndone in 3s, ... rows\n", "step 2  loss 7.25e-3\nx\ny\ndone in 1m03s, many rows\n"
    assert matches(page, printed, tmp_path)
    assert not matches(page, printed.replace("loss", "lost"), tmp_path)
    assert not matches(page, f"{printed}and more\n", tmp_path)
    assert not matches("", "Traceback\n", tmp_path)
    assert matches("", "\n", tmp_path)


def test_the_tour_of_the_readme_is_on_the_page() -> None:
    tour = [one.command for one in shown(ROOT / "README.md")]
    assert len(tour) >= 6
    assert set(tour) - {". .venv/bin/activate"} <= {one.command for one in shown()}


def test_every_command_that_users_have_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    modules = {
        file.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__main__")
        for file in (ROOT / "pipeline").rglob("*.py")
        if '\nif __name__ == "__main__":' in file.read_text(encoding="utf-8")
    }
    # That one is for who changes the parameters' own documentation.
    assert {module for module in modules - {"pipeline.cli.reference"} if f"python -m {module}" not in page} == set()
