"""Prints results: of evaluations, sweeps, comparisons and trainings as tables, and answers with their sources."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ralm.answering.answerer import SourcedAnswer
from ralm.answering.citations import AnswerSource
from ralm.answering.evaluation import AnswerEvaluation
from ralm.cli.output import beginning, passage_name, print_line, print_table, with_interval
from ralm.evaluation import perplexity
from ralm.evaluation.intervals import NO_INTERVAL, STRETCH, Comparison, Estimate
from ralm.evaluation.report import to_float
from ralm.reading.pieces import GeneratedText
from ralm.reading.provenance import TracedText
from ralm.runs.sweep import SWEEP_PLOT, SWEEP_TABLE, Sweep
from ralm.terminal import one_line, visible

if TYPE_CHECKING:
    from ralm.training.gains import SignalStatistics
    from ralm.training.options import Trained
    from ralm.training.reranker import TrainedReranker

MEASURES = ("token_perplexity", "word_perplexity", "bits_per_byte")


def print_evaluation(evaluation: perplexity.Evaluation, out: Path | None) -> None:
    """Print the measures of a reading, and those of its baseline if there is one."""
    read = evaluation.read
    name = "with passages" if read.with_passage else "no passage found" if evaluation.has_source else "no retrieval"
    rows, changes = {name: evaluation.reading}, {}
    if evaluation.baseline is not None:
        rows = {"no retrieval": evaluation.baseline, **rows}
        changes = {name: evaluation.change}
    print_measures(rows, changes)
    for sentence in read.sentences if evaluation.has_source else ():
        print_line(f"  {sentence}")
    if changes and read.near_duplicates:
        copied = read.gain_of_near_duplicates(evaluation.traced.contributions)
        print_line(f"  {copied:+,.1f} of {evaluation.traced.gain.nats:+,.1f} nats of gain are from these passages")
    if out is not None:
        print_line(f"Every token with its source: {out}/tokens.parquet")


def print_measures(rows: Mapping[str, perplexity.Reading], changes: Mapping[str, Estimate]) -> None:
    """Print a table with one row per reading, with the changes of their token perplexities from the first."""
    measures = {name: reading.as_dict() for name, reading in rows.items()}
    cells = [
        [
            name,
            *("-" if math.isnan(figure := to_float(shown[measure])) else f"{figure:.2f}" for measure in MEASURES),
            with_interval(changes[name], "+.1%") if name in changes else "",
            f"{to_float(shown['seconds']):.1f}",
        ]
        for name, shown in measures.items()
    ]
    print_table(["", "token ppl", "word ppl", "bits/byte", "change", "seconds"], cells)
    first = next(iter(rows.values())).measures
    print_line(f"  {first.tokens:,} tokens, {first.words:,} words; change: of the token perplexity from the first row")
    if changes:
        estimates = [*changes.values()]
        print_line(f"  {_about_units(estimates[0].units, next(iter(rows.values())).unit, estimates)}")


def print_sweep(swept: Sweep, out: Path | None) -> None:
    """Print the figures of every value of an option, and where they were written."""
    print_comparison(swept.comparison, f"--{swept.option}")
    if out is not None:
        plot = f", {out / SWEEP_PLOT}" if (out / SWEEP_PLOT).exists() else ""
        print_line(f"The table: {out / SWEEP_TABLE}{plot}; a run for each value, for `ralm report`: {out}")


_FORMS: Final[Mapping[str, tuple[str, str]]] = {
    "mean": (".3f", "+.3f"),
    "fraction": (".1%", "+.1%"),
    "share": (".1%", "+.1%"),
    "ratio": (".3f", "+.1%"),
    "perplexity": (".2f", "+.1%"),
}
"""The formats of a figure and of a change, by its statistic."""


def print_comparison(compared: Comparison, heading: str) -> None:
    """Print a row for each measure of each run, with its change from the first run; `heading` says what runs are."""
    rows = []
    for measure, columns in compared.columns.items():
        for place, column in columns.items():
            figure_form, change_form = _FORMS[column.statistic]
            figure = with_interval(compared.figures[measure][place], change_form if column.base else figure_form)
            change = compared.changes[measure].get(place)
            changed = "" if change is None else with_interval(change, change_form)
            counted = int((column.units.counts_U > 0).sum())
            of = "" if counted == compared.units else f" ({counted:,} {compared.noun})"
            label = measure.replace("_", " ") + of if place == min(columns) else ""
            rows.append([label, one_line(compared.names[place]), figure, changed])
    if not rows:
        print_line(f"  {compared.units:,} {compared.noun}: no measure counts in all of them")
        return
    changes = ["change from the first"] if len(compared.names) > 1 else []
    print_table(["", heading, "", *changes], [row[: 3 + len(changes)] for row in rows], pad_edge=False)
    if "change" in compared.columns:
        print_line("  change: of the token perplexity from that without passages")
    figures = [figure for of_runs in compared.figures.values() for figure in of_runs.values()]
    print_line(f"  {_about_units(compared.units, compared.noun, figures)}")


def _about_units(units: int, noun: str, estimates: Sequence[Estimate]) -> str:
    """Return what intervals are over, or why there are none."""
    has_interval = any(estimate.ends for estimate in estimates)
    what = f"stretches of {STRETCH} tokens" if noun == "stretches" else noun
    return f"{units:,} {what}: {'95% intervals, each for itself' if has_interval else NO_INTERVAL}"


def _print_gains(gains: Iterable[tuple[str, Estimate]]) -> None:
    for words, gain in gains:
        print_line(f"  {words:<42}{with_interval(gain, '+.4f')}")


def print_worth(folder: Path, statistics: "SignalStatistics") -> None:
    """Print the gain of choosing well among the passages of signals."""
    print_line(f"{folder}: {statistics.examples:,} examples with passages to choose from")
    if unused := statistics.single + statistics.impossible:
        print_line(f"  not used: {unused:,} with fewer than two passages, or with a token of probability 0")
    print_line("gain over no passage, in nats per token:")
    _print_gains((("first", statistics.first), ("random", statistics.random), ("best", statistics.best)))
    print_line(f"examples without preference (less than 0.01 nats per token): {statistics.no_preference:,}")


_RERANKER: Final = {
    "first": "first candidate over no passage",
    "before": "choice before, over the first candidate",
    "chosen": "choice after, over the first candidate",
    "change": "  change",
    "best": "best candidate over the first",
}
_RETRIEVER: Final = {
    "first_before": "first passage over none, before",
    "first": "first passage over none, after",
    "first_change": "  change",
    "ensemble_before": "ensemble over none, before",
    "ensemble": "ensemble over none, after",
    "ensemble_change": "  change",
}
"""Gains of a training on held-out documents, in words."""


def print_reranker(trained: "TrainedReranker") -> None:
    """Print the folder of a reranker, and the gain of its choice on held-out documents."""
    gains = trained.held_out
    had_choice = gains is not None and Estimate(**gains["before"]).is_above
    keep = "the choice before" if had_choice else "the first candidate"
    _print_trained(trained, "reranker", _RERANKER, ("change", "chosen"), keep)
    if trained.rank_weight:
        print_line(f"beside its score, the rank counts {trained.rank_weight:.2f}")


def print_retriever(trained: "Trained", what: str, before: str, use: str) -> None:
    """Print the folder and gains of `what` was trained, beside what was there `before`, and how to `use` it."""
    _print_trained(trained, what, _RETRIEVER, ("ensemble_change",), before)
    print_line(use)


def _print_trained(
    trained: "Trained", what: str, words: Mapping[str, str], decisive: Sequence[str], before: str
) -> None:
    """Print a training, its loss and its gains; say to keep `before` unless the `decisive` gains are above 0."""
    print_line(f"{trained.out}: {what} of step {trained.best_step:,}, after {trained.steps:,} steps")
    losses = {row["step"]: row["held_out_loss"] for row in trained.losses}
    begun, ended = losses.get(0), losses.get(trained.best_step)
    if begun is not None and ended is not None:
        print_line(f"loss of the held-out examples: {begun:.4f} before, {ended:.4f} after")
    outcome = trained.held_out
    if outcome is None:
        print_line("too few documents were held out to say what was gained")
        return
    print_line(
        f"gain on {outcome['examples']:,} held-out examples of {outcome['documents']:,} documents, in nats per token:"
    )
    _print_gains((f"{shown}:", Estimate(**outcome[name])) for name, shown in words.items())
    if not all(Estimate(**outcome[name]).is_above for name in decisive):
        print_line(f"no interval shows that this is more than chance: keep {before}")


_SHOWN_PASSAGES = 10


def print_gain(text: TracedText) -> None:
    """Print the gain of a text from its passages, and the passages that contributed most."""
    total, rows = text.gain, text.contributions
    print_line(
        f"{total.nats:+,.1f} nats from passages over {total.targets:,} tokens: {total.helped:,} helped, "
        f"{total.hurt:,} hurt"
    )
    if without := int((~text.provenance.shared_T).sum()):
        print_line(f"  {without:,} tokens mix predictions as no average: passages have no shares of their gain")
    for row in rows[:_SHOWN_PASSAGES]:
        print_line(
            f"  {row.gain:+8.2f}  {passage_name(text.passages[row.passage])}: {row.helped:,} helped, {row.hurt:,} hurt"
        )
    if len(rows) > _SHOWN_PASSAGES:
        rest = sum(row.gain for row in rows[_SHOWN_PASSAGES:])
        print_line(f"  {rest:+8.2f}  {len(rows) - _SHOWN_PASSAGES:,} more passages together")


_WIDTH: Final = 200
"""Number of printed characters of a source."""


def print_answers(evaluation: AnswerEvaluation, out: Path | None, how: str) -> None:
    """Print the measures of answers or choices, with passages and without, and `how` the questions were asked."""
    summary: dict[str, Any] = evaluation.summary()
    print_comparison(evaluation.books, "asked")
    if evaluation.has_choices:
        notes = _notes_on_choices(summary)
        written = f"By subject: {out}/summary.json; every question with its choices: {out}/choices.parquet"
    else:
        notes = _notes_on_answers(summary)
        written = f"Every question with its answer and passages: {out}/answers.parquet"
    if "certified" in summary:
        notes.append(f"{summary['certified']:.1%} of the tokens of answers are certified")
    if summary.get("no_passage"):
        notes.append(f"{summary['no_passage']:,} were asked without a passage, since none was found")
    if summary["cut"]:
        notes.append(f"{summary['cut']:,} prompts did not fit and were cut at the beginning")
    print_line(f"  {'; '.join(notes)}")
    print_line(f"  {how}")
    if out is not None:
        print_line(written)


def _notes_on_choices(summary: Mapping[str, Any]) -> list[str]:
    notes = [f"chance {summary['chance']:.1%}"]
    if "mean_of_subjects" in summary:
        notes.append(f"mean of subjects {summary['mean_of_subjects']:.1%}")
    if summary["no_choice"]:
        notes.append(f"{summary['no_choice']:,} answers are no letter")
    if "gold_log_prob" in summary:
        notes.append("gold log prob: natural logarithm of the right choice's probability")
    return notes


def _notes_on_answers(summary: Mapping[str, Any]) -> list[str]:
    notes = ["gold log prob: nats a token of the gold answer"] if "gold_log_prob" in summary else []
    if summary["without_answers"]:
        notes.append(f"{summary['without_answers']:,} without gold answers, not judged")
    missing = summary["questions"] - summary["without_answers"] - summary["gold_scored"]
    if missing and summary["gold_scored"]:
        notes.append(f"{missing:,} gold answers could not be scored")
    shares = {k: share for k, share in summary.get("has_answer_at", {}).items() if share is not None}
    if shares:
        notes.append("an answer is in the first " + ", ".join(f"{k}: {share:.1%}" for k, share in shares.items()))
    return notes


def print_pieces(pieces: Iterable[GeneratedText]) -> None:
    """Print an answer as it comes."""
    empty = True
    for piece in pieces:
        text = piece.text.lstrip() if empty else piece.text
        empty = empty and not text
        sys.stdout.write(visible(text))
        sys.stdout.flush()
    print_line("(an empty answer)" if empty else "")


def print_passages(text: str, sources: Sequence[AnswerSource]) -> None:
    """Print the passages of an answer, and how each is known to be a source."""
    for rank, source in enumerate(sources, 1):
        print_line(f"\n{rank:>3}. {source.evidence}  {passage_name(source.passage)}")
        quoted = [text[slice(*quote.answer)] for quote in source.quotes]
        if quoted:
            print_line("     quoted: " + one_line(" | ".join(quoted)))
        print_line(f"     {beginning(' '.join(source.passage.text.split()), _WIDTH)}")


def print_sources(answer: SourcedAnswer) -> None:
    """Print the passages of an answer, the contribution of each, and the log-probability of the answer."""
    print_passages(answer.answer.text, answer.sources)
    tokens = len(answer.answer.tokens)
    if answer.cut:
        print_line(f"\nThe prompt did not fit: {answer.cut.documents:,} tokens of passages were cut at the beginning.")
    if tokens:
        text = answer.text
        mean, without = (float(column.mean(dtype="float64")) for column in (text.log_probs_T, text.baseline_T))
        beside = f" with passages, {without:.2f} without" if answer.sources and not math.isnan(without) else ""
        if not math.isnan(mean):
            print_line(f"\nLog-probability of the answer: {mean:.2f} nats a token{beside} ({tokens} tokens).")
    if any(token.is_bounded for token in answer.answer.tokens):
        print_line(f"{answer.answer.certified:.0%} of its tokens are certified; the log-probability is at least this.")
