"""Answers to questions against the plain loop of prompts: same model, prompts and tokens, in one process.

    python -m benchmarks.answering [--model ralm-tiny gpt2] [--questions 3] [--plain-questions 1] [--out FILE]

Questions of NQ with ten passages each (the gold one and the nine after it in the file), as an ensemble in REPLUG's
prompt: an answer of at most ten tokens, and the log-probability of the gold answer. The 16 demonstrations are the
shortest of the first hundred questions, each with its gold passage; the questions are those after the first hundred.

    shared  every passage is cut to its first 12 words, so that 16 demonstrations and a question fit into 1,024 tokens
            of both models: all prompts begin alike
    cut     whole passages: 16 demonstrations do not fit, and every prompt loses another number of its oldest tokens,
            so that hardly two begin alike
    none    whole passages, no demonstrations: prompts begin alike with a word or two

The plain loop reads each prompt whole, continues it with transformers' own cache, and reads it again with the gold
answer behind it; the logits are computed only where they are needed. `gpt2` has GPT-2 124M's shape and random weights.
Times are processor times of one thread; retrieval is not part of them. The data must be beside the checkout.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from pydantic import JsonValue
from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedModel
from transformers.cache_utils import DynamicCache

from benchmarks.scoring import gpt2_tokenizer
from ralm.answering.answers import room_for_prompts
from ralm.answering.evaluation import evaluate_questions
from ralm.answering.options import AnswerOptions
from ralm.answering.prompt_reader import open_prompt
from ralm.answering.questions import Question
from ralm.answering.sources import PromptBuilder, QuestionInput
from ralm.lm import model_path
from ralm.lm.registry import load_language_model
from ralm.protocols import WritingModel
from ralm.reading.ensemble import Ensemble
from ralm.reading.mixture import mix
from ralm.reading.parts import Parts
from ralm.records import DoubleArray, FloatArray, Hits, IntArray, Passage, Passages
from ralm.terminal import no_progress

DATA: Final = Path(__file__).parents[2] / "shared" / "data" / "nq_oracle"
SHOTS, WORDS, FIRST = 16, 12, 100
READER: Final = Ensemble(documents=10)
OPTIONS: Final = AnswerOptions()
PROMPT: Final = open_prompt("replug")


@dataclass(frozen=True)
class Row:
    """One row of the table. Tokens are those of all prompts of a question."""

    model: str
    case: str
    questions: int
    tokens: float
    plain_seconds: float
    seconds: float
    ratio: float
    equal_answers: int
    compared: int
    difference: float


@dataclass(frozen=True)
class Task:
    """Questions, their demonstrations, and where their passages stand."""

    questions: Sequence[Question]
    shown: Sequence[Question]
    passages: Passages

    @property
    def config(self) -> dict[str, JsonValue]:
        """Nothing: no run is kept."""
        return {}

    def find(self, questions: Sequence[Question], k: int) -> tuple[Hits, Passages]:
        """The gold passage of each question, whose number is its id, and those after it."""
        rows = [[(int(one.id) + rank, 1 - rank / k) for rank in range(k)] for one in questions]
        return Hits.from_pairs(rows), self.passages

    def asked(self, model: WritingModel) -> list[QuestionInput]:
        """The prompts of the questions."""
        hits, passages = self.find(self.questions, READER.hits)
        shown = [(one, [passages[int(one.id)]]) for one in self.shown]
        builder = PromptBuilder(PROMPT, model.tokenizer, room_for_prompts(model, OPTIONS), Parts(reader=READER), shown)
        return [builder.build(one, hits.of(row), passages) for row, one in enumerate(self.questions)]


def tasks(count: int) -> dict[str, Task]:
    """The cases, each with this many questions."""
    lines = (DATA / "passages.jsonl").read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    whole = [Passage(number, one["id"], one["title"], one["text"]) for number, one in enumerate(records)]
    short = [Passage(one.number, one.document_id, one.title, " ".join(one.text.split()[:WORDS])) for one in whole]
    asked = [json.loads(line) for line in (DATA / "questions.jsonl").read_text("utf-8").splitlines()]
    questions = [Question(str(one["gold"][0]), one["question"], tuple(one["answer"])) for one in asked]
    shown = sorted(questions[:FIRST], key=lambda one: len(one.text) + len(one.answers[0]))[:SHOTS]
    some = questions[FIRST : FIRST + count]
    return {"shared": Task(some, shown, short), "cut": Task(some, shown, whole), "none": Task(some, (), whole)}


@torch.inference_mode()
def plain_answer(library: PreTrainedModel, model: WritingModel, asked: QuestionInput) -> list[int]:
    """The tokens of the answer, the end of the line included: each prompt read by itself, with a cache of its own."""
    caches = [DynamicCache() for _ in asked.prompts]
    texts = [prompt_prefix.tokens for prompt_prefix in asked.prompts]
    written: list[int] = []
    while len(written) < OPTIONS.new_tokens:
        log_probs_KV = np.concatenate([last(library, text, cache) for text, cache in zip(texts, caches, strict=True)])
        token = int(mixed(log_probs_KV, asked).argmax())
        if token in model.end_tokens:
            break
        written.append(token)
        texts = [np.array([token])] * len(texts)
        if "\n" in model.tokenizer.decode(np.array(written)):
            break
    return written


def last(library: PreTrainedModel, text: IntArray, cache: DynamicCache) -> FloatArray:
    """The distribution (float32, 1 x V) after a text that continues what is cached."""
    ids_1N = torch.from_numpy(text)[None]
    logits_1V = library(input_ids=ids_1N, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
    found: FloatArray = logits_1V.log_softmax(-1).numpy()
    return found


@torch.inference_mode()
def plain_gold(library: PreTrainedModel, asked: QuestionInput, gold: IntArray) -> float:
    """The log-probability of the gold answer: each prompt read with it in one pass."""
    found = []
    for prompt_prefix in asked.prompts:
        ids_1N = torch.from_numpy(np.concatenate([prompt_prefix.tokens, gold[:-1]]))[None]
        logits_TV = library(input_ids=ids_1N, use_cache=False, logits_to_keep=len(gold)).logits[0]
        found.append(logits_TV.log_softmax(-1)[torch.arange(len(gold)), torch.from_numpy(gold)].numpy())
    return float(mixed(np.stack(found), asked).sum(dtype=np.float64))


def mixed(log_probs_KT: FloatArray, asked: QuestionInput) -> DoubleArray:
    """The ensemble of what the prompts give."""
    return mix(log_probs_KT, asked.prompts.log_weights_K)


def measured(name: str, case: str, task: Task, model: WritingModel, library: PreTrainedModel, plain: int) -> Row:
    """Time `ralm qa`'s evaluation of all questions, and the plain loop of some."""
    asked = task.asked(model)
    begin = time.process_time()
    rows = evaluate_questions(
        task.questions,
        model,
        PROMPT,
        source=task,
        parts=Parts(reader=READER),
        demonstrations=task.shown,
        options=OPTIONS,
    ).rows
    seconds = (time.process_time() - begin) / len(rows)
    golds = [model.tokenizer.encode(PROMPT.format_answer(one.answers[0])) for one in task.questions]
    begin = time.process_time()
    written = [plain_answer(library, model, one) for one in asked[:plain]]
    scored = [plain_gold(library, one, gold) for one, gold in zip(asked[:plain], golds, strict=False)]
    plain_seconds = (time.process_time() - begin) / plain
    found = [one.judged for one in rows[:plain]]
    texts = [model.tokenizer.decode(np.array(tokens, dtype=np.int64)).split("\n")[0] for tokens in written]
    return Row(
        model=name,
        case=case,
        questions=len(rows),
        tokens=float(np.mean([sum(len(prompt_prefix.tokens) for prompt_prefix in one.prompts) for one in asked])),
        plain_seconds=plain_seconds,
        seconds=seconds,
        ratio=plain_seconds / seconds,
        equal_answers=sum(one.answer.text == text for one, text in zip(found, texts, strict=True)),
        compared=plain,
        difference=max(abs((one.gold_log_prob or 0.0) - gold) for one, gold in zip(found, scored, strict=True)),
    )


