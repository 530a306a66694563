"""`ralm sync`: makes an index what its sources are now, adds sources, and removes documents."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import ralm
from ralm.cli import options
from ralm.corpus.decontamination import Decontamination, read_decontamination, read_lines
from ralm.errors import UsageError
from ralm.lm.registry import load_tokenizer
from ralm.options import Option

if TYPE_CHECKING:
    from ralm.retrieval.index import Index

_EXAMPLES: Final = 5


def sync_command(
    *,
    index: options.IndexArgument,
    sources: Annotated[
        list[str] | None, options.argument("Sources to read alone; the index gets those that are new.", "[SOURCE]...")
    ] = None,
    remove: Annotated[Path | None, Option("Remove the documents with these ids (a file with one per line).")] = None,
    remove_id: Annotated[tuple[str, ...], Option("Remove the document with this id; repeatable.")] = (),
    dry_run: Annotated[bool, Option("Say what would change, and change nothing.")] = False,
    allow_missing: Annotated[bool, Option("Remove the documents of sources that are gone.")] = False,
    skipped: options.SkippedFile = None,
    build: ralm.BuildOptions,
    device: Annotated[
        str, Option("Dense: where to encode: cpu, cuda, cuda:N, or auto (a GPU if there is one).")
    ] = "auto",
) -> None:
    """Make an index what its sources are now: add new documents, replace changed ones, remove those that are gone.

    The index remembers the sources that `ralm index` read, and how. With a SOURCE, only that one is read, and its
    documents replace those with the same ids. With --remove or --remove-id, no other source is read. Files whose size
    and time did not change are not read. All changes happen in one step; programs that have the index open keep the old
    state.

    Example: `ralm sync my-index`
    """
    from ralm.cli.output import print_sync

    gone = [*remove_id, *(read_lines(remove, "document ids") if remove else [])]
    opened = ralm.open_index(index)
    changes, manifest = ralm.sync_index(
        index,
        ralm.make_passages if gone and not sources else _splitting(opened),
        sources=sources or (),
        remove=gone,
        dry_run=dry_run,
        allow_missing=allow_missing,
        encoder=partial(_load_encoder, opened, device),
        build=build,
        skipped=options.counting_skipped(skipped),
    )
    print_sync(index, opened, changes, manifest, examples=_EXAMPLES if dry_run else 0)


def _load_encoder(index: "Index", device: str, vectors: str) -> ralm.Encoder:
    return ralm.load_encoder(index.encoder_options(vectors), device=device)


def _splitting(index: "Index") -> Callable[[Iterable[ralm.Document]], Iterator[ralm.Passage]]:
    """Return the function that splits documents as those of the index were split."""
    lm: str | None = None
    match index.manifest.settings.get("splitting"):
        case {"split": "sentences" | "structure" as split, "words": int() as words, "overlap_words": int() as overlap}:
            splitting = ralm.Splitting(split=split, words=words, overlap_words=overlap)
        case {"words": int() as words}:
            splitting = ralm.Splitting(words=words)
        case {"tokens": int() as tokens, "lm": str() as lm}:
            splitting = ralm.Splitting(tokens=tokens)
        case _:
            raise UsageError(
                f"{index.path} does not say how its documents were split, since a program built it; add passages to it "
                "with `ralm.update_index`."
            )
    return partial(
        ralm.make_passages,
        splitting=splitting,
        tokenizer=None if lm is None else load_tokenizer(lm),
        decontamination=_decontamination(index),
    )


def _decontamination(index: "Index") -> Decontamination:
    """Return the decontamination that the index was built with, from the files that it names."""
    record, recorded = index.settings.files, index.manifest.settings.get("decontamination")
    if record is None or not (record.forbidden_titles or record.decontaminate) or not isinstance(recorded, dict):
        return Decontamination()
    made = read_decontamination(
        Path(record.forbidden_titles) if record.forbidden_titles else None,
        [Path(path) for path in record.decontaminate],
        int(str(recorded["ngram"])),
        float(str(recorded["max_overlap"])),
    )
    if made.settings != recorded:
        files = ", ".join(filter(None, [record.forbidden_titles, *record.decontaminate]))
        raise UsageError(f"{files} changed since {index.path} was decontaminated with it: build the index again.")
    return made
