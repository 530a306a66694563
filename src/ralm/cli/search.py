"""`ralm search` searches an index or judges it; `ralm retrieve` writes the passages of a text's strides to a file."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import JsonValue

import ralm
from ralm.cli import flags, options, process
from ralm.corpus.documents import Fields
from ralm.errors import UsageError
from ralm.evaluation import RETRIEVAL_MEASURES
from ralm.lm.registry import load_tokenizer
from ralm.options import Option

if TYPE_CHECKING:
    from ralm.evaluation.retrieval import Qrels, RetrievalRun
    from ralm.reading.sources import FromRetriever

_K, _TOPIC_K, _ANSWER_K = 10, 1000, 100
_K_TEXT: Final = f"{_K}; of topics: {_TOPIC_K}; of questions with answers: {_ANSWER_K}"
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
        Path | None, Option("Relevance judgements of TREC or BEIR.", default_text="of BEIR's folder: qrels/test.tsv")
    ] = None
    measures: Annotated[
        str | None,
        Option(
            "Measures of ir_measures, separated by commas.",
            default_text=f"{RETRIEVAL_MEASURES}; of answers: {_ANSWER_MEASURES}",
        ),
    ] = None
    against: Annotated[
        str | None, Option("Compare with this retriever, as for `retriever`, or with this run file of TREC.")
    ] = None
    run_out: Annotated[Path | None, Option("Run file of TREC to write.")] = None
    force: options.Force = False
    latex: Annotated[bool, flags.LATEX] = False

    @property
    def is_beir(self) -> bool:
        """Whether topics are a folder in BEIR's format."""
        return self.topics is not None and self.topics.is_dir()

    @property
    def answers(self) -> Path | None:
        """Questions with answers, if a passage is relevant that holds one."""
        return None if self.qrels or self.is_beir else self.topics


def search_command(
    *,
    index: options.IndexArgument,
    query: Annotated[str | None, options.argument("What to search for; - reads standard input.")] = None,
    queries: Annotated[
        Path | None,
        Option(
            "Search for every line of this file instead; .jsonl: one JSON string, or one object with a query, per "
            "line. The output is JSON Lines, in the same order."
        ),
    ] = None,
    k: Annotated[int | None, Option("Passages per query.", flag="-k", default_text=_K_TEXT)] = None,
    judging: Annotated[JudgingOptions, Option("How retrieval is judged.")],
    retrieval: Annotated[ralm.RetrieverOptions, Option("How passages are retrieved.")],
    json: Annotated[bool, Option("Print only one JSON object.")] = False,
) -> None:
    """Find the passages of an index that best match a query.

    With --topics, judge what is found for topics: print the means of measures over the judged topics with 95%
    intervals, and with --against the paired difference. A document counts once, at its best passage. With a folder in
    BEIR's format, the document with the id of the topic is left out.

    Example: `ralm search my-index "who discovered radium"`
    """
    if judging.topics is not None:
        if query is not None or queries is not None:
            raise UsageError("topics are judged: leave the query and `queries` out, or `topics`.")
        _judge(index, judging, retrieval, k).print(json=json, latex=judging.latex)
        return
    if judging != JudgingOptions():
        raise UsageError("`qrels`, `measures`, `against`, `run_out` and `latex` judge topics: give `topics`.")

    from ralm.cli.output import print_hits, print_json
    from ralm.reading.provenance import hits_as_json
    from ralm.retrieval.analysis import Marker, spans_of

    texts = options.read_input(query, queries, "query")
    opened = ralm.open_index(index)
    marker = Marker(opened.analysis)
    source = ralm.FromRetriever.of_index(opened, retrieval)
    hits = source.search(texts, k or _K)
    for row, question in enumerate(texts):
        matches = [(source.passages[number], score) for number, score in hits.of(row)]
        terms = marker.terms(question)
        if json or queries is not None:
            marks = [spans_of(marker.marks(passage.text, terms)) for passage, _ in matches]
            print_json({"query": question, "hits": hits_as_json(matches, marks)})
        elif matches:
            print_hits(matches, marker, terms)
        else:
            process.print_note(
                "no passage was found: none contains an indexed word of the query, or none of them may be found"
            )


