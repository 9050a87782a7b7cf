"""The commands of a page: they are run, and what they print is held against what the page shows.

A page shows a command after `$ ` in a block ```` ```console ````, and below it what the command prints. A command goes on in the
next line after a backslash, inside quotes, and up to the end of a heredoc. `head$ ` is a command on the host `head`, and `$ ` is
one on the reader's own machine.

Numbers, digests, times and the width of columns are the run's own. Everything else has to be as the page has it, and so has the
number of the version that a server names (`gausscse/2`). `...` on the page is for anything: alone on its line for any lines, else
for a part of the line.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.copies import ROOT

# Each command's output ends with this line, and its exit status.
_END = "--- end of"
# Host, and the command with what the page shows of its output.
_ENTRY = re.compile(r"^(\w*)\$ (.*?)(?=^\w*\$ |\Z)", re.MULTILINE | re.DOTALL)
_HEREDOC = re.compile(r"<<\s*'(\w+)'")


@dataclass(frozen=True)
class Shown:
    """A command of a page, and what the page shows of its output."""

    command: str
    output: str
    line: int
    host: str = ""
    """Where it is run; empty for the reader's own machine."""


def shown(page: Path) -> list[Shown]:
    """The commands of a page, in order."""
    commands: list[Shown] = []
    text = page.read_text(encoding="utf-8")
    for block in re.finditer(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for entry in _ENTRY.finditer(block[1]):
            line = text.count("\n", 0, block.start(1) + entry.start()) + 1
            commands.append(Shown(*_split(entry[2]), line, entry[1]))
    return commands


def _split(entry: str) -> tuple[str, str]:
    """A command and its output."""
    lines = entry.split("\n")
    last = 0
    if heredoc := _HEREDOC.search(lines[0]):
        last = lines.index(heredoc[1])
    while lines[last].endswith("\\") or (not heredoc and "\n".join(lines[: last + 1]).count("'") % 2):
        last += 1
    return "\n".join(lines[: last + 1]), "\n".join(lines[last + 1 :])


def plain(text: str, root: Path | None = None) -> str:
    """Without what differs from run to run."""
    if root is not None:
        text = text.replace(str(root), "PROJECT")
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    text = re.sub(r"\b(?:\d+h)?(?:\d+m)?\d+s\b", "0s", text)
    # Before digests, as which its digits could be taken.
    text = re.sub(r"(?<!gausscse/)\b\d+\.\d+(?:[eE][-+]?\d+)?", "0", text)
    text = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{7,64}\b", "x", text)
    text = re.sub(r"(?<!gausscse/)[-+−]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", "0", text)
    text = re.sub(r"\b(?:True|False|true|false)\b", "bool", text)
    text = re.sub(r"-{2,}", "--", text)
    # What is cut, and what a search finds, is the corpus's.
    text = re.sub(r"; 0 were too long for the model and were cut", "", text)
    text = re.sub(r"(  row 0)  .*", r"\1  text", text)
    return "\n".join(re.sub(r"[ \t]+", " ", line).strip() for line in text.splitlines() if line.strip())


def matches(output: str, printed: str, root: Path) -> bool:
    """Whether a command printed what its page shows."""
    text = plain(printed, root)
    lines = plain(output).splitlines()
    pattern = [r"(?:.*\n)*?" if line == "..." else ".*?".join(map(re.escape, line.split("..."))) + r"\n" for line in lines]
    return re.fullmatch("".join(pattern), text + "\n" if text else "") is not None


def user_environment(root: Path, **more: str) -> dict[str, str]:
    """The environment of a user's shell in a project; its code is the one that commands import, as after `make setup` there."""
    kept = {key: value for key, value in os.environ.items() if key not in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS")}
    path = f"{Path(sys.executable).parent}:{kept['PATH']}"
    return {**kept, "PATH": path, "PYTHONPATH": str(root), "HF_HUB_OFFLINE": "1", "COLUMNS": "200", **more}


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Shell:
    """A bash that runs one command after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, command: str) -> str:
        """What a command prints."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{command}\necho; echo {_END} $?\n")
        stdin.flush()
        lines: list[str] = []
        for line in stdout:
            if line.startswith(_END):
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"the shell ended with {command}:\n{''.join(lines)}")


@contextmanager
def shell(root: Path, environment: Mapping[str, str], *before: str) -> Iterator[Shell]:
    """A shell in a folder; everything that it has started in its session ends with it.

    Args:
        before: what bash is started with, such as `nsenter` and its options.
    """
    process = subprocess.Popen(
        [*before, "bash"],
        cwd=root,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield Shell(process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def differences(page: Path, root: Path, run: Callable[[Shown], str], replaced: Mapping[str, str] | None = None) -> list[str]:
    """Run the commands of a page in order; a text for each whose output is not as the page shows it.

    Args:
        root: the project, whose path may be in what is printed.
        run: runs a command and gives what it prints.
        replaced: what the page has (a port, an address, a folder) → what this run has instead.
    """
    wrong: list[str] = []
    for one in shown(page):
        command = one.command
        for old, new in (replaced or {}).items():
            command = command.replace(old, new)
        printed = run(Shown(command, one.output, one.line, one.host))
        for old, new in (replaced or {}).items():
            printed = printed.replace(new, old)
        if not matches(one.output, printed, root):
            where = page.relative_to(ROOT)
            wrong.append(f"{where}:{one.line}: {one.host}$ {one.command}\nshown:\n{plain(one.output)}\nprinted:\n{printed}")
    return wrong
