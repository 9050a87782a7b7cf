"""InterSent: the loss in float64 against loops over its rows, and how batches mix operations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PLAIN
from store import make_store
from torch import Tensor

from pipeline.config.load import load_params
from pipeline.data.schema import OPERATIONS
from pipeline.data.token_store import Rows, TokenStore, open_store
from pipeline.families.operations.intersent import IntersentObjective, OperationBatches
from pipeline.families.operations.operators import SentenceOperators
from pipeline.families.operations.params import IntersentParams
from pipeline.models.encoder import GaussianEncoder
from pipeline.utils.errors import UserError
from tests.store import in_memory
from tests.trial_of import OPERATIONS as SMALL
from tests.trial_of import tiny_encoder

# Row 2 has the target of row 0; row 3 has its own first input as target; row 6 is a fusion with its own target as second input.
# Row 5 is a reconstruction of the target of rows 0 and 2; rows 4 and 7 are compressions of one sentence.
OPERATION = [0, 1, 0, 3, 2, 3, 0, 2]
A = [0, 3, 1, 4, 5, 2, 7, 5]
B = [1, 2, 9, -1, -1, -1, 10, -1]
TARGET = [2, 5, 2, 4, 9, 11, 10, 0]


def made(**keys: Any) -> IntersentObjective:
    return IntersentObjective(params=IntersentParams(**{**SMALL, **keys}))


def rows_of(operation: list[int], a: list[int], b: list[int], target: list[int], folder: Path = Path()) -> Rows:
    columns = {name: np.array(column, np.int32) for name, column in {"a": a, "b": b, "target": target}.items()}
    return in_memory({"operation": np.array(operation, np.int8), **columns}, folder)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    random = np.random.default_rng(0)
    texts = [[2, *random.integers(5, 30, random.integers(1, 9)).tolist(), 3] for _ in range(12)]
    return open_store(make_store(tmp_path_factory.mktemp("store"), texts))


@pytest.fixture(scope="module")
def encoder(tiny_backbone: Path) -> GaussianEncoder:
    return tiny_encoder(tiny_backbone)


def batches_of(objective: IntersentObjective, rows: Rows, store: TokenStore, size: int, seed: int = 1) -> OperationBatches:
    train = load_params(PLAIN).train.model_copy(update={"precision": "fp32"})
    return objective.batches(rows, store, train, size, seed)


def cosine(x: Tensor, y: Tensor) -> float:
    return float(x @ y) / math.sqrt(float(x @ x) * float(y @ y))


def loss_by_loops(
    objective: IntersentObjective, modules: SentenceOperators, vectors: Mapping[int, Tensor], order: list[int], store: TokenStore
) -> float:
    """Mean over the rows of −log softmax, plus the weighted mean over all written tokens of theirs."""
    p = objective.params
    outputs: list[Tensor] = []
    contrastive, negative_log, written = 0.0, 0.0, 0
    for row in order:
        a, b = vectors[A[row]], vectors.get(B[row])
        x = a if b is None else torch.cat((a, b))
        name = OPERATIONS[OPERATION[row]]
        output = a + b if name == "fusion" and b is not None else a - b if b is not None else a
        if p.operators == "mlp" and name != "reconstruction":
            network: Any = modules.operators.networks[name]
            first, _, second = network
            output = output + second.weight @ (first.weight @ x + first.bias).clamp(min=0) + second.bias
        outputs.append(output)
        candidates = {TARGET[row]: vectors[TARGET[row]]}
        scores = [cosine(output, vectors[TARGET[row]]) / p.temperature]
        changes = name != "reconstruction" and not (p.operators == "arithmetic" and name == "compression")
        not_wrong = {
            TARGET[other] for other in order if (OPERATION[other], A[other], B[other]) == (OPERATION[row], A[row], B[row])
        }
        not_wrong |= set() if changes else {A[row]}
        for other in order:
            if TARGET[other] not in not_wrong:
                scores.append(cosine(output, vectors[TARGET[other]]) / p.temperature)
        if p.own_inputs:
            if A[row] not in candidates and changes:
                scores.append(cosine(output, a) / p.temperature)
            if b is not None and B[row] not in candidates:
                scores.append(cosine(output, b) / p.temperature)
        contrastive += math.log(sum(math.exp(s) for s in scores)) - scores[0]
    if modules.decoder is not None:
        vocabulary = modules.decoder.vocabulary.tolist()
        for row, output in zip(order, outputs, strict=True):
            ids = [vocabulary.index(token) for token in store[TARGET[row]].tolist()]
            logits = modules.decoder(output[None], torch.tensor([ids[:-1]]))[0].log_softmax(-1)
            for position, token in enumerate(ids[1:]):
                negative_log -= float(logits[position, token])
                written += 1
    return p.contrastive_weight * contrastive / len(order) + p.generation_weight * negative_log / max(written, 1)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"own_inputs": False},
        {"operators": "arithmetic"},
        {"generation_weight": 0.0},
        {"contrastive_weight": 0.0, "generation_weight": 1.0},
        {"temperature": 0.5, "contrastive_weight": 2.0},
    ],
)
def test_the_loss_is_that_of_loops(keys: dict[str, Any], store: TokenStore, encoder: GaussianEncoder) -> None:
    objective = made(**keys)
    batches = batches_of(objective, rows_of(OPERATION, A, B, TARGET), store, 8)
    modules = objective.modules(encoder, batches).double().eval()
    weights = torch.Generator().manual_seed(4)
    for parameter in modules.operators.parameters():
        torch.nn.init.normal_(parameter, std=0.2, generator=weights)
    assert (modules.decoder is None) == (keys.get("generation_weight") == 0.0)
    draw = torch.Generator().manual_seed(3)
    vectors = {k: v.requires_grad_() for k, v in enumerate(torch.randn((12, 32), generator=draw, dtype=torch.float64))}
    batch = batches.batch(0)
    order = batches.rows(0).tolist()
    assert sorted(order) == list(range(8)) and batch.counted == 8
    parts = [
        torch.stack([vectors[k] if k >= 0 else torch.zeros(32, dtype=torch.float64) for k in column])
        for column in batch.sentences
    ]
    found = batch.loss(parts, modules) / batch.counted
    assert float(found) == pytest.approx(loss_by_loops(objective, modules, vectors, order, store), rel=1e-10)
    found.backward()
    # The batch's sentences that no row uses have no gradient; the others have one.
    used = {n for n in (*A, *B, *TARGET) if n >= 0}
    if objective.params.contrastive_weight:
        assert {k for k, v in vectors.items() if v.grad is not None and v.grad.abs().max() > 0} == used


def test_the_decoder_knows_the_ids_of_the_targets_and_no_others(store: TokenStore, encoder: GaussianEncoder) -> None:
    objective = made()
    rows = rows_of(OPERATION, A, B, TARGET)
    decoder = objective.modules(encoder, batches_of(objective, rows, store, 8)).decoder
    assert decoder is not None
    assert set(decoder.vocabulary.tolist()) == {int(t) for number in TARGET for t in store[number]} | set(encoder.sentence_ends)
    only_fusion = made(shares={"fusion": 1.0})
    decoder = only_fusion.modules(encoder, batches_of(only_fusion, rows, store, 8)).decoder
    assert decoder is not None
    assert set(decoder.vocabulary.tolist()) == {int(t) for number in (2, 10) for t in store[number]} | set(encoder.sentence_ends)
    with pytest.raises(
        UserError, match=r"objective\.decoder_layers: 9, but the backbone has \d layers that can start a decoder; lower"
    ):
        made(decoder_layers=9).modules(encoder, batches_of(objective, rows, store, 8))


def test_batches_mix_operations_in_the_stated_shares(store: TokenStore) -> None:
    operation = [0] * 50 + [1] * 10 + [2] * 30 + [3] * 10
    numbers = [k % 12 for k in range(100)]
    rows = rows_of(operation, numbers, [0 if o < 2 else -1 for o in operation], numbers)
    batches = batches_of(made(shares={"difference": 1.0, "fusion": 2.0, "reconstruction": 1.0}), rows, store, 8)
    # 70 rows of the three operations: 35 fusions, 17 or 18 of the others, in nine batches of seven or eight.
    assert len(batches) == 70 and batches.steps_per_epoch == 9
    epochs = [np.concatenate([batches.rows(9 * epoch + step) for step in range(9)]) for epoch in range(2)]
    for epoch in epochs:
        drawn = np.bincount(np.array(operation)[epoch], minlength=4)
        assert drawn.tolist() in ([35, 18, 0, 17], [35, 17, 0, 18])
        # Ten rows repeat evenly, and of fifty, no row is drawn twice.
        assert set(np.bincount(epoch, minlength=100)[50:60].tolist()) <= {1, 2}
        assert np.bincount(epoch, minlength=100)[:50].max() == 1
    assert set(epochs[0].tolist()) != set(epochs[1].tolist())
    for step in range(9):
        counts = np.bincount(np.array(operation)[batches.rows(step)], minlength=4)
        assert abs(counts[0] - 3.9) <= 1.5 and abs(counts[1] - 1.95) <= 1.5 and counts[2] == 0
    again = batches_of(made(shares={"difference": 1.0, "fusion": 2.0, "reconstruction": 1.0}), rows, store, 8)
    assert np.array_equal(again.rows(13), batches.rows(13))


def test_without_shares_every_row_is_drawn_once_an_epoch(store: TokenStore) -> None:
    batches = batches_of(made(), rows_of(OPERATION, A, B, TARGET), store, 3)
    assert sorted(np.concatenate([batches.rows(step) for step in range(3, 6)]).tolist()) == list(range(8))
    # Rows 0 and 2 have the same target, one pair each way.
    whole = batches_of(made(), rows_of(OPERATION, A, B, TARGET), store, 8)
    assert whole.same_source(0) == 2


@pytest.mark.parametrize("shares", [None, {"fusion": 1.0, "reconstruction": 1.0}])
def test_blocks_keep_the_rows_of_an_epoch_and_their_shares(store: TokenStore, shares: dict[str, float] | None) -> None:
    operation = [0, 3] * 500
    numbers = [k % 12 for k in range(1000)]
    rows = rows_of(operation, numbers, [0 if o < 2 else -1 for o in operation], numbers)
    params = load_params(PLAIN).train.model_copy(update={"block_rows": 10})
    batches = made(shares=shares).batches(rows, store, params, 20, 1)
    epoch = np.concatenate([batches.rows(step) for step in range(batches.steps_per_epoch)])
    assert sorted(epoch.tolist()) == list(range(1000))
    # The ten rows of a block are within a window, of eighty rows; with shares each operation has blocks of its own.
    places, own = np.argsort(epoch), 2 if shares else 1
    near = [np.ptp(places[k : k + 10 * own : own]) for k in range(0, 1000, 10 * own)]
    assert np.median(near) < 80 * own and max(near) < 90 * own
    if shares:
        assert {int(np.sum(epoch[k : k + 20] % 2)) for k in range(0, 1000, 20)} <= {9, 10, 11}


def test_what_cannot_be_trained_is_one_line(store: TokenStore) -> None:
    rows = rows_of([0, 0], [0, 1], [1, 2], [2, 3], Path("data/tokens/train"))
    with pytest.raises(UserError, match=r"objective\.shares: names compression, and data/tokens/train has no row of it"):
        batches_of(made(shares={"compression": 1.0}), rows, store, 8)
    with pytest.raises(UserError, match=r"data/tokens/train: 1 operation rows; training needs 2 or more"):
        batches_of(made(), rows_of([0], [0], [1], [2], Path("data/tokens/train")), store, 8)
    with pytest.raises(ValueError, match="contrastive_weight is 0, too"):
        made(contrastive_weight=0.0, generation_weight=0.0)
