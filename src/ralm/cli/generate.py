"""`ralm generate`: write on from a prompt, with a passage in front that is looked up again every few tokens."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import JsonValue

from ralm.cli import options
from ralm.cli.flags import Flags
from ralm.cli.idle import Use, given_options, refuse_idle
from ralm.errors import UsageError
from ralm.lm.local.options import ModelOptions
from ralm.options import Option
from ralm.reading.ensemble import EnsembleOptions
from ralm.reading.generation import IN_CONTEXT, GenerationOptions
from ralm.retrieval.options import RetrieverOptions

_RETRIEVAL, _ENSEMBLE = RetrieverOptions(), EnsembleOptions()
_GENERATION, _MODEL = GenerationOptions(), ModelOptions()


def generate(
    context: typer.Context,
    lm: options.Model,
    prompt: Annotated[
        str | None, typer.Argument(help="Text to go on from; - reads standard input.", show_default=False)
    ] = None,
    prompts: Annotated[
        Path | None,
        Option(
            "Go on from every line of this file instead, all of them together; .jsonl: a JSON string, or an object "
            "with a prompt, a line."
        ),
    ] = None,
    index: Annotated[Path | None, Option("Read with passages from this index.")] = None,
    retrieval: RetrieverOptions = _RETRIEVAL,
    reader: Annotated[
        Literal["in-context", "ensemble"],
        Option("Read one passage, or several, each alone, and average what they predict (REPLUG)."),
    ] = "in-context",
    ensemble: EnsembleOptions = _ENSEMBLE,
    generation: Annotated[GenerationOptions, Flags(default_said=options.QUERY_TOKENS_SAID)] = _GENERATION,
    baseline: Annotated[bool, Option("Also read what was written without passages, and show what they gave.")] = False,
    report: Annotated[
        Path | None, Option("Write a page that shows where every token came from; with one prompt.")
    ] = None,
    force: options.Force = False,
    model_options: Annotated[ModelOptions, Flags(without=("compile",))] = _MODEL,
    json: Annotated[bool, Option("Print a JSON object for each prompt, with every token, and nothing else.")] = False,
) -> None:
    """Generate with In-Context RALM or an ensemble: the text, then which passage each part of it was read with.

    What is written after a prompt does not depend on the other prompts, if there are any.
    """
    _check(prompt, prompts, index, reader, baseline=baseline, report=report)
    refuse_idle(
        context,
        Use("query_tokens stride", index is not None, "`index`"),
        Use(generation),
        Use(retrieval, index is not None, "`index`"),
        Use(ensemble, reader == "ensemble", '`reader="ensemble"`'),
        Use("force", report is not None, "`report`"),
    )
    settings = options.with_query_tokens(
        replace(generation, ensemble=ensemble if reader == "ensemble" else IN_CONTEXT),
        retrieval,
        given_options(context),
    )

    from ralm.cli.asked import read_prompts
    from ralm.cli.loading import open_retriever
    from ralm.cli.models import load_model
    from ralm.cli.output import by_prompt, generation_as_json, print_cache, print_generations, print_json
    from ralm.cli.shading import print_report, write_page
    from ralm.evaluation.generated import traced_generation
    from ralm.folders.outputs import check_output_file
    from ralm.reading.generation import generate_many
    from ralm.runs.reported import report_of_generation

    if report is not None:
        check_output_file(report, force)
    texts = read_prompts(prompt, prompts)
    source = None if index is None else open_retriever(index, retrieval)
    model = load_model(lm, model_options)
    finder, passages = (source.retriever, source.passages) if source else (None, ())
    pieces = generate_many(texts, model, settings, finder, passages)
    written = by_prompt(len(texts), pieces) if json else print_generations(texts, pieces, passages)
    config = {"model": model.config, "passages": source.config if source else None, **_reading(settings)}
    for text, own in zip(texts, written, strict=True):
        traced = (
            traced_generation(text, own, model, passages, settings.max_length, settings.bos)
            if baseline or report
            else None
        )
        if json:
            print_json(generation_as_json(text, own, passages, model.tokenizer, traced))
        elif traced is not None:
            print_report(report_of_generation(traced, config))
        if traced is not None and report is not None:
            write_page(report, report_of_generation(traced, config))
    print_cache(source)


def _check(
    prompt: str | None, prompts: Path | None, index: Path | None, reader: str, *, baseline: bool, report: Path | None
) -> None:
    """Raise UsageError where options do not go together."""
    if (prompt is None) == (prompts is None):
        raise UsageError("give either a `prompt` or `prompts` FILE.")
    if reader == "ensemble" and index is None:
        raise UsageError('`reader="ensemble"` reads several passages of an index: give `index` too.')
    if (baseline or report) and index is None:
        raise UsageError("`baseline` and `report` show what passages gave: give `index` too.")
    if report is not None and prompts is not None:
        raise UsageError("`report` is a page of one text: give a `prompt`, not `prompts`.")


def _reading(settings: GenerationOptions) -> dict[str, JsonValue]:
    """How generation reads, as a run's configuration says it."""
    reader: dict[str, JsonValue] = {"ensemble": asdict(settings.ensemble)}
    if settings.ensemble == IN_CONTEXT:
        reader = {"rerank": {"method": "none"}}
    return {"reader": reader, "plan": {"stride": settings.stride, "bos": settings.bos}}
