"""Starts a run or resumes one that was killed.

`OUT.unfinished/` beside the run's folder holds its configuration and the scores of each model, so that a call with the
same arguments does not score anything again; a training keeps its checkpoints there. The run's folder itself is written
atomically at the end.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.evaluation.perplexity import Evaluation, ReadingSettings, evaluate_text
from ralm.lm import scoring
from ralm.protocols import LanguageModel, Reranker
from ralm.reading import sources, tokens
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.reading.plan import PlanOptions
from ralm.reranking import predictive, zero_shot
from ralm.runs import run
from ralm.runs.sweep import SWEEP_KIND, Sweep, write_sweep
from ralm.storage import outputs, work
from ralm.storage.store import STORE_SUFFIX, Store
from ralm.terminal import to_json

_logger = logging.getLogger(__name__)


def run_evaluation(
    out: Path | str,
    text: str | Sequence[str],
    model: LanguageModel,
    options: PlanOptions | None = None,
    *,
    name: Path | str | None = None,
    force: bool = False,
    source: sources.PassageSource | None = None,
    parts: Parts = IN_CONTEXT,
    limit_tokens: int | None = None,
    baseline: bool = False,
) -> Evaluation:
    """Evaluate a text as `evaluate_text` does, and write the run to the folder `out` atomically.

    If it is killed, call it again with the same arguments to resume. `name` is the name of the text in reports, such as
    its path; `force` replaces a folder, and a run that was begun there with other settings.

    Raises:
        FolderExistsError: `out` exists.
        UsageError: A run with other settings was begun there.
    """
    settings = ReadingSettings(plan=options or PlanOptions(), source=source, parts=parts)
    outputs.check_output(Path(out), kind=run.RUN_KIND, force=force)
    # text beyond the limit does not change the configuration
    beginning = tokens.read_beginning(text, model.tokenizer, limit_tokens)
    config = run.evaluation_config(name, beginning, model, settings, limit_tokens)
    with _resumed(out, config, model, [settings], force=force) as (scorer, [stored]):
        evaluation = evaluate_text(
            text,
            scorer,
            settings.plan,
            source=source,
            parts=stored.parts,
            limit_tokens=limit_tokens,
            baseline=baseline,
        )
        run.write_run(out, evaluation, config, force=force)
    return evaluation


def sweep(
    text: str | Sequence[str],
    model: LanguageModel,
    option: str,
    points: Mapping[str, ReadingSettings],
    *,
    limit_tokens: int | None = None,
    out: Path | str | None = None,
    name: Path | str | None = None,
    force: bool = False,
) -> Sweep:
    """Evaluate a text with the settings of each value of an option, each with its baseline as `evaluate_text` does.

    What the evaluations share is retrieved and scored once; the scores of a ranking model too, if it is a `Scorer`.
    With `out`, the folder of the sweep is written atomically; if it is killed, call it again with the same arguments.

    Raises:
        UsageError: There are no points.
    """
    if not points:
        raise UsageError("`points` is empty: give the settings of at least one value.")
    if out is not None:
        outputs.check_output(Path(out), kind=SWEEP_KIND, force=force)
    beginning = tokens.read_beginning(text, model.tokenizer, limit_tokens)
    configs = {
        value: run.evaluation_config(name, beginning, model, settings, limit_tokens)
        for value, settings in points.items()
    }
    config: dict[str, JsonValue] = {"option": option, "points": {**configs}}
    scored: Any = (scoring.Scorer.of(model), [*points.values()])
    with nullcontext(scored) if out is None else _resumed(out, config, model, scored[1], force=force) as resumed:
        scorer, stored = resumed
        shared = sources.share_retrievals([point.source for point in stored], [point.parts.hits for point in stored])
        evaluations = {
            value: evaluate_text(
                text, scorer, point.plan, source=source, parts=point.parts, limit_tokens=limit_tokens, baseline=True
            )
            for value, point, source in zip(points, stored, shared, strict=True)
        }
        swept = Sweep(option, evaluations, configs)
        if out is not None:
            write_sweep(out, swept, partial(run.write_run, force=False), force=force)
    return swept


_SCORES_BY: Final = {zero_shot.ZeroShot: "model", predictive.Predictive: "cross_encoder"}
"""The model of a reranker whose scores a run stores."""


def _ranking_model(reranker: Reranker | None) -> Any:
    return getattr(reranker, _SCORES_BY.get(type(reranker), ""), None)


def _with_scorer(point: ReadingSettings, scorers: Mapping[int, Any]) -> ReadingSettings:
    """Return the point with the model of its reranker replaced by a scorer that stores the scores."""
    reranker: Any = point.parts.reranker
    if (model := _ranking_model(reranker)) is None:
        return point
    stored = replace(reranker, **{_SCORES_BY[type(reranker)]: scorers[id(model)]})
    return replace(point, parts=replace(point.parts, reranker=stored))


@contextmanager
def _resumed(
    out: Path | str,
    config: dict[str, JsonValue],
    model: LanguageModel,
    points: Sequence[ReadingSettings],
    *,
    force: bool,
) -> Iterator[tuple[scoring.Scorer, list[ReadingSettings]]]:
    """Yield a scorer of the model, and the points with such rerankers; scores are kept beside `out` and used again."""
    models = [model, *(_ranking_model(point.parts.reranker) for point in points)]
    distinct = {id(lm): lm for lm in models if lm is not None}
    with unfinished_run(Path(out), config, force=force) as folder, ExitStack() as stack:
        scorers, reused = dict[int, Any](), 0
        for place, (key, lm) in enumerate(distinct.items()):
            store = stack.enter_context(unfinished_store(folder, f"model-{place}"))
            reused += store.count()
            scorer = lm if isinstance(lm, predictive.PairScorer) else scoring.Scorer.of(lm)
            scorers[key] = scorer.with_store(store)
        if reused:
            _logger.info("resuming a run that was stopped: %s requests were scored before", f"{reused:,}")
        yield scorers[id(model)], [_with_scorer(point, scorers) for point in points]


@contextmanager
def unfinished_run(out: Path, config: dict[str, JsonValue], *, force: bool) -> Iterator[Path]:
    """Yield the work folder beside `out`, which is removed after success, and if nothing was stored."""
    out = outputs.output_path(out)
    with work.storage_errors(work.unfinished(out)), work.work_folder(work.unfinished(out), out) as folder:
        if not _was_begun(folder, config, force=force):
            work.empty(folder)
            work.write_atomically(folder / work.SETTINGS, to_json(config, indent=2))
        yield folder
        work.remove(folder)


def unfinished_store(folder: Path, name: str) -> Store:
    """Return a store in the folder of an unfinished run, which only this process uses."""
    return Store(
        folder / f"{name}{STORE_SUFFIX}", "file of results", "free some space, or remove it to start over", shared=False
    )


def _was_begun(folder: Path, config: dict[str, JsonValue], *, force: bool) -> bool:
    """Return whether a run with these settings was begun; UsageError if others were, and `force` is not set."""
    path = folder / work.SETTINGS
    if not path.exists():
        return False
    now = _flat(json.loads(to_json(config)))
    try:
        before = _flat(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError):
        difference: str | None = f"{work.SETTINGS} is damaged"
    else:
        names = (name for name in (*before, *now) if before.get(name) != now.get(name))
        difference = next((f"{name} {before.get(name)} there, {now.get(name)} here" for name in names), None)
    if difference and not force:
        raise UsageError(
            f"{folder} is a run begun with other settings ({difference}): give those again to resume; to start over, "
            "remove that folder, or give `force=True`."
        )
    return difference is None


def _flat(value: JsonValue, name: str = "") -> dict[str, JsonValue]:
    """Return nested settings with dotted names."""
    if not isinstance(value, dict):
        return {name: value}
    return {
        key: item for part, inner in value.items() for key, item in _flat(inner, f"{name}.{part}".strip(".")).items()
    }
