"""Prints the results of evaluations, sweeps, comparisons and training as tables, and the report of a run."""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue
from rich.console import Console
from rich.text import Text

from ralm.cli.output import passage_name, print_line, print_table, with_interval
from ralm.evaluation import perplexity, sweep
from ralm.evaluation.bootstrap import TARGETS_PER_DOCUMENT
from ralm.runs.compare import Comparison
from ralm.runs.report import Report, to_float
from ralm.runs.run import SWEEP_PLOT, SWEEP_TABLE
from ralm.terminal import one_line, visible
from ralm.training import reranker, retriever
from ralm.training.gains import HeldOutGain
from ralm.training.statistics import SignalStatistics

if TYPE_CHECKING:
    from ralm.training.options import Trained

MEASURES = ("token_perplexity", "word_perplexity", "bits_per_byte")


def print_evaluation(evaluation: perplexity.Evaluation, out: Path | None) -> None:
    """Print the measures of a reading, and those of its baseline if there is one."""
    rows = {"with passages" if evaluation.passages else "no retrieval": evaluation.reading.as_dict()}
    if evaluation.baseline is not None:
        rows = {"no retrieval": evaluation.baseline.as_dict(), **rows}
    print_measures(rows)
    if out is not None:
        print_line(f"Every token with its source: {out}/tokens.parquet")


def print_measures(rows: Mapping[str, Mapping[str, JsonValue]]) -> None:
    """Print a table with one row per reading; the gain compares token perplexities with the first row."""
    first = next(iter(rows.values()))
    bounded = any("bounds" in measures for measures in rows.values())
    cells = []
    for name, measures in rows.items():
        gain = 1 - to_float(measures["token_perplexity"]) / to_float(first["token_perplexity"])
        shown = "" if measures is first or bounded or not math.isfinite(gain) else f"{gain:+.1%}"
        figures = [_measure(measures, measure) for measure in MEASURES]
        cells.append([name, *figures, shown, f"{to_float(measures['seconds']):.1f}"])
    print_table(["", "token ppl", "word ppl", "bits/byte", "gain", "seconds"], cells)
    notes = [f"{to_float(first['tokens']):,.0f} tokens, {to_float(first['words']):,.0f} words; "]
    notes[0] += "gain: how much lower the token perplexity is"
    for name, measures in rows.items():
        if "exact" in measures:
            notes.append(f"{name}: {to_float(measures['exact']):.1%} of the tokens are known, the others by bounds")
    for note in notes:
        print_line(f"  {note}")


def _measure(measures: Mapping[str, JsonValue], name: str) -> str:
    """A measure, or its bounds."""
    bounds = measures.get("bounds")
    found = bounds[name] if isinstance(bounds, dict) else None
    if not isinstance(found, list):
        return f"{to_float(measures[name]):.2f}"
    lower, upper = map(to_float, found)
    return f"{lower:.2f} to {upper:.2f}" if math.isfinite(upper) else f">= {lower:.2f}"


def print_sweep(swept: sweep.Sweep, out: Path | None) -> None:
    """Print a table with one row per value, with the gains over no passages and over the first value."""
    columns = (*MEASURES, "none_token_perplexity")
    results = swept.rows()
    rows = [
        [
            one_line(str(row[swept.option])),
            *(f"{to_float(row[column]):.2f}" for column in columns),
            _gain(row, "gain"),
            _gain(row, "gain_over_first"),
        ]
        for row in results
    ]
    print_table([f"--{swept.option}", "token ppl", "word ppl", "bits/byte", "none", "gain", "over the first"], rows)
    print_line("  none: the token perplexity without passages; gain: how much lower it is with them")
    paired = any(row["gain_low"] is not None for row in results)
    about = f"paired, over stretches of {TARGETS_PER_DOCUMENT} tokens" if paired else "none, the text is too short"
    print_line(f"  95% intervals: {about}")
    print_line(
        f"  {swept.scored:,} of {swept.requests:,} requests scored, {swept.retrievals:,} retrievals: the rest shared"
    )
    if out is not None:
        plot = f", {out / SWEEP_PLOT}" if (out / SWEEP_PLOT).exists() else ""
        print_line(f"The table: {out / SWEEP_TABLE}{plot}")


def _gain(row: Mapping[str, JsonValue], name: str) -> str:
    """A gain with its interval; empty if the row has none."""
    if name not in row:
        return ""
    figures = [row[name], row[f"{name}_low"], row[f"{name}_high"]]
    return f"{to_float(row[name]):+.1%}" if None in figures else with_interval(map(to_float, figures), "+.1%")


