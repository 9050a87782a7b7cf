"""What a job says to the terminal, and which MLflow it asks."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
from ray.job_submission import JobStatus

from pipeline.cluster.jobs import _Job
from pipeline.cluster.submit import submit
from pipeline.config.load import load_execution
from pipeline.utils.errors import UserError, fail
from tests.conftest import ROOT


def test_what_a_job_s_log_says_to_the_terminal_is_shown_and_not_done(capsys: pytest.CaptureFixture[str]) -> None:
    class Client:
        """The client as far as it gives a log: in pieces, and the whole log again after a lost connection."""

        pieces = (
            "step 1\tloss 2\n10 %\r20 %\r",
            "30 %\n",
            "\x1b]0;owned\x07\x1b[8mhidden\x9b",
            "\u202eerror: txt\r\nZürich 日本\n",
        )

        async def tail_job_logs(self, name: str) -> AsyncIterator[str]:
            for piece in self.pieces:
                yield piece

        def get_job_status(self, name: str) -> JobStatus:
            return JobStatus.SUCCEEDED

    job = _Job(Client(), "work", "http://head:8265")  # type: ignore[arg-type]
    job.follow()
    job.follow()
    said = r"\x1b]0;owned\x07\x1b[8mhidden\x9b\u202eerror: txt"
    assert capsys.readouterr().out == f"step 1\tloss 2\n10 %\n20 %\n30 %\n{said}\nZürich 日本\n"


def test_an_error_line_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    # As the reason of a job that failed, which is a line of its log.
    with pytest.raises(SystemExit):
        fail(UserError("job a failed: \x1b[2Jall is well\u202e"))
    assert capsys.readouterr().err == "error: job a failed: \\x1b[2Jall is well\\u202e\n"


def test_a_job_submitted_by_hand_asks_the_mlflow_of_this_shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    execution = load_execution(ROOT / "execution.yaml")
    cluster = execution.cluster.model_copy(update={"address": "http://head:8265"})
    execution = execution.model_copy(update={"cluster": cluster})

    def instead(file: str, arguments: list[str]) -> None:
        assert file == arguments[0] == "ray"
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvp", instead)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    with pytest.raises(SystemExit):
        submit(execution, "pipeline.cli", "encode", "/a corpus", "/out")
    said = capsys.readouterr().out
    assert """ --runtime-env-json '{"env_vars": {"MLFLOW_TRACKING_URI": "http://mlflow:5000"}}' """ in said
    assert said.endswith(" -- python -m pipeline.cli encode '/a corpus' /out\n")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(SystemExit):
        submit(execution, "stages.tune")
    assert capsys.readouterr().out == "ray job submit --address http://head:8265 --working-dir . -- python -m stages.tune\n"
