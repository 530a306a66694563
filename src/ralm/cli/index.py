"""`ralm index`: documents in, a searchable folder out."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import JsonValue

from ralm.cli import options
from ralm.cli.idle import Use, refuse_idle
from ralm.controls import path_text
from ralm.errors import UsageError
from ralm.retrieval.bm25.options import BuildOptions, cores
from ralm.retrieval.dense.options import EncoderOptions, Pooling, QueryEnd, VectorOptions

_BUILD = BuildOptions()
_VECTORS = VectorOptions()


def index(
    context: typer.Context,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Folders of text, .jsonl, .parquet, DPR's .tsv (plain or .gz), saved datasets, or hf:NAME.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.", show_default=False)],
    words: Annotated[int, typer.Option(help="Words a passage.")] = 100,
    tokens: Annotated[int | None, typer.Option(help="Tokens of --lm a passage, instead of words.")] = None,
    lm: Annotated[str | None, typer.Option(help="The model whose tokens --tokens counts.")] = None,
    id_field: Annotated[str, typer.Option(help="Field with the id of a document.")] = "id",
    title_field: Annotated[str, typer.Option(help="Field with its title.")] = "title",
    text_field: Annotated[str, typer.Option(help="Field with its text.")] = "text",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out broken lines and count them.")] = False,
    forbidden_titles: Annotated[
        Path | None, typer.Option(help="Leave out documents with these titles, one a line.")
    ] = None,
    decontaminate: Annotated[
        list[Path] | None, typer.Option(help="Leave out passages that overlap this text; may be given again.")
    ] = None,
    ngram: Annotated[int, typer.Option(help="Words in a row that count as overlap.")] = 13,
    max_overlap: Annotated[
        float, typer.Option(help="Leave a passage out only if more than this share of its runs of words is shared.")
    ] = 0.0,
    k1: Annotated[float, typer.Option(help="BM25: how soon repeated terms stop counting.")] = 0.9,
    b: Annotated[float, typer.Option(help="BM25: how much long passages are marked down.")] = 0.4,
    memory: Annotated[
        float, typer.Option(help="BM25: megabytes for postings on their way to the disk; the vocabulary comes on top.")
    ] = _BUILD.megabytes,
    workers: Annotated[
        int | None, typer.Option(help="BM25: processes that analyse a large corpus.", show_default="one a core")
    ] = None,
    retriever: Annotated[
        Literal["bm25", "dense", "both"], typer.Option(help="What to index for; both serves hybrid retrieval too.")
    ] = "bm25",
    encoder: Annotated[
        str | None, typer.Option(help="Dense: encoder of passages, a hub name or folder (and of queries).")
    ] = None,
    query_encoder: Annotated[
        str | None, typer.Option(help="Dense: another encoder for queries, as DPR has it.")
    ] = None,
    pooling: Annotated[
        Pooling, typer.Option(help="Dense: over the tokens of a bare model; auto: as its folder says, else mean.")
    ] = "auto",
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Dense: cosines, not the encoder's own inner products.")
    ] = False,
    titles: Annotated[bool, typer.Option(help="Dense: encode the title with the text.")] = True,
    query_length: Annotated[
        int | None, typer.Option(help="Dense: read so many tokens of a query.", show_default="the encoder's")
    ] = None,
    query_keeps: Annotated[
        QueryEnd, typer.Option(help="Dense: which tokens of a longer query; first is what REPLUG's code does.")
    ] = "last",
    passage_length: Annotated[
        int | None, typer.Option(help="Dense: read so many tokens of a passage.", show_default="the encoder's")
    ] = None,
    faiss: Annotated[
        str, typer.Option(help="Dense: Flat is exact; SQfp16 in float16; IVF4096,Flat, IVF4096,PQ64, HNSW32: faster.")
    ] = _VECTORS.faiss,
    training_sample: Annotated[
        int, typer.Option(help="Dense: train IVF and PQ on so many vectors, drawn at random.")
    ] = _VECTORS.training_sample,
    dtype: options.Dtype = "auto",
    device: Annotated[
        str, typer.Option(help="Dense: where to encode: cpu, cuda, cuda:N, or auto: a GPU if there is one.")
    ] = "auto",
    force: options.Force = False,
) -> None:
    """Split documents into passages and index them for BM25, dense retrieval, or both.

    What dense retrieval has encoded is kept in a folder beside --out until the index is complete: the same command run
    again after an interruption goes on from there.
    """
    from ralm.cli.output import print_index
    from ralm.corpus.decontamination import Decontamination, Removals, read_titles
    from ralm.corpus.passages import make_passages
    from ralm.corpus.sources import Fields, SkippedLines, read_documents
    from ralm.corpus.splitting import Splitting
    from ralm.corpus.text import read_text
    from ralm.folders.outputs import check_output
    from ralm.retrieval.bm25.formula import BM25Options
    from ralm.retrieval.dense.loading import load_encoder
    from ralm.retrieval.index import KIND, build_index

    if (encoder is None) != (retriever == "bm25"):
        raise UsageError("--retriever dense or both and --encoder go together: which encoder makes the vectors?")
    if (tokens is None) != (lm is None):
        raise UsageError("--tokens and --lm go together: so many tokens of which model?")
    dense = retriever != "bm25"
    refuse_idle(
        context,
        Use("words", tokens is None, "passages of words, not of --tokens"),
        Use("ngram max_overlap", bool(decontaminate), "--decontaminate"),
        Use("k1 b memory workers", retriever != "dense", "--retriever bm25 or both"),
        Use(
            "query_encoder pooling normalize titles query_length query_keeps passage_length",
            dense,
            "--retriever dense or both",
        ),
        Use("faiss training_sample dtype device", dense, "--retriever dense or both"),
        Use("training_sample", faiss != _VECTORS.faiss, "a --faiss index that is trained"),
    )
    splitting = Splitting(words=words, tokens=tokens)
    formula, vectors = BM25Options(k1=k1, b=b), VectorOptions(faiss=faiss, training_sample=training_sample)
    build = BuildOptions(megabytes=memory, workers=cores() if workers is None else workers)
    encoding = None
    if encoder is not None:
        encoding = EncoderOptions(
            encoder=encoder,
            query_encoder=query_encoder,
            pooling=pooling,
            normalize=normalize,
            titles=titles,
            query_length=query_length,
            passage_length=passage_length,
            query_keeps=query_keeps,
            dtype=dtype,
        )
    check_output(out, kind=KIND, force=force)
    fields = Fields(id=id_field, title=title_field, text=text_field)
    skipped = SkippedLines() if skip_bad else None
    decontamination = Decontamination.of(
        titles=[] if forbidden_titles is None else read_titles(forbidden_titles),
        texts=[read_text(path) for path in decontaminate or []],
        ngram=ngram,
        max_overlap=max_overlap,
    )
    tokenizer = None
    if lm is not None:
        from ralm.cli.models import load_tokenizer

        tokenizer = load_tokenizer(lm)
    removals = Removals()
    documents = (document for source in sources for document in read_documents(source, fields, skipped=skipped))
    passages = make_passages(
        documents,
        splitting,
        tokenizer=tokenizer,
        decontamination=decontamination,
        removals=removals,
    )

    def describe() -> dict[str, JsonValue]:
        return {
            "sources": [path_text(source) for source in sources],
            "splitting": {"words": words} if tokens is None else {"tokens": tokens, "lm": lm},
            "decontamination": decontamination.settings,
            "removed": {"counts": removals.counts(), "list": removals.listed(), "unlisted": removals.unlisted},
            "skipped_lines": skipped.count if skipped else 0,
        }

    manifest = build_index(
        passages,
        out,
        formula,
        bm25=retriever != "dense",
        encoder=None if encoding is None else load_encoder(encoding, device=device),
        vectors=vectors,
        describe=describe,
        build=build,
        force=force,
    )
    print_index(out, manifest, removals, skipped)
