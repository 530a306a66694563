"""What dense retrieval can be told, and nothing that needs the extra `dense`."""

from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from pydantic import JsonValue

from ralm.bounds import check_count, check_counts, check_seed
from ralm.errors import UsageError

QUERY_TOKENS: Final = 64
"""The papers' query length l for dense retrieval, in tokens of the language model."""

VECTORS: Final = "vectors.faiss"
"""The file of vectors, in the folder of those."""

Pooling = Literal["auto", "mean", "cls"]
QueryEnd = Literal["last", "first"]
EncoderDtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderOptions:
    """Which encoder, and how it makes vectors: everything that decides them, so that an index can record it.

    `encoder`: a hub name or folder: a sentence-transformers model, a bare BERT (Contriever), or DPR (Spider).
    `query_encoder`: another one for queries, as DPR has it; None where one encoder does both.
    `pooling`: mean or cls over the tokens of a bare model; auto is as its folder says, and mean where it says nothing.
    `normalize`: vectors of length 1, so that inner products are cosines; otherwise as the encoder gives them.
    `titles`: whether a passage's title stands before its text.
    `query_length`, `passage_length`: the most tokens of the encoder that are read, special ones included; None is as
    many as the encoder takes. A passage that is longer keeps its beginning.
    `query_keeps`: which tokens of a query that is longer are read: the last, since the newest words of a text that goes
    on matter most, or the first, as in the published code of REPLUG.
    `dtype`: number format of the weights; auto is as they were saved.

    Raises UsageError where a length is below 1, or `query_keeps` is none of the two.
    """

    encoder: str
    query_encoder: str | None = None
    pooling: Pooling = "auto"
    normalize: bool = False
    titles: bool = True
    query_length: int | None = None
    passage_length: int | None = None
    query_keeps: QueryEnd = "last"
    dtype: EncoderDtype = "auto"

    def __post_init__(self) -> None:
        check_counts({"--query-length": self.query_length, "--passage-length": self.passage_length})
        if self.query_keeps not in get_args(QueryEnd):
            raise UsageError(f"--query-keeps must be last or first, not {self.query_keeps!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorOptions:
    """How vectors are stored.

    `faiss`: a string of FAISS's `index_factory`: Flat is exact, SQfp16 exact over float16 vectors at half the size,
    IVF4096,Flat, IVF4096,PQ64, HNSW32 and the like are faster and approximate.
    `training_sample`: how many vectors, drawn at random, an index that is trained (IVF, PQ) is trained on at most.
    `seed`: of that draw. Raises UsageError where a number makes no sense.
    """

    faiss: str = "Flat"
    training_sample: int = 1 << 18
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("--training-sample", self.training_sample)
        check_seed("the seed of vectors", self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltWith:
    """What an index records of the encoder of queries that it is for: the fingerprint of its weights, and how it reads
    a text (`Encoder.query_config`), empty where the index is older than that record."""

    query_fingerprint: str
    query_reading: dict[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSearchOptions:
    """How much work an approximate index does for a query; None where the index is of another kind.

    `nprobe`: lists that an IVF index reads; 16 where nothing is said. `ef_search`: candidates that an HNSW index keeps;
    128 where nothing is said. Raises UsageError where one is below 1.
    """

    nprobe: int | None = None
    ef_search: int | None = None

    def __post_init__(self) -> None:
        check_counts({"--nprobe": self.nprobe, "--ef-search": self.ef_search})
