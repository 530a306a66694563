"""Prints JSON, tables, passages, generated text with its sources, and the contents of an index."""

import re
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

import numpy as np
from pydantic import JsonValue
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ralm.cli.process import print_note, with_flags
from ralm.protocols import Tokenizer
from ralm.reading.pieces import GeneratedText, passage_shares, spans
from ralm.reading.provenance import TracedText, gain_as_json, passage_as_json, token_as_json
from ralm.records import NO_PASSAGE, ORIGIN, Passage, Passages
from ralm.retrieval.analysis import Mark, Marker, best_window, spans_of
from ralm.retrieval.layout import VectorSet, index_settings
from ralm.storage.manifest import Manifest
from ralm.storage.outputs import MANIFEST, replaced_file
from ralm.terminal import one_line, to_json, visible

if TYPE_CHECKING:
    from ralm.corpus.decontamination import Removals
    from ralm.corpus.documents import Skipped
    from ralm.evaluation.intervals import Estimate
    from ralm.retrieval.index import Index
    from ralm.retrieval.sync import Changes

_LONGEST_METADATA = _LONGEST_TEXT = 300
"""Maximum number of printed characters of metadata, and of a passage."""
_SOURCES = 3
"""Maximum number of printed passages for a part of a text."""


def print_json(value: JsonValue) -> None:
    """Print a JSON value on one line."""
    sys.stdout.write(to_json(value) + "\n")


_latex: ContextVar[bool] = ContextVar("latex", default=False)
_LATEX_SIGNS: Final = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


@contextmanager
def as_latex() -> Iterator[None]:
    """Print tables as LaTeX, and lines as comments, inside the block."""
    token = _latex.set(True)
    try:
        yield
    finally:
        _latex.reset(token)


