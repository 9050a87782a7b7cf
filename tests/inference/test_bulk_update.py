"""A folder of encoded parts is updated: only the parts that differ, and never a mixture."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.inference.bulk_encode import encode_part
from pipeline.inference.bulk_plan import PLAN, Plan, begin, finish, planned
from pipeline.inference.corpus import read_gaussians
from pipeline.models.encoder import GaussianEncoder
from pipeline.storage.filesystem import Place
from pipeline.utils.atomic_io import read_json
from pipeline.utils.errors import UserError
from tests.trial_of import tiny_encoder

FILES = {"a": 25, "b": 10, "c": 12}


@pytest.fixture(scope="module")
def encoders(tiny_backbone: Path) -> dict[str, GaussianEncoder]:
    return {name: tiny_encoder(tiny_backbone, seed) for seed, name in enumerate(("old", "new"))}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "corpus").mkdir()
    for name in FILES:
        write(tmp_path / "corpus", name)
    return tmp_path / "corpus"


def write(corpus: Path, name: str, rows: int | None = None, word: str = "dog") -> None:
    texts = [f"{word} {name} {row}" for row in range(FILES[name] if rows is None else rows)]
    pq.write_table(pa.table({"sentence": texts}), corpus / f"{name}.parquet", row_group_size=5)


def plan_of(corpus: Path, encoder: GaussianEncoder, model: str) -> Plan:
    return planned(str(corpus), "sentence", ["sentence"], model, encoder.dim, part_rows=10)


def encode(encoder: GaussianEncoder, corpus: Path, plan: Plan, out: Path, *, update: bool = False) -> list[int]:
    """Encode what is missing; returns the numbers of the parts that were encoded."""
    done = begin(plan, str(out), update=update)
    missing = [part for part in plan.parts if part.number not in {record.number for record in done}]
    finish(plan, str(out), [*done, *(encode_part(encoder, str(corpus), plan, part, str(out)) for part in missing)])
    return [part.number for part in missing]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_update_encodes_only_the_parts_that_differ(encoders: dict[str, GaussianEncoder], corpus: Path, tmp_path: Path) -> None:
    out, encoder = tmp_path / "out", encoders["old"]

    def update(name: str, model: str = "old") -> list[int]:
        plan = plan_of(corpus, encoders[model], model)
        encoded = encode(encoders[model], corpus, plan, out, update=True)
        encode(encoders[model], corpus, plan, tmp_path / name)
        assert contents(out) == contents(tmp_path / name)
        return encoded

    # Three parts of a, one of b, two of c.
    assert update("first") == [0, 1, 2, 3, 4, 5]
    assert update("unchanged") == []
    # Another text in b; rows and all other files are as they were.
    write(corpus, "b", word="cat")
    assert update("a file changed") == [3]
    # After b, every row has another number.
    write(corpus, "b", rows=9)
    assert update("a file has fewer rows") == [3, 4, 5]
    (corpus / "c.parquet").unlink()
    assert update("a file is gone") == []
    write(corpus, "c", rows=3)
    assert update("a file is new") == [4]
    assert update("another model", "new") == [0, 1, 2, 3, 4]
    assert encoder.encode(["dog a 0"]).mean[0].tolist() != read_gaussians(str(out)).gaussians.mean[0].tolist()


@pytest.mark.parametrize("left", [b"", b'{"digest": "0a', b"[]", b"null", b'{"x": "\xe3\x81'])
def test_a_file_that_a_power_failure_cut_is_one_line_or_encoded_again(
    encoders: dict[str, GaussianEncoder], corpus: Path, tmp_path: Path, left: bytes
) -> None:
    out, encoder = tmp_path / "out", encoders["old"]
    plan = plan_of(corpus, encoder, "old")
    encode(encoder, corpus, plan, out)
    whole = contents(out)
    (out / "_part-000001.json").write_bytes(left)
    assert encode(encoder, corpus, plan, out) == [1]
    (out / PLAN).write_bytes(left)
    with pytest.raises(UserError, match=rf"{PLAN}: is damaged; add --update"):
        encode(encoder, corpus, plan, out)
    assert encode(encoder, corpus, plan, out, update=True) == []
    assert contents(out) == whole


def test_rows_of_white_space_are_left_out_and_counted(encoders: dict[str, GaussianEncoder], corpus: Path, tmp_path: Path) -> None:
    """Otherwise a search returns them. One part has no other rows."""
    rows = ["a dog", "", "\u200b", None, "a cat", " \t\n", *["\ufeff"] * 10]
    pq.write_table(pa.table({"sentence": rows}), corpus / "b.parquet", row_group_size=5)
    for name in ("a", "c"):
        (corpus / f"{name}.parquet").unlink()
    encode(encoders["old"], corpus, plan_of(corpus, encoders["old"], "old"), tmp_path / "out")
    manifest = read_json(tmp_path / "out/_manifest.json")
    assert {name: manifest[name] for name in ("rows", "missing", "empty", "cut")} == {
        "rows": 16, "missing": 1, "empty": 13, "cut": 0,
    }  # fmt: skip
    assert read_gaussians(str(tmp_path / "out")).rows == [0, 4]


@pytest.mark.parametrize(("call", "name"), [("write", PLAN), ("send", "part-000001.parquet"), ("write", "_part-000001.json")])
def test_wherever_an_update_ends_nothing_reads_a_mixture(
    encoders: dict[str, GaussianEncoder], corpus: Path, tmp_path: Path, call: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update to another model is killed before it writes a file, or after; the next one goes back, or on to that model."""
    plans = {model: plan_of(corpus, encoder, model) for model, encoder in encoders.items()}
    real: Callable[..., None] = getattr(Place, call)
    for last, written in itertools.product(encoders, (False, True)):
        out, fresh = tmp_path / f"{last}{written}", tmp_path / f"fresh {last}{written}"
        encode(encoders["old"], corpus, plans["old"], out)

        def die(*arguments: object, written: bool = written) -> None:
            if written or name not in arguments:
                real(*arguments)
            if name in arguments:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Place, call, die)
            with pytest.raises(KeyboardInterrupt):
                encode(encoders["new"], corpus, plans["new"], out, update=True)
        if name == PLAN:
            # No part has changed yet.
            assert read_gaussians(str(out)).model == "old"
        else:
            with pytest.raises(UserError, match="run gausscse encode until it is done"):
                read_gaussians(str(out))
        encode(encoders[last], corpus, plans[last], out, update=True)
        encode(encoders[last], corpus, plans[last], fresh)
        assert contents(out) == contents(fresh)


