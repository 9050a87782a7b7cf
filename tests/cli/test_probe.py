"""`gausscse probe`: the shares, counted again pair by pair, and what the command prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import PLAIN
from relations import drawn_relation

from pipeline.cli import probe as command
from pipeline.config.load import load_params
from pipeline.data.generated.probe import PHENOMENA, probe
from pipeline.models.encoder import GaussianEncoder
from pipeline.utils.errors import UserError


@pytest.fixture(scope="module")
def encoder(tiny_backbone: Path) -> GaussianEncoder:
    params = load_params(PLAIN).model.encoder.model_copy(update={"backbone": str(tiny_backbone), "max_length": 24})
    return GaussianEncoder.from_backbone(params, seed=1).eval()


def counted(encoder: GaussianEncoder, items: int) -> dict[str, float]:
    right: dict[str, list[float]] = {}
    for item in probe(items):
        yes, no = (encoder.score(item.premise, text) for text in (item.entailed, item.other))
        right.setdefault(item.phenomenon, []).append(1.0 if yes > no else 0.5 if yes == no else 0.0)
    shares = {name: 100 * sum(values) / len(values) for name, values in right.items()}
    return shares | {"all": sum(shares.values()) / len(shares)}


def test_the_shares_are_those_of_single_pairs_with_and_without_a_head(
    encoder: GaussianEncoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, headed = tmp_path / "plain", tmp_path / "headed"
    encoder.save_pretrained(plain)
    expected = [counted(encoder, 6)]
    encoder.relation_head = drawn_relation(encoder.dim)
    encoder.save_pretrained(headed)
    expected += [counted(encoder, 6), expected[0]]
    encoder.relation_head = None
    command.main([str(plain), str(headed), "--items", "6"])
    said, *rows = capsys.readouterr().out.splitlines()
    assert said.startswith("6 premises of each kind")
    header, *found = (row.split("\t") for row in rows)
    assert header == ["model", *PHENOMENA, "all"]
    assert [row[0] for row in found] == [str(plain), str(headed), f"{headed}, by similarity alone"]
    assert [row[1:] for row in found] == [[f"{numbers[name]:.1f}" for name in header[1:]] for numbers in expected]
    # The head changes answers.
    assert expected[0] != expected[1]


def test_bad_input_is_one_line(encoder: GaussianEncoder, tmp_path: Path) -> None:
    encoder.save_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match="--items: got 0; write 1 to 5,000"):
        command.main([str(tmp_path / "model"), "--items", "0"])
    with pytest.raises(UserError, match="gausscse probe: the following arguments are required: MODEL"):
        command.main([])
    with pytest.raises(UserError, match="nowhere"):
        command.main(["nowhere"])
