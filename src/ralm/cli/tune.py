"""`ralm tune`: the settings that read a text best for what they cost, as a file for `--settings`."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import JsonValue

import ralm
from ralm.advice.trials import NONE
from ralm.advice.tune import TuneOptions
from ralm.cli import options
from ralm.cli.eval import EvaluationJob
from ralm.cli.flags import Flags, Given, Output, option_types, reject_unused, unused_options
from ralm.cli.models import open_model
from ralm.errors import UsageError
from ralm.options import Needs, Option
from ralm.reading import ReadingOptions
from ralm.reading.plan import PlanOptions
from ralm.retrieval.retriever import MemoizedRetriever, RetrieverOptions
from ralm.terminal import one_line

if TYPE_CHECKING:
    from ralm.advice.trials import Trial
    from ralm.advice.tune import Tuning
    from ralm.protocols import Reranker
    from ralm.reading.sources import FromRetriever
    from ralm.retrieval.index import Index

_WRITTEN: Final = ("stride", "query-tokens", "retriever", "reader")
"""Options that a file of settings always has."""
_ROWS: Final = 8


def tune_command(
    given: Given,
    text: Annotated[Path, options.argument("Text to tune on, as documents for `ralm index`.", "TEXT")],
    make_job: Annotated[Callable[..., EvaluationJob], Flags(without=("retrieved", "limit_tokens", "rerank_lm"))],
    tuning: Annotated[TuneOptions, Option("How settings are searched.")],
    output: Annotated[Path | None, Option("Write the chosen settings to this TOML file, for --settings.")] = None,
    html: Annotated[Path | None, Option("Write a self-contained HTML page to this file too.")] = None,
    force: Annotated[
        bool,
        Option("Replace existing files.", needs=Needs("`output` or `html`", lambda own: bool(own.output or own.html))),
    ] = False,
) -> Output:
    """Search the settings that read a text with the lowest perplexity for their cost, in tokens that the model reads.

    Tries strides, query lengths, retrievers, rerankers, readers and mixers; those that you give stay. All read a
    few documents of the text, the better ones more and more. A part of the documents is held out, and read at the end
    with the chosen settings, the defaults and no passages.
    """
    from ralm.advice.held_out import documents_or_blocks
    from ralm.advice.tune import documents_of_tuning, drawn, tune
    from ralm.advice.verdict import check_scoring
    from ralm.storage.outputs import check_output_file

    for file in (output, html):
        if file is not None:
            check_output_file(file, force)
    job = make_job()
    if job.index is None:
        raise UsageError("`ralm tune` reads passages: give `index`.")
    index = ralm.open_index(job.index)
    own = option_types(TuneOptions)  # `seed` has an effect here without random passages
    job_given = {name: flag for name, flag in given.items() if name not in own}
    trials = drawn([*_trials(job_given, make_job, index)], tuning)
    model = open_model(job.lm, job.model, job.ray)
    check_scoring(model)
    found = documents_or_blocks(ralm.read_documents([str(text)]), model.tokenizer, 16)
    texts = documents_of_tuning([one.text for one, _ in found], str(text), model.tokenizer, tuning)
    tuned = tune(trials, model, texts, tuning, str(text))
    if output is not None:
        _write_settings(output, tuned, job.index)
    if html is not None:
        _write_page(html, tuned, job.index)
    return Output(tuned.as_json, partial(_print, tuned))


def _trials(given: Given, make_job: Callable[..., EvaluationJob], index: "Index") -> "Iterator[Trial]":
    """The plain model, the defaults, and all combinations in which every given option has an effect."""
    from ralm.advice.trials import DEFAULTS, Trial, combinations

    retrievers = ["bm25"] if index.bm25_options is not None else []
    if index.vectors:
        retrievers += ["dense", "hybrid"] if retrievers else ["dense"]
    defaults = make_job() if "bm25" in retrievers or "retriever" in given else make_job(retriever="dense")
    made = _Parts(given, index)
    yield Trial.without_passages(defaults.settled(given).plan)
    default = made.trial(defaults, given, DEFAULTS)
    yield default
    error, count = None, 0
    for values in combinations(given, retrievers):
        try:
            job = make_job(**values)
            trial = None if unused_options(job, given) else made.trial(job, {**given, **dict.fromkeys(values, "")})
        except UsageError as reason:  # the values do not go together
            error = error or reason
            continue
        count += trial is not None
        if trial is not None and trial.options != default.options:
            yield trial
    if not count:
        reject_unused(unused_options(defaults, given), given)
        if error is not None:
            raise error


class _Parts:
    """Makes trials of jobs; equal retrievers and rerankers are opened once."""

    def __init__(self, given: Given, index: "Index") -> None:
        self._index, self._always = index, {*_WRITTEN, *(name.replace("_", "-") for name in given)}
        self._sources: dict[str, FromRetriever] = {}
        self._rerankers: dict[str, Reranker | None] = {}

    def trial(self, job: EvaluationJob, given: Given, role: str = "") -> "Trial":
        """The settings of a job, and their parts."""
        from ralm.advice.trials import Trial
        from ralm.reading.in_context import CheckedReader

        job = job.settled(given)
        job.plan.check_documents(CheckedReader.of(job.reading.chosen_reader).joined)
        reranking, retrieval = job.reading.reranking, repr(job.retrieval)
        if retrieval not in self._sources:
            source = ralm.FromRetriever.of_index(self._index, job.retrieval)
            self._sources[retrieval] = source.with_retriever(MemoizedRetriever(source.retriever, reranking.candidates))
        if repr(reranking) not in self._rerankers:
            self._rerankers[repr(reranking)] = reranking.reranker()
        return Trial(
            options=self._settings(job),
            plan=job.plan,
            reader=job.reading.chosen_reader,
            source=self._sources[retrieval],
            reranker=self._rerankers[repr(reranking)],
            role=role,
        )

    def _settings(self, job: EvaluationJob) -> dict[str, JsonValue]:
        """The options of a job that decide how a text is read, by the names of their flags."""
        from ralm.advice.trials import option_values

        records = ((job.plan, PlanOptions()), (job.retrieval, RetrieverOptions()), (job.reading, ReadingOptions()))
        found = {name: one for record, base in records for name, one in option_values(record, base, self._always)}
        return {name: str(one) if isinstance(one, Path) else one for name, one in found.items()}


def _write_settings(file: Path, tuned: "Tuning", index: Path) -> None:
    """Write the chosen settings, with where they come from."""
    from ralm.cli.process import print_note
    from ralm.storage.outputs import replaced_file

    where = f"Made by `ralm tune` for {tuned.lm}, {index} and {tuned.text}."
    lines = [f"# {one_line(one)}\n" for one in (where, tuned.sentence)]
    with replaced_file(file) as stream:
        stream.write("".join(lines) + tuned.chosen.toml)
    print_note(f"{file} has the settings: ralm eval TEXT --lm {tuned.lm} --index {index} --settings {file}")


def _write_page(file: Path, tuned: "Tuning", index: Path) -> None:
    from ralm.cli.process import print_note
    from ralm.runs.report import render_page
    from ralm.storage.outputs import replaced_file

    settings = {
        "model": tuned.lm,
        "text": tuned.text,
        "documents": f"{tuned.searched:,} searched, {tuned.held_out.documents if tuned.held_out else 0:,} held out",
    }
    shown: Any = {**tuned.as_json(), "title": str(index), "settings": settings, "notes": [*_notes(tuned)]}
    with replaced_file(file) as page:
        page.write(render_page("ralm.advice", "tune.html", f"{index} · ralm tune", shown))
    print_note(f"{file} shows all settings that were tried; open it in a browser")


def _print(tuned: "Tuning") -> None:
    from ralm.cli.output import print_line, print_table

    print_line(tuned.sentence)
    front = tuned.front
    step = max(1, -(-len(front) // _ROWS))
    rows = [
        (
            f"{one.name}{' *' if one is tuned.chosen else ''}",
            f"{one.stride}, {one.query_tokens}",
            f"{one.cost:.1f}",
            "" if one.name == NONE else str(one.against_none),
        )
        for place, one in enumerate(front)
        if place % step == 0 or one is tuned.chosen or one is front[-1]
    ]
    print_table(["front (* chosen)", "stride, query", "read for one", "perplexity (95%)"], rows)
    for note in _notes(tuned):
        print_line(note)


def _notes(tuned: "Tuning") -> Iterator[str]:
    """What the result rests on, a sentence a line."""
    tried = f"Tried {len(tuned.trials):,} settings on up to {tuned.searched:,} documents"
    yield f"{tried}{', before the budget ended' * (tuned.stopped == 'budget')}; --max-cost chooses a cheaper one."
    if tuned.held_out is not None:
        read = ", ".join(f"{name} {cost:.1f}" for name, cost in tuned.held_out.cost.items())
        yield f"Held out: {tuned.held_out.documents:,} documents; tokens read for one of the text: {read}."
    if tuned.standing_in:
        yield (
            f"Stand in the index: {tuned.standing_in:,} documents of the text, whose copies these figures count. Tune "
            "on a text that is not indexed, or build the index with --decontaminate."
        )
    if tuned.skipped:
        yield tuned.skipped
