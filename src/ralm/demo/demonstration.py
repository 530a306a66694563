"""The demo: questions about Python to a small chat model, and a tenth of Python's documentation to predict.

The corpus is the documentation of this Python, without the tenth that is held out. The model answers with passages of
the corpus and without. The held-out text is read without passages, with random ones (the control), with BM25's first,
and with the recommended settings.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from ralm.answering.answerer import SourcedAnswer
from ralm.corpus.files import read_text
from ralm.corpus.splitting import make_passages
from ralm.demo.documentation import split_held_out, standard_library_documentation
from ralm.errors import FolderError, UsageError
from ralm.evaluation.perplexity import Evaluation, Reading
from ralm.evaluation.report import Report
from ralm.pipeline import Pipeline, open_pipeline
from ralm.protocols import LanguageModel
from ralm.reading import ReadingOptions
from ralm.reading.plan import PlanOptions
from ralm.records import Document
from ralm.retrieval.build import build_index
from ralm.retrieval.retriever import RetrieverOptions
from ralm.settings import PipelineOptions
from ralm.storage import manifest, outputs

_KIND: Final = outputs.FolderKind("demo")
CORPUS: Final = "corpus.jsonl"
HELD_OUT: Final = "heldout.txt"
INDEX: Final = "index"
REPORT: Final = "report.html"

PLAN: Final = PlanOptions(stride=8, windows="blocked", block=256, max_length=768)
"""Blocked windows, a longer stride and a shorter model length than in the papers, so that a laptop needs a minute."""
RECOMMENDED: Final = ReadingOptions(reader="ensemble:documents=4,temperature=8", mixer="posterior")
"""The settings of docs/ensembles.md#recommended-settings."""
QUESTIONS: Final = (
    "Which exception does graphlib raise if the graph has a cycle?",
    "Who wrote the module wsgiref.headers?",
)
"""Questions that the corpus answers, and that SmolLM2 gets wrong without it."""
NEW_TOKENS: Final = 32
"""The longest answer."""


def build_demo_folder(folder: Path) -> None:
    """Write corpus, held-out text and index, in place of an unchanged older demo; UsageError if others are there."""
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
    """Return the documents concatenated in random order, so that any beginning is a random sample."""
    order = np.random.default_rng(0).permutation(len(documents))
    return "\n\n".join(f"{documents[i].title}\n{documents[i].text}" for i in order) + "\n"


@dataclass(frozen=True, slots=True, eq=False)
class Demonstration:
    """The held-out text read with BM25's passages, and all readings by name in the order of the table."""

    bm25: Evaluation
    readings: dict[str, Reading]

    def report(self, model: LanguageModel) -> Report:
        """Return the report of the reading with BM25's passages."""
        text = self.bm25.traced
        reading = {"passages": "BM25's first", "stride": str(PLAN.stride), "windows": PLAN.windows}
        return Report(
            title=HELD_OUT,
            settings={"model": model.name, **reading},
            perplexity=self.readings["bm25"].measures.token_perplexity,
            baseline_perplexity=self.readings["none"].measures.token_perplexity,
            text=text,
            shown_tokens=len(text),
        )


def demonstrate(folder: Path, model: LanguageModel, limit_tokens: int) -> Demonstration:
    """Read the beginning of the held-out text of a demo folder in all ways."""
    text = read_text(folder / HELD_OUT)

    def read(retriever: str, reading: ReadingOptions, *, baseline: bool = False) -> Evaluation:
        retrieval = RetrieverOptions(retriever=retriever)
        options = PipelineOptions(lm=model.name, index=folder / INDEX, retrieval=retrieval, reading=reading)
        pipeline = open_pipeline(options, plan=PLAN, load=lambda *_: model)
        return pipeline.score(text, baseline=baseline, limit_tokens=limit_tokens)

    bm25 = read("bm25", ReadingOptions(), baseline=True)
    assert bm25.baseline is not None
    readings = {
        "none": bm25.baseline,
        "random": read("random", ReadingOptions()).reading,
        "bm25": bm25.reading,
        "recommended": read("bm25", RECOMMENDED).reading,
    }
    return Demonstration(bm25, readings)


def answer_questions(questions: Sequence[str], pipeline: Pipeline) -> Iterator[tuple[SourcedAnswer, SourcedAnswer]]:
    """Answer each question with the first passage of a pipeline, and without passages."""
    alone = replace(pipeline, source=None)
    for question in questions:
        yield pipeline.ask(question, new_tokens=NEW_TOKENS), alone.ask(question, new_tokens=NEW_TOKENS)
