"""The public names, listed only here: type checkers read this file, and so does the package through lazy_loader."""

from .answering.answerer import Answerer as Answerer, SourcedAnswer as SourcedAnswer
from .answering.citations import AnswerSource as AnswerSource, citations as citations
from .answering.evaluation import (
    AnswerEvaluation as AnswerEvaluation,
    answer_qrels as answer_qrels,
    evaluate_choices as evaluate_choices,
    evaluate_questions as evaluate_questions,
)
from .answering.options import (
    AnswerOptions as AnswerOptions,
    QuestionFields as QuestionFields,
)
from .answering.prompts import (
    Conversation as Conversation,
    QuestionPrompt as QuestionPrompt,
    open_prompt as open_prompt,
)
from .answering.questions import (
    ChoiceQuestion as ChoiceQuestion,
    Question as Question,
    read_choice_questions as read_choice_questions,
    read_questions as read_questions,
)
from .answering.run import run_questions as run_questions
from .answering.sources import GivenPassages as GivenPassages
from .corpus.decontamination import Decontamination as Decontamination, Removals as Removals
from .corpus.documents import Skipped as Skipped
from .corpus.sources import Fields as Fields, read_documents as read_documents
from .corpus.splitting import Splitting as Splitting, make_passages as make_passages
from .errors import RalmError as RalmError, RalmWarning as RalmWarning
from .evaluation.intervals import Comparison as Comparison
from .evaluation.perplexity import (
    Evaluation as Evaluation,
    Measures as Measures,
    ReadingSettings as ReadingSettings,
    evaluate_text as evaluate_text,
)
from .evaluation.retrieval import (
    JudgedRun as JudgedRun,
    judge_run as judge_run,
    read_qrels as read_qrels,
    read_run_file as read_run_file,
    read_topics as read_topics,
    retrieve_run as retrieve_run,
    write_run_file as write_run_file,
)
from .lm.api.endpoint import ApiOptions as ApiOptions
from .lm.registry import ModelOptions as ModelOptions, load_language_model as load_language_model
from .lm.scoring import Scorer as Scorer
from .pipeline import (
    Pipeline as Pipeline,
    open as open,  # noqa: A004
    open_pipeline as open_pipeline,
)
from .protocols import (
    Configured as Configured,
    Continuations as Continuations,
    DistributionMixer as DistributionMixer,
    Documents as Documents,
    Encoder as Encoder,
    LanguageModel as LanguageModel,
    Mixer as Mixer,
    Reader as Reader,
    Reranker as Reranker,
    Retriever as Retriever,
    Rows as Rows,
    Tokenizer as Tokenizer,
    WritingModel as WritingModel,
)
from .reading import ReadingOptions as ReadingOptions
from .reading.generate import (
    Prompt as Prompt,
    TokenWriter as TokenWriter,
    generate as generate,
    generate_many as generate_many,
)
from .reading.mixture import (
    Contrast as Contrast,
    PosteriorWeights as PosteriorWeights,
    SimilarityWeights as SimilarityWeights,
    UniformWeights as UniformWeights,
)
from .reading.parts import Parts as Parts
from .reading.plan import PlanOptions as PlanOptions, make_plan as make_plan
from .reading.readers import Concatenation as Concatenation, Ensemble as Ensemble, InContext as InContext
from .reading.sampling import GenerationOptions as GenerationOptions
from .reading.sources import FromFile as FromFile, FromRetriever as FromRetriever
from .records import (
    NO_PASSAGE as NO_PASSAGE,
    Document as Document,
    Hits as Hits,
    Message as Message,
    NextTokens as NextTokens,
    Passage as Passage,
    PromptPrefix as PromptPrefix,
    Request as Request,
    ScoredTokens as ScoredTokens,
    ScoringSequence as ScoringSequence,
)
from .reranking.lexical import Lexical as Lexical
from .reranking.oracle import Oracle as Oracle, RandomChoice as RandomChoice
from .reranking.predictive import Predictive as Predictive, load_cross_encoder as load_cross_encoder
from .reranking.zero_shot import ZeroShot as ZeroShot
from .retrieval.bm25.formula import BM25Options as BM25Options, BuildOptions as BuildOptions
from .retrieval.bm25.search import BM25 as BM25
from .retrieval.build import build_index as build_index
from .retrieval.dense.options import (
    DenseSearchOptions as DenseSearchOptions,
    EncoderOptions as EncoderOptions,
    VectorOptions as VectorOptions,
    load_encoder as load_encoder,
)
from .retrieval.hybrid import FusionOptions as FusionOptions, Hybrid as Hybrid
from .retrieval.index import Index as Index, open_index as open_index
from .retrieval.random import RandomRetriever as RandomRetriever
from .retrieval.retrieval_file import (
    read_retrieval_file as read_retrieval_file,
    write_retrieval_file as write_retrieval_file,
)
from .retrieval.retriever import RetrieverOptions as RetrieverOptions, open_retriever as open_retriever
from .retrieval.sync import sync_index as sync_index
from .retrieval.update import add_vectors as add_vectors, update_index as update_index
from .runs.resume import run_evaluation as run_evaluation, sweep as sweep
from .runs.run import compare_runs as compare_runs, write_run as write_run
from .runs.sweep import Sweep as Sweep
from .training.examples import OnlineExamples as OnlineExamples
from .training.gains import signal_statistics as signal_statistics
from .training.options import (
    CandidateOptions as CandidateOptions,
    ExampleOptions as ExampleOptions,
    LSROptions as LSROptions,
    QueryEncoderOptions as QueryEncoderOptions,
    RerankerOptions as RerankerOptions,
    RetrieverTrainingOptions as RetrieverTrainingOptions,
    TrainingOptions as TrainingOptions,
)
from .training.reranker import train_reranker as train_reranker
from .training.retriever import train_query_encoder as train_query_encoder, train_retriever as train_retriever
from .training.signals import Signals as Signals, make_signals as make_signals, open_signals as open_signals
from .worth import (
    HeldOut as HeldOut,
    Worth as Worth,
    WorthOptions as WorthOptions,
    held_out_documents as held_out_documents,
    held_out_questions as held_out_questions,
    held_out_texts as held_out_texts,
    judge_corpus as judge_corpus,
)

__version__: str
