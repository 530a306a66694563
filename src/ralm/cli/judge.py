"""`ralm judge` evaluates retrieval against relevance judgements, or by the answers that passages hold."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast, get_args

from pydantic import JsonValue

import ralm
from ralm.cli import options
from ralm.cli.flags import TableOutput
from ralm.cli.process import print_note
from ralm.errors import UsageError
from ralm.evaluation import RETRIEVAL_MEASURES
from ralm.options import Needs, Option, check_options
from ralm.retrieval.retriever import RetrieverName, RetrieverOptions

if TYPE_CHECKING:
    from ralm.evaluation.retrieval import Qrels, RetrievalRun
    from ralm.reading.sources import FromRetriever

_ANSWER_MEASURES: Final = "Success@1, Success@5, Success@20, Success@100, RR"
_K, _ANSWER_K = 1000, 100
_INDEX: Final = Needs("an index", lambda own: own.source.is_dir())
_OUT: Final = Needs("an index", lambda own: own.job.source.is_dir())


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeJob:
    """A run, or an index that is searched for topics, and what judges it.

    Raises UsageError if options do not go together.
    """

    source: Annotated[Path, options.argument("Folder that `ralm index` made, or a run file of TREC.", "INDEX")]
    topics: Annotated[
        Path | None,
        Option(
            "Topics (TREC, TSV of id and text, JSON Lines), or a folder in BEIR's format; without `qrels`, questions "
            "with answers: a passage that holds one is relevant (DPR)."
        ),
    ] = None
    qrels: Annotated[
        Path | None,
        Option("Relevance judgements of TREC or BEIR.", default_text="of BEIR's folder: qrels/test.tsv"),
    ] = None
    k: Annotated[
        int | None,
        Option("Passages per topic.", flag="-k", default_text=f"{_K}; of answers: {_ANSWER_K}", needs=_INDEX),
    ] = None
    measures: Annotated[
        str | None,
        Option(
            "Measures of ir_measures, separated by commas.",
            default_text=f"{RETRIEVAL_MEASURES}; of answers: {_ANSWER_MEASURES}",
        ),
    ] = None
    retrieval: Annotated[RetrieverOptions, Option("How passages are retrieved.", needs=_INDEX)]

    def __post_init__(self) -> None:
        check_options(self)
        if not self.source.exists():
            raise UsageError(f"{self.source} does not exist; give the folder of an index, or a run file.")
        if self.topics is None and self.qrels is None:
            raise UsageError("judging needs judgements: give `qrels`, or `topics` with answers or in BEIR's format.")
        if self.topics is None and self.source.is_dir():
            raise UsageError("judging an index needs queries: give `topics`.")
        if self.by_answers and not self.source.is_dir():
            raise UsageError("answers are looked for in the passages of an index: give its folder, or give `qrels`.")

    @property
    def by_answers(self) -> bool:
        """Whether a passage is relevant if it holds an answer."""
        return self.qrels is None and not self.is_beir

    @property
    def is_beir(self) -> bool:
        """Whether topics are a folder in BEIR's format."""
        return self.topics is not None and self.topics.is_dir()

    def judged_topics(self) -> "tuple[dict[str, str], Qrels]":
        """The texts of the topics that are judged, if an index is searched, and the judgements."""
        source = self.qrels or self.topics
        assert source is not None
        qrels = ralm.read_qrels(source)
        if self.topics is None or not self.source.is_dir():
            return {}, qrels
        texts = {topic: text for topic, text in ralm.read_topics(self.topics).items() if topic in qrels}
        if not texts:
            raise UsageError(f"no topic of {self.topics} is judged by `qrels`: they belong to other topics.")
        if len(texts) < len(qrels):
            print_note(f"{len(qrels) - len(texts):,} judged topics are not in {self.topics}, and left out")
        return texts, {topic: qrels[topic] for topic in texts}


def judge_command(
    job: JudgeJob,
    against: Annotated[
        str | None, Option("Compare with this retriever (bm25, dense, hybrid, random), or with this run file.")
    ] = None,
    out: Annotated[Path | None, Option("Run file of TREC to write.", needs=_OUT)] = None,
    force: options.Force = False,
) -> TableOutput:
    """Judge what an index finds for topics, or a run file, by nDCG, MAP, recall and reciprocal rank.

    Prints the means over the judged topics with 95% intervals, and with --against the paired difference. A document
    counts once, at its best passage. With a folder in BEIR's format, the document with the id of the topic is left out.
    """
    from ralm.cli.results import print_judged
    from ralm.evaluation.retrieval import parse_measures
    from ralm.storage.outputs import check_output_file

    depth = job.k or (_ANSWER_K if job.by_answers else _K)
    measures = job.measures or (_ANSWER_MEASURES if job.by_answers else RETRIEVAL_MEASURES)
    parse_measures(measures, depth if job.source.is_dir() else None)
    if out is not None:
        check_output_file(out, force)
    questions = ralm.read_questions(job.topics) if job.by_answers and job.topics else []
    texts, qrels = ({one.id: one.text for one in questions}, {}) if questions else job.judged_topics()
    sources: dict[str, FromRetriever] = {}

    def run_of(name: str) -> "RetrievalRun":
        if name not in get_args(RetrieverName):
            return ralm.read_run_file(name)
        if not job.source.is_dir():
            raise UsageError(f'`against="{name}"` searches an index: give its folder instead of a run file.')
        retrieval = replace(job.retrieval, retriever=cast("RetrieverName", name))
        own = sources[name] = ralm.FromRetriever.of_index(job.source, retrieval)
        beside = {"by_passage": job.by_answers, "without_own": job.is_beir}
        return ralm.retrieve_run(own.retriever, own.passages, texts, depth, **beside)

    first = job.retrieval.retriever if job.source.is_dir() else str(job.source)
    names = [first, *filter(None, [against])]
    runs = [run_of(name) for name in names]
    if questions:
        qrels = ralm.answer_qrels(questions, sources[first].passages, *runs)
    if out is not None:
        ralm.write_run_file(out, runs[0], first)
    judged = ralm.judge_run(runs[0], qrels, measures, against=runs[1] if against else None)
    summary = judged.summary()
    configs: list[JsonValue] = [sources[name].config if name in sources else {"run": name} for name in names]
    return TableOutput(
        lambda: {**summary, "by_topic": judged.by_topic(), "config": {"k": depth, "runs": configs}},
        partial(print_judged, summary, names),
    )
