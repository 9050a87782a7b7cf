"""The paper's own figures (Sentence Representations via Gaussian Embedding, arXiv 2305.12990, Tables 1 to 3).

The report shows them for sets with the name of one of the paper's sets, and always marks the differences: another backbone
(BERT-base), all of SNLI and MultiNLI, five seeds without a spread. The paper's directions are those of all entailment pairs; on
SICK that includes the two-way pairs.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.report.blocks import Cell, Column, Row, Table

ROW = "the paper's"
OBJECTIVES = ("simcse", "ent", "ent+con", "ent+rev", "ent+con+rev")
NOTE = (
    "The paper's: arXiv 2305.12990, Tables 1 and 2; BERT-base, all of SNLI and MultiNLI, mean of five seeds, no spread given; "
    "direction over all entailment pairs; never bold."
)

_FIGURES: Mapping[tuple[str, str], Mapping[str, str]] = {
    (set_name, metric): dict(zip(OBJECTIVES[-len(values) :], values, strict=True))
    for (set_name, metric), values in {
        ("snli_test", "accuracy"): ("74.96", "72.50", "78.33", "70.64", "77.51"),
        ("snli_test", "pr_auc"): ("66.76", "61.44", "72.50", "57.57", "69.33"),
        ("sick_test", "accuracy"): ("86.11", "76.50", "85.21", "74.24", "84.37"),
        ("sick_test", "pr_auc"): ("81.41", "64.33", "80.13", "57.31", "78.92"),
        # SimCSE has no direction.
        ("snli_test", "direction.sim"): ("81.65", "61.56", "97.01", "97.09"),
        ("snli_test", "direction.var"): ("81.19", "60.44", "97.12", "97.21"),
        ("sick_test", "direction.sim"): ("63.01", "61.62", "71.23", "69.22"),
        ("sick_test", "direction.var"): ("62.44", "62.18", "71.93", "70.13"),
    }.items()
}
_GRID = {
    16: ("64.39", "66.02", "67.00"),
    32: ("63.21", "65.23", "65.97"),
    64: ("60.79", "64.13", "65.27"),
    128: ("59.93", "62.72", "63.60"),
    256: ("58.86", "61.50", "62.52"),
}
_RATES = ("1e-05", "3e-05", "5e-05")


def figure(objective: str, set_name: str, metric: str) -> str | None:
    """The paper's figure in percent, as printed; None if it has none."""
    return _FIGURES.get((set_name, metric), {}).get(objective)


def grid_table() -> Table:
    """The paper's Table 3, in the layout of ours."""
    return Table(
        id="table-3-paper",
        title="Table 3, the paper's",
        caption="PR-AUC on SNLI dev in percent by learning rate (rows) and batch size (columns), arXiv 2305.12990, Table 3; "
        "BERT-base, objective ent+con+rev, no spread given.",
        columns=(Column(name="learning rate"), *(Column(name=f"batch {size}") for size in _GRID)),
        rows=tuple(
            Row(cells=(Cell(text=name), *(Cell(text=values[k]) for values in _GRID.values())), kind="paper")
            for k, name in enumerate(_RATES)
        ),
    )
