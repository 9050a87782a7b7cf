"""Cost of a checkpoint for the training thread at BERT-base's size: written by another thread, and written before the next step.

The model has random weights. It is trained by one thread, which leaves the other core to the thread that writes, as training on a
GPU does. The S3 server (moto's) runs on the same cores.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertModel

from bench.corpus import CACHE, a_trial, corpus
from bench.measure import ROOT, Row, compared, grown_mb, is_quick, several, started
from bench.training import Product
from pipeline.models.backbone import load_tokenizer, resolve
from pipeline.storage.object_store import Storage
from pipeline.storage.sync import Mirror
from pipeline.training.checkpoint import Checkpoints, Weights
from pipeline.trials.trial import LATEST, PREVIOUS
from pipeline.trials.trial_folder import BEST, TrialFolder
from pipeline.utils.atomic_io import write_directory, write_sums

BATCH = 2
PATIENCE = 60.0


def run(quick: bool) -> list[Row]:
    """Extra seconds of the training thread for each checkpoint, with the trial's folder here and on S3."""
    torch.set_num_threads(1)
    # On a disk, as the storages of most users.
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        folder = Path(scratch)
        backbone = _bert(folder / "backbone")
        with _s3(folder / "server.log") as uri:
            return [
                _row("to a folder", Training(backbone, folder / "local", ""), 1 if quick else 3),
                _row("to S3", Training(backbone, folder / "remote", uri), 1 if quick else 3),
            ]


class Training:
    """Steps of a small batch, and checkpoints.

    Args:
        folder: the trial's folder on this machine.
        storage: the storage's URI; empty if the folder is the only one.
    """

    def __init__(self, backbone: Path, folder: Path, storage: str) -> None:
        data = corpus()
        model = data.params.model.model_copy(update={"backbone": str(backbone), "revision": None})
        params = data.params.model_copy(update={"model": model})
        self.product = Product(replace(data, params=params), "kl", batch_size=BATCH)
        # The first step makes AdamW's moments.
        self.product.step()
        folder.mkdir(exist_ok=True)
        mirror = Mirror(folder, Storage.open(storage, ROOT), "trials/bench") if storage else Mirror(folder)
        self.folder = TrialFolder(a_trial(params, batch_size=BATCH), mirror)
        self.checkpoints = Checkpoints(self.folder, self.product.encoder, self.product.optimizer, torch.device("cpu"))

    def steps(self, number: int) -> float:
        """Only train: its seconds."""
        start = time.perf_counter()
        several(self.product.step, number)()
        return time.perf_counter() - start

    def in_a_thread(self) -> tuple[float, float, int]:
        """Save a checkpoint and train until it is written: seconds of `save`, seconds of the steps, and their number."""

        def write_best(new: Path, weights: Weights) -> None:
            self.product.encoder.save_pretrained(self.folder.best_for(new), weights=weights)

        start = time.perf_counter()
        self.checkpoints.save({}, write_best)
        saved = time.perf_counter()
        number = 0
        while (write := self.checkpoints._write) is not None and not write.done():
            self.product.step()
            number += 1
        trained = time.perf_counter()
        self.checkpoints.wait()
        return saved - start, trained - saved, number

    def at_once(self) -> float:
        """Write the same files from the tensors themselves and send them: its seconds."""
        start = time.perf_counter()
        encoder, optimizer = self.product.encoder, self.product.optimizer
        with write_directory(self.folder.path / LATEST, keep=self.folder.path / PREVIOUS) as new:
            save_file(encoder.state_dict(), new / "model.safetensors")
            moments = {
                f"{key}.{name}": value
                for name, parameter in encoder.named_parameters()
                for key, value in optimizer.state.get(parameter, {}).items()
            }
            save_file(moments, new / "optimizer.safetensors")
            save_file({"cpu": torch.get_rng_state()}, new / "random.safetensors")
            (new / "state.json").write_text(json.dumps({}), encoding="utf-8")
            encoder.save_pretrained(new / BEST)
            write_sums(new)
        self.folder.send_checkpoint()
        return time.perf_counter() - start


def _row(where: str, training: Training, rounds: int) -> Row:
    baseline_peak = grown_mb(lambda: (training.at_once(), training.steps(1)))
    # Its first snapshot gets the memory for all of them.
    peak = grown_mb(training.in_a_thread)
    blocked: list[float] = []
    extra: list[float] = []
    waited: list[float] = []
    for _ in range(rounds):
        waited.append(training.at_once())
        save, steps, number = training.in_a_thread()
        blocked.append(save)
        extra.append(save + steps - training.steps(number))
    note = (
        f"extra seconds of the training thread, {statistics.median(blocked):.3g} of them in save(), the others because steps "
        "share the cores with the write"
    )
    return compared(f"checkpoint {where}, in a thread against at once", "s", (extra, waited), (peak, baseline_peak), note=note)


def _bert(folder: Path) -> Path:
    """A backbone with the sizes of bert-base and the vocabulary of the packaged encoder; a tiny one in a quick run."""
    model = corpus().params.model
    tokenizer = load_tokenizer(resolve(model.backbone, model.revision))
    tokenizer.save_pretrained(folder)
    sizes: dict[str, Any] = (
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64} if is_quick() else {}
    )
    torch.manual_seed(1)
    BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    return folder


@contextmanager
def _s3(log: Path) -> Iterator[str]:
    """URI of a storage on an S3 server on this machine."""
    os.environ.update(AWS_ACCESS_KEY_ID="an-id", AWS_SECRET_ACCESS_KEY="a-secret")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p"]
    with started(command, "/moto-api/data.json", log, PATIENCE) as (port, _):
        client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1")
        client.create_bucket(Bucket="team")
        yield f"s3://team/bench?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
