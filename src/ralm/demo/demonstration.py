"""The demo: the documentation of this Python as corpus, with a tenth of it held out as the text to predict.

Shows on real text what retrieval does for a frozen language model. The held-out text is read without retrieval, with
random passages (the control), with BM25 passages, and with the best of BM25's first 16 (the oracle).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from ralm.answering.answerer import Answerer, SourcedAnswer
from ralm.answering.options import AnswerOptions
from ralm.answering.prompt_reader import open_prompt
from ralm.corpus.splitting import make_passages
from ralm.demo.documentation import split_held_out, standard_library_documentation
from ralm.errors import FolderError, UsageError
from ralm.evaluation.perplexity import Reading, timed
from ralm.protocols import LanguageModel, WritingModel
from ralm.reading import plan, provenance, score, sources
from ralm.reading.parts import Parts
from ralm.reading.tokens import PreparedText, prepare_text
from ralm.records import Document, FloatArray, Passages
from ralm.reranking.oracle import Oracle
from ralm.retrieval.build import build_index
from ralm.runs.report import Report
from ralm.storage import manifest, outputs

_KIND: Final = outputs.FolderKind("demo")
CORPUS: Final = "corpus.jsonl"
HELD_OUT: Final = "heldout.txt"
INDEX: Final = "index"
REPORT: Final = "report.html"

PLAN: Final = plan.PlanOptions(stride=4, windows="blocked", block=256, max_length=768)
"""Blocked windows, and a shorter model length than in the papers, so that a laptop needs only minutes."""

ORACLE_CANDIDATES: Final = 16
_STRETCH: Final = 32
_PROMPT_TOKENS: Final = 48
_GAINED: Final = 8
_TOKENS_BEFORE: Final = 12

ANSWERING: Final = AnswerOptions(new_tokens=32, stop=())
"""As `ralm ask` draws answers in a chat, but shorter."""


def build_demo_folder(folder: Path) -> None:
    """Write the corpus, the held-out text and the index of the demo; an unchanged older demo is replaced.

    Raises UsageError if anything else is there, including your own files in an older demo.
    """
    _check_place(folder)
    corpus, held_out = split_held_out(standard_library_documentation())
    with outputs.new_folder(folder, kind=_KIND, force=True, also=[REPORT]) as partial:
        with (partial / CORPUS).open("w", encoding="utf-8") as stream:
            for document in corpus:
                row = {"id": document.id, "title": document.title, "text": document.text}
                stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        (partial / HELD_OUT).write_text(held_out_text(held_out), encoding="utf-8")
        build_index(make_passages(corpus), partial / INDEX)
        counts = {"documents": len(corpus), "held_out_documents": len(held_out)}
        manifest.write_manifest(partial, kind=_KIND, settings={}, counts=counts)


def _check_place(folder: Path) -> None:
    """Raise UsageError if the demo would replace anything but an unchanged older demo."""
    outputs.check_output(folder, kind=_KIND, force=True, also=[REPORT])
    if (folder / outputs.MANIFEST).exists():
        try:
            manifest.read_manifest(folder, kind=_KIND)
        except FolderError as error:
            raise UsageError(
                f"{folder} is kept, because it is not an unchanged demo ({error}) Choose another `folder`."
            ) from error


def held_out_text(documents: Sequence[Document]) -> str:
    """The held-out documents concatenated in random order, so that any beginning is a random sample."""
    order = np.random.default_rng(0).permutation(len(documents))
    return "\n\n".join(f"{documents[i].title}\n{documents[i].text}" for i in order) + "\n"


@dataclass(frozen=True, slots=True)
class GainedToken:
    """A token that its passage made more likely: the text before it, the token, the passage, and the gain in nats."""

    before: str
    token: str
    passage: int
    gain: float


@dataclass(frozen=True, slots=True, eq=False)
class Demonstration:
    """The held-out text and its readings, by name in the order of the table."""

    prepared: PreparedText
    readings: dict[str, Reading]
    passages: Passages
    stride: int

    @property
    def gain_T(self) -> FloatArray:
        """The gain of each target from BM25's passage, in nats (float32)."""
        return self.readings["bm25"].scored.log_probs_T - self.readings["none"].scored.log_probs_T


