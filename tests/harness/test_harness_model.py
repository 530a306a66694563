"""ralm as a model of the real lm-evaluation-harness: without passages equal to its `hf`, with passages equal to plain
loops and to our own commands."""

import json
import math
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from lm_eval.api.model import CachingLM
from lm_eval.models.huggingface import HFLM

from ralm.errors import RalmWarning, TextError, UsageError
from ralm.harness.model import RalmLM
from ralm.lm import model_path
from ralm.lm.registry import load_local_model
from ralm.reading.generate import Prompt, generate_many
from ralm.reading.mixture import PosteriorWeights
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.reading.plan import PlanOptions
from ralm.reading.readers import Concatenation, Ensemble, InContext
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever
from tests.campaign import sampled
from tests.cli.program import ralm
from tests.harness.local_tasks import PAGES, QUESTIONS, answers, assert_alike, evaluated, of, requests, save_tasks
from tests.reference import ensemble, mixers
from tests.serving.served import DOCUMENTS, save_index
from tests.tiny_models import FAMILIES
from tests.tiny_tokenizers import TOKENIZERS, save_with_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")

ROOT = Path(__file__).parents[2]
TEXTS = [
    ("The sea is", " deep and blue"),
    ("The sea is  ", "deep"),
    ("", "whale"),
    ("", "<s>whale"),
    ("<s>The sea", " is"),
    ("The sea " * 20, "is deep"),
    ("a long way", "b" * 40),
]
CONTEXTS = ["The sea is", "<s>The sea is deep", "x", "The sea " * 20]


# ---- without passages


@pytest.mark.parametrize("shots", [0, 1])
def test_every_kind_of_task_is_answered_as_by_hf(tasks: Path, shots: int) -> None:
    folder = model_path("ralm-tiny")
    kinds = ["choosing", "writing", "ending", "pages"]
    options = {"num_fewshot": shots, "device": "cpu", "batch_size": 1}
    expected = evaluated("hf", tasks, kinds, model_args=f"pretrained={folder},dtype=float32", **options)
    found = evaluated("ralm", tasks, kinds, model_args=f"lm={folder},lm_args=dtype=float32", **options)
    assert_alike(found, expected, kinds)
    assert all(answers(found, "writing"))


@pytest.mark.parametrize("family", sampled(FAMILIES, "gpt2", "opt", "bloom", "llama"))
def test_requests_of_every_kind_are_answered_as_by_hf(tiny_folders: dict[str, Path], family: str) -> None:
    assert_answers_alike(tiny_folders[family])


@pytest.mark.slow
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_text_becomes_the_same_tokens_as_in_hf(tmp_path: Path, kind: str) -> None:
    assert_answers_alike(save_with_tokenizer(kind, tmp_path / "model"))


def assert_answers_alike(folder: Path) -> None:
    theirs = HFLM(pretrained=str(folder), device="cpu", batch_size=1, dtype="float32", max_length=64)
    ours = RalmLM.create_from_arg_obj(
        {"lm": str(folder), "max_length": 64, "lm_args": "dtype=float32"}, {"device": "cpu"}
    )
    texts = [one for one in TEXTS if one != ("", "<s>whale") or theirs.tokenizer.bos_token == "<s>"]
    asked = requests("loglikelihood", *texts)
    found, expected = ours.loglikelihood(asked), theirs.loglikelihood(asked, disable_tqdm=True)
    for one, other in zip(found, expected, strict=True):
        assert one[0] == pytest.approx(other[0], rel=1e-4)
        assert one[1] == other[1]
    asked = requests("loglikelihood_rolling", *((text,) for text, _ in TEXTS if text.strip()))
    assert ours.loglikelihood_rolling(asked) == pytest.approx(theirs.loglikelihood_rolling(asked), rel=1e-4)
    how = {"until": ["e", "\n"], "max_gen_toks": 20}
    asked = requests("generate_until", *((text, how) for text in CONTEXTS), (CONTEXTS[0], {"max_gen_toks": 20}))
    assert ours.generate_until(asked) == theirs.generate_until(asked, disable_tqdm=True)


