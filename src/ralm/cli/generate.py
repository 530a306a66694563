"""`ralm generate`: continues a prompt, with a passage in front that is retrieved again every few tokens."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import JsonValue

import ralm
from ralm.cli import options
from ralm.cli.flags import UserFlags
from ralm.cli.process import open_model
from ralm.errors import RalmWarning, UsageError
from ralm.options import Option
from ralm.reading import sampling
from ralm.settings import PipelineOptions


def generate_command(
    *,
    user_flags: UserFlags,
    pipeline: PipelineOptions,
    prompt: Annotated[str | None, options.argument("Text to continue; - reads standard input.")] = None,
    prompts: Annotated[
        Path | None,
        Option(
            "Continue every line of this file instead, in one batch; .jsonl: one JSON string, or one object with a "
            "prompt, per line."
        ),
    ] = None,
    generation: Annotated[sampling.GenerationOptions, Option("How text is generated.")],
    baseline: Annotated[
        bool, Option("Also score the generated text without passages, and show what the passages contributed.")
    ] = False,
    report: Annotated[
        Path | None, Option("Write an HTML page that shows the source of every token (one prompt only).")
    ] = None,
    force: options.Force = False,
    json: Annotated[bool, Option("Print only one JSON object per prompt, with every token.")] = False,
) -> None:
    """Generate text with passages that are retrieved as the text grows.

    Print the text, then the passage behind each part of it. The continuation of a prompt does not depend on other
    prompts.

    Example: `ralm generate "Radium was" -m smollm2 -i my-index`
    """
    if not pipeline.retrieves and (baseline or report):
        raise UsageError("`baseline` and `report` show what passages contributed: give `index` too.")
    if report is not None and prompts is not None:
        raise UsageError("`report` shows one text: give a `prompt`, not `prompts`.")
    texts = options.read_input(prompt, prompts, "prompt")
    settings = options.with_query_tokens(generation, pipeline.retrieval, user_flags)

    from ralm.cli import output, results
    from ralm.evaluation.report import Report, render_report
    from ralm.pipeline import open_pipeline
    from ralm.reading.provenance import traced_generation
    from ralm.storage.outputs import check_output_file
    from ralm.validation import check_scores

    if report is not None:
        check_output_file(report, force)
    opened = open_pipeline(pipeline, load=open_model)
    model, source = opened.model, opened.searched
    if baseline or report:
        check_scores(model, f"`{'report' if report else 'baseline'}`")
    _warn_of_long_prompts(texts, model, settings.max_length or model.max_length)
    passages = source.passages if source else ()
    pieces = ralm.generate_many(texts, model, settings, source, opened.parts)
    written = output.by_prompt(len(texts), pieces) if json else output.print_generations(texts, pieces, passages)
    config: dict[str, JsonValue] = {**opened.config, "plan": {"stride": settings.stride, "bos": settings.bos}}
    for text, continuation in zip(texts, written, strict=True):
        traced = None
        if baseline or report:
            traced = traced_generation(text, continuation, model, passages, settings.max_length, settings.bos)
        if json:
            output.print_json(output.generation_as_json(text, continuation, passages, model.tokenizer, traced))
        elif traced is not None:
            results.print_gain(traced)
        if traced is not None and report is not None:
            page = render_report(Report(text=traced, config=config))
            output.write_page(report, page, "where every token came from")


def _warn_of_long_prompts(texts: Sequence[str], model: ralm.WritingModel, max_length: int) -> None:
    """Warn (RalmWarning) if a prompt does not fit before the first new token."""
    longest = max(len(model.tokenizer.encode(text)) for text in texts)
    if longest >= max_length:
        which = "the prompt" if len(texts) == 1 else "the longest prompt"
        warnings.warn(
            f"{which} has {longest:,} tokens, and {max_length:,} are read at once: its oldest tokens are left out",
            RalmWarning,
            stacklevel=2,
        )
