"""`ralm search` searches an index or judges it; `ralm retrieve` writes the passages of a text's strides to a file."""

from pathlib import Path
from typing import Annotated, Final

import ralm
from ralm.cli import flags, options, process
from ralm.cli.judging import K_TEXT, JudgingOptions, K, is_run_file, judge
from ralm.corpus.files import read_text
from ralm.errors import UsageError
from ralm.lm.registry import load_language_model, load_tokenizer
from ralm.options import Needs, Option
from ralm.reading import ReadingOptions
from ralm.reading.plan import PlanOptions
from ralm.reranking import open_reranker
from ralm.retrieval.retriever import RetrieverOptions

_INDEX: Final = Needs("an index", lambda own: not is_run_file(own.index))


def search_command(
    *,
    index: Annotated[Path, options.argument("Folder that `ralm index` made, or a run file of TREC to judge.", "INDEX")],
    query: Annotated[str | None, options.argument("What to search for; - reads standard input.")] = None,
    queries: Annotated[
        Path | None,
        Option(
            "Search for every line of this file instead; .jsonl: one JSON string, or one object with a query, per "
            "line. The output is JSON Lines, in the same order."
        ),
    ] = None,
    k: Annotated[int | None, Option("Passages per query.", flag="-k", default_text=K_TEXT, needs=_INDEX)] = None,
    path: Annotated[
        str | None, Option("Only documents whose ids match this pattern, such as '2024/*.md'; * also matches /.")
    ] = None,
    judging: JudgingOptions,
    retrieval: Annotated[RetrieverOptions, Option("How passages are retrieved.", needs=_INDEX)],
    json: Annotated[bool, Option("Print only one JSON object.")] = False,
) -> None:
    """Find the passages of an index that best match a query.

    With --topics or --qrels, judge what an index finds for topics, or a run file: print the means of measures over the
    judged topics with 95% intervals, and with --against the paired difference. A document counts once, at its best
    passage. With a folder in BEIR's format, the document with the id of the topic is left out.

    Example: `ralm search my-index "who discovered radium"`
    """
    if judging.topics or judging.qrels:
        if query is not None or queries is not None or path is not None:
            raise UsageError("topics are judged: leave the query, `queries` and `path` out, or `topics` and `qrels`.")
        judge(index, judging, retrieval, k).print(json=json, latex=judging.latex)
        return

    from ralm.cli.output import print_hits, print_json
    from ralm.reading.provenance import hits_as_json
    from ralm.retrieval.marks import Marker, spans_of
    from ralm.retrieval.summary import id_mask

    texts = options.read_input(query, queries, "query")
    opened = ralm.open_index(index)
    mask_N = None if path is None else id_mask(opened, path)
    marker = Marker(opened.analysis)
    source = ralm.FromRetriever.of_index(opened, retrieval, mask_N=mask_N)
    hits = source.search(texts, k or K)
    for row, question in enumerate(texts):
        found = [(source.passages[number], score) for number, score in hits.of(row)]
        terms = marker.terms(question)
        if json or queries is not None:
            marks = [spans_of(marker.marks(passage.text, terms)) for passage, _ in found]
            print_json({"query": question, "hits": hits_as_json(found, marks)})
        elif found:
            print_hits(found, marker, terms)
        else:
            process.print_note(
                "no passage was found: none contains an indexed word of the query, or none of them may be found"
            )


_PLAN = PlanOptions(document_tokens=0)


def retrieve_command(
    *,
    given: flags.Given,
    text: Annotated[Path, options.argument("Text to retrieve for.", "TEXTFILE")],
    index: options.IndexFolder,
    lm: Annotated[
        str, Option("Model whose tokens are read: a hub name, local folder, GGUF file, ralm-tiny or smollm2.")
    ],
    out: Annotated[Path, Option("File to write (JSON).")],
    k: Annotated[int, Option("Passages per stride.", flag="-k")] = 16,
    retrieval: RetrieverOptions,
    rerank: Annotated[str, Option("Choose the `k` best of the candidates.", part="rerank")] = "none",
    plan: Annotated[PlanOptions, Option("What is read for a stride.", without=("document_tokens", "bos"))] = _PLAN,
    limit_tokens: options.LimitTokens = None,
    force: options.Force = False,
) -> None:
    """Retrieve for every stride of a text, and write the passages in the format of the official In-Context RALM code.

    Only the tokenizer of the language model is needed, so `--rerank` takes only predictive and random: the `-k` best of
    the candidates are written, best first. If the official evaluation will read the file, use `--semantics
    official` and the same `--max-length` as there. `ralm eval --retrieved` needs the same windows.

    Example: `ralm retrieve my-text.txt -m smollm2 -i my-index -o retrieved.json`
    """
    reading = ReadingOptions(rerank=rerank)
    if reading.reranker_name in ("zero-shot", "oracle"):
        raise UsageError(
            f'`rerank="{reading.reranker_name}"` ranks with the language model, which is not loaded here: rerank when '
            "the text is evaluated (`ralm eval --retrieved`)."
        )
    if 0 < reading.candidates < k:
        raise UsageError(
            f"`rerank` chooses among {reading.candidates} candidates, fewer than the `k` {k} passages to write: raise "
            "the key `candidates`."
        )
    plan = options.with_query_tokens(plan, retrieval, given)

    from ralm.cli.output import print_line
    from ralm.reading import rows, sources, tokens
    from ralm.reading.parts import Parts
    from ralm.storage.outputs import check_output_file

    check_output_file(out, force)
    content = read_text(text)
    source = ralm.FromRetriever.of_index(index, retrieval)
    reranker = open_reranker(rerank, load_language_model)
    tokenizer = load_tokenizer(lm)
    prepared = tokens.prepare_text(content, tokenizer, plan, limit_tokens=limit_tokens)
    hits, passages = source.find(prepared, tokenizer, k if reranker is None else reranker.candidates)
    if reranker is not None:
        hits = Parts(reranker=reranker).choose(rows.StrideRows(prepared, tokenizer, hits), hits, passages, k)
    ralm.write_retrieval_file(out, sources.retrieved_strides(prepared, tokenizer, hits, passages))
    print_line(f"{len(prepared.plan):,} strides of {len(prepared.tokens):,} tokens: {out}")
