"""`ralm sweep`: `ralm eval` under several values of one option, as a table and a plot."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ralm.cli import options
from ralm.cli.eval import Job, evaluate
from ralm.cli.idle import Use, refuse, refuse_idle
from ralm.errors import UsageError
from ralm.retrieval.opening import RetrieverOptions

Option = Literal[
    "documents",
    "stride",
    "query-tokens",
    "document-tokens",
    "retriever",
    "index",
    "vectors",
    "reader",
    "weights",
    "weights-temperature",
    "rerank",
    "candidates",
    "rerank-tokens",
    "fusion",
    "dense-weight",
    "nprobe",
    "ef-search",
    "windows",
    "block",
    "max-length",
    "semantics",
    "bos",
    "seed",
]


def sweep(
    context: typer.Context,
    evaluation: Annotated[
        list[str],
        typer.Argument(metavar="TEXTFILE [OPTIONS OF RALM EVAL]", help="As for `ralm eval`.", show_default=False),
    ],
    over: Annotated[Option, typer.Option(help="Option of `ralm eval` that changes.", show_default=False)],
    values: Annotated[str, typer.Option(help="Its values, with commas between them.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Folder for the table, the plot and the summary.")] = None,
    plot: Annotated[bool, typer.Option(help="Draw the plot in --out, for which the extra `plots` is needed.")] = True,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Evaluate a text under several values of one option, each with passages and without.

    Every row is what `ralm eval` gives for it; what several have in common is retrieved and scored once. With --out a
    sweep that was killed goes on where it was when it is started again.
    """
    refuse_idle(context, Use("plot force", out is not None, "--out"))
    jobs = _jobs(evaluation, over, values.split(","))

    from ralm.cli.models import load_model
    from ralm.cli.output import print_cache, print_json, print_sweep
    from ralm.corpus.text import read_text
    from ralm.evaluation.sweep import Point, sweep as sweep_over
    from ralm.folders.outputs import check_output
    from ralm.lm.scoring import Scorer
    from ralm.pipeline import open_source
    from ralm.runs import sweep_folder
    from ralm.runs.start import point_config, run_sweep

    if out is not None:
        check_output(out, kind=sweep_folder.KIND, force=force)
        if plot:
            sweep_folder.check_plot()
    first = next(iter(jobs.values()))
    content = read_text(first.text)
    sources = {_source_of(job): open_source(*_source_of(job)) for job in jobs.values()}
    model = load_model(first.lm, first.dtype, first.device, first.compile_layers)
    rerank_lm = next((job.rerank_lm for job in jobs.values() if job.rerank_lm), None)
    ranking = load_model(rerank_lm, first.dtype, first.device, first.compile_layers) if rerank_lm else None
    ranker = None if ranking is None else Scorer(ranking)
    points = [
        Point(
            value=value,
            plan=job.plan,
            reader=job.reader,
            source=sources[_source_of(job)],
            reranker=job.reranking.reranker(ranker if job.rerank_lm else None),
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


def _jobs(arguments: list[str], over: Option, values: list[str]) -> dict[str, Job]:
    """What `ralm eval` would do for each value."""
    if len(set(values)) < len(values):
        raise UsageError(f"--values has a value twice: {','.join(values)}.")
    jobs = {value: _job([*arguments, f"--{over}", value]) for value in values}
    first, *others = jobs.values()
    if not all(job.index or job.retrieved for job in jobs.values()):
        raise UsageError("a sweep reads with passages: give --index or --retrieved.")
    if others and all(job == first for job in others):
        raise UsageError(f"--{over} makes no difference here: the other options do not use it.")
    refuse({option: needs for option, needs in first.idle.items() if all(option in job.idle for job in others)})
    return jobs


def _job(arguments: list[str]) -> Job:
    """What `ralm eval` would do when called like this; its own usage errors where it would do nothing."""
    program = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    program.command()(evaluate)
    command = typer.main.get_command(program)
    jobs: list[Job] = []
    with command.make_context("ralm eval", arguments, obj=jobs.append) as context:
        command.invoke(context)
    return jobs[0]


def _source_of(job: Job) -> tuple[Path | None, Path | None, RetrieverOptions]:
    return job.index, job.retrieved, job.choice
