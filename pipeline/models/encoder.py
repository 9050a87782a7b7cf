"""The Gaussian encoder: its network, its tokenizer and its folder.

Shapes: m sentences, D dimensions of the Gaussian.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from tqdm import tqdm
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerBase

from pipeline.config.params import ModelParams
from pipeline.data.cleaning import is_empty
from pipeline.data.token_store import TokenStore
from pipeline.families.family import families, part
from pipeline.gaussian.distribution import Gaussian
from pipeline.models.backbone import check_length, check_pinned, load_model, load_tokenizer, resolve
from pipeline.models.engines import Compiled, converted
from pipeline.models.graphs import EncoderGraph
from pipeline.models.model_config import FORMAT, capabilities_of, read_config, score_kind_of
from pipeline.models.model_dir import OBJECTIVE_WEIGHTS, Engine, embeddings_digest, note_of
from pipeline.models.network import GaussianNetwork
from pipeline.models.packing import CPU_TOKENS, lay_out, tokens_at_once, within_budget
from pipeline.models.pair_api import SentencePairs
from pipeline.models.reading import Reading
from pipeline.models.relation_head import Relation, ScoreKind, read_relation
from pipeline.models.threshold import Calibration, read_calibration, write_calibration
from pipeline.utils.atomic_io import write_directory, write_sums
from pipeline.utils.errors import UserError, first_line
from pipeline.utils.safetensors_io import write_tensors

_WEIGHTS = "model.safetensors"

_BACKBONE = "backbone_config"
# Keys of config.json that the encoder writes; all other keys are notes.
_OWN = ("format", "model", "dim")
# Outside training: the number of blocks of equal length that a forward pass is divided into.
_ENCODE_BLOCKS = 4
# Characters of a text for each token of the model that are read at first, and words that these must have beyond the model's.
_CHARACTERS, _FURTHER_WORDS = 16, 64


class GaussianEncoder(GaussianNetwork, SentencePairs):
    """Sentence → Gaussian.

    Make one with `from_pretrained` or `from_backbone`. `forward` is for training; `encode` and the methods of `SentencePairs` are
    for users. A family may have a subclass with more of them (`pipeline.families.family.Family.encoder`).
    """

    def __init__(self, backbone: nn.Module, tokenizer: PreTrainedTokenizerBase, params: ModelParams) -> None:
        super().__init__(backbone, params)
        self.tokenizer = tokenizer
        self.calibration: Calibration | None = None
        self.score_kind: ScoreKind = "kl"
        # Not a module of the encoder: it is fitted on the finished encoder, and saved in files of its own.
        self.relation_head: Relation | None = None
        self.notes: dict[str, Any] = {}
        self.digest: str | None = None
        """`embeddings_digest` of the folder that it was read from."""
        self.compiled: Compiled | None = None
        """What computes `encode` if not torch."""
        self.note = ""
        """`note_of` that folder."""

    @staticmethod
    def from_backbone(params: ModelParams, seed: int) -> GaussianEncoder:
        """A pretrained backbone with new heads, drawn with `seed`; in training mode.

        Raises:
            UserError: the backbone cannot be loaded, lacks weights or is not a text encoder; or `max_length` exceeds the
                positions of the backbone.
        """
        source = resolve(params.backbone, params.revision)
        check_pinned(source)
        # While loading, transformers draws random numbers (for a pooler) that are not used; the caller's state must not change.
        with torch.random.fork_rng(devices=[]):
            backbone = load_model(source)
        if not hasattr(backbone.config, "hidden_size"):
            raise UserError(f"model.backbone: {params.backbone!r} is not a text encoder (it has no hidden size)")
        check_length(backbone, params.backbone, params.max_length)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            encoder = GaussianEncoder(backbone, load_tokenizer(source), params)
        return encoder.train()

    @staticmethod
    def from_pretrained(path: str | Path, engine: Engine = "torch", threads: int | None = None) -> GaussianEncoder:
        """An encoder that `save_pretrained` wrote; in evaluation mode, offline.

        Args:
            engine: computes `encode` (`pipeline.models.engines`). All but torch compute on the CPU, and what the encoder was
                when it was read: use torch to change it.
            threads: of that engine; by default as many as torch has.

        Raises:
            UserError: not a folder that `save_pretrained` wrote, written by an incompatible version, a file differs from its
                SHA-256 sum, or the engine is not installed.
        """
        path = Path(path)
        config, params = read_config(path)
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        # All weights drawn here are replaced below, so the caller's random state must not change.
        with torch.random.fork_rng(devices=[]):
            architecture = AutoConfig.from_pretrained(path / _BACKBONE, local_files_only=True, trust_remote_code=False)
            encoder = encoder_class(config)(AutoModel.from_config(architecture), tokenizer, params)
        encoder.load_state_dict(load_file(path / _WEIGHTS))
        encoder.calibration = read_calibration(path)
        encoder.notes = {key: value for key, value in config.items() if key not in _OWN}
        encoder.score_kind = score_kind_of(config)
        encoder.relation_head = read_relation(path)
        encoder.read_modules(path)
        encoder.digest, encoder.note = embeddings_digest(path, engine), note_of(path)
        if engine != "torch":
            encoder.compiled = Compiled(converted(EncoderGraph(encoder.eval()), engine), encoder.longest, threads)
        return encoder.eval()

    def to_device(self, device: str | torch.device | None) -> Self:
        """Move the encoder to a device; None: leave it where it is.

        Raises:
            UserError: the device does not exist, or the engine cannot compute on it.
        """
        if self.compiled is not None and str(device) not in ("None", "cpu"):
            raise UserError(f"device {str(device)!r}: openvino computes on the CPU only; use the engine torch")
        try:
            return self.to(device)
        except (RuntimeError, AssertionError) as error:
            # An AssertionError, where torch was built without CUDA.
            raise UserError(f"device {str(device)!r}: {first_line(error)}") from None

    def read_modules(self, path: Path) -> None:
        """Read the objective's modules that the encoder's methods use; this one's use none.

        Raises:
            UserError: they are not those of this version.
        """

    @property
    def trained_modules(self) -> nn.Module | None:
        """What `read_modules` read."""
        return None

    def cut(self, dims: int) -> None:
        """Keep the first `dims` dimensions of the Gaussians, which are a model of their own: KL is a sum over the dimensions.

        The relation head stays; its scale is adjusted (`Relation.cut`). A model without a head loses its threshold, which was
        found with all dimensions.

        Raises:
            UserError: the model has fewer dimensions, or parts that need them all.
        """
        if not 1 <= dims <= self.dim:
            raise UserError(f"{dims} dimensions: the model has {self.dim}; keep 1 to {self.dim} of them")
        if len(self.towers) > 1 or self.trained_modules is not None:
            raise UserError("this model needs all its dimensions: its two encoders or its operations divide them")
        for head in (self.mean_head, self.variance_head):
            head.weight, head.bias = (nn.Parameter(part[:dims].detach().clone()) for part in (head.weight, head.bias))
            head.out_features = dims
        if self.relation_head is None:
            self.calibration = None
        else:
            self.relation_head = self.relation_head.cut(dims / self.dim)
        self.digest = self.compiled = None
        self.dim, self.params = dims, self.params.model_copy(update={"dim": dims, "mean_start": "random"})

    operations: ClassVar[Mapping[str, int]] = MappingProxyType({})
    """What `operate` can do: the name of an operation → the number of its inputs."""

    def operate(self, name: str, *inputs: Iterable[str] | Gaussian) -> Tensor:
        """(n, D) the embeddings that an operation of the model makes of n inputs.

        Raises:
            UserError: the model has no such operation.
        """
        if name not in self.operations:
            raise UserError(f"this model has no operation {name!r}")
        return getattr(self, name)(*inputs)

    @property
    def writes(self) -> bool:
        """Whether `write` writes sentences."""
        return False

    def write(self, vectors: Tensor) -> list[str]:
        """The sentences that the model writes for (n, D) embeddings.

        Raises:
            UserError: the model has no decoder.
        """
        raise UserError("this model has no decoder")

    def write_weights(self, folder: Path) -> None:
        """Add the weights of its operations to an exported model; this one has none."""

    @property
    def sentence_ends(self) -> tuple[int, int]:
        """The token ids before and after every sentence, such as those of [CLS] and [SEP]."""
        ids: list[int] = self.tokenizer("a")["input_ids"]  # type: ignore[assignment]
        return ids[0], ids[-1]

    def save_pretrained(
        self,
        path: str | Path,
        modules: nn.Module | None = None,
        *,
        weights: Callable[[nn.Module], Mapping[str, Tensor]] = nn.Module.state_dict,
        **notes: Any,
    ) -> None:
        """Write config, weights, tokenizer, relation head, threshold and SHA256SUMS into a new folder, completely or not at all.

        Args:
            modules: modules that the objective trained with the encoder; objective.safetensors then holds their weights.
            weights: gives the weights to write, by name, of the encoder and of `modules`; by default those that they have now.
            notes: JSON values about how the model was made. config.json keeps them with the parameters and with the notes that
                the encoder was loaded with.
        """
        with write_directory(Path(path)) as folder:
            # The params may be a whole section of params.yaml, which says more than the encoder needs.
            params = self.params.model_dump(mode="json", include=set(ModelParams.model_fields))
            config = {**self.notes, **notes, "format": FORMAT, "model": params, "dim": self.dim}
            (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            self.backbone.config.save_pretrained(folder / _BACKBONE)  # type: ignore[union-attr, operator]
            self.tokenizer.save_pretrained(folder)
            write_tensors(weights(self), folder / _WEIGHTS)
            # A model that was read with modules keeps them when it is saved again.
            if (modules := modules or self.trained_modules) is not None:
                write_tensors(weights(modules), folder / OBJECTIVE_WEIGHTS)
            if self.relation_head is not None:
                self.relation_head.write(folder)
            if self.calibration is not None:
                write_calibration(self.calibration, folder)
            write_sums(folder)

    @torch.inference_mode()
    def encode_rows(
        self,
        store: TokenStore,
        rows: NDArray[np.integer],
        *,
        bf16: bool = False,
        batch_size: int | None = None,
        progress: bool = False,
        project: Callable[[Tensor], Tensor] | None = None,
    ) -> Gaussian:
        """Encode sentences of a token store, without dropout.

        Args:
            rows: (m,) sentences of the store, shortest first, which keeps padding low.
            bf16: use bf16 autocast.
            batch_size: the most sentences in one forward pass. It is limited in any case: to 4,096 padded tokens on a CPU, and on
                a GPU to what fits in its free memory.
            progress: show a bar on stderr.
            project: makes token vectors (`GaussianNetwork.forward`); by default that of the relation head.

        Returns:
            Gaussian of (m, D), float32, on the encoder's device.
        """
        # It makes the token vectors of the relation head only.
        compiled = self.compiled if project is None else None
        project = project or (self.relation_head and self.relation_head.projection)
        device = self.mean_head.weight.device
        # Going through all modules takes a tenth of the time of a short pair.
        if was_training := self.training:
            self.eval()
        parts: list[Gaussian] = []
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            lengths = store.lengths_of(rows)
            with tqdm(total=len(rows), unit=" sentences", disable=not progress) as bar:
                order, budget = np.arange(len(rows)), tokens_at_once(device, self.backbone.config)
                while len(order):
                    batch = within_budget(lengths, order, budget)
                    step = batch_size or len(batch)
                    pieces = [rows[batch[start : start + step]] for start in range(0, len(batch), step)]
                    try:
                        for piece in pieces:
                            if compiled is None:
                                part = self(lay_out(store, piece, _ENCODE_BLOCKS, device), project)
                            else:
                                blocks = compiled.blocks(store.lengths_of(piece))
                                part = compiled(lay_out(store, piece, min(blocks, _ENCODE_BLOCKS), device))
                            parts.append(_without_padding(part))
                    except torch.OutOfMemoryError:
                        if budget <= CPU_TOKENS:
                            raise
                        # Another process has taken memory.
                        budget //= 2
                        continue
                    order = order[len(batch) :]
                    bar.update(len(batch))
        if was_training:
            self.train()
        return Gaussian.cat(parts) if parts else Gaussian(*torch.empty((2, 0, self.dim), device=device))

    def encode(
        self,
        sentences: Iterable[str],
        *,
        batch_size: int | None = None,
        device: str | torch.device | None = None,
        show_progress_bar: bool = False,
    ) -> Gaussian:
        """Encode sentences; results are in the order given.

        Args:
            sentences: m strings. Sentences longer than `params.max_length` tokens are cut; a warning (`warnings`) gives their
                number, and another one that of sentences with many unknown words.
            batch_size: the most sentences in one forward pass; by default as many as fit (see `encode_rows`).
            device: the device to move the encoder to first; by default the encoder stays where it is.
            show_progress_bar: show a bar on stderr.

        Returns:
            Gaussian of (m, D), float32, on the CPU. Its `mean` and `log_var` are tensors; `numpy()` gives arrays.

        Raises:
            UserError: `sentences` is one string, an item is empty or not valid text, or `batch_size` is below 1.
        """
        if isinstance(sentences, str) or not isinstance(sentences, Iterable):
            raise UserError(
                f"encode takes a list of sentences, not {type(sentences).__name__}; for one sentence, write [sentence]"
            )
        texts = list(sentences)
        self.to_device(device)
        encoded, reading = self.encode_counted(texts, batch_size=batch_size, progress=show_progress_bar)
        for line in reading.lines(self.longest):
            warnings.warn(f"of {len(texts)} sentences {line}", stacklevel=2)
        return encoded

    def encode_counted(
        self,
        texts: Sequence[str],
        *,
        batch_size: int | None = None,
        progress: bool = False,
        bf16: bool = False,
        allow_empty: bool = False,
    ) -> tuple[Gaussian, Reading]:
        """Like `encode`, but returns how the sentences were read instead of warning about it.

        Sentences that occur several times, as premises often do, are encoded once.

        Args:
            bf16: use bf16 autocast.
            allow_empty: encode empty sentences, too. Their Gaussians say nothing.
        """
        if batch_size is not None and not (isinstance(batch_size, Integral) and batch_size >= 1):
            raise UserError(f"batch_size is {batch_size!r}: write a whole number of at least 1")
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise UserError(f"sentence {row} is {type(text).__name__}, not text")
            if not allow_empty and is_empty(text):
                raise UserError(f"sentence {row} is empty or only white space; leave it out")
            if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
                raise UserError(f"sentence {row} has half a character (a lone surrogate); remove it")
        number = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        distinct = np.array([number[text] for text in texts], dtype=np.int64)
        ids, reading = self._ids(list(number))
        pad: Any = self.tokenizer.pad_token_id
        store = TokenStore.of(ids, int(pad))
        order = np.argsort(store.length, kind="stable")
        encoded = self.encode_rows(store, order, bf16=bf16, batch_size=batch_size, progress=progress).to("cpu")
        return encoded[torch.from_numpy(np.argsort(order)[distinct])], reading.of(distinct)

    def text_of(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The sentences of token ids, without the tokens before and after a sentence."""
        return [self.tokenizer.decode(list(row), skip_special_tokens=True) for row in ids]  # type: ignore[misc]

    @property
    def longest(self) -> int:
        """Most tokens of a sentence, with those before and after it."""
        return self.params.max_length

    def _ids(self, texts: list[str]) -> tuple[list[list[int]], Reading]:
        """The token ids of each sentence, and how they were read."""
        most = _CHARACTERS * self.longest if self.tokenizer.truncation_side == "right" else None
        read = self._tokenized([text[:most] for text in texts]) if texts else []
        for row, (text, (_, further)) in enumerate(zip(texts, read, strict=True)):
            # A tokenizer divides text into words, and where a text was cut, only the last words differ from those of the whole.
            if most is not None and len(text) > most and (further or 0) < _FURTHER_WORDS:
                read[row] = self._tokenized([text])[0]
        ids = [row for row, _ in read]
        unknown: Any = self.tokenizer.unk_token_id
        # Without the tokens before and after each text.
        shares = [row.count(unknown) / max(1, len(row) - 2) for row in ids]
        cut, lengths = [further is not None for _, further in read], [len(row) for row in ids]
        return ids, Reading(np.array(cut, dtype=np.bool_), np.array(shares, dtype=np.float64), np.array(lengths, dtype=np.int64))

    def _tokenized(self, texts: list[str]) -> list[tuple[list[int], int | None]]:
        """The token ids of each text, and how many words are beyond them; None if the text was not cut."""
        tokenized: Any = self.tokenizer(texts, truncation=True, max_length=self.longest, return_overflowing_tokens=True)
        # The tokenizer returns the overflow of a text as extra rows right after the text's own row.
        first = np.flatnonzero(np.diff(tokenized["overflow_to_sample_mapping"], prepend=-1, append=len(texts)))

        def word(row: int) -> int:
            return max((word for word in tokenized.word_ids(row) if word is not None), default=0)

        ids, rows = tokenized["input_ids"], zip(first[:-1].tolist(), first[1:].tolist(), strict=True)
        return [(ids[row], word(end - 1) - word(row) if end - row > 1 else None) for row, end in rows]


def _without_padding(encoded: Gaussian) -> Gaussian:
    tokens = None if encoded.tokens is None else encoded.tokens.packed()
    return Gaussian(encoded.mean.to(torch.float32), encoded.log_var.to(torch.float32), tokens=tokens)


def encoder_class(config: Mapping[str, Any]) -> type[GaussianEncoder]:
    """The class with the methods that a model has."""
    able = capabilities_of(config)
    owner = next((family for family in families() if family.encoder in able), None)
    return GaussianEncoder if owner is None else part(owner, "encoder").Encoder
