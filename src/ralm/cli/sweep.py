"""`ralm sweep`: runs `ralm eval` for several values of one option, and shows a table and a plot."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import ralm
from ralm.cli import options
from ralm.cli.eval import EvaluationJob
from ralm.cli.flags import Given, TableOutput, option_types, reject_unused, unused_options
from ralm.cli.models import open_model
from ralm.corpus.files import read_text
from ralm.errors import UsageError
from ralm.lm.registry import ModelOptions
from ralm.options import Needs, Option

_FIXED: Final = ("lm", "rerank_lm", "limit_tokens", "ray", *option_types(ModelOptions))
"""Options that all points of a sweep share: one text is read with one model, which is loaded once."""
_KINDS: Final = {name: kind for name, kind in option_types(EvaluationJob).items() if name not in _FIXED}
SWEPT: Final = [name.replace("_", "-") for name in _KINDS]
"""The options that a sweep can change."""


def sweep_command(
    given: Given,
    make_job: Callable[..., EvaluationJob],
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
) -> TableOutput:
    """Evaluate a text for several values of one option, each with and without passages.

    Takes the options of `ralm eval`. Each row is the result of `ralm eval` for one value; shared retrievals and scores
    are computed once. With --out, rerun the command to resume a killed sweep.
    """
    jobs = _jobs(given, make_job, over, values)

    from ralm.cli.results import print_sweep
    from ralm.reranking.predictive import PairScorer
    from ralm.runs.resume import point_config
    from ralm.runs.run import SWEEP_KIND, WITHOUT_PLOT, check_plot
    from ralm.storage.outputs import check_output

    if out is not None:
        check_output(out, kind=SWEEP_KIND, force=force)
        if plot:
            check_plot(WITHOUT_PLOT)
    first = next(iter(jobs.values()))
    limit = first.limit_tokens
    text = read_text(first.text)
    sources: dict[Any, Any] = {}
    for job in jobs.values():
        where = (job.index, job.retrieved, job.retrieval)
        if where not in sources:
            sources[where] = ralm.open_source(*where)
    model = ralm.Scorer(open_model(first.lm, first.model, first.ray))
    rerank_lm = next((job.reading.rerank_lm for job in jobs.values() if job.reading.rerank_lm), None)
    ranker = ralm.Scorer(open_model(rerank_lm, first.model.of(rerank_lm, first.lm), first.ray)) if rerank_lm else None
    cross_encoders: dict[Any, PairScorer] = {}
    points = []
    for value, job in jobs.items():
        reranking, cross_encoder = job.reading.reranking, None
        if reranking.method == "predictive":
            read = (str(reranking.cross_encoder), reranking.tokens)
            if read not in cross_encoders:
                cross_encoders[read] = PairScorer(reranking.load())
            cross_encoder = cross_encoders[read]
        reranker = reranking.reranker(ranker if job.reading.rerank_lm else None, cross_encoder)
        source = sources[job.index, job.retrieved, job.retrieval]
        parts = job.reading.parts(reranker)
        points.append(ralm.SweepPoint(value=value, plan=job.plan, source=source, parts=parts))
    run: Any = ralm.sweep
    if out is not None:
        run = partial(ralm.run_sweep, out, name=first.text, plot=plot, force=force)
    swept = run(text, model, over, points, limit_tokens=limit)
    beginning = next(iter(swept.evaluations.values())).prepared.text
    return TableOutput(
        lambda: swept.summary([point_config(first.text, beginning, model, point, limit) for point in points]),
        partial(print_sweep, swept, out),
    )


def _jobs(given: Given, make_job: Callable[..., EvaluationJob], over: str, values: str) -> dict[str, EvaluationJob]:
    """The job of each value."""
    made = swept_jobs(given, make_job, _KINDS, over, values, what="a sweep")
    jobs = {value: job.settled(given) for value, job in made.items()}
    first, *others = jobs.values()
    if others and all(job == first for job in others):
        raise UsageError(f"--{over} makes no difference: the other options do not use it.")
    return jobs


def swept_jobs(
    given: Given, make_job: Callable[..., Any], kinds: Mapping[str, Any], over: str, values: str, *, what: str = ""
) -> dict[str, Any]:
    """The job of each value of an option, one of these `kinds` by name; `what` names what reads passages in all jobs.

    Raises UsageError if there is no such option or value, or if given options have no effect in any job.
    """
    name = over.replace("-", "_")
    if name not in kinds:
        names = ", ".join(kind.replace("_", "-") for kind in kinds)
        raise UsageError(f"`over` must be one of {names}, not {over!r}.")
    given = {**given, name: f"--{over}"}
    jobs = {value: make_job(**{name: parsed}) for value, parsed in _parsed(over, kinds[name], values).items()}
    if what and not all(job.has_passages for job in jobs.values()):
        raise UsageError(f"{what} reads with passages: give `index` or `retrieved`.")
    unused = [unused_options(job, given) for job in jobs.values()]
    in_all = {option: needs for option, needs in unused[0].items() if all(option in one for one in unused)}
    if name in in_all:
        raise UsageError(f"--{over} makes no difference: it has no effect without {in_all[name]}.")
    reject_unused(in_all, given)
    return jobs


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
