"""Records what some eighty commands and requests answer, and compares it with what they answer later.

    python -m tools.same_figures record FILE
    python -m tools.same_figures compare FILE

A change that must not change a figure is made between the two, on the same machine with the same versions. Times are
left out. The commands run in this process, on a small corpus, with ralm-tiny and a tiny random encoder.
"""

import difflib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from tests.cli.program import STORIES, TEXT, ralm
from tests.serving.chat_upstream import NAME, ChatUpstream
from tests.serving.process import running
from tests.tiny_encoders import save_tiny_bert

_TIMES: Final = ("seconds", "per_second", "created", "date", "duration")
"""Parts of the names of values that differ from run to run."""
_LM: Final = "--lm ralm-tiny --lm-args dtype=float32"
_READ: Final = f"text.txt {_LM} --index index --max-length 96 --document-tokens 24 --json"
_LONG: Final = f"long.txt {_LM} --index index --max-length 96 --stride 16 --document-tokens 24 --json"
_ASKED: Final = f"questions.jsonl {_LM} --index index --json"
_DENSE: Final = _READ.replace("--index index", "--index dense")
_ENSEMBLE: Final = "--reader ensemble --documents 3"
_TRAINED: Final = "--steps 4 --batch 2 --evaluate-every 2 --held-out 0.4 --no-dropout --json"
_SIGNALS: Final = "--examples 32 --per-sequence 1 --prefix-tokens 8 --query-tokens 8 --sequence-tokens 48"