@pytest.mark.parametrize(
    ("kind", "context", "ending"),
    [
        ("ralm-tiny", "hello wor", "ld"),  # the whole has no more tokens than the context
        ("ralm-tiny", "nigh", "t"),
        ("ralm-tiny", "a'", "s"),
        ("ralm-tiny", "The s", "ea"),
        ("ralm-tiny", "nigh  ", "t"),
        ("ralm-tiny", "The sea", " is"),
        ("unigram", "\U0001f468", "\u200d\U0001f469"),  # one unknown token
        ("unigram", "  ", "deep"),
        ("wordpiece", "wh", "ale"),
        ("wordpiece", "The sea<s>", " is"),
        ("llama", "\U0001f468", "\u200d\U0001f469"),
        ("llama", "", "<s>"),  # a BOS alone is read after a BOS
        ("byt5", "e", "\u0301"),  # the end-of-text token after every text is no join
    ],
)
def test_joins_inside_a_token_are_encoded_as_in_the_harness(
    tmp_path: Path, kind: str, context: str, ending: str
) -> None:
    folder = model_path(kind) if kind == "ralm-tiny" else save_with_tokenizer(kind, tmp_path / "model")
    theirs, ours = HFLM(pretrained=str(folder), device="cpu"), of(folder, max_length=64)
    apart = theirs.tok_encode(ending, add_special_tokens=False)
    before, targets = theirs._encode_pair(context, ending) if context else ([], apart)
    found = tuple(tokens.tolist() for tokens in ours._contexts._split(context, ending))
    assert found == (before, targets or apart), "it cannot read an ending of no tokens"
    [(log_prob, _)] = ours.loglikelihood(requests("loglikelihood", (context, ending)))
    assert math.isfinite(log_prob)


@pytest.mark.parametrize(("bos", "read"), [("auto", 1), ("always", 1), ("never", 0)])
@pytest.mark.parametrize("context", ["The sea", "The sea " * 20])
def test_a_prompt_has_one_bos(tmp_path: Path, index: Path, bos: str, read: int, context: str) -> None:
    ours = of(save_with_tokenizer("llama", tmp_path / "model"), index=index, document_tokens=9, max_length=64, bos=bos)
    texts = [context, *([f"<s>{context}"] if read else [])]
    document = {"question": "what sings?"}
    for ending in ours._contexts.endings(
        requests("loglikelihood", *((one, " is") for one in texts), document=document)
    ):
        [request] = ending.requests
        assert [*request.document, *request.context].count(1) == read


def test_what_greedy_decoding_writes_is_greedy(tiny_folders: dict[str, Path]) -> None:
    ours = of(tiny_folders["gpt2"])
    theirs = HFLM(pretrained=str(tiny_folders["gpt2"]), device="cpu", batch_size=1)
    contexts = [f"{word} is" for word in "a dog the sheep by night fish wool bread hill green".split()]
    written = ours.generate_until(requests("generate_until", *((one, {"max_gen_toks": 1}) for one in contexts)))
    plain = [
        (one, text) for one, text in zip(contexts, written, strict=True) if text.isascii() and text.strip() == text
    ]
    asked = requests("loglikelihood", *plain, *((one, f"{text}z") for one, text in plain))
    held = [greedy for _, greedy in ours.loglikelihood(asked)]
    assert held == [greedy for _, greedy in theirs.loglikelihood(asked, disable_tqdm=True)]
    assert any(held)
    assert not all(held)


# ---- with passages


