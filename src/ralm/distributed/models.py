"""A language model and an encoder whose copies are on the machines of a cluster.

The copies of a model share the scoring of texts; those of an encoder leave the vectors of an index's passages where
`ralm.retrieval.dense.build` looks for them.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

from ralm.distributed.workers import Requirements, WorkerPool, check_cluster_device, open_workers
from ralm.errors import ClusterError, UsageError
from ralm.lm import is_local
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.local.tokenization import ModelTokenizer
from ralm.lm.registry import ModelOptions, load_local_model, load_tokenizer
from ralm.lm.scoring import split_by_tokens
from ralm.protocols import Continuations, Encoder
from ralm.records import FloatArray, ScoringSequence
from ralm.retrieval.dense.build import CHUNK, SavedChunks, text_hashes
from ralm.retrieval.dense.options import EncoderOptions, load_encoder
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.layout import options_of_config
from ralm.storage.work import storage_errors
from ralm.terminal import progress_bar

_Chunk: TypeAlias = tuple[int, Sequence[ScoringSequence]]
"""Sequences that are scored together, with their number."""

_PACKAGES: Final = ("torch", "transformers")
"""Packages whose versions decide the results of a model; an encoder needs sentence-transformers, too."""
_TOKENS: Final = {"cpu": 4096, "cuda": 1 << 18}
"""Tokens that a machine is handed at once: few enough that little is lost with it."""


@dataclass(frozen=True)
class ModelLoader:
    """A loader of a model by name on a machine. A folder or file is read under its absolute path."""

    name: str
    options: ModelOptions
    requirements: Requirements

    @classmethod
    def of(cls, name: str, options: ModelOptions) -> "ModelLoader":
        """Return the loader of the model that `load_local_model` loads here."""
        folder = [Path(name).absolute()] if is_local(name) else []
        return cls(name, options, Requirements.of(folder, _PACKAGES))

    @property
    def label(self) -> str:
        """The model's name in messages."""
        return f"the model {self.name}"

    def __call__(self) -> LocalLanguageModel:
        """Load the model; raises ClusterError if the machine lacks a requirement, and the errors of loading."""
        self.requirements.check()
        model = load_local_model(str(self.requirements.read[0]) if self.requirements.read else self.name, self.options)
        model.name = self.name
        return model

    def facts(self, model: LocalLanguageModel) -> dict[str, Any]:
        """Return facts that a process without a copy of the model needs."""
        return {
            **model.config,
            "max_length": model.max_length,
            "vocabulary": model.vocabulary,
            "merges_prefixes": model.merges_prefixes,
            "end_tokens": model.end_tokens,
        }


