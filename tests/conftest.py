"""Fixtures: the shared data, a tiny backbone, a copy of the project to run DVC in."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from pipeline.utils.logs import LOG_VARIABLE, set_up
from tests.copies import PLAIN, ROOT, copy_project

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["PLAIN", "ROOT", "copy_project"]

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Ray gives way to everything else on a machine; here that is another test, and its own would wait for minutes.
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.pop(LOG_VARIABLE, None)
# As the entry points do; tests call what is below them.
set_up()

# Tests press Ctrl-C; whoever started this in a shell's background has had it ignored, by all children too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_LONGEST = ("stages/test_dvc.py", "distributed/test_trials.py")


# They start Ray, DVC, MLflow, an S3 server, a browser or a process that imports torch, or take long: `slow`, as single tests
# elsewhere, which say so themselves.
_SLOW = (
    "cli/",
    "cluster/",
    "distributed/",
    "inference/test_export.py",
    "inference/test_onnx_export.py",
    "registry/",
    "report/test_browser.py",
    "serving/",
    "stages/",
    "storage/",
    "test_bench.py",
    "tracking/",
)
# Seconds for a test with its fixtures, which may be those of many tests; pyproject.toml has the timeout of the others. `.ci/run`
# lets the faults wait for everything else on the machine.
_TIMEOUTS = {"slow": 1200, "cluster": 1800, "faults": 1800}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first (with --no-loadscope-reorder): one of them alone at the end leaves a core idle for minutes.

    Slow tests get their marker, and they and those of faults and clusters a longer timeout.
    """
    order = {ROOT / "tests" / name: k for k, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))
    for item in items:
        if item.path.relative_to(ROOT / "tests").as_posix().startswith(_SLOW):
            item.add_marker("slow")
        patience = max((seconds for name, seconds in _TIMEOUTS.items() if item.get_closest_marker(name)), default=None)
        if patience is not None:
            item.add_marker(pytest.mark.timeout(patience))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real NLI data; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("GAUSSCSE_DATA") or ROOT / "../shared/data").resolve()
    if not (folder / "nli").is_dir():
        pytest.skip(f"the shared NLI data is not in {folder}: set GAUSSCSE_DATA")
    return folder


@pytest.fixture(scope="session")
def tiny_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers with a vocabulary of its own."""
    from tests.tiny import make_tiny_backbone

    return make_tiny_backbone(tmp_path_factory.mktemp("backbone") / "tiny")


Command = Callable[[Callable[[Sequence[str]], None], Path, Sequence[str]], tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process, which has imported already what takes seconds: exit code, stdout, stderr."""
    from pipeline.utils.errors import run_stage

    def run(main: Callable[[Sequence[str]], None], root: Path, arguments: Sequence[str]) -> tuple[int, str, str]:
        monkeypatch.chdir(root)
        capsys.readouterr()
        code = 0
        try:
            run_stage(lambda: main(arguments))
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the session: while it runs, playwright's event loop is that of the process."""
    from tests.chromium import chromium

    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """A storage on an S3 server (moto's, over HTTP), as cluster.storage names it; the keys are in the environment."""
    import boto3
    from moto.server import ThreadedMotoServer

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "an-id")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1").create_bucket(Bucket="team")
        yield f"s3://team/gausscse?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
        server.stop()
