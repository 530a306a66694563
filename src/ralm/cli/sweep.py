"""`ralm sweep`: runs `ralm eval` for several values of one option, and shows a table and a plot."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from ralm.cli import options
from ralm.cli.eval import EvaluationJob
from ralm.cli.flags import Given, RecordMaker, option_types, reject_unused, unused_options
from ralm.cli.models import open_model
from ralm.errors import UsageError
from ralm.lm.registry import ModelOptions
from ralm.options import Needs, Option
from ralm.retrieval.retriever import RetrieverOptions

_FIXED: Final = ("lm", "rerank_lm", "limit_tokens", "ray", *option_types(ModelOptions))
"""Options that all points of a sweep share: one text is read with one model, which is loaded once."""
_KINDS: Final = {name: kind for name, kind in option_types(EvaluationJob).items() if name not in _FIXED}
SWEPT: Final = [name.replace("_", "-") for name in _KINDS]
"""The options that a sweep can change."""


@dataclass(frozen=True, slots=True)
class _Point:
    """The job of a value, and the given options without an effect on it."""

    job: EvaluationJob
    unused: dict[str, str]


def sweep_command(
    given: Given,
    maker: RecordMaker[EvaluationJob],
    over: Annotated[str, Option("Option of `ralm eval` to vary: any except those of the text and the models.")],
    values: Annotated[str, Option("Its values, separated by commas.")],
    out: Annotated[Path | None, Option("Folder for the table, the plot and the summary.")] = None,
    plot: Annotated[
        bool,
        Option(
            "Draw the plot in `out`; this needs the extra `plots`.", needs=Needs("`out`", lambda own: bool(own.out))
        ),
    ] = True,
    force: options.Force = False,
    json: options.PrintJson = False,
) -> None:
    """Evaluate a text for several values of one option, each with and without passages.

    Takes the options of `ralm eval`. Each row is the result of `ralm eval` for one value; shared retrievals and scores
    are computed once. With --out, rerun the command to resume a killed sweep.
    """
    jobs = _jobs(given, maker, over, values)

    from ralm.cli.options import open_text
    from ralm.cli.output import print_cache, print_json
    from ralm.cli.results import print_sweep
    from ralm.evaluation.sweep import SweepPoint, sweep as sweep_over
    from ralm.lm.scoring import Scorer
    from ralm.reading.sources import open_source
    from ralm.reading.tokens import read_beginning
    from ralm.reranking.predictive import PairScorer
    from ralm.runs.resume import point_config, run_sweep
    from ralm.runs.run import SWEEP_KIND, WITHOUT_PLOT, check_plot
    from ralm.storage.outputs import check_output

    if out is not None:
        check_output(out, kind=SWEEP_KIND, force=force)
        if plot:
            check_plot(WITHOUT_PLOT)
    first = next(iter(jobs.values()))
    chunks = open_text(first.text, first.limit_tokens)
    sources = {_source_of(job): open_source(*_source_of(job)) for job in jobs.values()}
    model = open_model(first.lm, first.model, first.ray)
    content = read_beginning(chunks, model.tokenizer, first.limit_tokens)
    rerank_lm = next((job.reading.rerank_lm for job in jobs.values() if job.reading.rerank_lm), None)
    ranker = Scorer(open_model(rerank_lm, first.model, first.ray)) if rerank_lm else None
    cross_encoders = {
        _choosing(job): PairScorer(job.reading.reranking.load()) for job in jobs.values() if _choosing(job)
    }
    points = [
        SweepPoint(
            value=value,
            plan=job.plan,
            reader=job.reading.chosen_reader,
            source=sources[_source_of(job)],
            reranker=job.reading.reranking.reranker(
                ranker if job.reading.rerank_lm else None, cross_encoders.get(_choosing(job))
            ),
        )
        for value, job in jobs.items()
    ]
    if out is None:
        swept = sweep_over(content, model, over, points, limit_tokens=first.limit_tokens)
    else:
        swept = run_sweep(
            out, content, model, over, points, limit_tokens=first.limit_tokens, name=first.text, plot=plot, force=force
        )
    if json:
        configs = [point_config(first.text, content, model, point, first.limit_tokens) for point in points]
        print_json(swept.summary(configs))
    else:
        print_sweep(swept, out)
    for source in sources.values():
        print_cache(source)


def _jobs(given: Given, maker: RecordMaker[EvaluationJob], over: str, values: str) -> dict[str, EvaluationJob]:
    """The job of each value."""
    if over not in SWEPT:
        raise UsageError(f"`over` must be one of {', '.join(SWEPT)}, not {over!r}.")
    name = over.replace("-", "_")
    given, points = {**given, name: f"--{over}"}, {}
    for value, parsed in _parsed(over, _KINDS[name], values).items():
        job = maker.make(**{name: parsed})
        points[value] = _Point(job.settled(given), unused_options(job, given))
    first, *others = points.values()
    if not all(point.job.has_passages for point in points.values()):
        raise UsageError("a sweep reads with passages: give `index` or `retrieved`.")
    unused = {option: needs for option, needs in first.unused.items() if all(option in one.unused for one in others)}
    if name in unused:
        raise UsageError(f"--{over} makes no difference: it has no effect without {unused[name]}.")
    if others and all(point.job == first.job for point in others):
        raise UsageError(f"--{over} makes no difference: the other options do not use it.")
    reject_unused(unused, given)
    return {value: point.job for value, point in points.items()}


def _parsed(over: str, kind: Any, values: str) -> dict[str, Any]:
    """The values of an option of this type, by their text on the command line."""
    try:
        parsed = {value: kind(value) if kind in (int, float) else value for value in values.split(",")}
        if kind is bool:
            parsed = {value: {"true": True, "false": False}[value] for value in parsed}
    except (ValueError, KeyError):
        numbers = {int: "whole numbers", float: "numbers", bool: "true and false"}[kind]
        raise UsageError(f"`values` of --{over} must be {numbers} separated by commas, not {values!r}.") from None
    if len({*parsed.values()}) < len(values.split(",")):
        raise UsageError(f"`values` has a value twice: {values}.")
    return parsed


def _source_of(job: EvaluationJob) -> tuple[Path | None, Path | None, RetrieverOptions]:
    return job.index, job.retrieved, job.retrieval


def _choosing(job: EvaluationJob) -> tuple[str, int | None] | None:
    """The cross-encoder that chooses, and how much it reads: jobs with the same share one; None if none chooses."""
    reranking = job.reading.reranking
    return (str(reranking.cross_encoder), reranking.tokens) if reranking.method == "predictive" else None
