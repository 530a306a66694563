"""What several commands open before they work: a model by name, an index or a file of passages."""

import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from ralm.cli.options import RetrieverChoice
from ralm.corpus.text import read_text
from ralm.demo.builtin import load_language_model, model_folder
from ralm.evaluation.unfinished import JOURNAL, unfinished_run
from ralm.lm.journal import Journal
from ralm.lm.local import Dtype, LocalLanguageModel, ModelOptions
from ralm.lm.tokenization import ModelTokenizer, load_model_tokenizer
from ralm.pipeline import FromFile, FromRetriever, PassageSource
from ralm.protocols import Retriever
from ralm.retrieval.cache import CachedRetriever
from ralm.retrieval.dense.loading import load_encoder
from ralm.retrieval.fusion import Hybrid
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.random import RandomRetriever
from ralm.retrieval.retrieval_file import read_retrieval_file

if TYPE_CHECKING:
    from ralm.retrieval.dense.search import Dense


def open_source(index: Path | None, retrieved: Path | None, choice: RetrieverChoice) -> PassageSource | None:
    """The source of passages that the options name; none where they name none."""
    if index is not None:
        return open_retriever(index, choice)
    if retrieved is not None:
        strides = read_retrieval_file(retrieved)
        digest = hashlib.sha256(retrieved.read_bytes()).hexdigest()
        return FromFile(strides, config={"retrieved": str(retrieved), "sha256": digest})
    return None


def open_retriever(index: Path, choice: RetrieverChoice) -> FromRetriever:
    """An index as a source of passages, by the retriever chosen, through a cache where one is named."""
    opened = open_index(index)
    retriever, own = _retriever(opened, choice)
    decisive = {"fingerprint": opened.fingerprint, "retriever": choice.name, **own}
    if choice.cache is not None:
        retriever = CachedRetriever(retriever, choice.cache, decisive)
    return FromRetriever(retriever, opened.passages, {"index": str(index), **decisive})


def _retriever(index: Index, choice: RetrieverChoice) -> tuple[Retriever, dict[str, JsonValue]]:
    """The retriever, and what decides its hits beside the index."""
    match choice.name:
        case "bm25":
            return index.bm25, index.bm25.config
        case "random":
            return RandomRetriever(len(index.passages), choice.seed), {"seed": choice.seed}
        case "dense":
            dense = _dense(index, choice)
            return dense, dense.config
        case "hybrid":
            dense = _dense(index, choice)
            hybrid = Hybrid(index.bm25, dense, choice.fusion)
            return hybrid, {**index.bm25.config, **dense.config, **hybrid.config}


def _dense(index: Index, choice: RetrieverChoice) -> "Dense":
    encoder = None
    if choice.query_encoder is not None:
        encoder = load_encoder(replace(index.encoder_options, query_encoder=choice.query_encoder))
    return index.dense(choice.search, encoder=encoder, any_encoder=choice.any_encoder)


def load_tokenizer(name: str) -> ModelTokenizer:
    """The tokenizer of a model, without its weights."""
    return load_model_tokenizer(model_folder(name))


def read_prompts(prompt: str | None, file: Path | None) -> list[str]:
    """The prompt itself, or standard input where it is `-`; without one, every line of a file."""
    if file is not None:
        return read_text(file).splitlines()
    return [sys.stdin.read().rstrip("\n") if prompt == "-" else prompt or ""]


def load_model(name: str, dtype: Dtype, device: str, compile_layers: bool = False) -> LocalLanguageModel:
    """A model by its name, as the options say."""
    return load_language_model(name, ModelOptions(dtype=dtype, device=device, compile=compile_layers))


@contextmanager
def journals(
    out: Path | None, config: dict[str, JsonValue], models: Sequence[LocalLanguageModel | None], *, force: bool
) -> Iterator[None]:
    """While a run is written to `out`, keep what its models score beside it, and use what was kept before."""
    if out is None:
        yield
        return
    with unfinished_run(out, config, force=force) as folder, ExitStack() as stack:
        kept = 0
        for place, model in enumerate(models):
            if model is not None:
                model.journal = stack.enter_context(Journal(folder / f"model-{place}{JOURNAL}"))
                kept += len(model.journal)
        if kept:
            sys.stderr.write(f"ralm: going on with a run that was stopped: {kept:,} requests were scored before\n")
        yield
