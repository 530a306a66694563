"""Where the stages meet, over one table: plan, retrieve, choose, read.

    text --> prepare_text --> a PassageSource: hits of each stride --> read: rerank, put in front, score -->
    ScoredTokens

Each step takes a table with a row per stride and gives one; none knows how another did its work.
"""

from ralm.pipeline.reading import chosen, fronts_of, hits_wanted, read
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
    "chosen",
    "fronts_of",
    "hits_of_file",
    "hits_wanted",
    "open_source",
    "prepare_text",
    "read",
    "retrieve",
    "retrieved_strides",
]
