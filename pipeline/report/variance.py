"""Does the variance just mean length? Table 5 and its figures."""

from __future__ import annotations

import itertools
from collections import defaultdict

from pipeline.evaluation.analysis import FEW_SENTENCES, LogVarByLength
from pipeline.report.blocks import Block, Cell, Column, Figure, Row, Section, Table, Text
from pipeline.report.content import Content
from pipeline.report.measures import Measures, share_cell
from pipeline.report.numbers import UNDEFINED, count, over
from pipeline.report.traces import Trace, figure, rounded, seeds_and_mean, style


def variance_section(content: Content, measures: Measures) -> Section:
    """The section on Σ log-variance against length."""
    blocks: list[Block] = [
        Text(
            "Does the variance just mean length? The figures show the sum of log-variances by the number of tokens of a "
            "sentence. The table says how far the two go together, how often direction by variance agrees with direction by "
            "length, and how often it is right where the sentences are equally long, so that length says nothing."
        )
    ]
    blocks.append(_variance_table(content, measures))
    pictures = [_variance(content, measures, name, k) for k, name in enumerate(content.figure_sets)]
    blocks += [picture for picture in pictures if picture is not None]
    return Section(id="variance", title="Variance against length", blocks=tuple(blocks))


def _variance_table(content: Content, measures: Measures) -> Table:
    columns = (
        ("Spearman with tokens", lambda log_var: log_var.spearman),
        ("agrees with length-only", lambda log_var: log_var.agreement),
        ("right at equal length", lambda log_var: log_var.var_on_equal),
        ("Spearman of the differences", lambda log_var: log_var.difference_spearman),
    )
    rows: list[Row] = []
    for name in content.figure_sets:
        for k, recipe in enumerate(content.recipes):
            seeds = measures.get((k, name), [])
            if not seeds:
                continue
            variances = [(model.seed, model.log_var) for model in seeds if model.log_var is not None]
            cells = [share_cell(((seed, value(log_var)) for seed, log_var in variances), bool(variances)) for _, value in columns]
            first = variances[0][1] if variances else None
            pairs = [count(n) for n in (first.unequal_pairs, first.equal_pairs)] if first else [UNDEFINED] * 2
            rows.append(Row(cells=(Cell(text=name), Cell(text=recipe.name), *cells, *(Cell(text=n) for n in pairs))))
    return Table(
        id="table-5",
        title="Table 5. Does the variance just mean length?",
        caption="Percent, or Spearman's correlation × 100; mean ± standard deviation over seeds. Spearman with tokens is over "
        "sentences. Agreement is over the entailment pairs of unequal length; the differences are premise less hypothesis "
        "over all entailment pairs.",
        columns=(
            Column(name="set", number=False),
            Column(name="recipe", number=False),
            *(Column(name=name) for name, _ in columns),
            Column(name="pairs of unequal length"),
            Column(name="pairs of equal length"),
        ),
        rows=tuple(rows),
    )


def _variance(content: Content, measures: Measures, set_name: str, number: int) -> Figure | None:
    traces: list[Trace] = []
    # Counts of the first model. A sentence counts once for each text and value, so models differ by a few.
    shown: LogVarByLength | None = None
    hover = "%{x} tokens<br>Σ log-variance %{y:.4f}"
    for k, recipe in enumerate(content.recipes):
        look = {**style(k), "mode": "lines+markers"}
        variances = {
            model.seed: model.log_var for model in measures.get((k, set_name), []) if model.log_var and model.log_var.by_tokens
        }
        if not variances:
            continue
        shown = shown or next(iter(variances.values()))
        by_seed = {seed: log_var.by_tokens for seed, log_var in variances.items()}
        collected: dict[int, list[float]] = defaultdict(list)
        for length_bin in itertools.chain(*by_seed.values()):
            collected[length_bin.tokens].append(length_bin.mean)
        means = {tokens: over(values) for tokens, values in sorted(collected.items()) if len(values) == len(by_seed)}
        seeds = {
            seed: (
                [length_bin.tokens for length_bin in bins],
                [length_bin.mean for length_bin in bins],
                [[rounded(length_bin.sd or 0.0), length_bin.sentences] for length_bin in bins],
            )
            for seed, bins in by_seed.items()
        }
        more = "<br>± %{customdata[0]:.4f} over %{customdata[1]} sentences"
        traces += seeds_and_mean(
            k, recipe.name, seeds, list(means), list(means.values()), hover=hover, look=look, more_of_seed=more
        )
    if shown is None:
        return None
    return figure(
        f"variance-{number}",
        set_name,
        f"Mean Σ log-variance of the sentences of {set_name} by their length; lengths that fewer than {FEW_SENTENCES} sentences "
        f"have are left out ({count(shown.left_out)} of {count(shown.sentences)} sentences).",
        traces,
        x={"title": {"text": "tokens of the sentence"}},
        y={"title": {"text": "Σ log-variance"}},
    )