def print_line(text: str = "") -> None:
    """Print a line for a person, or several."""
    if _latex.get():
        sys.stdout.writelines(f"% {visible(line.strip())}\n" for line in text.splitlines() if line.strip())
    else:
        sys.stdout.write(visible(text) + "\n")


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, pad_edge: bool = True) -> None:
    """Print a table; in a narrow terminal, cells are wrapped, never cut."""
    if _latex.get():
        body = [" & ".join(map(_in_latex, row)) + r" \\" for row in (headings, *rows)]
        columns = "l" + "r" * (len(headings) - 1)
        lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", body[0], r"\midrule", *body[1:]]
        sys.stdout.write("\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""]))
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=pad_edge)
    first, *numeric = headings
    table.add_column(first, overflow="fold")
    for heading in numeric:
        table.add_column(heading, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    Console(file=sys.stdout, highlight=False).print(table)


def _in_latex(cell: str) -> str:
    """Return a cell of a table, with a minus before numbers and the signs of LaTeX escaped."""
    escaped = "".join(_LATEX_SIGNS.get(sign, sign) for sign in visible(" ".join(cell.split())))
    return re.sub(r"(?<![\w-])-(?=[\d.])", "$-$", escaped).replace("--", "-{}-")


def with_interval(estimate: "Estimate", form: str) -> str:
    """Return a figure, and the ends of its interval if it has one."""
    value, *ends = (f"{figure:{form}}" for figure in (estimate.value, *(estimate.ends or ())))
    return f"{value} ({', '.join(ends)})" if ends else value


def write_page(file: Path, page: str, shown: str) -> None:
    """Write an HTML page, and print on standard error what it shows."""
    with replaced_file(file) as written:
        written.write(page)
    print_note(f"{file} shows {shown}; open it in a browser")


def print_index(out: Path, manifest: Manifest, removals: "Removals", skipped: "Skipped") -> None:
    """Print the contents of an index, and what was skipped."""
    from ralm.corpus.decontamination import BY_OVERLAP, BY_TITLE

    counts = manifest.counts
    parts = [f"{counts[what]:,} {what}" for what in ("passages", "terms", "postings") if what in counts]
    print_line(f"{out}: {', '.join(parts)}")
    for vectors in index_settings(out, manifest).vectors.sets.values():
        _print_vectors(vectors, counts["passages"])
    for reason in (BY_TITLE, BY_OVERLAP):
        if removed := removals.count(reason):
            print_line(f"left out for {reason}: {removed:,} passages, see {out / MANIFEST}")
    _print_skipped(skipped)


def print_sync(index: Path, before: "Index", changes: "Changes", manifest: Manifest, *, examples: int) -> None:
    """Print what changed in an index, with the first ids of each kind, and its contents."""
    kinds = {"added": changes.added, "replaced": changes.changed, "removed": changes.removed}
    unchanged = before.manifest.counts.get("documents", 0) - len(changes.changed) - len(changes.removed)
    told = ", ".join(f"{len(ids):,} {kind}" for kind, ids in kinds.items())
    print_line(f"documents: {told}, {unchanged:,} unchanged")
    for kind, ids in kinds.items() if examples else ():
        for document_id in ids[:examples]:
            print_line(f"  {kind}: {one_line(document_id)}")
        if len(ids) > examples:
            print_line(f"  {kind}: {len(ids) - examples:,} more")
    counts = manifest.counts
    print_line(f"{index}: {counts['passages']:,} passages of {counts['documents']:,} documents")
    _print_skipped(changes.skipped)


def _print_skipped(skipped: "Skipped") -> None:
    for line in skipped.lines():
        shown = with_flags(line, {"encoding": "--encoding", "read_as": "--read-as"})
        print_line(f"left out: {one_line(shown)}")


def print_encoded(index: Path, manifest: Manifest, name: str) -> None:
    """Print the vectors that were added to an index, and which ones it has now."""
    sets = index_settings(index, manifest).vectors
    names = [f"{other} (default)" if other == sets.default else other for other in sets.sets]
    print_line(f"{index}: vectors {', '.join(names)}")
    _print_vectors(sets.sets[name], manifest.counts["passages"])


def _print_vectors(vectors: VectorSet, passages: int) -> None:
    """Print the kind of vectors, and how many were encoded or came from an interrupted build."""
    print_line(f"vectors of {vectors.dimension} dimensions in a FAISS index {vectors.faiss}")
    if vectors.encoded:
        print_line(f"encoded: {vectors.encoded:,} passages")
    if vectors.encoded < passages:
        print_line(f"taken from vectors that were there: {passages - vectors.encoded:,}")


def print_hits(hits: Iterable[tuple[Passage, float]], marker: Marker, terms: Container[str]) -> None:
    """Print hits for a person: rank, score, document id, title, and the part of the text with most of these terms."""
    for rank, (passage, score) in enumerate(hits, 1):
        name = document_name(passage.document_id, passage.title, passage.place)
        _print_marked(f"{rank:>3}. {score:8.3f}  ", name, marker.marks(name, terms))
        if metadata := _metadata_line(passage):
            print_line(f"     {metadata}")
        text = " ".join(passage.text.split())
        marks = marker.marks(text, terms)
        begin, end = best_window(text, marks, _LONGEST_TEXT)
        shown = [(max(mark.begin, begin) - begin, min(mark.end, end) - begin, mark.term) for mark in marks]
        inside = [Mark(*mark) for mark in shown if mark[0] < mark[1]]
        _print_marked(f"     {'...' if begin else ''}", text[begin:end], inside, "..." if end < len(text) else "")


def document_name(document_id: str, title: str, place: str | None = None) -> str:
    """Return the id of a document, or its `place`, and its title if that is not the name of its file."""
    path = PurePath(document_id)
    shown = "" if title in (document_id, path.name, path.stem) else title
    return one_line("  ".join(part for part in (place or document_id, shown) if part))


def _print_marked(before: str, text: str, marks: Iterable[Mark], after: str = "") -> None:
    """Print a line with its marks in bold, in a terminal with colours."""
    line, printed = Text(before), 0
    for begin, end in spans_of(marks):
        line.append(visible(text[printed:begin])).append(visible(text[begin:end]), "bold")
        printed = end
    line.append(visible(text[printed:]) + after)
    console = Console(file=sys.stdout, highlight=False)
    if console.is_terminal and not console.no_color:
        console.print(line, soft_wrap=True)
    else:
        sys.stdout.write(line.plain + "\n")


def print_generation(prompt: str, pieces: Iterable[GeneratedText], passages: Passages) -> list[GeneratedText]:
    """Print the prompt and its continuation as it is generated, then each part with its source; return the pieces."""
    sys.stdout.write(visible(prompt))
    written = []
    for piece in pieces:
        sys.stdout.write(visible(piece.text))
        sys.stdout.flush()
        written.append(piece)
    print_line("\n")
    for span in spans(written):
        print_line(f"{span.text!r}\n    <- {_sources(span, passages)}")
    return written


def print_generations(
    prompts: Sequence[str], pieces: Iterable[tuple[int, GeneratedText]], passages: Passages
) -> list[list[GeneratedText]]:
    """Print one generation as it is written, or several once all are complete; return the pieces of each."""
    if len(prompts) == 1:
        return [print_generation(prompts[0], (piece for _, piece in pieces), passages)]
    written = by_prompt(len(prompts), pieces)
    for prompt, continuation in zip(prompts, written, strict=True):
        print_generation(prompt, continuation, passages)
        print_line()
    return written


def generation_as_json(
    prompt: str, written: Sequence[GeneratedText], passages: Passages, tokenizer: Tokenizer, traced: TracedText | None
) -> JsonValue:
    """Return the parts of a generated text with their sources, every token, and if traced the gain from passages."""
    rows: list[JsonValue] = []
    for place, token in enumerate(token for piece in written for token in piece.tokens):
        text = tokenizer.decode(np.array([token.token]))
        row = token_as_json(token.token, text, token.log_prob, token.passages_K, token.posteriors_K)
        row["certified"] = token.certified
        if token.bound_width:
            row["unlisted"] = token.bound_width
        if traced is not None:
            row |= {"baseline_log_prob": float(traced.baseline_T[place]), "gain": float(traced.gain_T[place])}
        rows.append(row)
    none: dict[str, JsonValue] = {"passage": None, "document_id": None, "title": None, "metadata": {}}
    parts: list[JsonValue] = [
        {"text": span.text, **(none if span.passage == NO_PASSAGE else passage_as_json(passages[span.passage]))}
        for span in spans(written)
    ]
    gain: dict[str, JsonValue] = {} if traced is None else {"gain": gain_as_json(traced)}
    return {"prompt": prompt, "spans": parts, "tokens": rows, **gain}


def by_prompt(count: int, pieces: Iterable[tuple[int, GeneratedText]]) -> list[list[GeneratedText]]:
    """Return the generated pieces, grouped by prompt."""
    written: list[list[GeneratedText]] = [[] for _ in range(count)]
    for number, piece in pieces:
        written[number].append(piece)
    return written


def _sources(span: GeneratedText, passages: Passages) -> str:
    """Return the source of a part; for an ensemble, the passages that contributed most of its probability."""
    shares = passage_shares(span.tokens)
    if len(shares) <= 1:
        return source_name(span.passage, passages)
    most = list(shares.items())[:_SOURCES]
    if any(np.isnan(share) for share in shares.values()):
        return ", ".join(source_name(number, passages) for number in shares) + ", contrasted; no shares"
    return ", ".join(f"{source_name(number, passages)} {share:.0%}" for number, share in most)


def source_name(number: int, passages: Passages) -> str:
    """Return the name of a passage for a person, or that there is none."""
    return "no passage" if number == NO_PASSAGE else passage_name(passages[number])


def passage_name(passage: Passage) -> str:
    """Return the name of a passage for a person: its title, its number, where its document is, and its metadata."""
    name, place = passage.title or passage.place, passage.place
    parts = [f"passage {passage.number}", *([one_line(place)] if place != name else []), _metadata_line(passage)]
    return f"{one_line(name)} ({'; '.join(filter(None, parts))})"


def _metadata_line(passage: Passage) -> str:
    """Return the beginning of a passage's metadata on one line, such as `page: 3, url: https://...`."""
    fields = (
        f"{name}: {value if isinstance(value, str) else to_json(value)}"
        for name, value in passage.metadata.items()
        if name != ORIGIN
    )
    return beginning(one_line(", ".join(fields)), _LONGEST_METADATA)


def beginning(line: str, width: int) -> str:
    """Return the first characters of a line, `width` at most."""
    return line if len(line) <= width else f"{line[:width]}..."
