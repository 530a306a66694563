"""Causal language models that run in this process, through transformers, on CPUs or GPUs."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from itertools import compress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from pydantic import JsonValue
from transformers import PreTrainedModel

from ralm.errors import ModelError
from ralm.lm import is_gguf
from ralm.lm.local import decoder, engine, kernels, loading, probe, tokenization
from ralm.lm.local.blocks import BlockFile, Blocks, free_bytes, shared_tokens
from ralm.lm.registry import ModelOptions
from ralm.lm.scoring import groups_that_fit
from ralm.protocols import TOKENS_TOGETHER, UNLIMITED, Continuations
from ralm.records import FloatArray, ScoringSequence

_MOST_ON_CPU: Final = 1 << 30
"""Bytes of blocks in the main memory, which other programs use, too."""
_SHARE: Final = 5
"""Sequences that share a fifth of their tokens are read as texts that grow, a fifth of those that fit at once."""
_LENGTH_SETTINGS: Final = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")


class LocalLanguageModel:
    """A frozen transformers model with its tokenizer; ModelError if it is not causal.

    `copies` on other devices share the scoring. `loaded_with` are options of loading that may change figures. Texts
    that are continued share up to `passage_cache` bytes of keys and values; None: as the free memory allows.
    """

    tier: Final = "all"

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        tokenizer: tokenization.ModelTokenizer,
        copies: Sequence[PreTrainedModel] = (),
        loaded_with: Mapping[str, JsonValue] = MappingProxyType({}),
        passage_cache: int | None = None,
        passage_cache_file: Path | None = None,
    ) -> None:
        self.name = name
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self._loaded_with = loaded_with
        probe.check_causal(self.model, name, self.max_length)
        self.logits = engine.TargetLogits(self.model, name)
        file = BlockFile(passage_cache_file, lambda: self.config) if passage_cache_file else None
        free = free_bytes(self.model.device)
        most = free // 8 if self.model.device.type == "cuda" else min(free // 8, _MOST_ON_CPU)
        self.blocks = Blocks(most if passage_cache is None else passage_cache, file)
        self.copies = [self.logits, *(engine.TargetLogits(copy.eval().requires_grad_(False), name) for copy in copies)]
        self._engine = engine.Engine([engine.Replica(logits) for logits in self.copies])

    @cached_property
    def config(self) -> dict[str, JsonValue]:
        """Name, size, format, device and options of loading, and fingerprints of weights, settings and tokenizer."""
        return {
            "name": self.name,
            "parameters": self.model.num_parameters(),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "device": str(self.model.device),
            "weights": loading.weights_fingerprint(self.model),
            "settings": loading.settings_fingerprint(self.model),
            "tokenizer": self.tokenizer.fingerprint,
            **self._loaded_with,
        }

    @property
    def max_length(self) -> int:
        """The maximum number of tokens that the model can read at once."""
        config = self.model.config.get_text_config()
        lengths = (getattr(config, setting, None) for setting in _LENGTH_SETTINGS)
        return next((length for length in lengths if isinstance(length, int) and length > 0), UNLIMITED)  # XLNet: -1

    @property
    def end_tokens(self) -> frozenset[int]:
        """The ids that end a text, by the tokenizer, its chat template and the generation settings."""
        settings = self.model.generation_config
        ends = settings.eos_token_id if settings is not None else None
        tokens = [*(ends if isinstance(ends, list) else [ends]), self.tokenizer.end_token, self.tokenizer.turn_end]
        return frozenset(int(token) for token in tokens if token is not None)

    @property
    def vocabulary(self) -> int:
        """The number of token ids of the model."""
        return self.logits.vocabulary

    @property
    def merges_prefixes(self) -> bool:
        """Whether a token has the same result in a longer sequence with the same prefix; False with LongRoPE."""
        return not engine.length_thresholds(self.model.config)

    @cached_property
    def tokens_at_once(self) -> int:
        """How many tokens of texts are continued together: those that take a quarter of the free memory."""
        if self._decoder is not decoder.CachedDecoder:
            return TOKENS_TOGETHER
        tokens = free_bytes(self.model.device) // (4 * self.blocks.token_bytes)
        return tokens if self.model.device.type == "cuda" else min(tokens, TOKENS_TOGETHER)

    def score(self, sequences: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        """Yield the log-probability (float32) of each sequence's targets; those that begin alike share what is read."""
        shared = shared_tokens([sequence.tokens_N[: sequence.targets_P[0] - 1] for sequence in sequences])
        grows = [_SHARE * tokens >= len(sequence) for tokens, sequence in zip(shared, sequences, strict=True)]
        if len(self.copies) > 1 or not any(grows) or self._decoder is not decoder.CachedDecoder:
            yield from self._engine.score(sequences)
            return
        growing = self._score_growing([*compress(sequences, grows)])
        rest = self._engine.score([*compress(sequences, [not grow for grow in grows])])
        for grow in grows:
            yield next(growing if grow else rest)

    def _score_growing(self, sequences: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        growing = decoder.CachedDecoder(self.logits, self.max_length, self.blocks)
        for numbers in groups_that_fit([[len(sequence)] for sequence in sequences], self.tokens_at_once // _SHARE):
            yield from growing.score(sequences[numbers.start : numbers.stop])

    def distributions(self, sequences: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        """Yield the natural log-probabilities (float32, P x V) of all tokens at the P targets of each sequence."""
        return self._engine.score(sequences, engine.distributions)

    def continuations(self) -> Continuations:
        """Return a new decoder of the kind that `choose_decoder` finds by probing the model."""
        if self._decoder is decoder.CachedDecoder:
            return decoder.CachedDecoder(self.logits, self.max_length, self.blocks)
        return self._decoder(self.logits, self.max_length)

    @cached_property
    def _decoder(self) -> type[decoder.LocalDecoder]:
        return probe.choose_decoder(self.logits, self.max_length, self.blocks)


def load_transformers_model(name: str, options: ModelOptions | None = None) -> LocalLanguageModel:
    """Load a causal language model by hub name, folder or GGUF file; raises what `load_language_model` raises."""
    options = options or ModelOptions()
    if not is_gguf(name):
        loading.check_folder(name)
    if options.device == "all":
        gpus = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
        devices = gpus or [torch.device("cpu")]
    else:
        devices = [_device(device.strip()) for device in options.device.split(",")]
    how: dict[str, Any] = {"dtype": options.dtype if options.dtype == "auto" else getattr(torch, options.dtype)}
    tokenizer = tokenization.load_model_tokenizer(name, options.source, options.template_values)
    if options.quantised != "none":
        how |= loading.quantised(name, options.quantised)
    is_placed = options.device == "map" or options.quantised != "none"
    if is_placed:
        how["device_map"] = "auto" if options.device == "map" else {"": devices[0]}
    if options.attention != "auto":
        how["attn_implementation"] = options.attention
    with loading.loading_errors("model", name):
        model = loading.load_checkpoint(name, options.source, devices[0].type, **how)
        if not is_placed:
            model = model.to(devices[0])
    if options.adapter is not None:
        model = loading.with_adapter(model, options.adapter, merge=options.quantised == "none")
    copies = [deepcopy(model).to(device) for device in devices[1:]]
    cache = None if options.passage_cache is None else int(options.passage_cache * 1e6)
    loaded = LocalLanguageModel(name, model, tokenizer, copies, options.identity, cache, options.passage_cache_file)
    for logits in loaded.copies:
        kernels.speed_up(logits.model, attention=options.attention == "auto")
    return loaded


def _device(name: str) -> torch.device:
    if name in ("auto", "map"):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(
            f"`device` must be auto, all, map, cpu, cuda or cuda:N, or several with commas, not {name!r}."
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f'`device="{name}"` needs a CUDA device, but none is available; use `device="cpu"`.')
    loading.check_device(name)
    return device
