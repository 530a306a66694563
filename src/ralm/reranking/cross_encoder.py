"""Cross-encoders through sentence-transformers: pairs of (end of a prefix, passage) in, a score for each out.

A language model may be a cross-encoder too. It then reads the passage first and scores where the prefix ends, and a
`PrefixLikelihood` may add how likely it finds the end of the prefix after the passage: the score of zero-shot reranking
(In-Context RALM, Eq. 6), read from the sequence that scores the pair. Letters of shapes: P pairs, T tokens, J places
before the end, D width, V vocabulary.
"""

import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.util import batch_to_device, load_file_path
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM

from ralm.errors import ModelError, UsageError, short_message
from ralm.lm import model_path
from ralm.lm.local import loading
from ralm.records import FloatArray
from ralm.reranking.predictive import Pair

_TOKENS: Final = 64
"""The number of tokens of the prefix that are read if the cross-encoder has no number of its own."""
_SETTINGS: Final = "ralm"
"""The key of `CrossEncoderSettings` in a cross-encoder's config.json."""

_BATCH: Final = {"cpu": 32, "cuda": 256}
_CHARACTERS_A_TOKEN: Final = 16
_NEW_HEADS: Final = ("score", "classifier")
"""The names of the new head of a language model."""
_HEADS: Final = ("ForSequenceClassification", "ForCausalLM")
_CAUSAL: Final = ("ForCausalLM", "GPT2LMHeadModel")
"""Ends of the names of architectures: with a score for a pair, and language models."""
_NO_LENGTH: Final = 2**31 - 1
"""Tokenizers without a length have a huge number instead."""
_SET_FOR_A_CALL: Final = ("truncation", "padding")
_MIN_SHARE: Final = 0.01
"""Tokens whose weight is below this share of that of the last one are not read."""
_TRIAL: Final = ("A passage, which comes first.", "The end of a prefix")
_TOLERANCE: Final = 1e-3
_MAX_LOGITS: Final = 1 << 25
"""The maximum number of logits in memory at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixLikelihood:
    """The weights of the log-probabilities of the last tokens of a prefix: `weight` * exp(-j / `decay`), j from 0."""

    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    decay: Annotated[float, Field(gt=0, allow_inf_nan=False)]

    @property
    def places(self) -> int:
        """The number of tokens with a weight."""
        return math.floor(self.decay * -math.log(_MIN_SHARE)) + 1

    def of(self, log_probs_PJ: torch.Tensor) -> torch.Tensor:
        """Return the addition to the scores (P) of pairs; the log-probabilities begin with the last token."""
        places_J = torch.arange(log_probs_PJ.shape[1], device=log_probs_PJ.device)
        return self.weight * (log_probs_PJ * torch.exp(-places_J / self.decay)).sum(dim=1)


class CrossEncoderSettings(BaseModel):
    """How a cross-encoder reads, as in the config.json of its folder; the defaults are for other cross-encoders."""

    model_config = ConfigDict(frozen=True)

    tokens: int | None = Field(default=None, ge=1)
    rank_weight: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    passage_first: bool = False
    likelihood: PrefixLikelihood | None = None

    @classmethod
    def of(cls, config: object, name: str) -> "CrossEncoderSettings":
        """The settings in a config.json; ModelError if it is damaged."""
        try:
            return cls.model_validate_json(json.dumps(getattr(config, _SETTINGS, None) or {}), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join([_SETTINGS, *map(str, first["loc"])])
            raise ModelError(
                f"{name} is damaged: its config.json has the {field} {first['input']!r}; train it again."
            ) from None


class PairModel:
    """A cross-encoder that reads the last `tokens` tokens of a prefix and then a passage, or the passage first.

    A pair that is too long keeps the end of its prefix and the beginning of its passage. `likelihood` is added to the
    score of a language model; `can_read_ends` finds out whether the model can have one.
    """

    def __init__(
        self,
        name: str,
        model: CrossEncoder,
        reading: "CrossEncoderSettings",
        *,
        can_read_ends: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = name
        self.model = model
        self.tokens = reading.tokens or _TOKENS
        self.rank_weight = reading.rank_weight
        self.passage_first = reading.passage_first
        self.likelihood = reading.likelihood
        self._can_read_ends = can_read_ends
        if model.num_labels != 1:
            raise ModelError(f"{name} gives {model.num_labels} scores for a pair; a reranker gives one.")
        if not getattr(model.tokenizer, "is_fast", False):
            raise ModelError(f"{name} has no fast tokenizer (tokenizer.json), which a reranker needs.")
        if 2 * self.tokens > model.max_seq_length:
            raise UsageError(
                f"{self.tokens} tokens of the prefix leave too little room for a passage: {name} reads "
                f"{model.max_seq_length} tokens of both; give at most {model.max_seq_length // 2}."
            )

    @cached_property
    def reads_ends(self) -> bool:
        """Whether it can have a likelihood; the language model is loaded once more to find out."""
        return self._can_read_ends()

    @cached_property
    def config(self) -> Mapping[str, JsonValue]:
        """Everything that affects the scores."""
        transformer: Any = self.model.model
        tokenizer = json.loads(self.model.tokenizer.backend_tokenizer.to_str())
        decisive = {name: value for name, value in tokenizer.items() if name not in _SET_FOR_A_CALL}
        return {
            "name": str(Path(self.name).resolve()) if Path(self.name).is_dir() else self.name,
            "weights": loading.weights_fingerprint(transformer),
            "settings": loading.settings_fingerprint(transformer),
            "tokenizer": hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16],
            "dtype": str(transformer.dtype).removeprefix("torch."),
            "max_length": self.model.max_seq_length,
            **self._settings(),
        }

    def end(self, prefix: str) -> str:
        """The end of a prefix that is read: its last `tokens` tokens, as text."""
        characters = self.tokens * _CHARACTERS_A_TOKEN  # more if these are too few
        while True:
            tail = _readable(prefix[-characters:])
            encoded = self.model.tokenizer(tail, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
            offsets = encoded["offset_mapping"]
            if len(offsets) > self.tokens:
                return tail[offsets[-self.tokens][0] :]
            if characters >= len(prefix):
                return tail
            characters *= 2

    def scores(self, pairs: Sequence[Pair]) -> FloatArray:
        """Return the logits (float32, P) for pairs of an end and a passage; ModelError if it cannot read a pair."""
        self.model.eval()
        scores_P = np.empty(len(pairs), dtype=np.float32)
        for some in self.batches(pairs):
            with torch.inference_mode():
                scores_P[some] = self.logits([pairs[place] for place in some]).float().cpu().numpy()
        return scores_P

    def logits(self, pairs: Sequence[Pair]) -> torch.Tensor:
        """Return the scores (P) of pairs from one pass, with a gradient if torch keeps one."""
        if self.likelihood is None:
            return self._pass(self._features(pairs))
        scores_P, log_probs_PJ = self._with_ends(pairs, self.likelihood.places)
        return scores_P + self.likelihood.of(log_probs_PJ)

    def end_log_probs(self, pairs: Sequence[Pair], places: int) -> FloatArray:
        """Return the log-probabilities (float32, P x J) of the last tokens of the ends, the last first, 0 for none."""
        self.model.eval()
        log_probs_PJ = np.zeros((len(pairs), places), dtype=np.float32)
        for some in self.batches(pairs):
            with torch.inference_mode():
                found_PJ = self._with_ends([pairs[place] for place in some], places)[1].cpu().numpy()
            log_probs_PJ[some, : found_PJ.shape[1]] = found_PJ
        return log_probs_PJ

    def batches(self, pairs: Sequence[Pair], sizes: Mapping[str, int] = _BATCH) -> list[list[int]]:
        """Return the indices of the pairs of each batch, the longest first; `sizes` has that of a batch by device."""
        order = sorted(range(len(pairs)), key=lambda place: -sum(map(len, pairs[place])))
        size = sizes.get(self.model.device.type, sizes["cpu"])
        return [order[begin : begin + size] for begin in range(0, len(order), size)]

    def _with_ends(self, pairs: Sequence[Pair], places: int) -> tuple[torch.Tensor, torch.Tensor]:
        features = self._features(pairs)
        ends = [end for end, _ in pairs]
        tokens = self.model.tokenizer(ends, add_special_tokens=False, verbose=False)["input_ids"]
        lengths_P = torch.tensor([len(one) for one in tokens], device=self.model.device)
        with _last_layer_of(self.model.model) as seen:
            scores_P = self._pass(features)
        return scores_P, end_log_probs(self.model.model, features, seen[0], lengths_P, places)

    def _pass(self, features: dict[str, Any]) -> torch.Tensor:
        with self._reading_errors():
            return self.model(features)["scores"].squeeze(-1)

    def _features(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        shortened = "only_first" if self.passage_first else "only_second"
        longest = {"max_length": self.model.max_seq_length, "truncation": shortened}
        texts = [(end, _readable(passage)) for end, passage in pairs]
        if self.passage_first:
            texts = [(passage, end) for end, passage in texts]
        with self._reading_errors():
            features = self.model.preprocess(texts, processing_kwargs={"text": longest})
            return dict(batch_to_device(features, self.model.device))

    def save(self, folder: Path) -> None:
        """Write a folder that sentence-transformers loads, too."""
        transformer: Any = self.model.model
        setattr(transformer.config, _SETTINGS, self._settings())
        self.model.activation_fn = torch.nn.Identity()
        with loading.quiet_loading():
            self.model.save_pretrained(str(folder), create_model_card=False)

    def _settings(self) -> dict[str, JsonValue]:
        return {
            "tokens": self.tokens,
            "rank_weight": self.rank_weight,
            "passage_first": self.passage_first,
            "likelihood": None if self.likelihood is None else asdict(self.likelihood),
        }

    @contextmanager
    def _reading_errors(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, IndexError, ValueError) as error:
            raise ModelError(f"the cross-encoder {self.name} cannot read pairs: {short_message(error)}.") from error


def load_pair_model(
    name: str, tokens: int | None = None, *, device: str = "auto", max_length: int | None = None, new: bool = False
) -> PairModel:
    """Load a cross-encoder by hub name or folder; with `new`, for training, with a head and in float32."""
    source = model_path(name)
    loading.check_folder(source)
    loading.check_tokenizer(source)
    options: dict[str, Any] = {"num_labels": 1, "model_kwargs": {"dtype": torch.float32}} if new else {}

    def may_lack(weight: str) -> bool:
        of_head = "pooler." in weight or not weight.startswith(f"{model.model.base_model_prefix}.")
        return of_head and (new or not _has_head(model))

    with loading.loading_errors("cross-encoder", name), loading.whole_loading(name, may_lack), _without_notes():
        causal = new and _is_language_model(source)
        modules = {"modules": [_with_new_head(source)]} if causal else {"model_name_or_path": source, **options}
        model = CrossEncoder(**modules, device=None if device == "auto" else device)
    if not new and not _has_head(model):
        raise ModelError(
            f"{name} is an encoder without a head that scores pairs; train one (`ralm train reranker --init {name}`), "
            "or give a cross-encoder."
        )
    longest = model.max_seq_length
    if max_length is None and (longest is None or longest > _NO_LENGTH):
        raise ModelError(
            f"{name} has no maximum number of tokens: set `model_max_length` in its tokenizer_config.json."
        )
    if max_length is not None:
        if longest is not None and max_length > longest:
            raise UsageError(f"`max_length` {max_length} is beyond the {longest} tokens that {name} can read.")
        model.max_seq_length = max_length
    saved = CrossEncoderSettings.of(model.model.config, name)
    settings = saved.model_copy(update={"tokens": tokens or saved.tokens})
    if not new:
        return PairModel(name, model, settings)

    def can_read_ends() -> bool:
        with loading.loading_errors("language model", name), loading.whole_loading(name, lambda _: False):
            return saved.likelihood is not None or (causal and _reads_ends(source, model.model, model.tokenizer))

    changed = {"rank_weight": 0.0, "likelihood": None, "passage_first": saved.passage_first or causal}
    return PairModel(name, model, settings.model_copy(update=changed), can_read_ends=can_read_ends)


def _has_head(model: CrossEncoder) -> bool:
    return (model.model.config.architectures or [""])[0].endswith(_HEADS)


def _is_language_model(source: str) -> bool:
    """Whether a model is a language model, and not yet a cross-encoder."""
    if load_file_path(source, "modules.json") is not None:
        return False
    architectures = AutoConfig.from_pretrained(source).architectures or [""]
    return bool(architectures[0].endswith(_CAUSAL))


def _with_new_head(source: str) -> Transformer:
    """Load a language model with a new head that gives one score where the text ends."""
    transformer = Transformer(
        source,
        transformer_task="sequence-classification",
        model_kwargs={"dtype": torch.float32},
        config_kwargs={"num_labels": 1},
    )
    tokenizer = transformer.tokenizer
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token is None:
        raise ModelError(
            f"{source} has neither a padding token nor an end token, which a reranker needs: set one in its "
            "tokenizer_config.json."
        )
    transformer.model.config.pad_token_id = tokenizer.pad_token_id
    for head in (getattr(transformer.model, name, None) for name in _NEW_HEADS):
        if isinstance(head, torch.nn.Linear):
            for weights in head.parameters():  # training starts from the rank and the likelihood alone
                torch.nn.init.zeros_(weights)
    return transformer


@contextmanager
def _without_notes() -> Iterator[None]:
    logger = logging.getLogger("sentence_transformers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _readable(text: str) -> str:
    """The text with U+FFFD for unpaired surrogates, which no tokenizer accepts."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def end_log_probs(
    model: Any, features: Mapping[str, torch.Tensor], hidden_PTD: torch.Tensor, lengths_P: torch.Tensor, places: int
) -> torch.Tensor:
    """Return the log-probabilities (float32, P x J) of the last tokens of pairs, from the last one on.

    They are at most `places`, and 0 where the end of a pair, of `lengths_P` tokens, has no more. `hidden_PTD` is the
    output of the last layer of a `model` for which `reads_ends` is true.
    """
    tokens_PT, there_PT = features["input_ids"], features["attention_mask"]
    words_VD = model.get_input_embeddings().weight
    count = min(places, tokens_PT.shape[1] - 1, max(1, int(lengths_P.max())))
    places_J = torch.arange(count, device=tokens_PT.device)
    last_P = there_PT.shape[1] - 1 - there_PT.flip(1).argmax(dim=1)
    at_PJ = (last_P[:, None] - places_J).clamp(min=1)
    before_PJD = hidden_PTD.gather(1, (at_PJ - 1)[..., None].expand(-1, -1, hidden_PTD.shape[-1]))
    targets_PJ = tokens_PT.gather(1, at_PJ)
    at_once = max(1, _MAX_LOGITS // (count * len(words_VD)))
    pieces = zip(torch.split(before_PJD, at_once), torch.split(targets_PJ, at_once), strict=True)
    # logits are computed again for the gradient, since those of all pairs do not fit into memory
    read = partial(checkpoint, _log_probs, use_reentrant=False) if torch.is_grad_enabled() else _log_probs
    log_probs_PJ = torch.cat([read(words_VD, before, targets) for before, targets in pieces])
    return torch.where(places_J < lengths_P[:, None], log_probs_PJ, 0.0)


def _log_probs(words_VD: torch.Tensor, before_PJD: torch.Tensor, targets_PJ: torch.Tensor) -> torch.Tensor:
    logits_PJV = (before_PJD @ words_VD.T).float()
    return logits_PJV.gather(-1, targets_PJ[..., None]).squeeze(-1) - logits_PJV.logsumexp(dim=-1)


@contextmanager
def _last_layer_of(model: Any) -> Iterator[list[torch.Tensor]]:
    """Within, collects the output of the last layer of a model (P x T x D) in each forward pass."""
    seen: list[torch.Tensor] = []
    hook = model.base_model.register_forward_hook(lambda _, __, output: seen.append(output[0]))
    try:
        yield seen
    finally:
        hook.remove()


def _reads_ends(source: str, model: Any, tokenizer: Any) -> bool:
    """Return whether `end_log_probs` gives the log-probabilities of the language model `source` itself, by a trial."""
    passage, end = _TRIAL
    features = tokenizer(passage, end, return_tensors="pt").to(model.device)
    tokens_PT, there_PT = features["input_ids"], features["attention_mask"]
    expected = tokenizer(end, add_special_tokens=False)["input_ids"]
    if tokens_PT[0, -len(expected) :].tolist() != expected:
        return False
    whole: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval().to(model.device)
    training = model.training
    with torch.inference_mode(), _last_layer_of(model.eval()) as seen:
        model(input_ids=tokens_PT, attention_mask=there_PT)
        lengths_P = torch.tensor([len(expected)], device=model.device)
        own_PJ = end_log_probs(model, features, seen[0], lengths_P, len(expected))
        theirs_TV = whole(input_ids=tokens_PT, attention_mask=there_PT).logits[0].float().log_softmax(-1)
    model.train(training)
    theirs_T = theirs_TV[:-1].gather(1, tokens_PT[0, 1:, None]).squeeze(1)
    return bool(torch.allclose(own_PJ[0].flip(0), theirs_T[-len(expected) :], atol=_TOLERANCE))