COMMANDS: Final = {
    "index": "index corpus.jsonl --words 10 --out index",
    "index dense": "index corpus.jsonl --words 10 --retriever both --encoder bert --out dense",
    "encode": "encode dense --encoder bert --vectors again",
    "check": "check index --json",
    "search": "search index sheep --json",
    "search random": "search index sheep --retriever random:seed=3 --json",
    "search dense": "search dense sheep --retriever dense --json",
    "search hybrid": "search dense sheep --retriever hybrid --json",
    "search interpolated": "search dense sheep --retriever hybrid:fusion=interpolation,dense_weight=0.3 --json",
    "eval": f"eval {_READ} --baseline --out run",
    "eval official": f"eval {_READ} --semantics official",
    "eval blocked": f"eval {_READ} --windows blocked --block 16",
    "eval rolling": f"eval {_READ} --windows rolling --semantics official",
    "eval random": f"eval {_READ} --retriever random",
    "eval ensemble": f"eval {_READ} --reader ensemble --documents 3 --baseline --out ensemble",
    "eval uniform": f"eval {_READ} --reader ensemble --documents 3 --mixer uniform",
    "eval temperature": f"eval {_READ} --reader ensemble:documents=3,temperature=0.3",
    "eval posterior": f"eval {_READ} {_ENSEMBLE} --mixer posterior:eta=1,decay=4",
    "eval dense": f"eval {_DENSE} --retriever dense --baseline",
    "eval hybrid": f"eval {_DENSE} --retriever hybrid {_ENSEMBLE}",
    "eval where": f"eval {_READ} --where id!='hill'",
    "search where": "search index sheep --where id!='town' --json",
    "eval concatenation": f"eval {_READ} --reader concatenation --documents 2",
    "eval cut together": f"eval {_READ} --reader concatenation:documents=2,cut_together=true",
    "rerank zero-shot": f"eval {_READ} --rerank zero-shot:candidates=4,tokens=8",
    "rerank by another": f"eval {_READ} --rerank zero-shot:candidates=4,tokens=8,lm=ralm-tiny",
    "rerank oracle": f"eval {_READ} --rerank oracle:candidates=4",
    "rerank random": f"eval {_READ} --rerank random:candidates=4",
    "eval long": f"eval {_LONG} --out long",
    "eval long random": f"eval {_LONG} --retriever random --out long-random",
    "compare": "report long long-random --json",
    "report": "report run --json",
    "sweep": f"eval {_READ} --over stride=4,8 --out sweep",
    "retrieve": "retrieve text.txt --lm ralm-tiny --index index --max-length 96 --out retrieved.json",
    "eval retrieved": f"eval text.txt {_LM} --retrieved retrieved.json --max-length 96 --document-tokens 24 --json",
    "generate": f"generate sheep {_LM} --index index --new-tokens 12 --json",
    "generate ensemble": f"generate sheep {_LM} --index index --reader ensemble --documents 2 --baseline --json",
    "generate posterior": f"generate sheep {_LM} --index index {_ENSEMBLE} --mixer posterior --new-tokens 24 --json",
    "generate contrast": f"generate sheep {_LM} --index index {_ENSEMBLE} --mixer contrast --new-tokens 12 --json",
    "generate sampled": f"generate sheep {_LM} --index index --temperature 0.8 --top-k 20 --seed 5 --json",
    "ask": f"ask sheep? {_LM} --index index --json",
    "ask ensemble": f"ask sheep? {_LM} --index index --reader ensemble --documents 2 --json",
    "ask contrast": f"ask sheep? {_LM} --index index --reader ensemble --documents 2 --mixer contrast --json",
    "qa": f"qa {_ASKED} --baseline --out answers",
    "qa replug": f"qa {_ASKED} --prompt replug --reader ensemble --documents 2",
    "qa posterior": f"qa {_ASKED} {_ENSEMBLE} --mixer posterior",
    "curve": f"qa {_ASKED} --over documents=0,1,2",
    "choice": f"qa choices.jsonl {_LM} --index index --baseline --json",
    "choice posterior": f"qa choices.jsonl {_LM} --index index {_ENSEMBLE} --mixer posterior --json",
    "choice letters": f"qa choices.jsonl {_LM} --index index --json",
    "signals": f"signals many.jsonl {_LM} --index index {_SIGNALS} --out signals --json",
    "signals dense": f"signals many.jsonl {_LM} --index dense --retriever dense {_SIGNALS} --out found --json",
    "train reranker": f"train reranker signals --init bert --tokens 16 --out reranker {_TRAINED}",
    "rerank predictive": f"eval {_READ} --rerank predictive:cross_encoder=reranker,candidates=4",
    "train retriever": f"train retriever found --init bert --out retriever {_TRAINED}",
    "search trained": "search dense sheep --retriever dense:query_encoder=retriever --json",
    "index many": "index many.jsonl --out many",
    "worth": f"worth many {_LM} --units 16 --strides 2 --prefix-tokens 8 --json",
    "index for sync": "index corpus.jsonl --words 10 --out synced",
    "sync": "sync synced more.jsonl",
    "search synced": "search synced sheep --json",
    "update": "sync index more.jsonl --remove-id sea",
    "search updated": "search index sheep --json",
    "recipe": "recipe run in-context-ralm/figure-8 --stand-in --out recipes --json",
    "demo": "demo --limit-tokens 400 --json",
}
_SAMPLED: Final = {"temperature": 0.7, "seed": 3}
_MESSAGES: Final = [{"role": "user", "content": "What keeps the sheep together?"}]
_ENSEMBLE_OF_TWO: Final = {"reader": "ensemble", "documents": 2}
REQUESTS: Final[list[tuple[str, dict[str, Any]]]] = [
    *(("/v1/completions", {"prompt": prompt, "max_tokens": 8, "temperature": 0, **more})
      for prompt in ("The dog", "The whales sing in the")
      for more in ({}, {"logprobs": 3}, {"echo": True, "logprobs": 1, "max_tokens": 0}, _SAMPLED, {"stop": ["a"]},
                   {"ralm": _ENSEMBLE_OF_TWO}, {"ralm": {**_ENSEMBLE_OF_TWO, "mixer": "contrast"}},
                   {"model": "ralm-tiny:plain"})),
    *(("/v1/chat/completions", {"messages": _MESSAGES, "max_tokens": 8, "temperature": 0, **more})
      for more in ({}, _SAMPLED)),
    ("/v1/completions", {"prompt": ["The", "A dog"], "max_tokens": 3, "n": 2, **_SAMPLED}),
]  # fmt: skip

PROXIED: Final[list[tuple[str, dict[str, Any]]]] = [
    ("/v1/chat/completions", {"messages": _MESSAGES}),
    ("/v1/chat/completions", {"messages": _MESSAGES, "ralm": {"documents": 2}, "reasoning_effort": "low"}),
    ("/v1/chat/completions", {"messages": _MESSAGES, "stream": True}),
    ("/v1/embeddings", {"input": "sheep"}),
    ("/retrieve", {"queries": ["sheep", "sea"], "topk": 2, "return_scores": True}),
]
"""Requests to a server in front of a chat API."""


