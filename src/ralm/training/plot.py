"""The plot of a training: its losses by step. Needs matplotlib, which the extra `train` installs."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from ralm.runs.plot import DOTS_AN_INCH, INCHES


def draw_losses(
    training: Sequence[tuple[int, float]], held_out: Sequence[tuple[int, float]], best_step: int, path: Path
) -> None:
    """Draw (step, loss) pairs of the examples that were trained on and of those held out, and mark the best step."""
    figure = Figure(figsize=INCHES, dpi=DOTS_AN_INCH, layout="constrained")
    axes = figure.subplots()
    for pairs, style, label in ((training, "o-", "trained on"), (held_out, "s--", "held out")):
        if pairs:
            axes.plot([step for step, _ in pairs], [loss for _, loss in pairs], style, label=label, markersize=3)
    axes.axvline(best_step, linestyle=":", color="grey", label="kept")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.legend()
    figure.savefig(path)