@pytest.mark.parametrize("reader", [InContext(), Ensemble(documents=3, temperature=0.5), Concatenation(documents=2)])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_endings_are_scored_as_in_the_plain_loop(
    tiny_folders: dict[str, Path], index: Path, family: str, reader: Any
) -> None:
    """[d; x] for each passage of the question, without the oldest tokens of a context that does not fit."""
    model, source = load_local_model(str(tiny_folders[family])), FromRetriever.of_index(index)
    plan = PlanOptions(document_tokens=14, max_length=63, query_tokens=20)
    ralm_lm = RalmLM(model, source, parts=Parts(reader=reader), plan=plan)
    first = [256] if family == "llama" else []
    asked = [
        *requests("loglikelihood", ("Q: what sings?\nA:", " whales"), document={"question": "what sings in the sea"}),
        *requests("loglikelihood", ("Q: " + "so " * 20 + "\nA: ", "wool"), document={"question": "wool in the town"}),
        *requests("loglikelihood", ("the dog sleeps by night", " on a hill"), document={"text": "whales"}),
        *requests("loglikelihood", ("", "fish"), document={"text": "whales"}),
    ]
    queries = ["what sings in the sea", "wool in the town", "dog sleeps by night", None]
    for request, query, (found, _) in zip(asked, queries, ralm_lm.loglikelihood(asked), strict=True):
        context, ending = request.args
        hits = [] if query is None else source.retriever.retrieve([query], reader.hits).of(0)
        assert query is None or hits
        encoded = [
            model.tokenizer.encode(("\n" if later else "") + source.passages[number].contents).tolist()
            for later, (number, _) in enumerate(hits)
        ]
        cut = [[*first, *encoded[0]][:14], *(one[:14] for one in encoded[1:])] if hits else [first]
        prompt_prefixes = [[token for one in cut for token in one]]
        lambdas = [1.0]
        if isinstance(reader, Ensemble) and hits:
            prompt_prefixes = [[*first, *one][:14] for one in _each_alone(model, source, hits)]
            lambdas = ensemble.weights([score for _, score in hits], 0.5)
        spaces = len(context) - len(context.rstrip())
        text = model.tokenizer.encode(context.rstrip()).tolist()
        targets = model.tokenizer.encode(context[len(context) - spaces :] + ending).tolist()
        read = [
            [*prompt_prefix, *text[max(0, len(prompt_prefix) + len(text) + len(targets) - 64) :]]
            for prompt_prefix in prompt_prefixes
        ]
        read = [one or [256] for one in read]
        parts = np.array(ensemble.target_probabilities(model.model, read, targets, lambdas))
        assert found == pytest.approx(float(np.log(parts.sum(axis=0)).sum()), rel=1e-4), query


def _each_alone(model: Any, source: FromRetriever, hits: Sequence[tuple[int, float]]) -> list[list[int]]:
    return [model.tokenizer.encode(source.passages[number].contents).tolist() for number, _ in hits]


@pytest.mark.parametrize(
    ("family", "reader"), [("bloom", "in-context"), ("bloom", "concatenation"), ("llama", "ensemble")]
)
def test_whole_texts_are_as_likely_as_ralm_eval_says(
    tiny_folders: dict[str, Path], index: Path, tmp_path: Path, family: str, reader: str
) -> None:
    tasks = save_tasks(tmp_path, {"pages": PAGES[:1]})
    (tmp_path / "page.txt").write_text(PAGES[0]["page"])
    lengths = {"stride": 3, "query_tokens": 25, "document_tokens": 12, "max_length": 60}
    more: dict[str, Any] = {} if reader == "in-context" else {"documents": 2}
    if reader == "ensemble":
        more = {"reader": "ensemble:documents=2,temperature=0.5", "mixer": "posterior:eta=0.3,evidence=9"}
    model_args = {"lm": str(tiny_folders[family]), "index": str(index), "reader": reader, **lengths, **more}
    found = evaluated("ralm", tasks, ["pages"], model_args=model_args)
    flags = [part for name, value in model_args.items() for part in (f"--{name.replace('_', '-')}", value)]
    expected = json.loads(ralm("eval", tmp_path / "page.txt", *flags, "--json").out)
    assert found["results"]["local_pages"]["word_perplexity,none"] == pytest.approx(expected["word_perplexity"])


