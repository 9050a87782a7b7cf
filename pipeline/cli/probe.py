"""`gausscse probe MODEL ...`: where a phrase or the word order decides, does the model see it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.data.generated.probe import MOST, PHENOMENA, Item, probe
from pipeline.evaluation.metrics import share_right
from pipeline.families.family import families, part
from pipeline.models.encoder import GaussianEncoder
from pipeline.registry.loading import encoder_folder
from pipeline.utils.parser import MODEL, Parser, whole


def main(arguments: Sequence[str]) -> None:
    """Score the probe with each model and print a table."""
    parser = Parser(
        prog="gausscse probe",
        description="Premises with two hypotheses that differ in a phrase or in word order; the premise entails one. Shows "
        "how often a model gives that one the higher score, in percent: 50 is chance. In a project with prepared test sets, also "
        "premises of those with one word or phrase changed.",
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help=MODEL)
    parser.add_argument("--items", type=whole(1, MOST), default=200, help="premises of each kind; default: 200")
    parser.add_argument("--seed", type=whole(0), default=1, help="of the sentences; default: 1")
    options = parser.parse_args(arguments)
    items = list(probe(options.items, options.seed))
    real = part(next(family for family in families() if family.labelled), "real_probe")
    pairs = real.real_pairs(Path.cwd(), options.items, options.seed)
    written: dict[str, dict[str, float]] = {}
    changed: dict[str, dict[str, float]] = {}
    for uri in options.models:
        with encoder_folder(uri) as folder:
            encoder = GaussianEncoder.from_pretrained(folder)
        for name in (uri, f"{uri}, by similarity alone"):
            written[name] = shares(encoder, items)
            changed[name] = real.shares(encoder, pairs) if pairs else {}
            if encoder.relation_head is None:
                break
            encoder.relation_head = None
    print(f"{options.items:,} premises of each kind; the entailed hypothesis scores higher, %")
    _print(written, [*PHENOMENA, "all"])
    if pairs:
        print(f"{len(pairs):,} premises of the test sets, one word or phrase changed; the likeliest label is right, %")
        _print(changed, real.COLUMNS)


def _print(columns: Mapping[str, Mapping[str, float]], rows: Sequence[str]) -> None:
    print("\t".join(["model", *rows]))
    for name, column in columns.items():
        print("\t".join([name, *(f"{column[row]:.1f}" if row in column else "-" for row in rows)]))


def shares(encoder: GaussianEncoder, items: Sequence[Item]) -> dict[str, float]:
    """Phenomenon, and "all" → percent of its items whose entailed hypothesis scores higher than the other; a tie counts half."""
    premises = encoder.encode([item.premise for item in items])
    entailed, other = (
        encoder.score(premises, encoder.encode(texts)).numpy()
        for texts in ([item.entailed for item in items], [item.other for item in items])
    )
    kinds = [item.phenomenon for item in items]
    groups = {name: [k for k, kind in enumerate(kinds) if kind == name] for name in dict.fromkeys(kinds)}
    groups["all"] = list(range(len(items)))
    return {name: 100 * share_right(entailed[rows], other[rows], ties=0.5) for name, rows in groups.items()}
