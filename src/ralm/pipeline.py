"""The pipeline: a language model, a source of passages, and the parts that decide what the model reads.

`open_pipeline` is the only place where parts are put together from their names (`ralm.grammar`): commands, the server,
the harness, recipes and the demo call it. From `ralm eval` to a log-probability: `cli.eval`, here, `runs.resume` (with
`--out`), `evaluation.perplexity.evaluate_text`, `reading.score`, `lm.scoring`, `lm.local.engine`. `open` takes names:

    pipe = ralm.open("my-index", lm="smollm2", reader="ensemble:documents=4", mixer="posterior")
    pipe.score(text)
    pipe.generate("Radium was")
    pipe.ask("Who discovered radium?")
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from ralm.answering.answerer import Answerer, SourcedAnswer
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import Conversation, QuestionPrompt, chosen_prompt
from ralm.errors import UsageError
from ralm.evaluation.perplexity import Evaluation, evaluate_text
from ralm.grammar import as_text
from ralm.lm.registry import ModelOptions, load_language_model
from ralm.protocols import LanguageModel
from ralm.reading.generate import generate
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.reading.pieces import GeneratedText
from ralm.reading.plan import PlanOptions
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever, PassageSource, config_of_reading
from ralm.records import Hits
from ralm.reranking import PredictiveOptions, open_reranker
from ralm.reranking.predictive import CrossEncoder
from ralm.settings import PipelineOptions, PlannedOptions, read_settings


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pipeline:
    """A language model that reads passages of a source; without one, the plain model.

    Example:
        >>> pipe = ralm.open("my-index", lm="smollm2")
        >>> pipe.score(text).reading.measures.token_perplexity
    """

    model: Any
    source: PassageSource | None = None
    parts: Parts = IN_CONTEXT
    plan: PlanOptions = field(default_factory=PlanOptions)

    @property
    def config(self) -> dict[str, JsonValue]:
        """Everything about the model, its passages and the parts that decides figures, as JSON."""
        return config_of_reading(self.model, self.source, self.parts)

    def find(self, queries: Sequence[str], k: int | None = None) -> Hits:
        """Return the k best passages for each query, by default as many as are retrieved for a row.

        Raises:
            UsageError: If there is no index.
            PartError: If the retriever does not return valid hits.
        """
        if (source := self.searched) is None:
            raise UsageError("passages are found in an index: give `index`.")
        return source.search(queries, self.parts.hits if k is None else k)

    def score(self, text: str, *, baseline: bool = True, limit_tokens: int | None = None) -> Evaluation:
        """Score a text stride by stride, with passages and, as the `baseline`, without.

        Raises:
            UsageError: If lengths do not fit into the model, or a part cannot score a text.
        """
        return evaluate_text(
            text,
            self.model,
            self.plan,
            source=self.source,
            parts=self.parts,
            limit_tokens=limit_tokens,
            baseline=baseline and self.source is not None,
        )

    def stream(self, prompt: str, **sampling: Any) -> Iterator[GeneratedText]:
        """Continue a prompt piece by piece, each with the passages that it was read with.

        Args:
            prompt: The text to continue.
            **sampling: Options of `GenerationOptions`, such as `new_tokens=32` or `temperature=0.7`.

        Raises:
            UsageError: If the prompt is empty, or lengths do not fit into the model.
        """
        return generate(prompt, self.model, GenerationOptions.of(self.plan, **sampling), self.searched, self.parts)

    def generate(self, prompt: str, **sampling: Any) -> str:
        """Return the continuation of a prompt; arguments and errors are those of `stream`."""
        return "".join(piece.text for piece in self.stream(prompt, **sampling))

    def ask(
        self, question: str | Conversation, *, prompt: QuestionPrompt | None = None, **answering: Any
    ) -> SourcedAnswer:
        """Answer a question, with the sources of the answer.

        Args:
            question: The question, or the last message of the user in a conversation.
            prompt: By default `chat` for a model with a chat template, else that of the paper that has this reader.
            **answering: Options of `AnswerOptions`, such as `new_tokens=64`.

        Raises:
            UsageError: If the question is empty or does not fit into the model.
        """
        chosen, options = chosen_prompt(prompt, self.model.tokenizer, self.parts.reader, AnswerOptions(), answering)
        drawn = replace(options, **answering)
        answerer = Answerer(self.model, chosen, self.searched, parts=self.parts, options=drawn)
        [answer] = answerer.answers([question])
        return answer

    @property
    def searched(self) -> FromRetriever | None:
        """The source if it is an index, None without a source; UsageError if it is a file."""
        if self.source is None or isinstance(self.source, FromRetriever):
            return self.source
        raise UsageError("passages are found for a query in an index: give `index`.")


def open_pipeline(
    options: PipelineOptions,
    *,
    source: PassageSource | None = None,
    plan: PlanOptions | None = None,
    load: Callable[[str, ModelOptions], LanguageModel] = load_language_model,
    load_pairs: Callable[[PredictiveOptions], CrossEncoder] = PredictiveOptions.load,
) -> Pipeline:
    """Open an index and a language model, and put the parts together.

    What options alone can tell is checked before a model is loaded.

    Args:
        options: The model, the index, and the parts by name.
        source: Passages from elsewhere, such as a file.
        plan: What is read for a stride; by default that of In-Context RALM.
        load: Loads a language model by name.
        load_pairs: Loads a cross-encoder.

    Raises:
        UsageError: If there is no such part, or parts do not go together.
    """
    reading = options.reading
    options.model.check_effect(options.lm, *filter(None, [reading.ranker]))
    if source is None:
        options.check_source()
        source = FromRetriever.of_index(options.index, options.retrieval) if options.retrieves else None
    parts = reading.parts()
    model = load(options.lm, options.model)
    reranker = open_reranker(reading.rerank, lambda name: load(name, options.model.of(name, options.lm)), load_pairs)
    return Pipeline(model=model, source=source, parts=replace(parts, reranker=reranker), plan=plan or PlanOptions())


def open(  # noqa: A001  # users write `ralm.open`
    index: Path | str | None = None, *, lm: str, **settings: Any
) -> Pipeline:
    """Open an index and a language model as a pipeline.

    Args:
        index: The folder of an index; None is the plain model, or with the URL of a search service as `retriever` a
            model that reads passages from there.
        lm: The language model: a hub name, folder, GGUF file, `ralm-tiny`, `smollm2`, or `URL#MODEL` of an API.
        **settings: Options of `ralm eval` by name: `retriever`, `where`, `rerank`, `reader`, `documents`, `mixer`,
            `lm_args`, `stride`, `max_length` and the others. A part is a text, `NAME:key=value,...`; a reader, mixer or
            reranker may be an object.

    Returns:
        A pipeline, which finds passages, scores, generates and answers.

    Raises:
        UsageError: If there is no such setting or part, or if settings do not go together.

    Example:
        >>> pipe = ralm.open("my-index", lm="smollm2", reader="ensemble:documents=4", mixer="posterior")
        >>> pipe.ask("Who discovered radium?").answer.text
    """
    values = {name: value for name, value in settings.items() if value is not None}
    fields = {"reader": "reader", "mixer": "mixer", "rerank": "reranker"}
    objects = {part: values.pop(name) for name, part in fields.items() if not isinstance(values.get(name, ""), str)}
    texts = {name: as_text(value) for name, value in values.items()}
    where = {} if index is None else {"index": str(index)}
    options = read_settings(PlannedOptions, {"lm": lm, **where, **texts}, "the pipeline")
    pipeline = open_pipeline(options, plan=options.plan)
    return replace(pipeline, parts=replace(pipeline.parts, **objects))
