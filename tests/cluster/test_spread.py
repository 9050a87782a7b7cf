"""Where stages prepare and tokenize of large data run."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.cluster.spread import _LARGE, raw_files, spread_for
from pipeline.config.execution import ClusterParams
from pipeline.config.job_inputs import INPUTS_VARIABLE, Inputs, owner


def test_without_a_cluster_or_with_little_data_a_stage_runs_here(tmp_path: Path) -> None:
    large, small = {tmp_path / "a": _LARGE}, {tmp_path / "a": _LARGE - 1}
    # No cluster answers there, so asking one would raise an error.
    for address, files in ((None, large), ("10.255.255.1:6379", small)):
        with spread_for("prepare", ClusterParams(address=address), files, {}) as spread:
            assert spread is None


def test_where_others_are_jobs_a_stage_that_is_none_runs_here(tmp_path: Path) -> None:
    """Such as prepare of raw data outside the project."""
    with spread_for("prepare", ClusterParams(address="http://10.255.255.1:8265"), {tmp_path / "a": _LARGE}, {}) as spread:
        assert spread is None


def test_a_job_has_the_name_of_the_checkout_that_sent_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = owner(tmp_path)
    assert here == owner(tmp_path) != owner(tmp_path / "other")
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    monkeypatch.setenv(INPUTS_VARIABLE, Inputs(objects={}, commit="c", versions={}, owner="of-a-laptop").model_dump_json())
    assert owner(tmp_path) == "of-a-laptop"


def test_files_that_are_missing_are_left_to_the_stage(tmp_path: Path) -> None:
    from tests.data.test_partitions import params

    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    assert raw_files(params(tmp_path)) == {tmp_path / "a.parquet": 4}
