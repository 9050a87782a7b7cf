"""`gausscse relation MODEL OUT`: fits a relation head to a finished model, on the prepared data of the project in this folder."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from pipeline.cluster.preflight import load_project
from pipeline.config.params import EvaluateParams
from pipeline.config.paths import DEV_TOKENS, TRAIN_TOKENS
from pipeline.data.schema import DEV, ENTAILMENT
from pipeline.data.sentence_tokenizer import Encoder
from pipeline.data.token_sets import read_pairs
from pipeline.data.token_store import digest
from pipeline.evaluation.encoding import encode_here
from pipeline.evaluation.metrics import best_threshold
from pipeline.families.family import families, part
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import add_relation
from pipeline.models.relation_head import read_relation
from pipeline.models.threshold import Calibration, write_calibration
from pipeline.registry import encoder_folder
from pipeline.registry.publishing import add_canaries
from pipeline.trials.store import TrialStore
from pipeline.utils.atomic_io import refuse_taken, write_directory, write_sums
from pipeline.utils.errors import UserError
from pipeline.utils.logs import log
from pipeline.utils.parser import Parser, whole


def main(arguments: Sequence[str]) -> None:
    """Fit the head and write the model with it into a new folder."""
    parser = Parser(
        prog="gausscse relation",
        description="Fit a relation head to a finished model, on this project's training pairs. The encoder does not change.",
    )
    parser.add_argument("model", help="models:/NAME@ALIAS, models:/NAME/VERSION or a model's folder")
    parser.add_argument("out", help="a new folder, for the model with its head")
    parser.add_argument("--seed", type=whole(0), default=1, help="of the head; default: 1")
    options = parser.parse_args(arguments)
    params, execution = load_project()
    out, root = Path(options.out).absolute(), Path.cwd()
    refuse_taken(out)
    with encoder_folder(options.model) as folder, TrialStore.of_project(root, execution.cluster.storage) as store:
        encoder = GaussianEncoder.from_pretrained(folder)
        if not Encoder.of(encoder).reads(root / TRAIN_TOKENS):
            raise UserError(
                f"{options.model}: reads other tokens than {TRAIN_TOKENS}; set model.backbone and model.max_length to the "
                "model's own and run `dvc repro tokenize`"
            )
        owner = next(family for family in families() if family.labelled)
        relation = part(owner, "relation_store").relation_for(
            options.model, folder, encoder.score_kind, params.relation, options.seed, root, store, encode_here
        )
        with write_directory(out) as copy:
            # Not their modes: files of DVC's cache are read-only.
            shutil.copytree(folder, copy, dirs_exist_ok=True, copy_function=shutil.copyfile)
            add_relation(relation, copy)
            write_calibration(_threshold(folder, relation, params.evaluate), copy)
            write_sums(copy)
            add_canaries(copy, DEV_TOKENS)
    log.info(f"{options.out}: the model with its relation head; GaussianEncoder.from_pretrained({options.out!r}) loads it")


def _threshold(model: Path, relation: Path, params: EvaluateParams) -> Calibration:
    """The threshold for the head's score, from the selection part of the development set, as stage evaluate finds it."""
    head = read_relation(relation)
    assert head is not None
    (sentences,) = encode_here(model, [DEV_TOKENS], project=head.projection)
    pairs = read_pairs(DEV_TOKENS, DEV)
    scores = head.score(sentences[pairs.premise.astype("int64")], sentences[pairs.hypothesis.astype("int64")]).cpu().numpy()
    value, accuracy = best_threshold(pairs.label == ENTAILMENT, scores, params.threshold_step, params.entailment_if)
    return Calibration(
        threshold=value, entailment_if=params.entailment_if, swept_on=DEV, pairs=digest(DEV_TOKENS), accuracy=100 * accuracy
    )
