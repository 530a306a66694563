"""`ralm worth`: whether a corpus helps a language model, with what certainty."""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import JsonValue

import ralm
from ralm.cli import flags, options
from ralm.cli.process import open_model
from ralm.corpus.documents import Fields
from ralm.errors import UsageError
from ralm.options import Option
from ralm.settings import PipelineOptions

if TYPE_CHECKING:
    from ralm.worth import Worth


def worth_command(
    *,
    index: options.IndexArgument,
    lm: options.ModelName,
    text: Annotated[
        tuple[str, ...],
        Option("Text that the corpus is for, as for `ralm index`; repeatable.", default_text="documents of the corpus"),
    ] = (),
    questions: Annotated[
        Path | None, Option("Questions with answers that the corpus is for, as for `ralm qa`, instead of a text.")
    ] = None,
    measuring: Annotated[ralm.WorthOptions, Option("What is measured.")],
    fields: Annotated[Fields, options.FIELDS],
    model: options.Model,
) -> flags.Output:
    """Say whether the passages of a corpus help a language model, with what certainty.

    Without --text and --questions it measures documents of the corpus itself, each without its own passages. Passages
    that share 13 words in a row with a document count as its near duplicates and are set apart. Questions are asked as
    `ralm ask` does. Intervals are at 95%, and fewer than ten documents give no verdict.

    Example: `ralm worth my-index -m smollm2`
    """
    if text and questions:
        raise UsageError("`text` and `questions` are two measures of a corpus: give one of them.")

    from ralm.pipeline import open_pipeline
    from ralm.training.examples import read_training_text

    opened = ralm.open_index(index)
    scoring = open_pipeline(PipelineOptions(lm=lm, model=model), load=open_model).model
    tokenizer = scoring.tokenizer
    if questions is not None:
        asked = ralm.read_questions(questions)
        measured = ralm.held_out_questions(asked, str(questions), scoring, measuring)
    elif text:
        documents = read_training_text(opened, text, fields)
        measured = ralm.held_out_texts(documents, ", ".join(text), tokenizer, measuring)
    else:
        measured = ralm.held_out_documents(opened, tokenizer, measuring)
    worth = ralm.judge_corpus(opened, scoring, measured, measuring)
    names = {"corpus": str(index), "lm": scoring.name, "text": measured.description}
    return flags.Output(partial(_as_json, worth, names), partial(_print, worth, names))


def _as_json(worth: "Worth", names: dict[str, str]) -> dict[str, JsonValue]:
    return {**names, "sentence": worth.sentence, **asdict(worth), "notes": [*_notes(worth)]}


def _print(worth: "Worth", names: dict[str, str]) -> None:
    from ralm.cli.output import print_line, print_table

    print_line(f"{', '.join(names.values())}\n{worth.sentence}")
    rows = [
        (passage, f"{gain.value:+.3f}", f"{gain.low:+.3f} to {gain.high:+.3f}" if gain.ends else "", f"{gain.units:,}")
        for passage, gain in (("first passage", worth.gain), ("first, near duplicates too", worth.with_duplicates))
    ]
    print_table(["gain over no passage", "nats a token", "95% interval", worth.noun], rows)
    for note in _notes(worth):
        print_line(note)


def _notes(worth: "Worth") -> Iterator[str]:
    """Yield what the verdict rests on, a sentence a line."""
    units, noun = worth.gain.units, worth.noun
    if not worth.in_time:
        yield f"The budget ended after {units:,} {noun}."
    if noun == "stretches":
        yield "Stretches of 512 tokens of one text may depend on each other: a verdict is on this text, not on others."
    yield f"A first passage was found for {worth.with_passage:.0%} of tokens."
    if worth.duplicated:
        yield f"Near duplicates stand in the corpus for {worth.duplicated:,} of {units:,} {noun}."
