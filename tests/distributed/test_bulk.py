"""A Parquet corpus encoded by `gausscse encode`, through a real Ray; broken off, gone on with, read and searched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from socket import gethostname

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import torch

from pipeline.cli.encode import main as encode_main
from pipeline.cli.search import main as search_main
from pipeline.distributed.precision import has_bf16
from pipeline.gaussian.distribution import Gaussian
from pipeline.identity.digests import library_versions
from pipeline.inference import bulk_encode
from pipeline.inference.bulk_plan import Done, planned
from pipeline.inference.corpus import read_gaussians
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import content_digest
from pipeline.storage.filesystem import Place
from pipeline.utils.atomic_io import write_json
from pipeline.utils.errors import UserError
from tests.distributed.bulk import FILES, contents, encode_here, make_project, run

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    return make_project(tmp_path_factory.mktemp("bulk"), tiny_backbone)


@pytest.fixture(scope="module")
def encoded(project: Path) -> str:
    done = run(project, "corpus", "out", "--keep", "id,text")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_every_row_has_the_gaussian_that_encode_gives_it(project: Path, encoded: str) -> None:
    assert (
        "encode: 840 rows in 3 parts, out/_manifest.json; 2 rows have no text and no Gaussian; 2 are empty and have no Gaussian; "
        "2 were too long" in encoded
    )
    assert "encode: 840/840 rows  " in encoded
    # As anybody's reader sees it, in the corpus's order.
    table = ds.dataset(project / "out", format="parquet").to_table()
    texts = [text for name in sorted(FILES) for text in pq.read_table(project / "corpus" / name).column("text").to_pylist()]
    there = [row for row, text in enumerate(texts) if text is not None and text.strip()]
    assert table.column_names == ["row", "id", "text", "mean", "log_var"]
    assert table.column("row").to_pylist() == there
    assert table.column("text").to_pylist() == [texts[row] for row in there]
    assert all(pa.types.is_fixed_size_list(table.schema.field(name).type) for name in ("mean", "log_var"))
    with pytest.warns(UserWarning, match="of 836 sentences 2 are longer"):
        expected = GaussianEncoder.from_pretrained(project / "model").encode([texts[row] for row in there])
    found = read_gaussians(str(project / "out"))
    assert (found.rows, found.model) == (there, content_digest(project / "model"))
    assert found.kept.column_names == ["id", "text"]
    torch.testing.assert_close(found.gaussians.mean, expected.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.gaussians.log_var, expected.log_var, rtol=1e-5, atol=1e-6)


def test_other_programs_open_the_folder(project: Path, encoded: str) -> None:
    out = project / "out"
    expected = read_gaussians(str(out))
    frame = pd.read_parquet(out)
    assert frame["row"].tolist() == expected.rows
    np.testing.assert_array_equal(np.stack(frame["mean"].to_list()), expected.gaussians.mean)
    rows = duckdb.sql(f"select row, id, mean, log_var from read_parquet('{out}/*.parquet') order by row")
    assert rows is not None
    assert [str(kind) for kind in rows.types] == ["BIGINT", "BIGINT", "FLOAT[]", "FLOAT[]"]
    np.testing.assert_array_equal(np.stack(rows.fetchnumpy()["log_var"]), expected.gaussians.log_var)


def test_csv_goes_in_and_out(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["#a dog, big\nand old", "", 'a "cat"', "12", *("plain" for _ in range(40_000)), "a, b"]
    frame = pd.DataFrame({"text": texts, "note": ["x", "y", None, "007", *("z" for _ in range(40_001))]})
    frame.to_csv(project / "it's [1].csv", index=False)
    monkeypatch.chdir(project)
    command = ["it's [1].csv", "of [csv]", "--column", "text", "--keep", "note,text", "--model", "model"]
    encode_main([*command, "--csv", "rows.csv"])
    kept = [text for text in texts if text]
    expected = GaussianEncoder.from_pretrained(project / "model").encode(kept)
    found = pd.read_csv("rows.csv", dtype={"note": str, "text": str}, keep_default_na=False)
    assert found["row"].tolist() == [row for row, text in enumerate(texts) if text]
    assert found["text"].tolist() == kept and found["note"].tolist()[:3] == ["x", "", "007"]
    for name in ("mean", "log_var"):
        rows = np.stack([json.loads(row) for row in found[name]])
        np.testing.assert_allclose(rows, getattr(expected, name), rtol=1e-4, atol=1e-6)
    capsys.readouterr()
    encode_main(command)
    assert "encode: 3 of 3 parts are already encoded" in capsys.readouterr().out


def test_a_tsv_has_tabs_and_no_quotes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    lines = ["id\ttext", '1\t"Hello, he, said.', "2\tA cat, small, sits.", '3\tok"']
    (project / "some.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    encode_main(["some.tsv", "of-tsv", "--column", "text", "--keep", "text", "--model", "model"])
    assert read_gaussians("of-tsv").kept["text"].to_pylist() == [line.partition("\t")[2] for line in lines[1:]]


def test_csv_that_cannot_be_read_or_written_is_one_line(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    (project / "good.csv").write_text("text\na dog\n", encoding="utf-8")
    (project / "bad.csv").write_text("text,note\na dog\n", encoding="utf-8")
    (project / "empty.csv").write_text("", encoding="utf-8")
    for arguments, words in (
        (["good.csv", "--column", "nope"], r"/good\.csv: has no column 'nope'; there are text$"),
        (["bad.csv", "--column", "text"], r"/bad\.csv: cannot be read as csv: CSV parse error: .*Expected 2 columns, got 1"),
        (["empty.csv", "--column", "text"], r"/empty\.csv: cannot be read as csv: Empty CSV file"),
        (["gone.csv", "--column", "text"], r"gone\.csv"),
        (["good.csv", "--column", "text", "--csv", "good.csv"], r"^good\.csv: already exists"),
        (["good.csv", "--column", "text", "--csv", "no/x.csv"], r"^--csv: no: no such folder$"),
        (["s3://bucket/x.csv", "--column", "text"], "csv and tsv are read and written on this machine only"),
    ):
        with pytest.raises((UserError, FileNotFoundError), match=words):
            encode_main([arguments[0], "of-none", *arguments[1:], "--model", "model"])
    assert not (project / "of-none").exists()
    (project / "header.csv").write_text("text\n", encoding="utf-8")
    encode_main(["header.csv", "of-header", "--column", "text", "--csv", "header-out.csv", "--model", "model"])
    assert (project / "header-out.csv").read_text(encoding="utf-8") == "row,mean,log_var\n"


def test_where_nothing_is_left_to_encode_nothing_changes(
    project: Path, encoded: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(project / "out")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), project / "none.parquet")
    monkeypatch.chdir(project)
    for arguments in (["corpus", "out", "--keep", "id,text"], ["none.parquet", "of-none"]):
        encode_main([*arguments, "--model", "model", "--column", "text"])
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith("encode: 3 of 3 parts are already encoded\nencode: 840 rows in 3 parts, ")
    assert printed.out.endswith("encode: 0 rows in 0 parts, of-none/_manifest.json\n")
    assert contents(project / "out") == before


@pytest.mark.faults
def test_bf16_is_near_float32_or_refused(project: Path, encoded: str) -> None:
    done = run(project, "corpus", "half", "--keep", "id,text", "--bf16")
    if not has_bf16(torch.device("cpu")):
        assert done.returncode == 2
        assert done.stderr == f"error: {gethostname()}: its cpu has no bf16 instructions; encode without --bf16\n"
        assert not list((project / "half").glob("part-*"))
        return
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((project / "half/_manifest.json").read_text(encoding="utf-8"))["precision"] == "bf16"
    whole, half = (read_gaussians(str(project / out)).gaussians for out in ("out", "half"))
    assert half.mean.dtype == torch.float32
    for name in ("mean", "log_var"):
        off = torch.linalg.vector_norm(getattr(half, name) - getattr(whole, name)) / torch.linalg.vector_norm(
            getattr(whole, name)
        )
        assert 1e-5 < off < 0.03
    # The folder of one precision is not continued with the other.
    done = run(project, "corpus", "half", "--keep", "id,text")
    assert (done.returncode, done.stdout) == (2, "")
    assert "half: holds Gaussians of another run (different: precision); name a new folder" in done.stderr


@pytest.mark.faults
def test_update_encodes_what_differs_in_the_same_folder(project: Path, encoded: str) -> None:
    shutil.copytree(project / "out", project / "updated")
    shutil.copytree(project / "corpus", project / "shorter")
    # After it comes three.parquet, whose rows get other numbers.
    (project / "shorter/one.parquet").unlink()
    done = run(project, "shorter", "updated", "--keep", "id,text", "--update")
    assert (done.returncode, done.stderr) == (0, "")
    assert "encode: 1 of 2 parts are already encoded" in done.stdout
    ids = [
        number for number in read_gaussians(str(project / "out")).kept.column("id").to_pylist() if number >= FILES["one.parquet"]
    ]
    assert read_gaussians(str(project / "updated")).kept.column("id").to_pylist() == ids


def test_an_encoded_corpus_is_searched_both_ways(
    project: Path, encoded: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder, corpus = GaussianEncoder.from_pretrained(project / "model"), read_gaussians(str(project / "out"))
    query = encoder.encode(["a dog runs"])
    alike = Gaussian(query.mean.expand_as(corpus.gaussians.mean), query.log_var.expand_as(corpus.gaussians.log_var))
    for way, sims in (
        ("entails", encoder.similarity(alike, corpus.gaussians)),
        ("entailed", encoder.similarity(corpus.gaussians, alike)),
    ):
        monkeypatch.chdir(project)
        search_main(["out", "a dog runs", "--way", way, "-k", "3", "--model", "model"])
        lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
        assert [float(line[0]) for line in lines] == pytest.approx(sims.topk(3).values.tolist(), abs=1e-4)
        texts = corpus.kept.column("text").to_pylist()
        assert all(line[3] == texts[corpus.rows.index(int(line[1].removeprefix("row ")))] for line in lines)


def test_escape_sequences_of_a_corpus_are_shown_not_executed(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["a dog\x1b[2J runs", "a \x9bcat\x7f sits\r\nrow 9", "a \u202egod\u202c\tsits, Zürich 日本 🐕"]
    pq.write_table(pa.table({"text": texts}), tmp_path / "one.parquet")
    encoder, model = GaussianEncoder.from_pretrained(project / "model"), content_digest(project / "model")
    encode_here(encoder, tmp_path / "one.parquet", tmp_path / "out", keep=["text"], model=model)
    monkeypatch.chdir(project)
    search_main([str(tmp_path / "out"), "a dog runs", "--model", "model"])
    said = capsys.readouterr().out
    assert {line.split("  ", 2)[2] for line in said.splitlines()} == {
        r"a dog\x1b[2J runs",
        r"a \x9bcat\x7f sits\r\nrow 9",
        r"a \u202egod\u202c\tsits, Zürich 日本 🐕",
    }


def test_a_model_without_variances_is_not_searched_by_kl(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = GaussianEncoder.from_pretrained(project / "model")
    encoder.save_pretrained(tmp_path / "model", capabilities=[], similarity="cosine")
    encode_here(encoder, project / "corpus/three.parquet", tmp_path / "out", model=content_digest(tmp_path / "model"))
    monkeypatch.chdir(project)
    with pytest.raises(UserError, match=r"--by similarity: this model has no variances, .*; rank by cosine"):
        search_main([str(tmp_path / "out"), "a dog runs", "--model", str(tmp_path / "model")])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing", "new"), "nothing: nothing there; name a Parquet file or a folder of such files"),
        (("empty", "new"), "empty: no file *.parquet below it"),
        (("corpus", "new", "--column", "words"), "has no column 'words'; there are id, text, mean"),
        (("corpus", "new", "--keep", "mean"), "column 'mean' cannot be kept: the output or results of a search have a column"),
        (("corpus", "new", "--model", "corpus"), "corpus: no config.json here"),
        (("corpus", "new", "--model", "models:/gausscse@champion"), "mlflow.db: no MLflow database here; `dvc repro` makes"),
        (("s3://id:key@team/corpus", "new"), "s3://team/corpus: contains a key; leave it out"),
        (("corpus", "s3x://team/new"), "'s3x://team/new': Unrecognized filesystem type in URI"),
        (("corpus", "new", "--keep", "id,id"), "columns to keep are named twice: id, id"),
        (("uneven", "new", "--keep", "id"), "uneven/b.parquet: column 'id' is double, in other files of the corpus int64"),
        (("./corpus", "corpus/../corpus/out"), "corpus/../corpus/out: is inside the corpus"),
        (("corpus", "corpus/out"), "corpus/out: is inside the corpus"),
        (("corpus", "model"), "model: SHA256SUMS is in this folder already; name a new folder"),
        (("corpus", "params.yaml"), "params.yaml: is a file; name a folder"),
        (("corpus", "out", "--keep", "id"), "out: holds Gaussians of another run (different: keep); name a new folder"),
        (("corpus/one.parquet", "out", "--keep", "id,text"), "out: holds Gaussians of another run (different: parts)"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_computed(
    project: Path, encoded: str, arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "empty").mkdir(exist_ok=True)
    (project / "uneven").mkdir(exist_ok=True)
    for name, number in (("a", 1), ("b", 1.5)):
        pq.write_table(pa.table({"id": [number], "text": ["a dog"]}), project / f"uneven/{name}.parquet")
    monkeypatch.chdir(project)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    model = [] if "--model" in arguments else ["--model", "model"]
    column = [] if "--column" in arguments else ["--column", "text"]
    with pytest.raises(UserError) as caught:
        encode_main([*arguments, *model, *column])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (project / "new").exists()


def parts_of(project: Path, out: Path, rows: int = 100) -> list[Done]:
    """The corpus in parts of at most so many rows, encoded here."""
    encoder, model = GaussianEncoder.from_pretrained(project / "model"), content_digest(project / "model")
    return encode_here(encoder, project / "corpus", out, keep=["id"], model=model, part_rows=rows)


def test_long_texts_are_encoded_in_portions_and_hidden_folders_skipped(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = parts_of(project, tmp_path / "whole")
    monkeypatch.setattr(bulk_encode, "BATCH_BYTES", 100)
    (project / "corpus/_temporary").mkdir()
    shutil.copy(project / "corpus/one.parquet", project / "corpus/_temporary/one.parquet")
    try:
        some = parts_of(project, tmp_path / "some")
    finally:
        shutil.rmtree(project / "corpus/_temporary")
    assert [(one.rows, one.missing, one.empty, one.cut) for one in some] == [(o.rows, o.missing, o.empty, o.cut) for o in whole]
    ours, theirs = read_gaussians(str(tmp_path / "some")), read_gaussians(str(tmp_path / "whole"))
    assert ours.rows == theirs.rows
    assert ours.kept.equals(theirs.kept)
    torch.testing.assert_close(ours.gaussians.mean, theirs.gaussians.mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        (100, [100] * 3 + [100] * 5 + [40]),
        # A row group has 100 rows.
        (250, [250, 50, 250, 250, 40]),
        (30, [30] * 10 + [30] * 16 + [20] + [30, 10]),
    ],
)
def test_how_a_file_is_cut_into_parts_changes_no_number(
    rows: int, parts: list[int], project: Path, encoded: str, tmp_path: Path
) -> None:
    done = parts_of(project, tmp_path / "out", rows)
    assert [one.rows for one in done] == parts
    whole, cut = read_gaussians(str(project / "out")), read_gaussians(str(tmp_path / "out"))
    assert whole.rows == cut.rows
    assert whole.kept.column("id").equals(cut.kept.column("id"))
    torch.testing.assert_close(cut.gaussians.mean, whole.gaussians.mean, rtol=1e-5, atol=1e-6)


def test_a_part_without_its_record_is_made_again(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    parts_of(project, out)
    before = contents(out)
    # Killed between a part's file and its record; between all parts and the manifest.
    (out / "_part-000003.json").unlink()
    (out / "_manifest.json").unlink()
    assert sorted(one.number for one in parts_of(project, out)) == list(range(9))
    assert contents(out) == before


def test_parts_of_other_library_versions_are_reused_with_a_warning(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, now = tmp_path / "out", library_versions()
    parts_of(project, out)
    # One of a run with another torch, and one that is encoded now.
    other, file = {**now, "torch": "2.1.0"}, out / "_part-000003.json"
    write_json(file, {**json.loads(file.read_text(encoding="utf-8")), "versions": other})
    (out / "_part-000005.json").unlink()
    parts_of(project, out)
    assert capsys.readouterr().err == f"warning: parts that are reused were encoded with torch 2.1.0 (now {now['torch']})\n"
    manifest = json.loads((out / "_manifest.json").read_text(encoding="utf-8"))
    assert [part["versions"] for part in manifest["parts"]] == [other if number == 3 else now for number in range(9)]


def test_what_was_changed_or_is_not_whole_is_not_read(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    parts_of(project, out)
    data = bytearray((out / "part-000001.parquet").read_bytes())
    data[100] ^= 1
    (out / "part-000001.parquet").write_bytes(data)
    with pytest.raises(UserError, match=r"part-000001\.parquet: differs from its SHA-256 sum"):
        read_gaussians(str(out))
    (out / "_manifest.json").unlink()
    with pytest.raises(UserError, match=r"no _manifest\.json here: run gausscse encode until it is done"):
        read_gaussians(str(out))


def test_corpus_and_output_may_be_on_s3(project: Path, s3: str, tmp_path: Path) -> None:
    place, mark, options = s3.partition("?")
    source, out = (f"{place}/{name}{mark}{options}" for name in ("corpus", "out"))
    there = Place.open(source)
    for name in FILES:
        there.send(project / "corpus" / name, name)
    encoder, model = GaussianEncoder.from_pretrained(project / "model"), content_digest(project / "model")
    done = encode_here(encoder, source, out, keep=["id"], model=model)
    encode_here(encoder, source, tmp_path / "out", keep=["id"], model=model)
    assert encode_here(encoder, source, out, keep=["id"], model=model) == done
    found, here = read_gaussians(out), read_gaussians(str(tmp_path / "out"))
    assert found.rows == here.rows
    assert torch.equal(found.gaussians.mean, here.gaussians.mean)
    with pytest.raises(UserError, match=r"holds Gaussians of another run \(different: keep\)"):
        encode_here(encoder, source, out, model=model)
    with pytest.raises(UserError, match=r"corpora.*: nothing there"):
        planned(source.replace("corpus", "corpora"), "text", [], "", 32)