@contextmanager
def opened(name: str) -> Iterator[tuple[WritingModel, PreTrainedModel]]:
    """A model in float32, ours and as transformers loads it."""
    with tempfile.TemporaryDirectory() as folder:
        if name == "gpt2":
            torch.manual_seed(0)
            AutoModelForCausalLM.from_config(GPT2Config()).save_pretrained(folder)
            gpt2_tokenizer().save_pretrained(folder)
        place = folder if name == "gpt2" else model_path(name)
        yield load_language_model(place), AutoModelForCausalLM.from_pretrained(place).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["ralm-tiny", "gpt2"])
    parser.add_argument("--case", nargs="+", default=["shared", "cut", "none"])
    parser.add_argument("--questions", type=int, default=3)
    parser.add_argument("--plain-questions", type=int, default=1, help="questions of the plain loop")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| " + " | ".join(Row.__dataclass_fields__) + " |")
    print("|" + "---|" * len(Row.__dataclass_fields__))
    for name in args.model:
        with opened(name) as (model, library), no_progress():
            model.continuations().next_tokens([np.arange(8)])  # packs the weights
            for case, task in tasks(args.questions).items():
                if case in args.case:
                    row = measured(name, case, task, model, library, args.plain_questions)
                    values = [f"{v:.3g}" if isinstance(v, float) else str(v) for v in asdict(row).values()]
                    print("| " + " | ".join(values) + " |", flush=True)
                    if args.out:
                        with args.out.open("a") as stream:
                            stream.write(json.dumps(asdict(row)) + "\n")


if __name__ == "__main__":
    main()