def print_comparison(compared: Comparison) -> None:
    """Print a table with one row per run."""
    rows = []
    for run in compared.runs:
        row = [one_line(run.path.name), with_interval((run.token_perplexity, *run.perplexity_interval), ".2f")]
        if run.change is not None and run.change_interval is not None:
            row.append(with_interval((run.change, *run.change_interval), "+.1%"))
        rows.append(row)
    print_table(["", "token perplexity", "against the first"], rows, pad_edge=False)
    print_line(f"  {compared.targets:,} tokens; 95% intervals by bootstrap over {compared.documents:,} documents")


def print_judged(summary: Mapping[str, Any], names: Sequence[str]) -> None:
    """Print a table with one row per measure of retrieval: the mean with its interval, or both means and the paired
    difference if two runs, of these names, were judged."""
    rows = []
    for measure, one in summary["measures"].items():
        row = [measure, f"{one['mean']:.4f}"]
        if "difference" in summary:
            row.append(f"{summary['against'][measure]['mean']:.4f}")
            one = summary["difference"][measure]
            row.append(f"{one['mean']:+.4f}")
        row.append("({:.4f}, {:.4f})".format(*one["interval"]))
        rows.append(row)
    headings = ["", *(one_line(Path(name).name) for name in names), *["difference"][: len(names) - 1], "95% interval"]
    print_table(headings, rows, pad_edge=False)
    print_line(f"  {summary['topics']:,} topics; intervals by bootstrap over topics")


def _print_gain(words: str, gain: HeldOutGain) -> None:
    print_line(f"  {words}{gain.gain:+.4f} (95%: {gain.low:+.4f} to {gain.high:+.4f})")


def print_worth(folder: Path, statistics: SignalStatistics) -> None:
    """Print the gain of choosing well among the passages of signals, and how strongly signals prefer some."""
    print_line(f"{folder}: {statistics.examples:,} examples with passages to choose from")
    left = {
        "fewer than two passages": statistics.single,
        "a token that the model gives no probability": statistics.impossible,
    }
    for what, count in left.items():
        if count:
            print_line(f"  not used: {count:,} with {what}")
    print_line("gain over no passage, in nats per token:")
    for name, gain in (("first", statistics.first), ("random", statistics.random), ("best", statistics.best)):
        _print_gain(f"{name:<24}", gain)
    if (halves := statistics.halves) is not None:
        print_line("on the second half of each continuation:")
        for name, gain in (
            ("first", halves.first),
            ("best for the first half", halves.attainable),
            ("best", halves.best),
        ):
            _print_gain(f"{name:<24}", gain)
    print_line(f"examples without preference (less than 0.01 nats per token): {statistics.no_preference:,}")
    print_line("entropy of Q, the softmax of the mean log-probability over beta (of the probability, as in the paper):")
    for beta, entropy in statistics.entropies.items():
        paper = statistics.paper_entropies[beta]
        print_line(f"  beta {beta:<5}{entropy:.3f} of {statistics.uniform:.3f} nats ({paper:.3f})")


def print_reranker(trained: reranker.TrainedReranker) -> None:
    """Print the folder of a reranker, and the gain of its choice on the held-out examples."""
    print_line(f"{trained.out}: reranker of step {trained.best_step:,}, after {trained.steps:,} steps")
    known = [f"the rank counts {trained.rank_weight:.2f}"] if trained.rank_weight else []
    if trained.likelihood is not None:
        much, decay = (to_float(trained.likelihood[name]) for name in ("weight", "decay"))
        known.append(f"the likelihood of the prefix's last tokens {much:.2f} (decay {decay:.0f})")
    if known:
        print_line(f"beside its score, {' and '.join(known)}")
    _print_losses(trained)
    _print_gains(
        trained,
        {
            "first": "first candidate over no passage",
            "before": "choice before, over the first candidate",
            "chosen": "choice after, over the first candidate",
            "change": "  change",
            "best": "best candidate over the first",
        },
    )
    if (found := trained.held_out) is not None and min(found["change"]["low"], found["chosen"]["low"]) <= 0:
        keep = "the choice before, as of --rerank zero-shot" if found["before"]["low"] > 0 else "the first candidate"
        print_line(f"nothing gained, since an interval after the training is not above 0: keep {keep}")