def _judge(index: Path, judging: JudgingOptions, retrieval: ralm.RetrieverOptions, k: int | None) -> flags.TableOutput:
    """Return the means over judged topics with intervals, of an index that is searched for them."""
    from ralm.cli.results import print_comparison
    from ralm.evaluation.retrieval import parse_measures
    from ralm.storage.outputs import check_output_file

    by_answers = judging.answers is not None
    depth = k or (_ANSWER_K if by_answers else _TOPIC_K)
    measures = judging.measures or (_ANSWER_MEASURES if by_answers else RETRIEVAL_MEASURES)
    parse_measures(measures, depth)
    if judging.run_out is not None:
        check_output_file(judging.run_out, judging.force)
    questions = ralm.read_questions(judging.answers) if judging.answers else []
    texts = {question.id: question.text for question in questions}
    qrels: Qrels = {}
    if not questions:
        texts, qrels = _judged_topics(judging)
    sources: dict[str, FromRetriever] = {}

    def run_of(name: str) -> "RetrievalRun":
        if name != retrieval.retriever and Path(name).is_file():
            return ralm.read_run_file(name)
        searched = sources[name] = ralm.FromRetriever.of_index(index, replace(retrieval, retriever=name))
        how = {"by_passage": by_answers, "without_own": judging.is_beir}
        return ralm.retrieve_run(searched.retriever, searched.passages, texts, depth, **how)

    names = [retrieval.retriever, *filter(None, [judging.against])]
    runs = [run_of(name) for name in names]
    if questions:
        qrels = ralm.answer_qrels(questions, sources[names[0]].passages, *runs)
    if judging.run_out is not None:
        ralm.write_run_file(judging.run_out, runs[0], names[0])
    judged = [ralm.judge_run(run, qrels, measures) for run in runs]
    compared = ralm.Comparison(names[::-1], [run.units for run in reversed(judged)])
    configs: list[JsonValue] = [sources[name].config if name in sources else {"run": name} for name in names]
    return flags.TableOutput(
        lambda: {**compared.as_json(), "by_topic": judged[0].by_topic(), "config": {"k": depth, "runs": configs[::-1]}},
        partial(print_comparison, compared, "run"),
    )


def _judged_topics(judging: JudgingOptions) -> "tuple[dict[str, str], Qrels]":
    """Return the texts of the topics that are judged, and the judgements."""
    assert judging.topics is not None
    qrels = ralm.read_qrels(judging.qrels or judging.topics)
    texts = {topic: text for topic, text in ralm.read_topics(judging.topics).items() if topic in qrels}
    if not texts:
        raise UsageError(f"no topic of {judging.topics} is judged by `qrels`: they belong to other topics.")
    if len(texts) < len(qrels):
        process.print_note(f"{len(qrels) - len(texts):,} judged topics are not in {judging.topics}, and left out")
    return texts, {topic: qrels[topic] for topic in texts}


_PLAN = ralm.PlanOptions(document_tokens=0)


def retrieve_command(
    *,
    user_flags: flags.UserFlags,
    text: Annotated[Path, options.argument("Text to retrieve for, as for `ralm eval`.", "TEXTFILE")],
    index: Annotated[Path | None, Option("Folder that `ralm index` made.")] = None,
    lm: Annotated[
        str, Option("Model whose tokens are read: a hub name, local folder, GGUF file, ralm-tiny or smollm2.")
    ],
    out: Annotated[Path, Option("File to write (JSON).")],
    k: Annotated[int, Option("Passages per stride.", flag="-k")] = 16,
    retrieval: Annotated[ralm.RetrieverOptions, Option("How passages are retrieved.")],
    plan: Annotated[ralm.PlanOptions, Option("What is read for a stride.", without=("document_tokens", "bos"))] = _PLAN,
    limit_tokens: options.LimitTokens = None,
    fields: Annotated[Fields, options.FIELDS],
    force: options.Force = False,
) -> None:
    """Retrieve for every stride of a text, and write the passages in the format of the official In-Context RALM code.

    Only the tokenizer of the language model is needed. If the official evaluation will read the file, use `--semantics
    official` and the same `--max-length` as there. `ralm eval --retrieved` needs the same windows, and reranks.

    Example: `ralm retrieve my-text.txt -m smollm2 -i my-index -o retrieved.json`
    """
    plan = options.with_query_tokens(plan, retrieval, user_flags)

    from ralm.cli.output import print_line
    from ralm.corpus.sources import read_texts
    from ralm.reading import sources, tokens
    from ralm.storage.outputs import check_output_file

    check_output_file(out, force)
    content = read_texts(text, fields)
    source = ralm.FromRetriever.of_index(index, retrieval)
    tokenizer = load_tokenizer(lm)
    prepared = tokens.prepare_text(content, tokenizer, plan, limit_tokens=limit_tokens)
    hits, passages = source.find(prepared, tokenizer, k)
    ralm.write_retrieval_file(out, sources.retrieved_strides(prepared, tokenizer, hits, passages))
    print_line(f"{len(prepared.plan):,} strides of {len(prepared.tokens):,} tokens: {out}")
