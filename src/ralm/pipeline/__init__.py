"""Where the stages meet, over one table: plan, retrieve, choose, read.

    text --> prepare_text --> a PassageSource: hits of each stride --> read_hits --> ScoredTokens

Each step takes a table with a row per stride and gives one; none knows how another did its work.
"""

from ralm.pipeline.ensembles import ReaderOptions, read_ensemble, read_hits
from ralm.pipeline.readers import read, read_best, read_concatenation, read_likeliest
from ralm.pipeline.sources import (
    FromFile,
    FromRetriever,
    PassageSource,
    hits_of_file,
    open_source,
    retrieve,
    retrieved_strides,
)
from ralm.pipeline.texts import PreparedText, prepare_text

__all__ = [
    "FromFile",
    "FromRetriever",
    "PassageSource",
    "PreparedText",
    "ReaderOptions",
    "hits_of_file",
    "open_source",
    "prepare_text",
    "read",
    "read_best",
    "read_concatenation",
    "read_ensemble",
    "read_hits",
    "read_likeliest",
    "retrieve",
    "retrieved_strides",
]
