"""Starting a run, or resuming one that was killed: evaluate, then write the folder atomically.

Meanwhile everything that the models score is kept beside the folder. A call with the same arguments does not score it
again.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from ralm.evaluation.perplexity import Evaluation, evaluate_text
from ralm.evaluation.sweep import Sweep, SweepPoint, sweep
from ralm.folders.outputs import check_output
from ralm.lm.journal import Journal
from ralm.lm.pieces import chunks_of
from ralm.lm.scoring import Scorer
from ralm.pipeline.sources import PassageSource
from ralm.pipeline.texts import read_beginning
from ralm.protocols import LanguageModel, Reader, Reranker
from ralm.reading.plan import PlanOptions
from ralm.reranking.likelihood import ZeroShot
from ralm.runs import run, sweep_folder
from ralm.runs.run import evaluation_config, write_run
from ralm.runs.sweep_folder import write_sweep
from ralm.runs.unfinished import JOURNAL, unfinished_run

_logger = logging.getLogger(__name__)


def run_evaluation(
    out: Path | str,
    text: str,
    model: LanguageModel,
    options: PlanOptions | None = None,
    *,
    source: PassageSource | None = None,
    reranker: Reranker | None = None,
    reader: Reader | None = None,
    limit_tokens: int | None = None,
    baseline: bool = False,
    name: Path | str | None = None,
    force: bool = False,
) -> Evaluation:
    """Evaluate a text as `evaluate_text` does, and write the run to the folder `out` atomically.

    If it is killed, call it again with the same arguments to resume. `name` is what reports call the text, such as its
    path. Raises what `evaluate_text` raises, FolderExistsError if `out` exists and `force` is not set, and UsageError
    if a run with other settings was begun there.
    """
    options = options or PlanOptions()
    check_output(Path(out), kind=run.KIND, force=force)
    text = _needed(text, model, limit_tokens)
    config = evaluation_config(name, text, model, options, source, limit_tokens, reader, reranker)
    with kept(out, config, [model, ranking_model(reranker)], force=force) as scorers:
        evaluation = evaluate_text(
            text,
            scorers[id(model)],
            options,
            source=source,
            reranker=_ranking_with(reranker, scorers),
            reader=reader,
            limit_tokens=limit_tokens,
            baseline=baseline,
        )
        write_run(out, evaluation, config, force=force)
    return evaluation


def run_sweep(
    out: Path | str,
    text: str,
    model: LanguageModel,
    option: str,
    points: Sequence[SweepPoint],
    *,
    limit_tokens: int | None = None,
    name: Path | str | None = None,
    plot: bool = True,
    force: bool = False,
) -> Sweep:
    """Evaluate a text at every point as `sweep` does, and write the folder `out` atomically.

    If it is killed, call it again with the same arguments to resume. Raises what `sweep` and `write_sweep` raise.
    """
    check_output(Path(out), kind=sweep_folder.KIND, force=force)
    if plot:
        sweep_folder.check_plot()
    text = _needed(text, model, limit_tokens)
    configs = [point_config(name, text, model, point, limit_tokens) for point in points]
    models = [model, *(ranking_model(point.reranker) for point in points)]
    with kept(out, {"option": option, "points": [*configs]}, models, force=force) as scorers:
        shared = [replace(point, reranker=_ranking_with(point.reranker, scorers)) for point in points]
        swept = sweep(text, scorers[id(model)], option, shared, limit_tokens=limit_tokens)
        write_sweep(out, swept, configs, plot=plot, force=force)
    return swept


def _needed(text: str, model: LanguageModel, limit_tokens: int | None) -> str:
    """What a run reads of a text: with a limit, what is far beyond it does not decide whether a run is the same."""
    return text if limit_tokens is None else read_beginning(chunks_of(text), model.tokenizer, limit_tokens)


def point_config(
    name: Path | str | None, text: str, model: LanguageModel, point: SweepPoint, limit_tokens: int | None
) -> dict[str, JsonValue]:
    """Everything that determines the figures of a point, by name."""
    return evaluation_config(name, text, model, point.plan, point.source, limit_tokens, point.reader, point.reranker)


def ranking_model(reranker: Reranker | None) -> LanguageModel | None:
    """The ranking model of a zero-shot reranker; None for other rerankers, and if the reading model ranks."""
    return reranker.model if isinstance(reranker, ZeroShot) else None


def _ranking_with(reranker: Reranker | None, scorers: Mapping[int, Scorer]) -> Reranker | None:
    """The same reranker, with its ranking model replaced by the scorer of that model."""
    if isinstance(reranker, ZeroShot) and reranker.model is not None:
        return replace(reranker, model=scorers[id(reranker.model)])
    return reranker


@contextmanager
def kept(
    out: Path | str, config: dict[str, JsonValue], models: Sequence[LanguageModel | None], *, force: bool
) -> Iterator[dict[int, Scorer]]:
    """Scorers of some models, by `id(model)`, that keep what they score beside `out` and reuse what is kept there.

    Raises UsageError if a run with other settings was begun there and `force` is not set.
    """
    distinct = {id(model): model for model in models if model is not None}
    with unfinished_run(Path(out), config, force=force) as folder, ExitStack() as stack:
        scorers, reused = {}, 0
        for place, (key, model) in enumerate(distinct.items()):
            journal = stack.enter_context(Journal(folder / f"model-{place}{JOURNAL}"))
            reused += len(journal)
            scorers[key] = Scorer(Scorer.of(model).model, journal)
        if reused:
            _logger.info("resuming a run that was stopped: %s requests were scored before", f"{reused:,}")
        yield scorers
