"""The options of dense retrieval, loading an encoder, and the records in the folders of trained encoders.

Importing this module does not need the extra `dense`.
"""

import json
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, Literal

from ralm.errors import FolderError, UsageError, extra
from ralm.grammar import keys_text
from ralm.lm.api.endpoint import RequestOptions, is_api
from ralm.lm.registry import API_PACKAGES
from ralm.options import Checked, Option
from ralm.protocols import Encoder
from ralm.storage import manifest, outputs
from ralm.validation import MAX_SEED

VECTORS: Final = "vectors.faiss"
"""The name of a file of vectors."""
HASHES: Final = "hashes.npy"
"""The name of the file with the hashes of their texts."""
RAW: Final = "raw.npy"
"""The name of the file of the vectors as they were encoded, if FAISS keeps only approximations."""

ENCODER_KIND: Final = outputs.FolderKind("encoder")
TRAINED_FOR: Final = "trained_for"
"""The key, in the results of a training, of the fingerprint of the weights that encoded the passages."""

_READING: Final = "ralm.json"
SEPARATOR: Final = "title_separator"
"""The key, in `_READING`, of the separator between the title and the text of a passage."""

PASSAGE_ENCODER: Final = "passages"
"""The folder of the passage encoder within the folder of a trained pair, which itself is the query encoder."""

