"""Retrieval-augmented language models that need no change to the model.

The public names, each loaded when it is first used, so that `import ralm` waits for nothing. What they belong to is
said in CONTRIBUTING.md; everything else is reached by its module and may move.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ralm.version import __version__

if TYPE_CHECKING:
    from ralm.corpus.decontamination import Decontamination, Removals
    from ralm.corpus.passages import make_passages
    from ralm.corpus.sources import Fields, read_documents
    from ralm.corpus.splitting import Splitting
    from ralm.demo.builtin import load_language_model
    from ralm.errors import RalmError
    from ralm.evaluation.measures import Measures
    from ralm.evaluation.perplexity import Evaluation, evaluate_text
    from ralm.evaluation.run import write_run
    from ralm.lm.local import ModelOptions
    from ralm.pipeline import FromFile, FromRetriever
    from ralm.reading.ensemble import EnsembleOptions
    from ralm.reading.generation import GenerationOptions, generate, generate_many
    from ralm.reading.plan import PlanOptions, make_plan
    from ralm.records import Document, Hits, Passage, Request, ScoredTokens
    from ralm.retrieval.bm25.forbidden import Forbidden
    from ralm.retrieval.bm25.formula import BM25Options
    from ralm.retrieval.bm25.options import BuildOptions
    from ralm.retrieval.bm25.search import BM25
    from ralm.retrieval.cache import CachedRetriever
    from ralm.retrieval.dense.loading import load_encoder
    from ralm.retrieval.dense.options import DenseSearchOptions, EncoderOptions, VectorOptions
    from ralm.retrieval.fusion import FusionOptions, Hybrid
    from ralm.retrieval.index import Index, build_index, open_index
    from ralm.retrieval.random import RandomRetriever
    from ralm.retrieval.retrieval_file import read_retrieval_file, write_retrieval_file

_HOME = {
    "BM25": "ralm.retrieval.bm25.search",
    "BM25Options": "ralm.retrieval.bm25.formula",
    "BuildOptions": "ralm.retrieval.bm25.options",
    "CachedRetriever": "ralm.retrieval.cache",
    "Decontamination": "ralm.corpus.decontamination",
    "DenseSearchOptions": "ralm.retrieval.dense.options",
    "Document": "ralm.records",
    "EncoderOptions": "ralm.retrieval.dense.options",
    "EnsembleOptions": "ralm.reading.ensemble",
    "Evaluation": "ralm.evaluation.perplexity",
    "Fields": "ralm.corpus.sources",
    "Forbidden": "ralm.retrieval.bm25.forbidden",
    "FromFile": "ralm.pipeline",
    "FromRetriever": "ralm.pipeline",
    "FusionOptions": "ralm.retrieval.fusion",
    "GenerationOptions": "ralm.reading.generation",
    "Hits": "ralm.records",
    "Hybrid": "ralm.retrieval.fusion",
    "Index": "ralm.retrieval.index",
    "Measures": "ralm.evaluation.measures",
    "ModelOptions": "ralm.lm.local",
    "Passage": "ralm.records",
    "PlanOptions": "ralm.reading.plan",
    "RalmError": "ralm.errors",
    "RandomRetriever": "ralm.retrieval.random",
    "Removals": "ralm.corpus.decontamination",
    "Request": "ralm.records",
    "ScoredTokens": "ralm.records",
    "Splitting": "ralm.corpus.splitting",
    "VectorOptions": "ralm.retrieval.dense.options",
    "build_index": "ralm.retrieval.index",
    "evaluate_text": "ralm.evaluation.perplexity",
    "generate": "ralm.reading.generation",
    "generate_many": "ralm.reading.generation",
    "load_encoder": "ralm.retrieval.dense.loading",
    "load_language_model": "ralm.demo.builtin",
    "make_passages": "ralm.corpus.passages",
    "make_plan": "ralm.reading.plan",
    "open_index": "ralm.retrieval.index",
    "read_documents": "ralm.corpus.sources",
    "read_retrieval_file": "ralm.retrieval.retrieval_file",
    "write_retrieval_file": "ralm.retrieval.retrieval_file",
    "write_run": "ralm.evaluation.run",
}

__all__ = [
    "BM25",
    "BM25Options",
    "BuildOptions",
    "CachedRetriever",
    "Decontamination",
    "DenseSearchOptions",
    "Document",
    "EncoderOptions",
    "EnsembleOptions",
    "Evaluation",
    "Fields",
    "Forbidden",
    "FromFile",
    "FromRetriever",
    "FusionOptions",
    "GenerationOptions",
    "Hits",
    "Hybrid",
    "Index",
    "Measures",
    "ModelOptions",
    "Passage",
    "PlanOptions",
    "RalmError",
    "RandomRetriever",
    "Removals",
    "Request",
    "ScoredTokens",
    "Splitting",
    "VectorOptions",
    "__version__",
    "build_index",
    "evaluate_text",
    "generate",
    "generate_many",
    "load_encoder",
    "load_language_model",
    "make_passages",
    "make_plan",
    "open_index",
    "read_documents",
    "read_retrieval_file",
    "write_retrieval_file",
    "write_run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ralm' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
