"""Judges what an index finds for topics, or a run file, for `ralm search --topics`."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import JsonValue

import ralm
from ralm.cli import options
from ralm.cli.flags import LATEX, TableOutput
from ralm.cli.process import print_note
from ralm.errors import UsageError
from ralm.evaluation import RETRIEVAL_MEASURES
from ralm.options import Needs, Option
from ralm.retrieval.retriever import RetrieverOptions

if TYPE_CHECKING:
    from ralm.evaluation.retrieval import Qrels, RetrievalRun
    from ralm.reading.sources import FromRetriever

K, _TOPIC_K, _ANSWER_K = 10, 1000, 100
K_TEXT: Final = f"{K}; of topics: {_TOPIC_K}; of questions with answers: {_ANSWER_K}"
_JUDGEMENTS: Final = Needs("`topics` or `qrels`", lambda own: own.topics or own.qrels)
_ANSWER_MEASURES: Final = "Success@1, Success@5, Success@20, Success@100, RR"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingOptions:
    """What judges the passages that are found, and how the figures and the run are written."""

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
    measures: Annotated[
        str | None,
        Option(
            "Measures of ir_measures, separated by commas.",
            default_text=f"{RETRIEVAL_MEASURES}; of answers: {_ANSWER_MEASURES}",
            needs=_JUDGEMENTS,
        ),
    ] = None
    against: Annotated[
        str | None,
        Option("Compare with this retriever, as for `retriever`, or with this run file.", needs=_JUDGEMENTS),
    ] = None
    run_out: Annotated[Path | None, Option("Run file of TREC to write.", needs=_JUDGEMENTS)] = None
    force: Annotated[bool, options.force_option("run_out")] = False
    latex: Annotated[bool, replace(LATEX, needs=_JUDGEMENTS)] = False

    @property
    def is_beir(self) -> bool:
        """Whether topics are a folder in BEIR's format."""
        return self.topics is not None and self.topics.is_dir()

    @property
    def answers(self) -> Path | None:
        """Questions with answers, if a passage is relevant that holds one."""
        return None if self.qrels or self.is_beir else self.topics


def is_run_file(source: Path) -> bool:
    """Return whether a path is a run file, and not the folder of an index."""
    return source.exists() and not source.is_dir()


def judge(source: Path, judging: JudgingOptions, retrieval: RetrieverOptions, k: int | None) -> TableOutput:
    """Return the means over judged topics with intervals, of an index that is searched for them or of a run file."""
    from ralm.cli.results import print_judged
    from ralm.evaluation.retrieval import parse_measures
    from ralm.storage.outputs import check_output_file

    searched, by_answers = not is_run_file(source), judging.answers is not None
    searches = judging.against is not None and not is_run_file(Path(judging.against))
    if not searched and (by_answers or judging.run_out or searches):
        raise UsageError("`run_out`, a retriever `against`, and answers in `topics` need an index, not a run file.")
    if searched and judging.topics is None:
        raise UsageError(f"{source} is no run file: give the `topics` that an index is searched for.")
    depth = k or (_ANSWER_K if by_answers else _TOPIC_K)
    measures = judging.measures or (_ANSWER_MEASURES if by_answers else RETRIEVAL_MEASURES)
    parse_measures(measures, depth if searched else None)
    if judging.run_out is not None:
        check_output_file(judging.run_out, judging.force)
    questions = ralm.read_questions(judging.answers) if judging.answers else []
    texts = {question.id: question.text for question in questions}
    qrels: Qrels = {}
    if not questions:
        texts, qrels = _judged_topics(judging, searched=searched)
    sources: dict[str, FromRetriever] = {}

    def run_of(name: str) -> "RetrievalRun":
        if is_run_file(Path(name)):
            return ralm.read_run_file(name)
        index = sources[name] = ralm.FromRetriever.of_index(source, replace(retrieval, retriever=name))
        how = {"by_passage": by_answers, "without_own": judging.is_beir}
        return ralm.retrieve_run(index.retriever, index.passages, texts, depth, **how)

    names = [retrieval.retriever if searched else str(source), *filter(None, [judging.against])]
    runs = [run_of(name) for name in names]
    if questions:
        qrels = ralm.answer_qrels(questions, sources[names[0]].passages, *runs)
    if judging.run_out is not None:
        ralm.write_run_file(judging.run_out, runs[0], names[0])
    judged = ralm.judge_run(runs[0], qrels, measures, against=runs[1] if judging.against else None)
    summary = judged.summary()
    configs: list[JsonValue] = [sources[name].config if name in sources else {"run": name} for name in names]
    return TableOutput(
        lambda: {**summary, "by_topic": judged.by_topic(), "config": {"k": depth, "runs": configs}},
        partial(print_judged, summary, names),
    )


def _judged_topics(judging: JudgingOptions, *, searched: bool) -> "tuple[dict[str, str], Qrels]":
    """Return the texts of the topics that are judged, if an index is searched, and the judgements."""
    source = judging.qrels or judging.topics
    assert source is not None
    qrels = ralm.read_qrels(source)
    if not searched or judging.topics is None:
        return {}, qrels
    texts = {topic: text for topic, text in ralm.read_topics(judging.topics).items() if topic in qrels}
    if not texts:
        raise UsageError(f"no topic of {judging.topics} is judged by `qrels`: they belong to other topics.")
    if len(texts) < len(qrels):
        print_note(f"{len(qrels) - len(texts):,} judged topics are not in {judging.topics}, and left out")
    return texts, {topic: qrels[topic] for topic in texts}