def test_a_run_ends_when_another_one_has_begun_in_its_folder(
    encoders: dict[str, GaussianEncoder], corpus: Path, tmp_path: Path
) -> None:
    out, plans = str(tmp_path / "out"), {name: plan_of(corpus, encoder, name) for name, encoder in encoders.items()}
    begin(plans["old"], out)
    done = [encode_part(encoders["old"], str(corpus), plans["old"], part, out) for part in plans["old"].parts]
    begin(plans["new"], out, update=True)
    for work in (
        lambda: encode_part(encoders["old"], str(corpus), plans["old"], plans["old"].parts[0], out),
        lambda: finish(plans["old"], out, done),
    ):
        with pytest.raises(UserError, match="out: another run has begun to write into this folder"):
            work()
    # The file of the one and the record of the other, as two runs that write at the same moment may leave them.
    record = Path(out, "_part-000000.json").read_bytes()
    encode_part(encoders["new"], str(corpus), plans["new"], plans["new"].parts[0], out)
    Path(out, "_part-000000.json").write_bytes(record)
    assert encode(encoders["old"], corpus, plans["old"], Path(out), update=True) == [0]
    encode(encoders["old"], corpus, plans["old"], tmp_path / "fresh")
    assert contents(Path(out)) == contents(tmp_path / "fresh")


def test_what_a_part_costs_does_not_grow_with_the_parts(
    encoders: dict[str, GaussianEncoder], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan of 10⁹ rows has 60,000 parts: a task gets none of the others, and reads no list of them."""
    encoder, out = encoders["old"], tmp_path / "out"
    plan = plan_of(corpus, encoder, "m")
    begin(plan, str(out))
    light = plan.for_a_task()
    assert (light.parts, light.digest, light.key(plan.parts[1])) == ((), plan.digest, plan.key(plan.parts[1]))
    monkeypatch.setattr(Plan, "to_json", None)
    monkeypatch.setattr("pipeline.inference.bulk_plan._object", None)
    done = encode_part(encoder, str(corpus), light, plan.parts[1], str(out))
    assert done.key == plan.key(plan.parts[1])
    monkeypatch.undo()
    assert [one.number for one in begin(plan, str(out))] == [1]
    # Names of columns that fill the beginning of the file, and a folder that another run has taken.
    wide = planned(str(corpus), "sentence", ["sentence"], "m" * 20_000, encoder.dim, part_rows=10)
    begin(wide, str(out), update=True)
    encode_part(encoder, str(corpus), wide.for_a_task(), wide.parts[1], str(out))
    with pytest.raises(UserError, match="another run has begun to write"):
        encode_part(encoder, str(corpus), light, plan.parts[1], str(out))