def answers() -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each command or request with its answer, without times."""
    for name, line in COMMANDS.items():
        answer = ralm(*line.split())
        said = Path("retrieved.json").read_text(encoding="utf-8") if name == "retrieve" else answer.out
        yield name, {"status": answer.status, "out": _timeless(said), "err": answer.err if answer.status else ""}
    with running("--index", "index", "--index", "dense", "--prompt", "in-context-ralm", *_LM.split()) as served:
        yield from _replies("request", served.url, REQUESTS, "ralm-tiny")
    api = ChatUpstream()
    with api.server as server, running("--lm", f"{server.url}#{NAME}", "--index", "index") as served:
        for name, reply in _replies("proxied", served.url, PROXIED, NAME):
            yield name, {**reply, "forwarded": api.last.body}


def _replies(
    kind: str, url: str, requests: list[tuple[str, dict[str, Any]]], model: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, body in requests:
        replied = httpx.post(url + path, json=body if path == "/retrieve" else {"model": model, **body}, timeout=60)
        out = _timeless(replied.text.replace(url, "URL"))
        yield f"{kind} {path} {json.dumps(body)}", {"status": replied.status_code, "out": out}


def _timeless(text: str) -> Any:
    """JSON without times, names of requests and the folder; other text in lines."""
    text = re.sub(r"took [\d.,]+ times as long", "", text.replace(str(Path.cwd()), "FOLDER"))
    try:
        return _without_times(json.loads(text))
    except ValueError:
        return [re.sub(r" in [\d.,:]+ s.*", "", line) for line in text.splitlines()]


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {name: one for name, one in value.items() if name != "id" or not str(one).startswith(("cmpl", "chat"))}
        return {name: _without_times(one) for name, one in kept.items() if not any(part in name for part in _TIMES)}
    return [_without_times(one) for one in value] if isinstance(value, list) else value


@contextmanager
def _work() -> Iterator[None]:
    """Inside the block, the current folder is a new one that holds what the commands read."""
    rows: list[dict[str, Any]] = [{"id": name, "title": title, "text": text} for name, title, text in STORIES]
    questions = [
        {"question": "what keeps the sheep together", "answers": ["a dog", "the dog"]},
        {"question": "Who sings in the sea?", "answers": ["whales"]},
    ]
    choices = [{"question": "Who sings?", "choices": ["whales", "sheep", "dogs"], "answer": "whales"}]
    more = [{"id": "field", "text": "The field beside the hill feeds the sheep in winter."}]
    files: dict[str, list[dict[str, Any]]] = {
        "corpus.jsonl": rows,
        "questions.jsonl": questions,
        "choices.jsonl": choices,
        "more.jsonl": more,
        "many.jsonl": [
            {"id": f"{name} {number}", "text": f"{text} Day {number} at {name}: {text[number * 3 :]}"}
            for number in range(8)
            for name, _, text in STORIES
        ],
    }
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["RALM_CACHE"] = str(Path(folder, "cache"))
        for name, content in files.items():
            Path(name).write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
        Path("text.txt").write_text(TEXT * 2, encoding="utf-8")
        Path("long.txt").write_text(TEXT * 24, encoding="utf-8")
        save_tiny_bert(Path("bert"))
        try:
            yield
        finally:
            os.chdir(before)


def main() -> None:
    """Record or compare; exits with status 1 if anything differs."""
    if len(sys.argv) != 3 or sys.argv[1] not in ("record", "compare"):
        sys.exit(__doc__)
    file = Path(sys.argv[2]).absolute()
    with _work():
        found = dict(answers())
    failed = ", ".join(name for name, answer in found.items() if answer["status"] not in (0, 200))
    if failed:
        sys.exit(f"no figures of {failed}: mend the commands of this tool, or what they call.")
    print(f"{len(found)} answers")
    if sys.argv[1] == "record":
        file.write_text(_as_text(found), encoding="utf-8")
        return
    before = json.loads(file.read_text(encoding="utf-8"))
    if left := before.keys() - found.keys():
        print(f"left: {', '.join(sorted(left))}")
    old, new = (_as_text({name: answers.get(name) for name in found}).splitlines() for answers in (before, found))
    lines = [*difflib.unified_diff(old, new, "before", "now", lineterm="", n=3)]
    print("\n".join(lines) if lines else "no difference")
    sys.exit(bool(lines))


def _as_text(answers: dict[str, Any]) -> str:
    return json.dumps(answers, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    main()
