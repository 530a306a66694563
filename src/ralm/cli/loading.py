"""What several commands open before they work: a model by name, an index or a file of passages."""

import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pydantic import JsonValue

from ralm.demo.builtin import load_language_model, model_folder
from ralm.evaluation.unfinished import JOURNAL, unfinished_run
from ralm.lm.journal import Journal
from ralm.lm.local import Dtype, LocalLanguageModel, ModelOptions
from ralm.lm.tokenization import ModelTokenizer, load_model_tokenizer
from ralm.pipeline import FromFile, FromRetriever, PassageSource
from ralm.retrieval.index import open_index
from ralm.retrieval.random import RandomRetriever
from ralm.retrieval.retrieval_file import read_retrieval_file


def open_source(index: Path | None, retrieved: Path | None, retriever: str, seed: int) -> PassageSource | None:
    """The source of passages that the options name; none where they name none."""
    if index is not None:
        return open_retriever(index, retriever, seed)
    if retrieved is not None:
        strides = read_retrieval_file(retrieved)
        digest = hashlib.sha256(retrieved.read_bytes()).hexdigest()
        return FromFile(strides, config={"retrieved": str(retrieved), "sha256": digest})
    return None


def open_retriever(index: Path, retriever: str, seed: int) -> FromRetriever:
    """An index as a source of passages: by BM25, or at random."""
    opened = open_index(index)
    config = {"index": str(index), "fingerprint": opened.fingerprint, "retriever": retriever}
    if retriever == "random":
        return FromRetriever(RandomRetriever(len(opened.passages), seed), opened.passages, {**config, "seed": seed})
    return FromRetriever(opened.bm25, opened.passages, {**config, **opened.bm25.config})


def load_tokenizer(name: str) -> ModelTokenizer:
    """The tokenizer of a model, without its weights."""
    return load_model_tokenizer(model_folder(name))


def read_prompt(prompt: str) -> str:
    """The prompt itself, or standard input where it is `-`."""
    return sys.stdin.read().rstrip("\n") if prompt == "-" else prompt


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
