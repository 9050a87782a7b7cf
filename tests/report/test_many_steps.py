"""The report reads the steps of the final models only, however many trials the grid of a variant had."""

from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path

from pipeline.config.params import Params
from pipeline.config.paths import EXPERIMENTS
from pipeline.report.results import Results, read_results


def test_the_steps_of_a_grid_stay_in_their_file(results: tuple[Path, Params], tmp_path: Path) -> None:
    root, params = Path(shutil.copytree(results[0], tmp_path / "copy")), results[1]
    curves = root / EXPERIMENTS / "curves.csv"

    def read() -> tuple[Results, int]:
        tracemalloc.start()
        found = read_results(params, {}, root)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found, peak

    read()
    before, small = read()
    with curves.open("a", encoding="utf-8") as file:
        file.writelines(f"ent,trial-{step % 100},{step},0.5,0.0001,50.0\n" for step in range(20_000))
    after, large = read()
    assert [recipe.learning for recipe in after.recipes] == [recipe.learning for recipe in before.recipes]
    assert sum(map(len, after.recipes[1].learning.values())) > 0
    # A row in memory is half a kilobyte.
    assert large - small < 1_000_000
