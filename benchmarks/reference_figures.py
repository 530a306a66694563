"""Figures to check a set-up by: the same inputs and commands give the same digits.

    python -m benchmarks.reference_figures DATA [--only ralm-tiny]

DATA holds the public files that docs/reference-figures.md names. It runs the commands, writes their figures to
docs/reference-figures.json, which `make golden` compares, and the tables to docs/reference-figures.md.
"""

import argparse
import io
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any, Final, NamedTuple

from ralm.cli import program

ROOT: Final = Path(__file__).parents[1]
FIGURES: Final = ROOT / "docs" / "reference-figures.json"
PAGE: Final = FIGURES.with_suffix(".md")
MODELS: Final = ("ralm-tiny", "smollm2")
DATA: Final = "DATA"
"""Stands for the folder with the data in commands."""
_BEGIN: Final = "<!-- figures -->"
_TEXTS: Final = ("token_perplexity", "word_perplexity", "bits_per_byte", "change")
_QUESTIONS: Final = ("exact_match", "contains", "f1", "gold_log_prob")
_PLAN: Final = "--stride 16 --windows blocked --block 64 --max-length 512 --document-tokens 128 --limit-tokens 2000"
_XQUAD: Final = (
    "import json; rows = json.load(open('DATA/xquad/xquad.en.json'))['data']; "
    "print(*[json.dumps({'title': row['title'], 'text': one['context']}) "
    "for row in rows for one in row['paragraphs']], sep='\\n')"
)


class Row(NamedTuple):
    """A command without its model, the folder of its index with the source of this, and the figures to keep."""

    name: str
    command: str
    corpus: str
    source: str
    figures: Sequence[str]

    def line(self, model: str) -> str:
        """Return the arguments of `ralm`."""
        return f"{self.command} --lm {model} --index {self.corpus} --baseline"


ROWS: Final = (
    Row(
        "MedQuAD",
        f"eval DATA/medquad/heldout_shared_topics.jsonl {_PLAN}",
        "medquad",
        "DATA/medquad/corpus.jsonl.gz",
        _TEXTS,
    ),
    Row(
        "WikiText-2",
        f"eval DATA/wikitext_raw/valid.txt {_PLAN}",
        "wikipedia",
        "DATA/wikipedia_passages/passages.jsonl.gz",
        _TEXTS,
    ),
    Row(
        "Natural Questions",
        "qa DATA/nq_open/NQ-open.dev.jsonl --limit 40",
        "wikipedia",
        "DATA/wikipedia_passages/passages.jsonl.gz",
        _QUESTIONS,
    ),
    Row("PopQA", "qa DATA/popqa/questions.jsonl --limit 40", "popqa", "DATA/popqa/passages.jsonl", _QUESTIONS),
    Row("XQuAD", "qa DATA/xquad/xquad.en.json --limit 40", "xquad", "xquad.jsonl", _QUESTIONS),
)


def prepare(data: Path) -> None:
    """Build the indexes of all rows in the current folder, unless they are there."""
    if not Path("xquad.jsonl").exists():
        written = subprocess.run(
            [sys.executable, "-c", _XQUAD.replace(DATA, str(data))], check=True, capture_output=True
        )
        Path("xquad.jsonl").write_bytes(written.stdout)
    for index, source in {row.corpus: row.source for row in ROWS}.items():
        if not Path(index).exists():
            run(f"index {source} --out {index}", data)


def run(line: str, data: Path) -> str:
    """Run a command of `ralm` in this process; return what it prints."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        program()(shlex.split(line.replace(DATA, str(data))), standalone_mode=False)
    return printed.getvalue()


def measure(row: Row, model: str, data: Path) -> dict[str, Any]:
    """Return the figures of a row, and those of its baseline."""
    summary = json.loads(run(f"{row.line(model)} --json", data))
    base = summary.get("baseline") or summary["closed_book"]
    figures = {name: summary[name] for name in row.figures}
    return {**figures, **{f"none_{name}": base[name] for name in row.figures if name in base}}


def tables(figures: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """The tables and the commands of the page."""
    for columns in (_TEXTS, _QUESTIONS):
        names = [
            name for column in columns for name in (f"none_{column}", column) if column != "change" or name == column
        ]
        yield f"| input, model | {' | '.join(name.replace('_', ' ') for name in names)} |"
        yield "|---" * (len(names) + 1) + "|"
        for row in ROWS:
            for model in MODELS:
                if row.figures == columns and (found := figures.get(f"{row.name}, {model}")):
                    yield f"| {row.name}, {model} | {' | '.join(f'{found[name]:.4f}' for name in names)} |"
        yield ""
    yield "```text"
    yield f'python -c "{_XQUAD}" > xquad.jsonl'
    yield from dict.fromkeys(f"ralm index {row.source} --out {row.corpus}" for row in ROWS)
    yield from (f"ralm {row.line('MODEL')}" for row in ROWS)
    yield "```"


def main() -> None:
    """Measure all rows, and write the file and the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=lambda text: Path(text).resolve())
    parser.add_argument("--only", choices=MODELS, help="measure the rows of this model alone")
    arguments = parser.parse_args()
    figures: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        prepare(arguments.data)
        for model in MODELS if arguments.only is None else (arguments.only,):
            for row in ROWS:
                figures[f"{row.name}, {model}"] = measure(row, model, arguments.data)
                FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    head = PAGE.read_text(encoding="utf-8").partition(_BEGIN)[0]
    PAGE.write_text(head + _BEGIN + "\n\n" + "\n".join(tables(figures)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
