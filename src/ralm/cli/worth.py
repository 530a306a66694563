"""`ralm worth`: whether a corpus helps a language model, with what certainty."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import JsonValue

import ralm
from ralm.advice.held_out import WorthOptions
from ralm.cli import options
from ralm.cli.flags import Output
from ralm.cli.models import open_model
from ralm.corpus.documents import Fields
from ralm.errors import FolderError, UsageError
from ralm.options import Option
from ralm.settings import PipelineOptions

if TYPE_CHECKING:
    from ralm.advice.verdict import Worth
    from ralm.retrieval.index import Index

_NAMES = 2


def worth_command(
    *,
    corpus: Annotated[
        list[str],
        options.argument("Folder that `ralm index` made, or documents as for `ralm index`.", "INDEX|SOURCE..."),
    ],
    lm: options.ModelName,
    text: Annotated[
        tuple[str, ...],
        Option("Text that the corpus is for, as for `ralm index`; repeatable.", default_text="documents of the corpus"),
    ] = (),
    questions: Annotated[
        Path | None, Option("Questions with answers that the corpus is for, as for `ralm qa`, instead of a text.")
    ] = None,
    measuring: WorthOptions,
    fields: Annotated[Fields, options.FIELDS],
    model: options.Model,
) -> Output:
    """Say whether the passages of a corpus help a language model, with what certainty, and where.

    Without --text and --questions it measures documents of the corpus itself, each without its own passages. Passages
    that share 13 words in a row with a document count as its near duplicates and are set apart. It stops as soon as the
    verdict is certain: the probability of a wrong one is at most 5% over all looks (alpha spending, Lan and DeMets).

    Example: `ralm worth my-index -m smollm2`
    """
    if text and questions:
        raise UsageError("`text` and `questions` are two measures of a corpus: give one of them.")

    from ralm.advice import held_out
    from ralm.advice.verdict import judge_corpus
    from ralm.pipeline import open_pipeline
    from ralm.training.examples import read_training_text

    with _opened(corpus, fields) as index:
        scoring = open_pipeline(PipelineOptions(lm=lm, model=model), load=open_model).model
        tokenizer = scoring.tokenizer
        if questions is not None:
            asked = ralm.read_questions(questions)
            measured = held_out.held_out_questions(asked, str(questions), tokenizer, measuring)
        elif text:
            documents = read_training_text(index, text, fields)
            measured = held_out.held_out_texts(documents, ", ".join(text), tokenizer, measuring)
        else:
            measured = held_out.held_out_documents(index, tokenizer, measuring)
        found = judge_corpus(index, scoring, measured, measuring)
    name = ", ".join(corpus)
    return Output(partial(_as_json, found, name), partial(_print, found, name))


@contextmanager
def _opened(corpus: list[str], fields: Fields) -> "Iterator[Index]":
    """The index, or one of the documents that is removed afterwards."""
    from ralm.retrieval.index import INDEX_KIND
    from ralm.storage.manifest import kind_of
    from ralm.storage.work import scratch_folder

    try:
        is_index = len(corpus) == 1 and kind_of(Path(corpus[0])) == INDEX_KIND.name
    except FolderError:
        is_index = False
    if is_index:
        yield ralm.open_index(Path(corpus[0]))
        return
    with scratch_folder() as folder:
        documents = ralm.read_documents(corpus, fields, source_in_ids=len(corpus) > 1)
        ralm.build_index(ralm.make_passages(documents), folder / "index", describe=lambda: {"sources": [*corpus]})
        yield ralm.open_index(folder / "index")


def _as_json(found: "Worth", name: str) -> dict[str, JsonValue]:
    return {**found.as_json(), "corpus": name, "notes": [*_notes(found)]}


def _print(found: "Worth", name: str) -> None:
    from ralm.cli.output import print_line, print_table

    print_line(f"{name}, {found.lm}, {found.text}\n{found.sentence}")
    rows = [
        (reading, f"{gain.value:+.3f}", "" if gain.low is None else f"{gain.low:+.3f} to {gain.high:+.3f}")
        for reading, gain in found.readings.items()
    ]
    print_table(["gain over no passage", "nats a token", "95% interval"], rows)
    for note in _notes(found):
        print_line(note)


def _notes(found: "Worth") -> Iterator[str]:
    """What the verdict rests on, a sentence a line."""
    why = {"certain": "the verdict is certain", "budget": "the budget ended", "measured": "all are measured"}
    yield f"Stopped after {found.gain.units:,} of at most {found.most:,} {found.noun}: {why[found.stopped]}."
    if found.near_duplicates is not None:
        yield f"Near duplicates give {found.near_duplicates:.0%} of the gain of all passages."
    if found.standing_in:
        where = "the corpus" if found.given else "other documents of the corpus"
        yield f"Stand in {where}: {found.standing_in:,} of {found.gain.units:,} {found.noun}."
    if found.skipped:
        yield f"Too short, and skipped: {found.skipped:,} {found.noun}."
    kinds = sorted(found.kinds, key=lambda part: -part.share * part.gain.value)
    yield "Gain by token: " + ", ".join(f"{part.name} {part.gain.value:+.3f}" for part in kinds[:4]) + "."
    gave, harmed = (
        [row for row in rows if sign * row.gain > 0][:_NAMES]
        for sign, rows in ((1, found.documents), (-1, found.documents[::-1]))
    )
    for verb, rows in (("give", gave), ("harm", harmed)):
        if rows:
            listed = "; ".join(
                f"{_short(row.document_id)} ({row.gain:+.1f} nats, {row.strides} strides)" for row in rows
            )
            yield f"Documents that {verb} most: {listed}."
    tokens = found.cost.passage_tokens / max(1, found.cost.readings)
    slower = found.cost.passage_seconds / max(found.cost.plain_seconds, 1e-9)
    yield f"A passage adds {tokens:.0f} tokens to a stride; reading took {slower:.1f} times as long."


def _short(name: str) -> str:
    return name if len(name) <= 30 else f"...{name[-27:]}"
