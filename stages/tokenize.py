"""Stage tokenize: turns the sentences of data/prepared/ into token ids of the backbone, under data/tokens/."""

from __future__ import annotations

from pathlib import Path

from pipeline.cluster.preflight import load_project
from pipeline.config.paths import PREPARED, TOKENS
from pipeline.data.sentence_tokenizer import Encoder
from pipeline.data.tokenizing import tokenize
from pipeline.identity.digests import check_code
from pipeline.models.backbone import check_encoder, load_tokenizer, resolve
from pipeline.utils.errors import run_stage
from pipeline.utils.logs import log


def main() -> None:
    """Run the stage from the project root."""
    p, _ = load_project()
    check_code(Path.cwd(), "tokenize")
    model = p.model
    backbone = resolve(model.backbone, model.revision)
    check_encoder(backbone)
    encoder = Encoder(
        name=model.backbone, revision=model.revision, tokenizer=load_tokenizer(backbone), max_length=model.max_length
    )
    for store, counts in tokenize(PREPARED, TOKENS, encoder).items():
        sets = ", ".join(f"{name} {rows:,}" for name, rows in counts["rows"].items()) or "no set"
        log.info(
            f"{store}: {counts['sentences']:,} sentences, {counts['tokens']:,} tokens, "
            f"{counts['truncated']:,} cut at {model.max_length} (longest {counts['longest']}); rows: {sets}"
        )


if __name__ == "__main__":
    run_stage(main)