def print_retriever(trained: retriever.TrainedRetriever, what: str, before: str, use: str) -> None:
    """Print the folder of `what` was trained, what it gained on held-out documents over what was there `before` and
    whether that is more than chance, and how to `use` it."""
    print_line(f"{trained.out}: {what} of step {trained.best_step:,}, after {trained.steps:,} steps")
    _print_losses(trained)
    _print_gains(
        trained,
        {
            "first_before": "first passage over none, before",
            "first": "first passage over none, after",
            "first_change": "  change",
            "ensemble_before": "ensemble over none, before",
            "ensemble": "ensemble over none, after",
            "ensemble_change": "  change",
        },
    )
    if (found := trained.held_out) is not None:
        temperatures = f"{found['temperature_before']:.3g} before and {found['temperature']:.3g} after"
        print_line(f"temperatures of the ensembles, the best for other held-out documents: {temperatures}")
        if found["ensemble_change"]["low"] <= 0:
            print_line(f"nothing gained, since the interval of the ensemble's change is not above 0: keep {before}")
    print_line(use)


def _print_gains(trained: "Trained", rows: Mapping[str, str]) -> None:
    """Print gains on held-out documents, each in these words."""
    found = trained.held_out
    if found is None:
        is_any_held_out = any(row["held_out_loss"] is not None for row in trained.losses)
        what = (
            "too few documents are held out to say" if is_any_held_out else "no document was held out, which would say"
        )
        print_line(f"{what} what was gained")
        return
    examples = f"{found['examples']:,} held-out examples of {found['documents']:,} documents"
    print_line(f"gain on {examples}, in nats per token:")
    for name, words in rows.items():
        _print_gain(f"{words + ':':<42}", HeldOutGain(**found[name]))


def _print_losses(trained: "Trained") -> None:
    """Print the loss of the held-out examples before and after."""
    losses = {row["step"]: row["held_out_loss"] for row in trained.losses}
    before, after = losses.get(0), losses.get(trained.best_step)
    if before is not None and after is not None:
        print_line(f"loss of the held-out examples: {before:.4f} before, {after:.4f} after")


_FULL_SHADE = 3.0
"""The gain, in nats, at which the shade of a token is strongest."""
_HELPED, _HURT, _STEPS = (24, 122, 96), (190, 84, 32), 4
_SHOWN_PASSAGES = 10


def print_report(report: Report) -> None:
    """Print a summary, the text, and the passages that contributed most."""
    text, total = report.text, report.text.gain
    print_line(f"{report.title}: " + ", ".join(f"{label} {value}" for label, value in report.settings.items()))
    fall = report.perplexity / report.baseline_perplexity - 1
    print_line(
        f"token perplexity {report.baseline_perplexity:.2f} without passages, {report.perplexity:.2f} with them "
        f"({fall:+.1%})\n{total.nats:+,.1f} nats over {total.targets:,} tokens: {total.helped:,} helped, "
        f"{total.hurt:,} hurt\n"
    )
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    legend = Text("passages hurt ")
    for step in range(-_STEPS, _STEPS + 1):
        legend.append("  ", style=_style(step / _STEPS * _FULL_SHADE))
    console.print(legend.append(f" helped; full at {_FULL_SHADE:g} nats"), end="\n\n")
    shaded = Text(visible(text.before), style="", overflow="fold")
    shaded.stylize("dim")
    for piece, gain in zip(text.texts[: report.shown_tokens], text.gain_T.tolist(), strict=False):
        shaded.append(visible(piece), style=_style(gain))
    console.print(shaded)
    if report.shown_tokens < len(text):
        print_line(f"\n(the first {report.shown_tokens:,} of {len(text):,} tokens)")
    print_line("\nPassages by contribution, in nats:\n")
    if without := int((~text.provenance.shared_T).sum()):
        print_line(f"  {without:,} tokens mix predictions as no average: passages have no shares of their gain")
    rows = text.contributions
    for row in rows[:_SHOWN_PASSAGES]:
        name = passage_name(text.passages[row.passage])
        print_line(f"  {row.gain:+8.2f}  {name}: {row.helped:,} helped, {row.hurt:,} hurt")
    if len(rows) > _SHOWN_PASSAGES:
        rest = sum(row.gain for row in rows[_SHOWN_PASSAGES:])
        print_line(f"  {rest:+8.2f}  {len(rows) - _SHOWN_PASSAGES:,} more passages together")


def _style(gain: float) -> str:
    """The background for a gain in nats, in a few steps; none for a small gain."""
    step = round(min(1.0, abs(gain) / _FULL_SHADE) * _STEPS)
    if step == 0:
        return ""
    red, green, blue = (round(channel * step / _STEPS) for channel in (_HELPED if gain > 0 else _HURT))
    return f"white on rgb({red},{green},{blue})"
