"""`ralm ask`: answers questions with a frozen language model, each with its sources."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import ralm
from ralm.cli import flags, options, process
from ralm.errors import UsageError, extra
from ralm.lm.api.endpoint import is_api
from ralm.lm.registry import API_PACKAGES
from ralm.options import Option
from ralm.settings import PipelineOptions
from ralm.terminal import visible


def ask_command(
    *,
    user_flags: flags.UserFlags,
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
            "Prompt by name (in-context-ralm, replug, chat), or a TOML file.",
            default_text=f"chat API: numbered; {options.PROMPT_TEXT}",
        ),
    ] = None,
    answering: Annotated[ralm.AnswerOptions, Option("How an answer is drawn.", without=("join",))],
    json: Annotated[bool, Option("Print only one JSON object per question, with every token.")] = False,
) -> None:
    """Answer a question with passages in the prompt.

    Print the answer, then each passage with how it is known to be a source (measured, cited, quoted or only retrieved),
    and how likely the answer is in the same prompt with and without passages.

    A model with a chat template is asked through it, another one with the prompt of a paper. A chat API gets one
    request for a question, and its answer is judged by its text alone.

    Example: `ralm ask "Who discovered radium?" -m smollm2 -i my-index`
    """
    options.check_reranked_questions(pipeline.reading)
    texts = options.read_input(question, questions, "question")
    if is_api(pipeline.lm):
        _ask_chat_api(texts, pipeline, prompt, answering, user_flags, as_json=json)
        return

    from ralm.answering.prompts import chosen_prompt
    from ralm.cli import output, results
    from ralm.pipeline import open_pipeline

    named = None if prompt is None else ralm.open_prompt(prompt)
    opened = open_pipeline(pipeline, load=process.open_model)
    model, parts = opened.model, opened.parts
    chosen, answering = chosen_prompt(named, model.tokenizer, parts.reader, answering, user_flags)
    answerer = ralm.Answerer(model, chosen, opened.searched, parts=parts, options=answering)
    if json:
        for answer in answerer.answers(texts):
            output.print_json(answer.as_json())
    elif questions is None:
        stream = answerer.stream(texts[0])
        results.print_pieces(piece for _, piece in stream)
        results.print_sources(stream.with_sources())
    else:
        for answer in answerer.answers(texts):
            output.print_line(answer.question)
            results.print_pieces(answer.answer.pieces)
            results.print_sources(answer)
            output.print_line()


def _ask_chat_api(
    texts: Sequence[str],
    pipeline: PipelineOptions,
    prompt: str | None,
    answering: ralm.AnswerOptions,
    user_flags: flags.UserFlags,
    *,
    as_json: bool,
) -> None:
    """Ask a model behind an API, and print its answers with their sources."""
    if pipeline.reading.mixes or pipeline.reading.reranks:
        raise UsageError(
            "`ralm ask` puts all passages into one request for a chat API: leave out `reader` ensemble and `rerank`; "
            "`ralm qa` and `generate` have them."
        )
    pipeline.check_source()

    from ralm.answering.chat_api import ChatApi
    from ralm.answering.prompts import as_chat
    from ralm.cli import output, results
    from ralm.reading.sources import FromRetriever

    with extra("api", "models behind an API need", API_PACKAGES):
        api = ChatApi(pipeline.lm, pipeline.model.api, user_flags)
    process.closed_at_end(pipeline.lm, pipeline.model, api)
    source = FromRetriever.of_index(pipeline.index, pipeline.retrieval) if pipeline.retrieves else None
    chosen = ralm.open_prompt(prompt or "numbered")
    reader = pipeline.reading.parts().reader
    for answer in api.answers(texts, chosen, source, reader, as_chat(answering, user_flags)):
        if as_json:
            output.print_json(answer.as_json())
            continue
        if len(texts) > 1:
            output.print_line(answer.question)
        output.print_line(visible(answer.text.strip()) or "(an empty answer)")
        results.print_passages(answer.text, answer.sources)
        if len(texts) > 1:
            output.print_line()
