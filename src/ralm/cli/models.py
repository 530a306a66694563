"""Language models and their tokenizers by name, as several commands load them. Importing this takes seconds: torch."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pydantic import JsonValue

from ralm.cli.messages import note
from ralm.lm.journal import Journal
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.local.options import ModelOptions
from ralm.lm.local.tokenization import ModelTokenizer, load_model_tokenizer
from ralm.lm.named import load_language_model, model_folder
from ralm.runs.unfinished import JOURNAL, unfinished_run


def load_tokenizer(name: str) -> ModelTokenizer:
    """The tokenizer of a model, without its weights."""
    return load_model_tokenizer(model_folder(name))


def load_model(name: str, options: ModelOptions) -> LocalLanguageModel:
    """A model by its name, as the options say."""
    return load_language_model(name, options)


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
            note(f"going on with a run that was stopped: {kept:,} requests were scored before")
        yield
