"""The public names: pinned, sorted, all there, and loaded only when used."""

import subprocess
import sys

import pytest

import ralm

NAMES = """
AnswerOptions
AnswerSource
Answerer
ApiOptions
BM25
BM25Options
BuildOptions
CachedRetriever
CandidateOptions
ChoiceEvaluation
ChoiceFields
ChoiceOptions
ChoiceQuestion
Citation
Comparison
Concatenation
Continuations
Conversation
Decontamination
DenseSearchOptions
Document
Documents
Encoder
EncoderOptions
Ensemble
Evaluation
ExampleOptions
Fields
Forbidden
FromFile
FromRetriever
FusionOptions
GenerationOptions
GivenPassages
Hits
Hybrid
InContext
Index
LSROptions
LanguageModel
Measures
Message
ModelOptions
NO_PASSAGE
NextTokens
OnlineExamples
Oracle
Passage
PlanOptions
Predictive
Prompt
PromptPrefix
QueryEncoderOptions
Question
QuestionEvaluation
QuestionFields
QuestionPrompt
QuestionRetriever
RalmError
RalmWarning
RandomChoice
RandomRetriever
Reader
ReadingOptions
Removals
Request
RerankedPassages
Reranker
RerankerOptions
Retriever
RetrieverOptions
RetrieverTrainingOptions
Rows
ScoredTokens
Scorer
ScoringSequence
Signals
Skipped
SourcedAnswer
Splitting
SweepPoint
TokenWriter
Tokenizer
TrainingOptions
VectorOptions
Weighting
WeightingOptions
WritingModel
ZeroShot
__version__
add_vectors
build_index
citations
compare_runs
evaluate_choices
evaluate_questions
evaluate_text
generate
generate_many
load_cross_encoder
load_encoder
load_language_model
make_passages
make_plan
make_signals
merge_index
open_index
open_prompt
open_retriever
open_signals
open_source
read_choice_questions
read_documents
read_questions
read_retrieval_file
remove_vectors
run_choices
run_evaluation
run_questions
run_sweep
set_default_vectors
signal_statistics
sweep
train_bm25
train_query_encoder
train_reranker
train_retriever
update_index
write_retrieval_file
write_run
""".split()
"""What users import; a name that goes or is renamed breaks their programs, so it is taken out here too, on purpose."""


def test_the_public_names_are_these() -> None:
    assert vars(ralm)["__all__"] == NAMES
    assert dir(ralm) == NAMES
    for name in NAMES:
        assert getattr(ralm, name) is not None


def test_every_public_name_says_what_it_is() -> None:
    undocumented = [name for name in NAMES if not (getattr(ralm, name).__doc__ or "").strip()]
    assert undocumented == []


def test_importing_waits_for_nothing() -> None:
    script = "import sys, ralm; print([name for name in ('numpy', 'torch', 'pyarrow') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "[]"


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = ralm.nothing_of_the_kind  # type: ignore[attr-defined]