def test_endings_with_evidence_are_scored_as_in_the_plain_loop(index: Path) -> None:
    """The end of the context is evidence, and then the ending; greedy decoding writes what `generate_until` does."""
    model, source = load_local_model("ralm-tiny"), FromRetriever.of_index(index)
    mixer = PosteriorWeights(eta=2.0, decay=5.0, evidence=7)
    parts = Parts(reader=Ensemble(documents=3), mixer=mixer)
    ralm_lm, question = RalmLM(model, source, parts=parts), {"question": "what sings in the sea by night"}
    before = "Sheep graze on the green hill, a dog keeps the sheep together, and ships cross the deep blue sea. "
    context, ending = f"{before}The answer to it: what sings in the sea? Something in the deep", " blue whales"
    [asked] = requests("loglikelihood", (context, ending), document=question)
    [(found, _)] = ralm_lm.loglikelihood([asked])
    hits = source.retriever.retrieve([question["question"]], 3).of(0)
    text, targets = (model.tokenizer.encode(one).tolist() for one in (context, ending))
    assert len(text) > mixer.evidence, "the first token has no likelihood without a passage"

    def next_log_probs(read: Sequence[int]) -> Any:
        return model.continuations().next_tokens([np.array(read)]).log_probs_BC[0].astype(np.float64)

    prefixes, scores = [*_each_alone(model, source, hits)], [score for _, score in hits]
    start = ensemble.weights(scores)
    totals, _ = mixers.score(
        [[*prefix, *text] for prefix in prefixes], len(text), targets, start, next_log_probs,
        eta=2.0, decay=5.0, evidence=mixer.evidence,
    )  # fmt: skip
    assert found == pytest.approx(sum(totals), abs=1e-3)
    [written] = ralm_lm.generate_until(requests("generate_until", (context, {"max_gen_toks": 3}), document=question))
    endings = requests("loglikelihood", (context, written), (context, f"{written}z"), document=question)
    assert [held for _, held in ralm_lm.loglikelihood(endings)] == [True, False]


@pytest.mark.parametrize(
    "parts",
    [
        IN_CONTEXT,
        Parts(reader=Ensemble(documents=2), mixer=PosteriorWeights()),
        Parts(reader=Concatenation(documents=2)),
    ],
)
def test_texts_are_written_as_by_ralm_generate(index: Path, tasks: Path, parts: Parts) -> None:
    model, source = load_local_model("ralm-tiny"), FromRetriever.of_index(index)
    lengths: dict[str, Any] = {"stride": 5, "query_tokens": 30, "document_tokens": 20, "max_length": 200}
    plan = PlanOptions(**lengths)
    found = answers(evaluated(RalmLM(model, source, parts=parts, plan=plan), tasks, ["writing"]), "writing")
    options = GenerationOptions(**lengths, new_tokens=12, stop=("\n", "e"))
    prompts = [Prompt(f"Question: {one['question']}\nAnswer:", str(one["question"])) for one in QUESTIONS]
    written = [""] * len(prompts)
    for number, piece in generate_many(prompts, model, options, source, parts):
        written[number] += piece.text
    assert found == written
    assert all(found)


def test_a_text_without_a_question_is_continued_as_by_ralm_generate(index: Path, tmp_path: Path) -> None:
    """The retriever is asked again with the end of the growing text."""
    arguments = {"lm": "ralm-tiny", "index": index, "retriever": "random", "document_tokens": 20}
    ours = of(**arguments, stride=2, query_tokens=25)
    contexts = ["The whales in the sea", "The dog sleeps"]
    asked = requests("generate_until", *((one, {"max_gen_toks": 9}) for one in contexts), document={"text": "wool"})
    (tmp_path / "prompts.txt").write_text("\n".join(contexts) + "\n")
    flags = [part for name, value in arguments.items() for part in (f"--{name.replace('_', '-')}", value)]
    told = ralm(
        "generate", "--prompts", tmp_path / "prompts.txt", *flags, "--stride", 2, "--query-tokens", 25,
        "--new-tokens", 9, "--json",
    )  # fmt: skip
    written = [json.loads(line) for line in told.out.splitlines()]
    assert ours.generate_until(asked) == ["".join(span["text"] for span in one["spans"]) for one in written]
    assert len({span["passage"] for one in written for span in one["spans"]}) > 2, "passages change as the text grows"