class ClusterModel:
    """A local model whose copies are on the machines of a cluster, a `LanguageModel` with the same `config`.

    Log-probabilities are those of one machine but for rounding: which texts are read together, and which take what they
    begin with from another one, differs. Raises ClusterError if machines have other versions or another model.
    """

    tier: Final = "all"

    def __init__(self, machines: WorkerPool, loader: ModelLoader) -> None:
        self.name = loader.name
        self.machines = machines
        self.loader = loader
        self._facts: dict[str, Any] = dict(machines.facts(loader))
        self.max_length: int = self._facts.pop("max_length")
        self.vocabulary: int = self._facts.pop("vocabulary")
        self.merges_prefixes: bool = self._facts.pop("merges_prefixes")
        self.end_tokens: frozenset[int] = self._facts.pop("end_tokens")

    @property
    def config(self) -> dict[str, Any]:
        """The `config` of the same model on one machine."""
        return dict(self._facts)

    @cached_property
    def tokenizer(self) -> ModelTokenizer:
        """The tokenizer of the model, loaded here."""
        tokenizer = load_tokenizer(self.name, self.loader.options)
        if tokenizer.fingerprint != self._facts["tokenizer"]:
            raise ClusterError(
                f"{self.loader.label} has another tokenizer on this machine than on those of the cluster."
            )
        return tokenizer

    def score(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        """Yield the log-probability (float32) of each target of each sequence, in order; ClusterError if that fails."""
        tokens = _TOKENS["cuda" if self._facts["device"].startswith("cuda") else "cpu"]
        chunks = enumerate(split_by_tokens(passes, tokens))
        early: dict[int, Sequence[FloatArray]] = {}
        due = 0
        with closing(self.machines.run(self.loader, _score, chunks, describe=self._describe)) as done:
            for (number, _), log_probs in done:
                early[number] = log_probs
                while due in early:
                    yield from early.pop(due)
                    due += 1

    def continuations(self) -> Continuations:
        """Raise UsageError: a cluster does not continue texts."""
        raise UsageError(f"{self.name} only scores texts on a cluster; a server such as vLLM's continues them.")

    def _describe(self, chunk: _Chunk) -> str:
        return f"scoring texts of up to {len(chunk[1][0].tokens_N):,} tokens with {self.name}"


def _score(model: LocalLanguageModel, chunk: _Chunk) -> list[FloatArray]:
    return list(model.score(chunk[1]))


@dataclass(frozen=True, eq=False)
class _Loaded:
    """An index, and the encoder of its passages."""

    index: Index
    chunks: SavedChunks
    encoder: Encoder


@dataclass(frozen=True)
class _EncoderLoader:
    """A loader of an encoder and an index on a machine; vectors go to the folder `work`."""

    index: Path
    options: EncoderOptions
    device: str
    work: Path
    requirements: Requirements

    @property
    def label(self) -> str:
        """The encoder's name in messages."""
        return f"the encoder {self.options.encoder}"

    def __call__(self) -> _Loaded:
        """Load both; raises ClusterError if the machine lacks a requirement, and the errors of loading."""
        self.requirements.check()
        encoder = load_encoder(self.options, device=self.device)
        return _Loaded(open_index(self.index), SavedChunks(self.work, encoder), encoder)

    def facts(self, loaded: _Loaded) -> dict[str, Any]:
        """Return the fingerprints of both."""
        return {"index": loaded.index.fingerprint, **loaded.encoder.config}


@dataclass(frozen=True)
class EncodeOn:
    """A cluster that encodes the passages of an index (a `RemoteEncoding`), on disks that all machines share."""

    address: str
    device: str

    def __post_init__(self) -> None:
        check_cluster_device(self.device)
        if self.device == "map":
            raise UsageError("an encoder is not spread over several GPUs: give another `device` than 'map'.")

    def __call__(self, index: Index, encoder: Encoder, work: Path) -> int:
        """Write the vectors of the index's passages into the folder `work`; return how many were encoded."""
        options = options_of_config(encoder.config)
        folders = [Path(name) for name in (options.encoder, options.query_encoder) if name and Path(name).is_dir()]
        work, path = work.absolute(), index.path.absolute()
        begins = [*range(0, len(index.passages), CHUNK), len(index.passages)]
        with storage_errors(work):
            work.mkdir(exist_ok=True)
        with (
            open_workers(self.address, self.device) as workers,
            progress_bar("Encoding passages", len(index.passages)) as advance,
        ):
            device = "auto" if self.device == "all" else self.device
            requirements = Requirements.of([path, work, *folders], (*_PACKAGES, "sentence-transformers"))
            loader = _EncoderLoader(path, options, device, work, requirements)
            facts = {"index": index.fingerprint, **encoder.config}
            if workers.facts(loader) != facts:
                raise ClusterError(
                    f"the machines of the cluster have another index or encoder than {loader.label} here."
                )
            encoded = 0
            for span, count in workers.run(loader, _encode, pairwise(begins), describe=_describe_span):
                advance(span[1] - span[0])
                encoded += count
        return encoded


def _encode(loaded: _Loaded, span: tuple[int, int]) -> int:
    """Save the vectors of consecutive passages, unless they exist; return how many were encoded."""
    passages = [loaded.index.passages[number] for number in range(*span)]
    hash_P, before = text_hashes(loaded.encoder, passages), loaded.chunks.encoded
    with storage_errors(loaded.index.path):
        loaded.chunks.encode(passages, hash_P)
    return loaded.chunks.encoded - before


def _describe_span(span: tuple[int, int]) -> str:
    return f"encoding the passages from {span[0]:,} to {span[1]:,}"
