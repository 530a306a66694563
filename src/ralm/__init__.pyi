"""The public names: the one list of them, read by type checkers and, through lazy_loader, by the package itself."""

from .corpus.decontamination import Decontamination as Decontamination, Removals as Removals
from .corpus.passages import make_passages as make_passages
from .corpus.sources import Fields as Fields, read_documents as read_documents
from .corpus.splitting import Splitting as Splitting
from .errors import RalmError as RalmError
from .evaluation.measures import Measures as Measures
from .evaluation.perplexity import Evaluation as Evaluation, evaluate_text as evaluate_text
from .lm.local.model import ModelOptions as ModelOptions
from .lm.named import load_language_model as load_language_model
from .pipeline import FromFile as FromFile, FromRetriever as FromRetriever, open_source as open_source
from .pipeline.generation import (
    GenerationOptions as GenerationOptions,
    Prompt as Prompt,
    TokenWriter as TokenWriter,
    generate as generate,
    generate_many as generate_many,
)
from .reading.ensemble import EnsembleOptions as EnsembleOptions
from .reading.plan import PlanOptions as PlanOptions, make_plan as make_plan
from .records import (
    Document as Document,
    Hits as Hits,
    Passage as Passage,
    Request as Request,
    ScoredTokens as ScoredTokens,
)
from .retrieval.bm25.forbidden import Forbidden as Forbidden
from .retrieval.bm25.formula import BM25Options as BM25Options
from .retrieval.bm25.options import BuildOptions as BuildOptions
from .retrieval.bm25.search import BM25 as BM25
from .retrieval.cache import CachedRetriever as CachedRetriever
from .retrieval.dense.loading import load_encoder as load_encoder
from .retrieval.dense.options import (
    DenseSearchOptions as DenseSearchOptions,
    EncoderOptions as EncoderOptions,
    VectorOptions as VectorOptions,
)
from .retrieval.encoding import (
    add_vectors as add_vectors,
    remove_vectors as remove_vectors,
    set_default_vectors as set_default_vectors,
)
from .retrieval.fusion import FusionOptions as FusionOptions, Hybrid as Hybrid
from .retrieval.index import Index as Index, build_index as build_index, open_index as open_index
from .retrieval.opening import RetrieverOptions as RetrieverOptions, open_retriever as open_retriever
from .retrieval.random import RandomRetriever as RandomRetriever
from .retrieval.retrieval_file import (
    read_retrieval_file as read_retrieval_file,
    write_retrieval_file as write_retrieval_file,
)
from .runs.run import write_run as write_run
from .version import __version__ as __version__
