"""Stage tokenize: turns the sentences of data/prepared/ into token ids of the backbone, under data/tokens/."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.cluster.dispatch import placed
from pipeline.cluster.preflight import load_project
from pipeline.cluster.spread import is_large, prepared_files, spread_for
from pipeline.config.paths import PREPARED, TOKENS
from pipeline.data.measure import percent
from pipeline.data.sentence_tokenizer import Encoder
from pipeline.data.token_store import open_store
from pipeline.data.tokenizing import tokenize
from pipeline.models.backbone import check_encoder, load_tokenizer, resolve
from pipeline.utils.errors import run_stage
from pipeline.utils.logs import log

# Percent of sentences that are cut, and of tokens that are unknown, of which no warning is given.
_MOST = 1.0


def main() -> None:
    """Run the stage from the project root."""
    p, execution = load_project()
    model = p.model
    backbone = resolve(model.backbone, model.revision)
    check_encoder(backbone, p.model.max_length)
    encoder = Encoder(
        name=model.backbone, revision=model.revision, tokenizer=load_tokenizer(backbone), max_length=model.max_length
    )
    given = {"tokenizer": encoder.digest(), "max_length": encoder.max_length}
    with spread_for("tokenize", execution.cluster, prepared_files(), given) as spread:
        counted = tokenize(PREPARED, TOKENS, encoder, spread=spread)
    for store, counts in counted.items():
        sets = ", ".join(f"{name} {rows:,}" for name, rows in counts["rows"].items()) or "no set"
        log.info(
            f"{store}: {counts['sentences']:,} sentences, {counts['tokens']:,} tokens, "
            f"{counts['truncated']:,} cut at {model.max_length} (longest {counts['longest']}); rows: {sets}"
        )
        _warn(TOKENS / store, counts, encoder)


def _warn(store: Path, counts: Mapping[str, Any], encoder: Encoder) -> None:
    """Warn of what the model will not see of the sentences."""
    cut = percent(counts["truncated"], counts["sentences"])
    if cut > _MOST:
        log.warning(f"{store.name}: {cut:.1f} % of the sentences are cut at {encoder.max_length} tokens; raise model.max_length")
    unknown = sum(int((shard.ids == encoder.tokenizer.unk_token_id).sum()) for shard in open_store(store).shards)
    if (share := percent(unknown, counts["tokens"])) > _MOST:
        log.warning(
            f"{store.name}: {share:.1f} % of the tokens are unknown to {encoder.name}, which cannot tell them apart; is the text "
            "in another language? Choose a model.backbone that knows it (preset multilingual)"
        )


if __name__ == "__main__":
    run_stage(placed("tokenize", main, lambda _: is_large(prepared_files())))
