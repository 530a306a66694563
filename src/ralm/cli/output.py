"""What commands print on standard output: one JSON object, or text for a person."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import JsonValue
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ralm.cli.corpus import ReadCorpus
from ralm.corpus.decontamination import BY_OVERLAP, BY_TITLE
from ralm.demo.demonstration import Demonstration, most_gained, prompt_where_retrieval_helps
from ralm.evaluation.perplexity import Evaluation
from ralm.evaluation.sweep import Sweep
from ralm.protocols import Tokenizer, WritingModel
from ralm.reading.generate import generate
from ralm.reading.pieces import GeneratedText, GeneratedToken, shares, spans
from ralm.reading.provenance import TracedText, gain_as_json, identified, token_as_json
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever, PassageSource
from ralm.records import NO_PASSAGE, Passage, Passages
from ralm.retrieval.cache import CachedRetriever
from ralm.retrieval.layout import segment_entries, vector_sets
from ralm.runs.comparison import Comparison
from ralm.runs.run import to_json
from ralm.runs.sweep_folder import PLOT, TABLE
from ralm.storage.manifest import Manifest
from ralm.storage.outputs import MANIFEST
from ralm.terminal import one_line, visible
from ralm.training.reranker import TrainedReranker
from ralm.training.retriever import TrainedRetriever
from ralm.training.signals import SignalStatistics

if TYPE_CHECKING:
    from ralm.training.bm25 import LearnedWeighting

DEMO_ROWS = {
    "none": "no retrieval",
    "random": "random passages",
    "bm25": "BM25 passages",
    "oracle": "best of BM25's 16 (oracle)",
}
NEXT_STEPS = """
Where every token came from: open {folder}/report.html in a browser.

Next, with your own text and any model of the hub:

  ralm search {folder}/index "open a file for writing"
  ralm eval {folder}/heldout.txt --lm ralm-tiny --index {folder}/index --limit-tokens 2000 --windows blocked --baseline
  ralm index YOUR_DOCUMENTS --out my-index
  ralm eval YOUR_TEXT.txt --lm gpt2 --index my-index --baseline --out my-run
  ralm generate "Once upon a time" --lm gpt2 --index my-index
"""
_LONGEST_METADATA = 300
"""How many characters of a passage's metadata are printed."""
_SOURCES = 3
"""How many passages of an ensemble are named for a part of a text."""
MEASURES = ("token_perplexity", "word_perplexity", "bits_per_byte")


def print_json(value: JsonValue) -> None:
    """Print a JSON value on one line."""
    sys.stdout.write(to_json(value) + "\n")


def print_line(text: str = "") -> None:
    """Print a line for a person."""
    sys.stdout.write(visible(text) + "\n")


def print_evaluation(evaluation: Evaluation, out: Path | None) -> None:
    """Print the measures of a reading, and those of its baseline if there is one."""
    rows = {"with passages" if evaluation.passages else "no retrieval": evaluation.reading.as_dict()}
    if evaluation.baseline is not None:
        rows = {"no retrieval": evaluation.baseline.as_dict(), **rows}
    print_measures(rows)
    if out is not None:
        print_line(f"Every token with its source: {out}/tokens.parquet")