def test_choices_are_as_likely_as_ralm_qa_says(
    tiny_folders: dict[str, Path], index: Path, tasks: Path, tmp_path: Path
) -> None:
    """In a prompt that is the passage and then the context, the gold answer is the gold choice."""
    prompt = 'closed = "Question: {question}\\nAnswer:"\nanswer = " {answer}"\nquestion = "as it is"\nbetween = "\\n"\n'
    both = '"{documents}Question: {question}\\nAnswer:"'
    (tmp_path / "prompt.toml").write_text(f'{prompt}one = {both}\nseveral = {both}\ndocument = "{{text}}"\n')
    untitled = save_index(tmp_path / "untitled", [replace(one, title="") for one in DOCUMENTS[:4]])
    shared = {"lm": tiny_folders["bloom"], "index": untitled, "reader": "ensemble", "documents": 3}
    flags = [part for name, value in shared.items() for part in (f"--{name}", value)]
    rows: list[dict[str, object]] = [{"question": one["question"], "answers": [one["answer"]]} for one in QUESTIONS]
    (tmp_path / "open.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = ralm(
        "qa", tmp_path / "open.jsonl", *flags, "--prompt", tmp_path / "prompt.toml", "--out", tmp_path / "run",
        "--max-length", 2048,
    )  # fmt: skip
    assert done.status == 0, done.err
    expected = pq.read_table(tmp_path / "run" / "answers.parquet")["gold_log_prob"].to_pylist()
    found = evaluated(of(**shared), tasks, ["choosing"])
    for sample, document, log_prob in zip(found["samples"]["local_choosing"], QUESTIONS, expected, strict=True):
        ((gold, _),) = sample["resps"][document["gold"]]
        assert gold == pytest.approx(log_prob, rel=1e-5)


def test_what_was_read_is_recorded_with_the_results(tiny_folders: dict[str, Path], index: Path, tasks: Path) -> None:
    arguments = {"lm": str(tiny_folders["bloom"]), "index": str(index), "reader": "ensemble", "documents": 3}
    found = evaluated("ralm", tasks, ["choosing"], model_args=arguments, limit=1)
    recorded = json.loads(json.dumps(found["config"]["ralm"]))
    assert recorded["reader"]["documents"] == 3
    assert recorded["passages"]["index"] == str(index)
    assert recorded["plan"]["max_length"] == 2048
    assert recorded["model"]["name"] == str(tiny_folders["bloom"])
    assert len(found["samples"]["local_choosing"]) == 1


# ---- generation


def test_how_many_are_written_together_does_not_matter(
    tiny_folders: dict[str, Path], index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = of(tiny_folders["bloom"], index=index, reader="ensemble", documents=3)
    asked = requests("generate_until", *((f"The {n}", {"max_gen_toks": 5 + n % 2}) for n in range(7)))
    together = ours.generate_until(asked)
    monkeypatch.setattr(
        "ralm.harness.model.groups_that_fit", lambda lengths, _: (range(n, n + 1) for n in range(len(lengths)))
    )
    assert ours.generate_until(asked) == together


def test_repeats_are_drawn_apart_and_by_the_seed_of_the_harness(tiny_folders: dict[str, Path]) -> None:
    ours = of(tiny_folders["bloom"])
    (asked,) = requests("generate_until", ("The", {"max_gen_toks": 9, "temperature": 1.0, "do_sample": True}))
    torch.manual_seed(1234)
    found = ours.generate_until([asked] * 3)
    assert len({*found}) == 3
    assert ours.generate_until([asked] * 3) == found
    torch.manual_seed(1235)
    assert ours.generate_until([asked] * 3) != found


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_gen_toks": 64}, "`max_gen_toks` 64 leaves no room for a context in the 64 tokens"),
        ({"num_beams": 10, "max_gen_toks": 4}, "`num_beams=10`, which ralm does not have"),
        ({"do_sample": True, "max_gen_toks": 4}, "`do_sample=True` needs a `temperature` above 0"),
    ],
)
def test_what_cannot_be_generated_is_refused(tiny_folders: dict[str, Path], arguments: Any, said: str) -> None:
    ours = of(tiny_folders["gpt2"])
    with pytest.raises(UsageError, match=said):
        ours.generate_until(requests("generate_until", ("The", arguments)))
    many = {"max_new_tokens": 4, "num_beams": 1, "do_sample": False, "temperature": 0.7, "top_p": 0.9, "until": "z"}
    asked = requests("generate_until", ("The", many), ("The", {"max_gen_toks": 4, "until": ["z"]}))
    one, other = ours.generate_until(asked)
    assert one == other, "arguments that change nothing are taken"


