"""The security floor, where no other test has it: versions, secrets in what is committed, what the deployment opens.

Each line of docs/security.md names its test; this file holds that list to what there is.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib.metadata import version
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from tests.conftest import ROOT

# Older ones run what anybody sends them (Ray's jobs, MLflow's artifacts), or unpickle what torch.load is given.
FLOORS = {"ray": (">=", "2.56"), "mlflow": (">", "3.17.1"), "torch": (">=", "2.10")}


@pytest.mark.parametrize("name", list(FLOORS))
def test_versions_with_known_holes_are_not_installed_and_cannot_be(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (asked,) = [
        one
        for one in map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["train"]])
        if one.name == name
    ]
    operator, lowest = FLOORS[name]
    assert f"{operator}{lowest}" in {str(part) for part in asked.specifier}
    pinned = re.search(rf"^{name}(?:\[.*\])?==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None
    for found in (pinned[1], version(name)):
        assert asked.specifier.contains(Version(found), prereleases=True)
    assert not asked.specifier.contains(lowest) or operator == ">="


def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "deploy/compose.yaml").read_text(encoding="utf-8"))


def test_what_compose_opens_it_opens_to_this_machine_alone() -> None:
    ports = [port for service in compose()["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_no_secret_is_committed_or_on_a_command_line() -> None:
    secret = re.compile(r"PASSWORD|SECRET|TOKEN|KEY", re.IGNORECASE)
    for name, service in compose()["services"].items():
        for key, value in service.get("environment", {}).items():
            if secret.search(key) and not key.endswith("_PATH"):
                assert re.fullmatch(r"\$\{\w+:\?see deploy/env\.example\}", value), (name, key)
        for part in ("command", "healthcheck"):
            assert set(re.findall(r"\$\{(\w+)", str(service.get(part, "")))) <= {"WORKER_CPUS"}, name
    example = (ROOT / "deploy/env.example").read_text(encoding="utf-8")
    lines = [line.partition("=") for line in example.splitlines() if line and not line.startswith("#")]
    asked = set(re.findall(r"\$\{(\w+):\?", (ROOT / "deploy/compose.yaml").read_text(encoding="utf-8")))
    # A secret has no value here, and what has one is no secret.
    assert asked == {name for name, _, value in lines if not value}
    assert not any(secret.search(name) for name, _, value in lines if value)
    ignored = subprocess.run(["git", "check-ignore", "deploy/.env"], cwd=ROOT, capture_output=True, text=True)
    assert ignored.stdout.strip() == "deploy/.env"


def test_no_instruction_writes_a_token_or_a_password_into_the_checkout() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(p for p in (ROOT / "deploy").rglob("*") if p.is_file())]
    told = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    # A shell's redirection into a file, in a line about secrets.
    written = [
        (line, target)
        for line in told
        if re.search("token|secret|password", line, re.IGNORECASE)
        for target in re.findall(r"(?<= )>{1,2} *([\w~$.][\w~$./-]*)", line.partition("     #")[0])
    ]
    assert {target for _, target in written} == {"~/.ray/auth_token"}, written


def test_docker_is_sent_what_it_copies_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copies = re.findall(r"^COPY (.*) \S+$", (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    copied = {name for line in copies for name in line.split()}
    everything, *but = [line for line in lines if not line.startswith("#")]
    assert everything == "*"
    # Docker's `**/` is any number of folders, and its `*` a part of one name.
    parts = {"**/": "(?:.*/)?", "*": "[^/]*"}
    sent = re.compile(
        "|".join(re.sub(r"\*\*/|\*|[^*]+", lambda part: parts.get(part[0]) or re.escape(part[0]), line[1:]) for line in but)
    )
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    wanted = {name for name in tracked if name in copied or name.partition("/")[0] in copied}
    assert {name for name in tracked if sent.fullmatch(name)} == wanted
    assert {name for name in copied if not (ROOT / name).is_dir()} <= wanted
    for secret in ("deploy/.env", "pipeline/.env", "pipeline/serving/.env", "stages/key.pem", ".git/config", "params.yaml"):
        assert not sent.fullmatch(secret), secret


def test_every_line_of_the_page_names_a_test_that_there_is() -> None:
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", page)
    rows = [line for line in page.splitlines() if line.startswith("| ") and "tests/" in line]
    assert len(rows) >= 12
    assert all("::" in row for row in rows)
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), (file, test)
