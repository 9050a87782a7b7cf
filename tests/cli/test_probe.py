"""`gausscse probe`: the shares, counted again pair by pair, and what the command prints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.cli import probe as command
from pipeline.data.generated.probe import PHENOMENA, probe
from pipeline.families.pairs.minimal_pairs import KINDS
from pipeline.families.pairs.real_probe import real_pairs
from pipeline.models.encoder import GaussianEncoder
from pipeline.utils.errors import UserError
from tests.relations import drawn_relation
from tests.trial_of import tiny_encoder


@pytest.fixture(scope="module")
def encoder(tiny_backbone: Path) -> GaussianEncoder:
    return tiny_encoder(tiny_backbone)


def counted(encoder: GaussianEncoder, items: int) -> dict[str, float]:
    right: dict[str, list[float]] = {}
    for item in probe(items):
        yes, no = (encoder.score(item.premise, text) for text in (item.entailed, item.other))
        right.setdefault(item.phenomenon, []).append(1.0 if yes > no else 0.5 if yes == no else 0.0)
    shares = {name: 100 * sum(values) / len(values) for name, values in right.items()}
    return shares | {"all": sum(shares.values()) / len(shares)}


def test_the_shares_are_those_of_single_pairs_with_and_without_a_head(
    encoder: GaussianEncoder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, headed = tmp_path / "plain", tmp_path / "headed"
    encoder.save_pretrained(plain)
    expected = [counted(encoder, 2)]
    encoder.relation_head = drawn_relation()
    encoder.save_pretrained(headed)
    expected += [counted(encoder, 2), expected[0]]
    encoder.relation_head = None
    monkeypatch.chdir(tmp_path)
    command.main([str(plain), str(headed), "--items", "2"])
    said, *rows = capsys.readouterr().out.splitlines()
    assert said.startswith("2 premises of each kind")
    header, *found = (row.split("\t") for row in rows)
    assert header == ["model", *PHENOMENA, "all"]
    assert [row[0] for row in found] == [str(plain), str(headed), f"{headed}, by similarity alone"]
    assert [row[1:] for row in found] == [[f"{numbers[name]:.1f}" for name in header[1:]] for numbers in expected]
    # The head changes answers.
    assert expected[0] != expected[1]


def test_premises_of_the_test_sets_are_changed_as_no_training_pair_was(
    encoder: GaussianEncoder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "tests/a": {"premise": ["A man is in a truck.", "She wore a red hat here."], "hypothesis": ["x", "y"]},
        "tests/a-sts": {"sentence1": ["A man is in a cave."], "sentence2": ["x"]},
        # What says that the new words may be where they are put.
        "train/pairs": {
            "premise": ["A woman is in the park.", "A boy is in the park."],
            "hypothesis": ["See, a dog is in the sea."] * 2,
        },
        # One of these changes is within a pair with two.
        "train/minimal_pairs": {"premise": ["A tall man sings now."], "hypothesis": ["A boy sings."]},
    }
    for name, columns in texts.items():
        (tmp_path / "data/prepared" / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), tmp_path / f"data/prepared/{name}.parquet")
    changed = {(pair.kind, pair.premise, pair.hypothesis): pair for pair in real_pairs(tmp_path, 50, 1)}
    assert ("co-hyponym", "A man is in a truck.", "A woman is in a truck.") in changed
    assert ("phrase", "She wore a red hat here.", "She wore a hat here.") in changed
    assert not [key for key in changed if "boy" in key[2] or "cave" in key[1]]
    encoder.relation_head = drawn_relation()
    encoder.save_pretrained(tmp_path / "headed")
    right: dict[str, list[bool]] = {"all": []}
    for (kind, *texts_), pair in changed.items():
        shares = encoder.relation(*texts_)
        shares["neutral"] += shares.pop("reversed")
        right.setdefault(kind, []).append(max(shares, key=shares.get) == pair.label)  # type: ignore[arg-type]
        right["all"].append(right[kind][-1])
    encoder.relation_head = None
    monkeypatch.chdir(tmp_path)
    command.main(["headed", "--items", "50"])
    said, header, head, similarity = (row.split("\t") for row in capsys.readouterr().out.splitlines()[-4:])
    assert said == [f"{len(changed)} premises of the test sets, one word or phrase changed; the likeliest label is right, %"]
    found = dict(zip(header[1:-1], head[1:-1], strict=True))
    assert found == {kind: f"{100 * np.mean(right[kind]):.1f}" if kind in right else "-" for kind in (*KINDS, "all")}
    assert 0 < np.mean(right["all"]) < 1
    assert similarity[1:-1] == ["-"] * len(found)


def test_bad_input_is_one_line(encoder: GaussianEncoder, tmp_path: Path) -> None:
    encoder.save_pretrained(tmp_path / "model")
    for wrong in ("0", "5001"):
        with pytest.raises(UserError, match=f"--items: '{wrong}' is not a whole number from 1 to 5000"):
            command.main([str(tmp_path / "model"), "--items", wrong])
    with pytest.raises(UserError, match="gausscse probe: the following arguments are required: MODEL"):
        command.main([])
    with pytest.raises(UserError, match="nowhere"):
        command.main(["nowhere"])
