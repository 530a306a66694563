"""`ralm ask`: answers questions with a frozen language model, each with its sources."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ralm.answering.options import AnswerOptions
from ralm.cli import options
from ralm.cli.flags import Flags, Given
from ralm.cli.models import open_model
from ralm.errors import UsageError
from ralm.lm.registry import ModelOptions
from ralm.options import Option
from ralm.reading import ReadingOptions
from ralm.retrieval.retriever import RetrieverOptions

if TYPE_CHECKING:
    from ralm.answering.prompts import QuestionPrompt

_RETRIEVAL, _READING = RetrieverOptions(), ReadingOptions()
_ANSWERING, _MODEL = AnswerOptions(), ModelOptions()
_CHAT: Final = AnswerOptions(new_tokens=256, stop=())
"""How an answer is drawn behind a chat template, which models end by themselves."""


def ask_command(
    given: Given,
    lm: options.ModelName,
    question: Annotated[
        str | None, typer.Argument(help="Question to answer; - reads standard input.", show_default=False)
    ] = None,
    questions: Annotated[
        Path | None,
        Option(
            "Answer every line of this file instead; .jsonl: one JSON string, or one object with a question, per line."
        ),
    ] = None,
    index: options.ReadIndex = None,
    retrieval: options.Retrieval = _RETRIEVAL,
    reading: Annotated[ReadingOptions, Flags(without=options.RERANKING)] = _READING,
    prompt: Annotated[
        str | None,
        Option(
            "Prompt by name (in-context-ralm, replug, chat), or a TOML file.",
            default_text="model with a chat template: chat; else ensemble: replug; else in-context-ralm",
        ),
    ] = None,
    answering: Annotated[
        AnswerOptions,
        Flags(
            without=("join",),
            default_text={
                "new_tokens": f"{_ANSWERING.new_tokens}; chat: {_CHAT.new_tokens}",
                "stop": "the end of the line; chat: none",
            },
        ),
    ] = _ANSWERING,
    model_options: Annotated[ModelOptions, Flags(without=("compile",), needs=options.MODEL_NEEDS)] = _MODEL,
    json: Annotated[bool, Option("Print only one JSON object per question, with every token.")] = False,
) -> None:
    """Answer a question with passages in the prompt. Print the answer, then the passages with what each gave to it, and
    how likely the answer is with and without them.

    A model with a chat template is asked through it, another one with the prompt of a paper.
    """
    if (question is None) == (questions is None):
        raise UsageError("give either a `question` or `questions` FILE.")
    options.check_passage_sources(index, None, reading)

    from ralm.answering.citations import Answerer
    from ralm.answering.prompts import open_prompt
    from ralm.answering.sources import QuestionRetriever
    from ralm.cli.answers import print_pieces, print_sources
    from ralm.cli.options import read_input
    from ralm.cli.output import print_cache, print_json, print_line
    from ralm.lm.tokenizer import has_chat_template
    from ralm.reading.sources import FromRetriever

    texts = read_input(question, questions, "question")
    found = None if index is None else FromRetriever.of_index(index, retrieval)
    model = open_model(lm, model_options)
    chosen = open_prompt(prompt or ("chat" if has_chat_template(model.tokenizer) else options.paper_prompt(reading)))
    answerer = Answerer(
        model,
        chosen,
        None if found is None else QuestionRetriever(found),
        reader=reading.chosen_reader,
        options=_drawn(answering, chosen, given),
    )
    if json:
        for answer in answerer.answers(texts):
            print_json(answer.as_json())
    elif questions is None:
        stream = answerer.stream(texts[0])
        print_pieces(stream)
        print_sources(stream.with_sources())
    else:
        for answer in answerer.answers(texts):
            print_line(answer.question)
            print_pieces(answer.answer.pieces)
            print_sources(answer)
            print_line()
    print_cache(found)


def _drawn(answering: AnswerOptions, prompt: "QuestionPrompt", given: Given) -> AnswerOptions:
    """The options with the defaults for chat models, if the prompt is a chat and none were given."""
    if not prompt.chat:
        return answering
    usual = {name: getattr(_CHAT, name) for name in ("new_tokens", "stop") if name not in given}
    return replace(answering, **usual)
