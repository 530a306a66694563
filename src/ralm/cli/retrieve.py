"""`ralm retrieve`: the passages of every stride of a text, as the file that the official evaluation reads."""

from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options
from ralm.cli.idle import Use, refuse_idle
from ralm.reading.plan import PlanOptions
from ralm.retrieval.dense.options import DenseSearchOptions
from ralm.retrieval.fusion import FusionOptions
from ralm.retrieval.opening import RetrieverOptions


def retrieve(
    context: typer.Context,
    text: Annotated[Path, typer.Argument(metavar="TEXTFILE", help="Text to retrieve for.", show_default=False)],
    index: options.Index,
    lm: options.Model,
    out: Annotated[Path, typer.Option(help="File to write (JSON).", show_default=False)],
    k: Annotated[int, typer.Option("-k", help="Passages a stride.")] = 16,
    retriever: options.Retriever = "bm25",
    vectors: options.Vectors = None,
    query_encoder: options.QueryEncoder = None,
    any_encoder: options.AnyEncoder = False,
    nprobe: options.Nprobe = None,
    ef_search: options.EfSearch = None,
    fusion: options.Fusion = options.FUSION.method,
    dense_weight: options.DenseWeight = options.FUSION.dense_weight,
    forbidden_titles: options.ForbiddenTitles = None,
    forbidden_documents: options.ForbiddenDocuments = None,
    cache: options.Cache = None,
    seed: options.Seed = 0,
    stride: options.Stride = options.PLAN.stride,
    query_tokens: options.QueryTokens = None,
    max_length: options.MaxLength = options.PLAN.max_length,
    windows: options.Windows = options.PLAN.windows,
    block: options.Block = options.PLAN.block,
    semantics: options.Semantics = options.PLAN.semantics,
    limit_tokens: options.LimitTokens = None,
    force: options.Force = False,
) -> None:
    """Retrieve for every stride of a text, and write the passages as the official In-Context RALM code does.

    Only the tokenizer of the language model is needed. Use `--semantics official` and the same `--max-length` for a
    file that the official evaluation is to read. `ralm eval --retrieved` wants the same windows.
    """
    choice = RetrieverOptions(
        retriever=retriever,
        seed=seed,
        vectors=vectors,
        query_encoder=query_encoder,
        any_encoder=any_encoder,
        search=DenseSearchOptions(nprobe=nprobe, ef_search=ef_search),
        fusion=FusionOptions(method=fusion, dense_weight=dense_weight),
        forbidden_titles=forbidden_titles,
        forbidden_documents=forbidden_documents,
        cache=cache,
    )
    refuse_idle(
        context,
        *options.retriever_uses(choice),
        Use("seed", retriever == "random", "--retriever random"),
        Use("block", windows == "blocked", "--windows blocked"),
    )
    plan = PlanOptions(
        semantics=semantics,
        stride=stride,
        query_tokens=options.query_tokens(choice, query_tokens),
        max_length=max_length,
        document_tokens=0,
        windows=windows,
        block=block,
    )

    from ralm.cli.models import load_tokenizer
    from ralm.cli.output import print_cache, print_line
    from ralm.corpus.text import read_text
    from ralm.folders.outputs import check_output_file
    from ralm.pipeline import FromRetriever, prepare_text, retrieved_strides
    from ralm.retrieval.retrieval_file import write_retrieval_file

    check_output_file(out, force)
    content = read_text(text)
    source = FromRetriever.of_index(index, choice)
    tokenizer = load_tokenizer(lm)
    prepared = prepare_text(content, tokenizer, plan, limit_tokens=limit_tokens)
    hits, passages = source.find(prepared, tokenizer, k)
    write_retrieval_file(out, retrieved_strides(prepared, tokenizer, hits, passages))
    print_line(f"{len(prepared.plan):,} strides of {len(prepared.tokens):,} tokens: {out}")
    print_cache(source)
