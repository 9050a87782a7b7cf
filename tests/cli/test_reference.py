from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT

from pipeline.cli.reference import PAGE, SCHEMAS, generate


@pytest.mark.parametrize("file", SCHEMAS.values(), ids=str)
def test_the_schemas_are_committed_byte_for_byte(file: Path) -> None:
    assert (ROOT / file).read_bytes() == generate(ROOT)[file].encode(), "run gausscse reference"


def test_every_key_has_values_default_and_meaning() -> None:
    page = generate(ROOT)[PAGE]
    rows = [line.replace(r"\|", "").split("|")[1:-1] for line in page.splitlines() if line.startswith("| `") and "." in line]
    keys = {row[0].strip(" `"): row for row in rows if len(row) == 4}
    assert len(keys) > 50
    for key, row in keys.items():
        assert all(cell.strip() for cell in row), key
