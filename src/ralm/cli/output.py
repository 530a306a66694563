"""Prints JSON, passages, generated text with its sources, and the contents of an index."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import JsonValue

from ralm.cli.corpus import ReadCorpus
from ralm.corpus.decontamination import BY_OVERLAP, BY_TITLE
from ralm.protocols import Tokenizer
from ralm.reading.pieces import GeneratedText, GeneratedToken, passage_shares, spans
from ralm.reading.provenance import TracedText, gain_as_json, passage_as_json, token_as_json
from ralm.reading.sources import FromRetriever, PassageSource
from ralm.records import NO_PASSAGE, Passage, Passages
from ralm.retrieval.cache import CachedRetriever
from ralm.retrieval.layout import segment_entries, vector_sets
from ralm.runs.run import to_json
from ralm.storage.manifest import Manifest
from ralm.storage.outputs import MANIFEST
from ralm.terminal import one_line, visible

_LONGEST_METADATA = 300
"""Maximum number of printed characters of metadata."""
_SOURCES = 3
"""Maximum number of printed passages for a part of a text."""


def print_json(value: JsonValue) -> None:
    """Print a JSON value on one line."""
    sys.stdout.write(to_json(value) + "\n")


def print_line(text: str = "") -> None:
    """Print a line for a person."""
    sys.stdout.write(visible(text) + "\n")


def print_index(out: Path, manifest: Manifest, read: ReadCorpus) -> None:
    """Print the contents of an index, and what was skipped."""
    counts = manifest.counts
    parts = [f"{counts[what]:,} {what}" for what in ("passages", "terms", "postings") if what in counts]
    print_line(f"{out}: {', '.join(parts)}")
    for vectors in vector_sets(out, manifest).sets.values():
        print_vectors(vectors.model_dump(mode="json"), counts["passages"])
    _print_skipped(out, read)


def _print_skipped(out: Path, read: ReadCorpus) -> None:
    for reason in (BY_TITLE, BY_OVERLAP):
        if removed := read.removals.count(reason):
            print_line(f"left out for {reason}: {removed:,} passages, see {out / MANIFEST}")
    for line in read.skipped.lines():
        print_line(f"left out: {one_line(line)}")


def print_update(index: Path, manifest: Manifest, read: ReadCorpus | None) -> None:
    """Print the contents of an index after an update or a merge, and what was skipped."""
    counts = manifest.counts
    segments = len(segment_entries(index, manifest).entries)
    print_line(
        f"{index}: {counts['passages']:,} passages of {counts['documents']:,} documents in {segments} "
        f"segment{'s' if segments > 1 else ''}"
    )
    if read is not None:
        _print_skipped(index, read)


def print_encoded(index: Path, manifest: Manifest, name: str) -> None:
    """Print the vectors that were added to an index, and which ones it has now."""
    sets = vector_sets(index, manifest)
    others = [f"{other} (default)" if other == sets.default else other for other in sets.sets]
    print_line(f"{index}: vectors {', '.join(others)}")
    print_vectors(sets.sets[name].model_dump(mode="json"), manifest.counts["passages"])


def print_vectors(dense: Mapping[str, JsonValue], passages: int) -> None:
    """Print the kind of vectors, the speed of encoding, and how many came from an interrupted build."""
    encoded, seconds = number(dense["encoded"]), number(dense["encoding_seconds"])
    print_line(f"vectors of {dense['dimension']} dimensions in a FAISS index {dense['faiss']}")
    if encoded:
        print_line(
            f"encoded: {encoded:,.0f} passages in {seconds:,.0f} s, {encoded / max(seconds, 1e-3):,.0f} a second"
        )
    if encoded < passages:
        print_line(f"reused from an interrupted build: {passages - encoded:,.0f}")


def print_cache(source: PassageSource | None) -> None:
    """Log the hit rate of the retrieval cache on standard error; nothing without a cache."""
    if isinstance(source, FromRetriever) and isinstance(cached := source.retriever, CachedRetriever):
        cached.log_hits()


def print_passages(hits: Iterable[tuple[Passage, float]], width: int = 300) -> None:
    """Print hits for a person: rank, score, title, and the beginning of the text."""
    for rank, (passage, score) in enumerate(hits, 1):
        print_line(f"{rank:>3}. {score:8.3f}  passage {passage.number}  {one_line(passage.title)}")
        if passage.metadata:
            print_line(f"     {metadata_line(passage)}")
        text = " ".join(passage.text.split())
        print_line(f"     {text[:width]}{'...' if len(text) > width else ''}")


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
    for prompt, own in zip(prompts, written, strict=True):
        print_generation(prompt, own, passages)
        print_line()
    return written


def generation_as_json(
    prompt: str, written: Sequence[GeneratedText], passages: Passages, tokenizer: Tokenizer, traced: TracedText | None
) -> JsonValue:
    """The parts of a generated text with their sources, and every token; if traced, also the gain from passages."""
    tokens = [_token_as_json(token, tokenizer) for piece in written for token in piece.tokens]
    parts: list[JsonValue] = [{"text": span.text, **_source(span.passage, passages)} for span in spans(written)]
    if traced is None:
        return {"prompt": prompt, "spans": parts, "tokens": [*tokens]}
    for token, baseline, gain in zip(tokens, traced.baseline_T.tolist(), traced.gain_T.tolist(), strict=True):
        token |= {"baseline_log_prob": baseline, "gain": gain}
    return {"prompt": prompt, "spans": parts, "tokens": [*tokens], "gain": gain_as_json(traced)}


def by_prompt(count: int, pieces: Iterable[tuple[int, GeneratedText]]) -> list[list[GeneratedText]]:
    """The generated pieces, grouped by prompt."""
    written: list[list[GeneratedText]] = [[] for _ in range(count)]
    for number, piece in pieces:
        written[number].append(piece)
    return written


def _token_as_json(token: GeneratedToken, tokenizer: Tokenizer) -> dict[str, JsonValue]:
    """A token with its log-probability, its passages, and the share of the probability from each."""
    text = tokenizer.decode(np.array([token.token]))
    return {
        **token_as_json(token.token, text, token.log_prob, token.passages_K, token.posteriors_K),
        "certified": token.certified,
        **({"unlisted": token.bound_width} if token.bound_width else {}),
    }


def _sources(span: GeneratedText, passages: Passages) -> str:
    """The source of a part; for an ensemble, the passages that contributed most of its probability."""
    given = passage_shares(span.tokens)
    if len(given) <= 1:
        return source_name(span.passage, passages)
    most = list(given.items())[:_SOURCES]
    return ", ".join(f"{source_name(number, passages)} {share:.0%}" for number, share in most)


def _source(number: int, passages: Passages) -> dict[str, JsonValue]:
    if number == NO_PASSAGE:
        return {"passage": None, "document_id": None, "title": None, "metadata": {}}
    return passage_as_json(passages[number])


def source_name(number: int, passages: Passages) -> str:
    """The name of a passage for a person: its title or document id, and its number."""
    if number == NO_PASSAGE:
        return "no passage"
    return passage_name(passages[number])


def passage_name(passage: Passage) -> str:
    """The name of a passage for a person: its title or document id, its number, and its metadata."""
    metadata = f"; {metadata_line(passage)}" if passage.metadata else ""
    return f"{one_line(passage.title or passage.document_id)} (passage {passage.number}{metadata})"


def metadata_line(passage: Passage) -> str:
    """The beginning of a passage's metadata on one line, such as `page: 3, url: https://...`."""
    fields = (
        f"{name}: {value if isinstance(value, str) else to_json(value)}" for name, value in passage.metadata.items()
    )
    line = one_line(", ".join(fields))
    return line if len(line) <= _LONGEST_METADATA else f"{line[:_LONGEST_METADATA]}..."


def number(value: JsonValue) -> float:
    """A measure as a number; NaN if it is null."""
    return float(value) if isinstance(value, (int, float)) else float("nan")
