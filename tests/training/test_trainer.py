from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pipeline.cluster import worker
from pipeline.data.token_sets import trial_digests
from pipeline.data.token_store import MISSING, digest, open_store, read_table
from pipeline.families.pairs.contrastive import TripletObjective
from pipeline.families.pairs.params import ContrastiveParams
from pipeline.families.pairs.triplets import GlobalBatches
from pipeline.models.encoder import GaussianEncoder
from pipeline.training import trainer
from pipeline.training.trainer import Paused, Progress, learning_rate_at
from pipeline.trials import locks
from pipeline.utils.atomic_io import read_json
from pipeline.utils.errors import RunError, UserError
from tests.outcomes import finished
from tests.store import make_store, random_stores, read_triplets
from tests.training.runs import CPU, Killed, assert_resumes, dies_at, make_trial, run, same_files
from tests.trial_of import folder_at, trial_on, worker_config


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Path, Path]:
    return random_stores(tmp_path)


def test_a_trial_depends_on_its_own_rows_alone(tiny_backbone: Path, tmp_path: Path) -> None:
    stores = random_stores(tmp_path / "plain", alone=4)
    with_text = (tmp_path / "text/train", tmp_path / "text/dev")
    for store, wide in zip(stores, with_text, strict=True):
        table = "triplets" if store.name == "train" else "dev"
        # Running text, before and between the sentences of the rows.
        own, text = [row.tolist() for row in map(open_store(store).__getitem__, range(60))], [[2, 5, 6, 7, 3], [2, 8, 3], [2, 3]]
        columns = {
            name: (np.where(c == MISSING, c, c + 1 + 2 * (c > 9))).tolist()
            for name, c in read_table(store / f"{table}.arrow").items()
            if name not in ("label", "reverse_label")
        }
        rows = list(zip(*columns.values(), strict=True))
        sentences = [text[0], *own[:10], *text[1:], *own[10:]]
        make_store(
            wide,
            sentences,
            rows={"documents": [(0,), (11,), (12,)], **({"triplets": rows} if table == "triplets" else {})},
            pairs={"dev": [(*row, k % 3) for k, row in enumerate(rows)]} if table == "dev" else None,
            shard_sentences=25,
        )
    assert all(digest(store) != digest(wide) for store, wide in zip(stores, with_text, strict=True))
    digests = trial_digests(*stores, "triplets")
    assert trial_digests(*with_text, "triplets") == digests
    trial = make_trial(tiny_backbone, stores)
    assert run(trial, stores, tmp_path / "one") == run(trial, with_text, tmp_path / "other")
    # No other sentence is encoded with them.
    made = trainer._Run(*with_text, folder_at(trial, tmp_path / "t"), lambda _: None, CPU, lambda: False)
    assert len(made.dev) == len({*made.dev_rows.premise.tolist(), *made.dev_rows.hypothesis.tolist()}) < 60
    # Other tokens, another row, or another label of a development pair.
    others = [random_stores(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    assert len({digests, *(trial_digests(*other, "triplets") for other in others)}) == 3


@pytest.mark.parametrize("changes", [{}, {"micro_batch": 5}, {"block_rows": 3}])
def test_a_run_resumed_in_mid_epoch_ends_with_the_same_bits(
    tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path, changes: dict[str, object]
) -> None:
    assert_resumes(make_trial(tiny_backbone, stores, **changes), stores, tmp_path, "best/model.safetensors")


def test_the_checkpoint_before_a_damaged_one_gives_the_same_bits(
    tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path
) -> None:
    trial = make_trial(tiny_backbone, stores)
    whole = run(trial, stores, tmp_path / "whole")
    killed = tmp_path / "killed"

    with pytest.raises(Killed):
        run(trial, stores, killed, dies_at(10))
    assert [read_json(killed / name / "state.json")["step"] for name in ("latest", "previous")] == [8, 4]
    newest = killed / "latest/model.safetensors"
    newest.write_bytes(newest.read_bytes()[:1000])
    assert locks.tidy(killed) == f"{newest}: differs from its SHA-256 sum; the file is damaged or was changed"
    assert read_json(killed / "latest/state.json")["step"] == 4
    assert run(trial, stores, killed) == whole
    assert same_files("best/model.safetensors", killed, tmp_path / "whole")
    assert sorted(p.name for p in killed.iterdir()) == ["best", "trial.json"]


@pytest.mark.parametrize("step", [1, 6])
def test_a_paused_run_ends_with_the_same_bits(tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path, step: int) -> None:
    trial = make_trial(tiny_backbone, stores)
    # Asked at its last step, a run ends instead.
    whole = run(trial, stores, tmp_path / "whole", pause=lambda steps: steps == 9)
    with pytest.raises(Paused):
        run(trial, stores, tmp_path / "paused", pause=lambda steps: steps == step - 1)
    assert read_json(tmp_path / "paused/latest/state.json")["step"] == step
    # The mean loss of a report counts the steps on both sides of the pause.
    assert run(trial, stores, tmp_path / "paused") == whole
    assert same_files("best/model.safetensors", tmp_path / "whole", tmp_path / "paused")


def test_bf16_is_float32_where_the_processor_has_no_bf16(
    tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def weights(name: str, precision: str, *, has: bool) -> dict[str, torch.Tensor]:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "amx_bf16": has})
        run(make_trial(tiny_backbone, stores, precision=precision), stores, tmp_path / name)
        return load_file(tmp_path / name / "best/model.safetensors")

    plain, without, having = weights("a", "fp32", has=False), weights("b", "bf16", has=False), weights("c", "bf16", has=True)
    assert all(torch.equal(plain[key], without[key]) for key in plain)
    assert not all(torch.equal(plain[key], having[key]) for key in plain)
    assert [read_json(tmp_path / name / "trial.json")["timing"]["precision"] for name in "abc"] == ["fp32", "fp32", "bf16"]


def test_no_passes_give_the_untrained_model(tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path) -> None:
    trial = make_trial(tiny_backbone, stores, epochs=0)
    outcome = run(trial, stores, tmp_path / "t")
    assert (outcome.best_step, outcome.total_steps, len(outcome.history)) == (0, 0, 1)
    untrained = GaussianEncoder.from_backbone(trial.model, trial.seed).state_dict()
    saved = GaussianEncoder.from_pretrained(tmp_path / "t/best").state_dict()
    assert all(torch.equal(saved[name], tensor) for name, tensor in untrained.items())


def test_a_loss_that_is_not_finite_stops_the_run(
    tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tiny_backbone, stores)

    def poison(progress: Progress) -> None:
        if progress.step == 4:
            monkeypatch.setattr("pipeline.training.trainer.learning_rate_at", lambda *_: float("inf"))

    with pytest.raises(UserError) as raised:
        run(trial, stores, tmp_path / "t", poison)
    message = str(raised.value)
    # Step 4 is the first with that learning rate and spoils the weights, step 5 the first to see them.
    assert "the loss is nan at step 5 of 10 (learning rate inf)" in message
    triplets = read_triplets(stores[0])
    batches = GlobalBatches(len(triplets), triplets[:, 0].__getitem__, 8, 3)
    assert f"its batch was rows {', '.join(map(str, sorted(batches.rows(5))))} of data/prepared/train/triplets.parquet" in message
    assert (tmp_path / "t/latest/best/model.safetensors").is_file()
    assert all(torch.isfinite(v).all() for v in load_file(tmp_path / "t/latest/model.safetensors").values())


def test_shared_premises_are_counted_and_masked(tiny_backbone: Path, tmp_path: Path) -> None:
    # Twenty premises with two entailments each.
    texts = [[2, 5 + k % 20, 3] for k in range(60)]
    triplets = [(k // 2, 20 + k % 30, 50 + k % 9) for k in range(40)]
    pairs = {"dev": [(k % 60, (7 * k) % 60, k % 3) for k in range(45)]}
    stores = make_store(tmp_path / "train", texts, triplets=triplets), make_store(tmp_path / "dev", texts, pairs=pairs)
    outcomes = {
        how: run(make_trial(tiny_backbone, stores, same_premise=how, epochs=1), stores, tmp_path / how)
        for how in ("keep", "mask")
    }
    assert outcomes["keep"].same_source_pairs == outcomes["mask"].same_source_pairs > 0
    assert outcomes["keep"].history[0]["loss"] != outcomes["mask"].history[0]["loss"]


def test_a_tampered_checkpoint_or_store_is_refused(tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path) -> None:
    trial = make_trial(tiny_backbone, stores)

    with pytest.raises(Killed):
        run(trial, stores, tmp_path / "t", dies_at(8))
    file = tmp_path / "t/latest/optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"\0\1\2\3")
    with pytest.raises(UserError, match=r"optimizer\.safetensors: differs from its SHA-256.*; remove .*/latest to train"):
        run(trial, stores, tmp_path / "t")
    sentences = stores[0] / "sentences/00000.arrow"
    sentences.write_bytes(sentences.read_bytes() + b"x")
    with pytest.raises(UserError, match=r"sentences/00000\.arrow"):
        run(trial, stores, tmp_path / "u")


def test_schedules() -> None:
    def rates(schedule: str, warmup: float = 0.2) -> list[float]:
        return [round(learning_rate_at(step, 10, 1.0, schedule, warmup), 6) for step in range(10)]  # type: ignore[arg-type]

    assert rates("warmup-linear-decay") == [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]
    assert rates("linear-decay") == [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    assert rates("linear-rise") == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert all(rate > 0 for rate in rates("warmup-linear-decay", 1.0))


def test_the_model_is_chosen_by_the_score_that_its_objective_names(
    tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([5.0, 7.0, 6.0])
    monkeypatch.setattr(ContrastiveParams, "score_name", "another")
    monkeypatch.setattr(TripletObjective, "dev_score", lambda *_, **__: next(found))
    trial = make_trial(tiny_backbone, stores)
    outcome = run(trial, stores, tmp_path / "t")
    assert (outcome.score_name, outcome.best_step, outcome.best_score) == ("another", 8, 7.0)
    written = read_json(tmp_path / "t/best/config.json")
    assert (written["step"], written["another"], "dev_pr_auc" in written) == (8, 7.0, False)
    assert finished(tmp_path / "t", trial) == outcome


def test_data_that_change_under_a_run_are_noticed(tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path) -> None:
    """Ids that are overwritten in place are read by the next batch, because the file is mapped."""
    trial, sentences = make_trial(tiny_backbone, stores), stores[0] / "sentences/00000.arrow"
    good, times = sentences.read_bytes(), sentences.stat()

    def spoil(progress: Progress) -> None:
        if progress.step == 8:
            with sentences.open("r+b") as file:
                file.seek(len(good) // 2)
                file.write(bytes(64))

    with pytest.raises(RunError, match=r"00000\.arrow: has changed while it was read, so no result counts; run dvc repro -f"):
        run(trial, stores, tmp_path / "t", spoil)
    # The checkpoint is from before the change: with the good data, the run goes on as if nothing had been.
    sentences.write_bytes(good)
    assert read_json(tmp_path / "t/latest/state.json")["step"] == 4
    outcome = run(trial, stores, tmp_path / "t")
    assert outcome == run(trial, stores, tmp_path / "whole")
    assert same_files("best/model.safetensors", tmp_path / "t", tmp_path / "whole")

    def spoil_secretly(progress: Progress) -> None:
        spoil(progress)
        os.utime(sentences, ns=(times.st_atime_ns, times.st_mtime_ns))

    os.utime(sentences, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(RunError, match=r"00000\.arrow: has changed while it was read"):
        run(trial, stores, tmp_path / "u", spoil_secretly)
    assert finished(tmp_path / "u", trial) is None
    # A file that takes the place of the mapped one, and one that is removed, change nothing.
    sentences.write_bytes(good)

    def replace(progress: Progress) -> None:
        if progress.step == 8:
            (tmp_path / "other").write_bytes(bytes(len(good)))
            (tmp_path / "other").rename(sentences)

    assert run(trial, stores, tmp_path / "v", replace) == outcome


def test_a_worker_trains_on_no_other_data_than_those_of_the_plan(
    tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path
) -> None:
    trial = trial_on(tiny_backbone, stores, 1e-3, epochs=1)
    config = worker_config(trial, stores)
    random_stores(tmp_path / "other", seed=1)
    for store in stores:
        shutil.rmtree(store)
        (tmp_path / "other" / store.name).rename(store)
    with pytest.raises(RunError, match=r"/train: has changed since the trial was planned; run dvc repro again$"):
        worker._train(config, folder_at(trial, tmp_path / "t"), CPU, first=True)