# ---- what is refused


def test_what_does_not_fit(tiny_folders: dict[str, Path], index: Path) -> None:
    ours = of(tiny_folders["gpt2"], index=index, document_tokens=20)
    with pytest.warns(RalmWarning, match="1 of 2 contexts are too long for the 64 tokens"):
        ours.loglikelihood(requests("loglikelihood", ("the sea " * 9, "is"), ("the sea", " is")))
    with pytest.warns(RalmWarning, match="1 of 1 contexts are too long for the 64 tokens"):
        ours.generate_until(requests("generate_until", ("the sea " * 9, {"max_gen_toks": 2})))
    with pytest.raises(UsageError, match="ending of 46 tokens and the 20 before it do not fit"):
        ours.loglikelihood(requests("loglikelihood", ("the sea", "z" * 46)))
    with pytest.raises(TextError, match="the ending '' of a context has no tokens"):
        ours.loglikelihood(requests("loglikelihood", ("the sea", "")))


def test_a_cache_of_the_harness_is_refused(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    """It finds an answer by the prompt alone."""
    with pytest.raises(UsageError, match="^`use_cache` would mix up the answers of several models and indexes"):
        CachingLM(of(tiny_folders["gpt2"]), str(tmp_path / "cache.db"))


def test_a_model_without_passages_needs_no_room_for_them(tiny_folders: dict[str, Path], index: Path) -> None:
    model = load_local_model(str(tiny_folders["gpt2"]))
    assert RalmLM(model).settings["plan"]["max_length"] == 64  # type: ignore[index,call-overload]
    with pytest.raises(
        UsageError, match="`document_tokens` 256 and `stride` 4 do not fit together into `max_length` 64"
    ):
        RalmLM(model, FromRetriever.of_index(index))
    with pytest.raises(UsageError, match="`max_length` 65 is beyond the 64 tokens"):
        RalmLM(model, plan=PlanOptions(max_length=65, document_tokens=9))


# ---- the program


def test_the_harness_finds_the_model_by_its_entry_point() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    ((name, value),) = declared["lm_eval.models"].items()
    assert name == "ralm"
    assert EntryPoint(name, value, "lm_eval.models").load() is RalmLM
    assert value == f"{RalmLM.__module__}:{RalmLM.__name__}", "else the harness takes them for two models"


@pytest.mark.slow
@pytest.mark.usefixtures("no_tasks_of_the_harness")
def test_the_program_of_the_harness_runs_with_the_model(
    tiny_folders: dict[str, Path],
    index: Path,
    tasks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from ralm.harness.__main__ import run_harness

    arguments = f"lm={tiny_folders['bloom']},index={index},reader=ensemble,documents=3"
    command = ["run", "--model", "ralm", "--model_args", arguments, "--tasks", "local_choosing,local_writing"]
    more = ["--include_path", str(tasks), "--output_path", str(tmp_path / "out.json")]
    monkeypatch.setattr(sys, "argv", ["lm-eval", *command, *more])
    run_harness()
    assert "local_choosing" in capsys.readouterr().out
    (written,) = tmp_path.glob("out*.json")
    assert json.loads(written.read_text())["config"]["ralm"]["reader"]["documents"] == 3


@pytest.mark.usefixtures("no_tasks_of_the_harness")
def test_an_error_of_the_program_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ralm.harness.__main__ import run_harness

    command = ["run", "--model", "ralm", "--model_args", "lm=gpt2,documents=3", "--tasks", "local_choosing"]
    monkeypatch.setattr(sys, "argv", ["lm-eval", *command, "--include_path", str(tasks)])
    with pytest.raises(SystemExit) as stopped:
        run_harness()
    assert stopped.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("ralm: the model ralm: reader, documents, mixer and rerank read passages")
