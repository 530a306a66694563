"""`ralm curve`: answers questions with several numbers of passages, and draws how the answers change."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ralm.cli import options
from ralm.cli.idle import Use, refuse_idle
from ralm.cli.qa import QuestionJob
from ralm.errors import UsageError
from ralm.options import Option

if TYPE_CHECKING:
    from ralm.protocols import Reader


def curve(
    context: typer.Context,
    job: QuestionJob,
    numbers: Annotated[
        str, Option("Numbers of passages in the prompt, separated by commas; 0 is the closed book.")
    ] = "0,1,2,5",
    out: Annotated[
        Path | None, Option("Folder for the table, the plot and the summary; this needs the extra `plots`.")
    ] = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Answer questions with several numbers of passages, as in Figure 8 of In-Context RALM, and plot the measures.

    Takes the options of `ralm qa`. Several passages stand in one prompt; with --reader ensemble, each in its own. With
    --out, rerun the command to resume a killed run.
    """
    refuse_idle(
        context,
        Use("documents", False, "`ralm qa`; here give `numbers`"),
        Use(job),
        *options.model_uses(job.lm),
        Use("join", job.reading.reader == "ensemble", '`reader="ensemble"`'),
        Use("force", out is not None, "`out`"),
    )
    if not job.has_passages:
        raise UsageError("a curve reads passages: give `index` or `retrieved`.")

    from ralm.answering.curve import (
        CURVE_KIND,
        answer_curve,
        check_numbers,
        curve_config,
        run_curve,
        several_in_context,
    )
    from ralm.cli.answers import print_curve
    from ralm.cli.output import print_cache, print_json
    from ralm.storage.outputs import check_output

    several = _numbers(numbers)
    check_numbers(several)
    if out is not None:
        check_output(out, kind=CURVE_KIND, force=force)

    def ensemble_of(number: int) -> "Reader":
        return replace(job.reading.ensemble, documents=number)

    asked = job.opened()
    questions, model, prompt, source = asked.questions, asked.model, asked.prompt, asked.source
    assert source is not None
    how = {"reader_of": ensemble_of if job.reading.reader == "ensemble" else several_in_context, **asked.how}
    if out is None:
        made = answer_curve(several, questions, model, prompt, source, **how)
    else:
        made = run_curve(out, several, questions, model, prompt, source, force=force, **how)
    if json:
        print_json({"rows": [*made.rows()], "config": curve_config(several, questions, model, prompt, source, **how)})
    else:
        print_curve(made, out)
    print_cache(asked.found)


def _numbers(said: str) -> list[int]:
    try:
        return [int(number) for number in said.split(",")]
    except ValueError:
        raise UsageError(f"`numbers` must be whole numbers separated by commas, not {said!r}.") from None