def demo_report(shown: Demonstration, model: LanguageModel) -> Report:
    """A report of the reading with BM25's passages: the sources of its tokens, and the gain from each passage."""
    with_passages, without = shown.readings["bm25"], shown.readings["none"]
    text = provenance.TracedText.of(shown.prepared, with_passages.scored, without.scored, shown.passages)
    return Report(
        title=HELD_OUT,
        settings={
            "model": model.name,
            "passages": "BM25's first",
            "stride": str(shown.stride),
            "windows": PLAN.windows,
        },
        perplexity=with_passages.measures.token_perplexity,
        baseline_perplexity=without.measures.token_perplexity,
        text=text,
        shown_tokens=len(text),
    )


def demonstrate(
    text: str,
    model: LanguageModel,
    bm25: sources.FromRetriever,
    control: sources.FromRetriever,
    *,
    limit_tokens: int,
    stride: int,
) -> Demonstration:
    """Read the beginning of a text without passages, with random ones, with BM25's first, and with its best of 16."""
    prepared = prepare_text(text, model.tokenizer, replace(PLAN, stride=stride), limit_tokens=limit_tokens)
    candidates, passages = bm25.find(prepared, model.tokenizer, ORACLE_CANDIDATES)
    random, _ = control.find(prepared, model.tokenizer, 1)
    oracle = Parts(reranker=Oracle())
    return Demonstration(
        prepared=prepared,
        readings={
            "none": timed(prepared, lambda: score.score_text(prepared, model)),
            "random": timed(prepared, lambda: score.score_text(prepared, model, random, passages)),
            "bm25": timed(prepared, lambda: score.score_text(prepared, model, candidates, passages)),
            "oracle": timed(prepared, lambda: score.score_text(prepared, model, candidates, passages, oracle)),
        },
        passages=passages,
        stride=stride,
    )


def answer_questions(
    questions: Sequence[str], model: WritingModel, bm25: sources.FromRetriever
) -> Iterator[tuple[SourcedAnswer, SourcedAnswer]]:
    """Each question answered by a model with a chat template: with BM25's first passage, and without passages."""
    prompt = open_prompt("chat")
    with_passage = Answerer(model, prompt, bm25, options=ANSWERING)
    without = Answerer(model, prompt, options=ANSWERING)
    for question in questions:
        yield from zip(with_passage.answers([question]), without.answers([question]), strict=True)


def most_gained(shown: Demonstration, model: LanguageModel) -> list[GainedToken]:
    """The eight targets that gained most from their passage, at most one per passage, each with the text before it."""
    scored = shown.readings["bm25"].scored
    tokens = shown.prepared.tokens
    decode = model.tokenizer.decode
    by_gain = np.argsort(-shown.gain_T, kind="stable")
    _, first_of_passage = np.unique(scored.passages_T[by_gain], return_index=True)
    rows = by_gain[np.sort(first_of_passage)[:_GAINED]]
    return [
        GainedToken(
            before=decode(tokens[max(0, position - _TOKENS_BEFORE) : position]),
            token=decode(tokens[position : position + 1]),
            passage=int(scored.passages_T[row]),
            gain=float(shown.gain_T[row]),
        )
        for row, position in zip(rows, scored.positions_T[rows].tolist(), strict=True)
    ]


def prompt_where_retrieval_helps(shown: Demonstration, model: LanguageModel) -> str:
    """The text before the 32 consecutive targets that gained most: a prompt that shows what retrieval does."""
    stretch = np.convolve(shown.gain_T, np.ones(_STRETCH), mode="valid")
    position = int(shown.readings["bm25"].scored.positions_T[int(np.argmax(stretch))])
    return model.tokenizer.decode(shown.prepared.tokens[max(0, position - _PROMPT_TOKENS) : position]).lstrip()
