"""`ralm ask`: answers questions with a frozen language model, each with its sources."""

from pathlib import Path
from typing import Annotated

import ralm
from ralm.answering.options import AnswerOptions
from ralm.cli import flags, models, options
from ralm.options import Option
from ralm.settings import PipelineOptions


def ask_command(
    *,
    given: flags.Given,
    pipeline: PipelineOptions,
    question: Annotated[str | None, options.argument("Question to answer; - reads standard input.")] = None,
    questions: Annotated[
        Path | None,
        Option(
            "Answer every line of this file instead; .jsonl: one JSON string, or one object with a question, per line."
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        Option(
            'Prompt by name (in-context-ralm, replug, chat:system="Be brief."), or a TOML file.',
            default_text=options.PROMPT_TEXT,
        ),
    ] = None,
    answering: Annotated[AnswerOptions, Option("How an answer is drawn.", without=("join",))],
    json: Annotated[bool, Option("Print only one JSON object per question, with every token.")] = False,
) -> None:
    """Answer a question with passages in the prompt. Print the answer, then each passage with how it is known to be a
    source (measured, cited, quoted or only retrieved), and how likely the answer is in the same prompt with and without
    passages.

    A model with a chat template is asked through it, another one with the prompt of a paper.

    Example: `ralm ask "Who discovered radium?" -m smollm2 -i my-index`
    """
    options.check_reranked_questions(pipeline.reading)
    texts = options.read_input(question, questions, "question")

    from ralm.answering.prompt_reader import chosen_prompt
    from ralm.cli import answers, output
    from ralm.pipeline import open_pipeline

    named = None if prompt is None else ralm.open_prompt(prompt)
    opened = open_pipeline(pipeline, load=models.open_model)
    model, parts = opened.model, opened.parts
    chosen, answering = chosen_prompt(named, model.tokenizer, parts.reader, answering, given)
    answerer = ralm.Answerer(model, chosen, opened.searched, parts=parts, options=answering)
    if json:
        for answer in answerer.answers(texts):
            output.print_json(answer.as_json())
    elif questions is None:
        stream = answerer.stream(texts[0])
        answers.print_pieces(piece for _, piece in stream)
        answers.print_sources(stream.with_sources())
    else:
        for answer in answerer.answers(texts):
            output.print_line(answer.question)
            answers.print_pieces(answer.answer.pieces)
            answers.print_sources(answer)
            output.print_line()
