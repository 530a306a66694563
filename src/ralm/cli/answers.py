"""What commands print of answers to questions, for a person."""

import sys
from collections.abc import Iterable

from ralm.answering.sourced import SourcedAnswer
from ralm.cli.output import passage_name, print_line
from ralm.controls import visible
from ralm.reading.pieces import GeneratedText

_WIDTH = 200
"""How many characters of a source are printed."""


def print_pieces(pieces: Iterable[GeneratedText]) -> None:
    """Print an answer as it comes."""
    empty = True
    for piece in pieces:
        text = piece.text.lstrip() if empty else piece.text
        empty = empty and not text
        sys.stdout.write(visible(text))
        sys.stdout.flush()
    print_line("(an empty answer)" if empty else "")


def print_sources(answer: SourcedAnswer) -> None:
    """Print the passages that an answer was read with, what each gave to it, and how likely the answer is."""
    tokens = len(answer.answer.tokens)
    for rank, source in enumerate(answer.sources, 1):
        gave = "in the same prompt" if source.gain is None else f"{source.share:.0%} {source.gain:+.2f} nats"
        text = " ".join(source.passage.text.split())
        print_line(f"\n{rank:>3}. {gave if tokens else '-'}  {passage_name(source.passage)}")
        print_line(f"     {text[:_WIDTH]}{'...' if len(text) > _WIDTH else ''}")
    if answer.cut:
        print_line(f"\nThe prompt did not fit: {answer.cut.documents:,} tokens of passages were cut at the beginning.")
    if tokens:
        own, without = (float(one.mean(dtype="float64")) for one in (answer.text.log_probs_T, answer.text.baseline_T))
        beside = f" with passages, {without:.2f} without" if answer.sources else ""
        print_line(f"\nLog-probability of the answer: {own:.2f} nats a token{beside} ({tokens} tokens).")
