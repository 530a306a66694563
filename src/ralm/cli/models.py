"""Language models and their tokenizers by name, as several commands load them. Importing this takes seconds: torch."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pydantic import JsonValue

from ralm.cli.messages import note
from ralm.lm.journal import Journal
from ralm.lm.local.model import Dtype, LocalLanguageModel, ModelOptions
from ralm.lm.local.tokenization import ModelTokenizer, load_model_tokenizer
from ralm.lm.named import load_language_model, model_folder
from ralm.lm.scoring import Scorer
from ralm.protocols import LanguageModel
from ralm.runs.unfinished import JOURNAL, unfinished_run


def load_tokenizer(name: str) -> ModelTokenizer:
    """The tokenizer of a model, without its weights."""
    return load_model_tokenizer(model_folder(name))


def load_model(name: str, dtype: Dtype, device: str, compile_layers: bool = False) -> LocalLanguageModel:
    """A model by its name, as the options say."""
    return load_language_model(name, ModelOptions(dtype=dtype, device=device, compile=compile_layers))


@contextmanager
def journals(
    out: Path | None,
    config: dict[str, JsonValue],
    model: LanguageModel,
    ranker: LanguageModel | None = None,
    *,
    force: bool,
) -> Iterator[tuple[LanguageModel | Scorer, LanguageModel | Scorer | None]]:
    """The models. While a run is written to `out`, they are scorers that keep what they score beside the run, and use
    what was kept before."""
    if out is None:
        yield model, ranker
        return
    models = [model] if ranker is None else [model, ranker]
    with unfinished_run(out, config, force=force) as folder, ExitStack() as stack:
        files = [folder / f"model-{place}{JOURNAL}" for place in range(len(models))]
        kept = [stack.enter_context(Journal(file)) for file in files]
        if any(kept):
            note(f"going on with a run that was stopped: {sum(map(len, kept)):,} requests were scored before")
        scorers = [Scorer(one, journal) for one, journal in zip(models, kept, strict=True)]
        yield scorers[0], None if ranker is None else scorers[1]
