"""Records what some fifty commands and requests answer, and compares it with what they answer later.

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
from tests.serving.process import running
from tests.tiny_encoders import save_tiny_bert

_TIMES: Final = ("seconds", "per_second", "created", "date", "duration")
"""Parts of the names of values that differ from run to run."""
_LM: Final = "--lm ralm-tiny --dtype float32"
_READ: Final = f"text.txt {_LM} --index index --max-length 96 --document-tokens 24 --json"
_LONG: Final = f"long.txt {_LM} --index index --max-length 96 --stride 16 --document-tokens 24 --json"
_ASKED: Final = f"questions.jsonl {_LM} --index index --json"
_SIGNALS: Final = "--prefix-tokens 16 --query-tokens 8 --sequence-tokens 48 --document-tokens 24"

COMMANDS: Final = {
    "index": "index corpus.jsonl --words 10 --out index",
    "index dense": "index corpus.jsonl --words 10 --retriever both --encoder bert --out dense",
    "encode": "encode dense --encoder bert --vectors again",
    "check": "check index --json",
    "search": "search index sheep --json",
    "search random": "search index sheep --retriever random --seed 3 --json",
    "search dense": "search dense sheep --retriever dense --json",
    "search hybrid": "search dense sheep --retriever hybrid --json",
    "search interpolated": "search dense sheep --retriever hybrid --fusion interpolation --dense-weight 0.3 --json",
    "eval": f"eval {_READ} --baseline --out run",
    "eval official": f"eval {_READ} --semantics official",
    "eval blocked": f"eval {_READ} --windows blocked --block 16",
    "eval rolling": f"eval {_READ} --windows rolling --semantics official",
    "eval random": f"eval {_READ} --retriever random",
    "eval ensemble": f"eval {_READ} --reader ensemble --documents 3 --baseline --out ensemble",
    "eval uniform": f"eval {_READ} --reader ensemble --documents 3 --mixer uniform",
    "eval temperature": f"eval {_READ} --reader ensemble --documents 3 --weights-temperature 0.3",
    "eval concatenation": f"eval {_READ} --reader concatenation --documents 2",
    "eval cut together": f"eval {_READ} --reader concatenation --documents 2 --cut-together",
    "rerank zero-shot": f"eval {_READ} --rerank zero-shot --candidates 4 --rerank-tokens 8",
    "rerank by another": f"eval {_READ} --rerank zero-shot --candidates 4 --rerank-tokens 8 --rerank-lm ralm-tiny",
    "rerank oracle": f"eval {_READ} --rerank oracle --candidates 4",
    "rerank random": f"eval {_READ} --rerank random --candidates 4",
    "eval long": f"eval {_LONG} --out long",
    "eval long random": f"eval {_LONG} --retriever random --out long-random",
    "compare": "compare long long-random --json",
    "report": "report run --json",
    "sweep": f"sweep {_READ} --over stride --values 4,8 --out sweep --no-plot",
    "retrieve": "retrieve text.txt --lm ralm-tiny --index index --max-length 96 --out retrieved.json",
    "eval retrieved": f"eval text.txt {_LM} --retrieved retrieved.json --max-length 96 --document-tokens 24 --json",
    "generate": f"generate sheep {_LM} --index index --new-tokens 12 --json",
    "generate ensemble": f"generate sheep {_LM} --index index --reader ensemble --documents 2 --baseline --json",
    "generate sampled": f"generate sheep {_LM} --index index --temperature 0.8 --top-k 20 --seed 5 --json",
    "ask": f"ask sheep? {_LM} --index index --json",
    "ask ensemble": f"ask sheep? {_LM} --index index --reader ensemble --documents 2 --json",
    "qa": f"qa {_ASKED} --baseline --out answers",
    "qa replug": f"qa {_ASKED} --prompt replug --reader ensemble --documents 2",
    "curve": f"curve {_ASKED} --numbers 0,1,2",
    "choice": f"choice choices.jsonl {_LM} --index index --baseline --json",
    "choice letters": f"choice choices.jsonl {_LM} --index index --score letter --json",
    "signals": f"signals corpus.jsonl {_LM} --index index --examples 12 {_SIGNALS} --no-exclude --out signals --json",
    "update": "update index more.jsonl --remove-id sea",
    "search updated": "search index sheep --json",
    "merge": "merge index",
    "search merged": "search index sheep --json",
    "recipe": "recipe run in-context-ralm/figure-8 --stand-in --out recipes --json",
    "demo": "demo --limit-tokens 400 --json",
}
FILES: Final = {"retrieve": "retrieved.json"}
"""Commands whose answer is a file."""

_SAMPLED: Final = {"temperature": 0.7, "seed": 3}
_MESSAGES: Final = [{"role": "user", "content": "What keeps the sheep together?"}]
REQUESTS: Final[list[tuple[str, dict[str, Any]]]] = [
    *(("/v1/completions", {"prompt": prompt, "max_tokens": 8, "temperature": 0, **more})
      for prompt in ("The dog", "The whales sing in the")
      for more in ({}, {"logprobs": 3}, {"echo": True, "logprobs": 1, "max_tokens": 0}, _SAMPLED, {"stop": ["a"]},
                   {"ralm": {"reader": "ensemble", "documents": 2}}, {"model": "ralm-tiny:plain"})),
    ("/v1/embeddings", {"input": "sheep", "model": "dense"}),
    ("/tokenize", {"prompt": "The dog keeps the sheep"}),
    ("/detokenize", {"tokens": [300, 301, 302]}),
    *(("/v1/chat/completions", {"messages": _MESSAGES, "max_tokens": 8, "temperature": 0, **more})
      for more in ({}, _SAMPLED)),
    ("/v1/completions", {"prompt": ["The", "A dog"], "max_tokens": 3, "n": 2, **_SAMPLED}),
]  # fmt: skip


def answers() -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each command or request with its answer, without times."""
    for name, line in COMMANDS.items():
        answer = ralm(*line.split())
        said = Path(FILES[name]).read_text(encoding="utf-8") if name in FILES else answer.out
        yield name, {"status": answer.status, "out": _timeless(said), "err": answer.err if answer.status else ""}
    with running("--index", "index", "--index", "dense", "--prompt", "in-context-ralm", *_LM.split()) as served:
        for number, (path, body) in enumerate(REQUESTS):
            replied = httpx.post(served.url + path, json={"model": "ralm-tiny", **body}, timeout=60)
            yield (
                f"request {number} {path}",
                {"status": replied.status_code, "out": _timeless(replied.text.replace(served.url, "URL"))},
            )


def _timeless(text: str) -> Any:
    """JSON without times and names of requests; other text in lines."""
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
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    failed = ", ".join(name for name, answer in found.items() if answer["status"] not in (0, 200))
    print(f"{len(found)} answers; errors: {failed or 'none'}")
    if sys.argv[1] == "record":
        file.write_text(text, encoding="utf-8")
        return
    before = file.read_text(encoding="utf-8")
    lines = difflib.unified_diff(before.splitlines(), text.splitlines(), "before", "now", lineterm="", n=3)
    print("\n".join(lines) if text != before else "no difference")
    sys.exit(text != before)


if __name__ == "__main__":
    main()