def print_measures(rows: Mapping[str, Mapping[str, JsonValue]]) -> None:
    """Print a table with one row per reading; the gain compares token perplexities with the first row."""
    table = Table(box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("")
    for heading in ("token ppl", "word ppl", "bits/byte", "gain", "seconds"):
        table.add_column(heading, justify="right")
    first = next(iter(rows.values()))
    bounded = any("bounds" in measures for measures in rows.values())
    for name, measures in rows.items():
        gain = 1 - number(measures["token_perplexity"]) / number(first["token_perplexity"])
        table.add_row(
            name,
            *(_measure(measures, measure) for measure in MEASURES),
            "" if measures is first or bounded or not math.isfinite(gain) else f"{gain:+.1%}",
            f"{number(measures['seconds']):.1f}",
        )
    count = f"{number(first['tokens']):,.0f} tokens, {number(first['words']):,.0f} words"
    console = Console(file=sys.stdout, highlight=False)
    console.print(table)
    console.print(f"  {count}; gain: how much lower the token perplexity is", style="dim")
    for name, measures in rows.items():
        if "exact" in measures:
            console.print(f"  {name}: {number(measures['exact']):.1%} of the tokens are known, the others by bounds")


def _measure(measures: Mapping[str, JsonValue], name: str) -> str:
    """A measure, or its bounds."""
    bounds = measures.get("bounds")
    found = bounds[name] if isinstance(bounds, dict) else None
    if not isinstance(found, list):
        return f"{number(measures[name]):.2f}"
    least, most = map(number, found)
    return f"{least:.2f} to {most:.2f}" if math.isfinite(most) else f">= {least:.2f}"


def print_sweep(swept: Sweep, out: Path | None) -> None:
    """Print a table with one row per value; the gain compares token perplexities with and without passages."""
    table = Table(box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column(f"--{swept.option}", no_wrap=True)
    for heading in ("token ppl", "word ppl", "bits/byte", "none", "gain"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in swept.rows():
        columns = (*MEASURES, "none_token_perplexity")
        shown = [f"{number(row[column]):.2f}" for column in columns]
        table.add_row(Text(one_line(str(row[swept.option]))), *shown, f"{number(row['gain']):+.1%}")
    console = Console(file=sys.stdout, highlight=False)
    console.print(table)
    print_line("  none: the token perplexity without passages; gain: how much lower it is with them")
    print_line(
        f"  {swept.scored:,} of {swept.requests:,} requests scored, {swept.retrievals:,} retrievals: the rest shared"
    )
    if out is not None:
        plot = f", {out / PLOT}" if (out / PLOT).exists() else ""
        print_line(f"The table: {out / TABLE}{plot}")


def print_comparison(compared: Comparison) -> None:
    """Print a table with one row per run."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("", overflow="fold")
    for heading in ("token perplexity", "against the first"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in compared.runs:
        low, high = run.perplexity_interval
        row = [run.path.name, f"{run.token_perplexity:.2f} ({low:.2f}, {high:.2f})"]
        if run.change is not None and run.change_interval is not None:
            low, high = run.change_interval
            row.append(f"{run.change:+.1%} ({low:+.1%}, {high:+.1%})")
        table.add_row(*(Text(one_line(cell)) for cell in row))
    console = Console(file=sys.stdout, highlight=False)
    console.print(table)
    print_line(f"  {compared.targets:,} tokens; 95% intervals by bootstrap over {compared.documents:,} documents")


def print_index(out: Path, manifest: Manifest, read: ReadCorpus) -> None:
    """Print what an index holds, and what was left out of it."""
    counts = manifest.counts
    parts = [f"{counts[what]:,} {what}" for what in ("passages", "terms", "postings") if what in counts]
    print_line(f"{out}: {', '.join(parts)}")
    if isinstance(dense := manifest.settings.get("dense"), dict):
        print_vectors(dense, counts["passages"])
    _print_left_out(out, read)


def _print_left_out(out: Path, read: ReadCorpus) -> None:
    for reason in (BY_TITLE, BY_OVERLAP):
        if removed := read.removals.count(reason):
            print_line(f"left out for {reason}: {removed:,} passages, see {out / MANIFEST}")
    for line in read.left_out.lines():
        print_line(f"left out: {one_line(line)}")


def print_update(index: Path, manifest: Manifest, read: ReadCorpus | None) -> None:
    """Print what an index holds after an update or a merge, and what was left out of what was added."""
    counts = manifest.counts
    segments = len(segment_entries(index, manifest).entries)
    print_line(
        f"{index}: {counts['passages']:,} passages of {counts['documents']:,} documents in {segments} "
        f"segment{'s' if segments > 1 else ''}"
    )
    if read is not None:
        _print_left_out(index, read)


def print_encoded(index: Path, manifest: Manifest, name: str) -> None:
    """Print the vectors that were added to an index, and which ones it has now."""
    sets = vector_sets(index, manifest)
    others = [f"{other} (default)" if other == sets.default else other for other in sets.sets]
    print_line(f"{index}: vectors {', '.join(others)}")
    print_vectors(sets.sets[name].model_dump(mode="json"), manifest.counts["passages"])


def print_worth(folder: Path, worth: SignalStatistics) -> None:
    """Print what signals are worth: the gain of choosing well, and how much they prefer some passages."""
    print_line(f"{folder}: {worth.examples:,} examples with passages to choose from")
    left = {"fewer than two passages": worth.single, "a token that the model gives no probability": worth.impossible}
    for what, count in left.items():
        if count:
            print_line(f"  not used: {count:,} with {what}")
    print_line("gain over no passage, in nats per token:")
    for name, gain in (("first", worth.first), ("random", worth.random), ("best", worth.best)):
        print_line(f"  {name:<8}{gain:+.4f}")
    print_line(f"examples without preference (less than 0.01 nats per token): {worth.no_preference:,}")
    print_line("entropy of Q, the softmax of the mean log-probability over beta, in nats:")
    for beta, entropy in worth.entropies.items():
        print_line(f"  beta {beta:<5}{entropy:.3f} of {worth.uniform:.3f}")


def print_reranker(trained: TrainedReranker) -> None:
    """Print where a reranker is, and what its choice is worth on the held-out examples."""
    print_line(f"{trained.out}: reranker of step {trained.best_step:,}, after {trained.steps:,} steps")
    known = [f"the rank counts {trained.rank_weight:.2f}"] if trained.rank_weight else []
    if trained.likelihood is not None:
        much, decay = (number(trained.likelihood[name]) for name in ("weight", "decay"))
        known.append(f"the likelihood of the prefix's last tokens {much:.2f} (decay {decay:.0f})")
    if known:
        print_line(f"beside its score, {' and '.join(known)}")
    _print_held_out_loss(trained)
    if trained.held_out is not None:
        none = number(trained.held_out["none"])
        gains = {name: number(value) - none for name, value in trained.held_out.items()}
        print_line(
            f"gain per token of held-out examples: {gains['first']:+.4f} nats with the first candidate, "
            f"{gains['chosen']:+.4f} with the reranker's choice, {gains['best']:+.4f} with the best"
        )


def print_query_encoder(trained: TrainedRetriever) -> None:
    """Print where a query encoder is, how to search with it, and what its choice is worth on the held-out examples."""
    print_line(f"{trained.out}: query encoder of step {trained.best_step:,}, after {trained.steps:,} steps")
    _print_held_out_loss(trained)
    if trained.held_out is not None:
        none = trained.held_out["none"]
        gains = {name: value - none for name, value in trained.held_out.items()}
        print_line(
            f"gain per token of held-out examples: {gains['first']:+.4f} nats with the first candidate of the signals, "
            f"{gains['chosen_before']:+.4f} with the encoder's choice before, {gains['chosen']:+.4f} after, "
            f"{gains['best']:+.4f} with the best"
        )
    print_line(f"search the same index with --retriever dense --query-encoder {trained.out}")


def print_encoders(trained: TrainedRetriever, index: Path, vectors: str) -> None:
    """Print where trained encoders are, what became of their loss, and how to search."""
    print_line(f"{trained.out}: encoders of step {trained.best_step:,}, after {trained.steps:,} steps")
    _print_held_out_loss(trained)
    print_line(f"search {index} with --retriever dense --vectors {vectors}")


def _print_held_out_loss(trained: TrainedReranker | TrainedRetriever) -> None:
    """Print what became of the loss of the held-out examples, if there are any."""
    losses = {row["step"]: row["held_out_loss"] for row in trained.losses}
    before, after = losses.get(0), losses.get(trained.best_step)
    if before is not None and after is not None:
        print_line(f"loss of the held-out examples: {before:.4f} before, {after:.4f} after")


def print_weighting(folder: Path, learned: "LearnedWeighting") -> None:
    """Print which weights of query terms were tried, and what the best gain on held-out examples."""
    print_line(f"gain over no passage on {learned.examples:,} training examples, in nats per token:")
    for one in learned.tried:
        print_line(f"  weights {_weights(one.weights):<10}{one.gain:+.4f}")
    print_line(
        f"on {learned.held_out:,} held-out examples, BM25 gains {learned.plain:+.4f}; weights {_weights(learned.best)} "
        f"gain {learned.gain:+.4f} more (95%: {learned.interval[0]:+.4f} to {learned.interval[1]:+.4f})"
    )
    if learned.weighting.is_plain:
        print_line(f"{folder}: all terms weigh the same, as in plain BM25, since no other weights are better")
    else:
        print_line(f"{folder}: search the same index with --weighting {folder}")


def _weights(weights: Sequence[int]) -> str:
    return ", ".join(map(str, weights))


def print_demo(folder: Path, shown: Demonstration, model: WritingModel, bm25: FromRetriever) -> None:
    """Print the table, the tokens that gained most, one generation with its sources, and commands to try next."""
    print_line(f"\n{model.name} on documentation it never saw, with passages from the rest of it:")
    print_measures({DEMO_ROWS[name]: reading.as_dict() for name, reading in shown.readings.items()})
    print_line("\nTokens that gained most from the passage in front of them:\n")
    for gained in most_gained(shown, model):
        before = " ".join(gained.before.split())
        source = source_name(gained.passage, shown.passages)
        print_line(f"  {gained.gain:+5.1f} nats  ...{before} [{gained.token.strip()}]   <- {source}")
    print_line("\nGeneration, where retrieval helps most; every part with its source:\n")
    prompt = prompt_where_retrieval_helps(shown, model)
    print_generation(prompt, generate(prompt, model, GenerationOptions(), bm25), bm25.passages)
    print_line(NEXT_STEPS.format(folder=folder))


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
        **({"unlisted": token.unlisted} if token.unlisted else {}),
    }


def _sources(span: GeneratedText, passages: Passages) -> str:
    """The source of a part; for an ensemble, the passages that contributed most of its probability."""
    given = shares(span.tokens)
    if len(given) <= 1:
        return source_name(span.passage, passages)
    most = list(given.items())[:_SOURCES]
    return ", ".join(f"{source_name(number, passages)} {share:.0%}" for number, share in most)


def _source(number: int, passages: Passages) -> dict[str, JsonValue]:
    if number == NO_PASSAGE:
        return {"passage": None, "document_id": None, "title": None, "metadata": {}}
    return identified(passages[number])


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