Pooling = Literal["auto", "mean", "cls"]
QueryEnd = Literal["last", "first"]
EncoderDtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderOptions(Checked):
    """Which encoder, and how it makes vectors: everything that decides them, so that an index can record it.

    `encoder`: a sentence-transformers model, a bare BERT (Contriever), or DPR (Spider); or URL#MODEL of a server with
    OpenAI's API for embeddings, which decides lengths and pooling. `normalize`: cosines are those of REPLUG, Eq. 1.
    Lengths count special tokens; a longer passage keeps its beginning. A longer query keeps its end, since the newest
    words matter most for the next ones. Raises UsageError if a length is below 1 or a choice is unknown.
    """

    encoder: Annotated[
        str, Option("Encoder of passages (and of queries): a hub name, folder, or URL#MODEL of an API.", flag="")
    ]
    query_encoder: Annotated[str | None, Option("Another encoder for queries, as in DPR.", default_text="none")] = None
    pooling: Annotated[Pooling, Option("Pooling of a bare model's tokens; auto: as its folder says, else mean.")] = (
        "auto"
    )
    normalize: Annotated[bool, Option("Use cosines, not the encoder's own inner products.")] = False
    titles: Annotated[bool, Option("Encode the title with the text.")] = True
    query_length: Annotated[
        int | None, Option("Most tokens of a query that are read.", default_text="the encoder's")
    ] = None
    passage_length: Annotated[
        int | None, Option("Most tokens of a passage that are read.", default_text="the encoder's")
    ] = None
    query_keeps: Annotated[QueryEnd, Option("Which end of a longer query to keep; REPLUG's code keeps the first.")] = (
        "last"
    )
    dtype: Annotated[EncoderDtype, Option("Number format of the weights; auto: as the model was saved.")] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorOptions(Checked):
    """How vectors are stored: `faiss` is a string for its `index_factory`. Raises UsageError if a value is invalid."""

    faiss: Annotated[
        str, Option("Dense: Flat is exact; SQfp16 in float16; IVF4096,Flat, IVF4096,PQ64, HNSW32: faster.")
    ] = "Flat"
    training_sample: Annotated[
        int,
        Option("Number of vectors, drawn at random, that IVF and PQ are trained on.", flag=""),
    ] = 1 << 18
    seed: Annotated[int, Option("Seed of that draw.", minimum=0, maximum=MAX_SEED, flag="")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSearchOptions(Checked):
    """How thoroughly an approximate index is searched; None for other kinds. Raises UsageError if one is below 1."""

    nprobe: Annotated[
        int | None, Option("Lists that an IVF index reads for a query.", default_text="16", private=True)
    ] = None
    ef_search: Annotated[
        int | None, Option("Candidates that an HNSW index keeps for a query.", default_text="128", private=True)
    ] = None


_PACKAGES: Final = ("sentence_transformers", "faiss", "torch", "transformers")


def dense_extra() -> AbstractContextManager[None]:
    """Turn a missing package of the extra `dense` into MissingExtraError."""
    return extra("dense", "dense retrieval needs", _PACKAGES)


def load_encoder(options: EncoderOptions, *, device: str = "auto", api: RequestOptions | None = None) -> Encoder:
    """Return an encoder that is loaded, or asked, on first use.

    Args:
        options: Its hub name, folder, or URL#MODEL of an API for embeddings, and how it makes vectors.
        device: cpu, cuda, cuda:N, or auto (a GPU if there is one).
        api: How a server is asked.

    Raises:
        MissingExtraError: At once, if the extra `dense` is not installed.
        ModelError: Later, if the weights cannot be loaded.
        ServerError: Later, if the server does not answer.
    """
    if is_api(options.encoder):
        with extra("api", "models behind an API need", API_PACKAGES):
            from ralm.retrieval.dense.api_encoder import ApiEncoder
        return ApiEncoder(options, api)
    with dense_extra():
        from ralm.retrieval.dense.encoder import SentenceEncoder
    return SentenceEncoder(options, device=device)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderArguments:
    """The keys of `--encoder-args`: how an encoder makes vectors, where it runs, and how a server is asked."""

    encoding: Annotated[EncoderOptions, Option("How vectors are made.")] = field(
        default_factory=lambda: EncoderOptions(encoder="")
    )
    device: Annotated[str, Option("cpu, cuda, cuda:N, or auto (a GPU if there is one).")] = "auto"
    requests: Annotated[RequestOptions, Option("How a server is asked.")] = field(default_factory=RequestOptions)

    def load(self, encoder: str) -> Encoder:
        """Return the encoder of this name; UsageError if a key has no effect on it, and what `load_encoder` raises."""
        if is_api(encoder):
            unused, where = replace(EncoderArguments(), device=self.device), "that run here"
        else:
            unused, where = replace(EncoderArguments(), requests=self.requests), "behind an API"
        if keys := keys_text(unused, EncoderArguments()):
            raise UsageError(f"`encoder_args` {keys} is for encoders {where}: leave it out for {encoder}.")
        return load_encoder(replace(self.encoding, encoder=encoder), device=self.device, api=self.requests)


def is_trained(folder: Path) -> bool:
    """Return whether a training wrote this folder."""
    try:
        return manifest.kind_of(folder) == ENCODER_KIND.name
    except FolderError:
        return False


def trained_options(folder: Path, like: EncoderOptions) -> EncoderOptions:
    """Return the options of the encoder, or the pair, in the folder of a training, otherwise as in `like`."""
    passages = folder / PASSAGE_ENCODER
    if not passages.is_dir():
        return replace(like, encoder=str(folder), query_encoder=None)
    return replace(like, encoder=str(passages), query_encoder=str(folder))


def write_reading(folder: Path, reading: dict[str, str]) -> None:
    """Write how the encoder in a folder reads texts."""
    (folder / _READING).write_text(json.dumps(reading) + "\n", encoding="utf-8")


def recorded_reading(name: str) -> dict[str, str]:
    """Return the record that `write_reading` wrote into a folder; empty for any other encoder."""
    try:
        reading = json.loads((Path(name) / _READING).read_bytes())
    except (OSError, ValueError):
        return {}
    return reading if isinstance(reading, dict) else {}


def trained_for(name: str) -> str | None:
    """Return the fingerprint of the passage encoder that the query encoder in a folder was trained for, if any."""
    folder = Path(name)
    if not is_trained(folder):
        return None
    results = manifest.read_manifest(folder, kind=ENCODER_KIND).settings.get("results")
    recorded = results.get(TRAINED_FOR) if isinstance(results, dict) else None
    return recorded if isinstance(recorded, str) else None
