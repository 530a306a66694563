"""Where passages should end: after 100 words, after sentences, or where the text is.

    python -m benchmarks.splits FOLDER [--words 100]

FOLDER holds documentation as people have it: copies of the folders in `INSTALLED`, under these names. Thirty questions
about it are asked of BM25, each written down with the page that answers it and with words of the answer. A passage of
that page with these words counts. Prints, for each way of splitting, the share of questions that are answered in the
first 1, 3 and 5 passages, with 95% intervals, and the processor time of indexing. XQuAD's articles, whose paragraphs
are joined, follow: there a passage with the gold answer counts. The data must be beside the checkout.
"""

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, get_args

import numpy as np

import ralm
from ralm.corpus.splitting import Splitting
from ralm.evaluation.intervals import Units, compare
from ralm.records import Document, Passage

DATA: Final = Path(__file__).parents[2] / "shared" / "data"
INSTALLED: Final = {
    "node": "/usr/share/doc/nodejs/api",
    "npm": "/usr/lib/node_modules/npm/docs",
    "cmake": "/usr/share/cmake-3.25/Help",
    "valgrind": "/usr/share/doc/valgrind/html",
    "rust": "share/doc/rust/html of a Rust toolchain: its folders book, reference and cargo",
}
Split = Literal["words", "sentences", "structure"]
DEPTHS: Final = (1, 3, 5)
QUESTIONS: Final = (
    ("maximum size of HTTP headers", "node/cli.html", "--max-http-header-size"),
    ("signal that ends a child process after its timeout", "node/child_process.html", "killSignal"),
    ("how much memory may the old generation of V8's heap use", "node/cli.html", "--max-old-space-size"),
    ("number of processors that a program should use", "node/os.html", "availableParallelism"),
    ("turn a function with a callback into one that returns a promise", "node/util.html", "util.promisify"),
    ("random UUID version 4", "node/crypto.html", "crypto.randomUUID"),
    ("compare two secrets in constant time", "node/crypto.html", "timingSafeEqual"),
    ("default port of the inspector", "node/cli.html", "9229"),
    ("environment variable with additional certificate authorities", "node/cli.html", "NODE_EXTRA_CA_CERTS"),
    ("error code when a port is in use already", "node/errors.html", "EADDRINUSE"),
    ("watch files and restart the program when they change", "node/cli.html", "--watch"),
    (
        "variable for the version of the C++ standard of a target",
        "cmake/variable/CMAKE_CXX_STANDARD.rst",
        "CXX_STANDARD",
    ),
    ("copy a file if its content differs on the command line", "cmake/manual/cmake.1.rst", "copy_if_different"),
    (
        "number of parallel jobs of a build from the environment",
        "envvar/CMAKE_BUILD_PARALLEL_LEVEL.rst",
        "maximum number of concurrent",
    ),
    ("run a test again until it fails", "cmake/manual/ctest.1.rst", "until-fail"),
    (
        "name of the compiler command for a language",
        "cmake/variable/CMAKE_LANG_COMPILER.rst",
        "full path to the compiler",
    ),
    ("generator expression that depends on the compiler", "cmake-generator-expressions.7.rst", "CXX_COMPILER_ID"),
    ("where a package's configuration file is searched", "cmake/command/find_package.rst", "<PackageName>Config.cmake"),
    ("files of a package that are published", "package-json.md", '"files"'),
    ("install exactly what the lock file says", "npm-ci.md", "package-lock"),
    ("folder of the cache on Windows", "npm/content/using-npm/config.md", "npm-cache"),
    ("show blocks that are still reachable when the program ends", "valgrind/mc-manual.html", "--show-reachable"),
    ("write suppressions for errors that are reported", "valgrind/manual-core.html", "--gen-suppressions"),
    ("profile how much heap memory a program uses over time", "valgrind/ms-manual.html", "Massif"),
    ("number of callers shown in a stack trace", "valgrind/manual-core.html", "--num-callers"),
    ("which tool finds data races between threads", "valgrind/hg-manual.html", "Helgrind"),
    ("optimisation level of the release profile", "rust/cargo/reference/profiles.html", "opt-level = 3"),
    ("run a single test by its name", "rust/book/ch11-02-running-tests.html", "cargo test one_hundred"),
    ("use a crate from a git repository at a branch", "rust/cargo/reference/specifying-dependencies.html", "branch ="),
    ("range of values of an unsigned integer of 8 bits", "rust/book/ch03-02-data-types.html", "u8"),
)
"""A question, the end of the id of the page, and words of the answer."""


def passages_of(documents: Sequence[Document], split: Split, words: int) -> list[Passage]:
    return list(ralm.make_passages(documents, Splitting(split=split, words=words)))


def found_at(
    passages: Sequence[Passage], questions: Sequence[str], is_right: Callable[[int, Passage], bool]
) -> list[int]:
    """For each question the rank (from 1) of the first passage that is right; 0 if none of the first is."""
    with tempfile.TemporaryDirectory() as folder:
        ralm.build_index(passages, Path(folder) / "index")
        hits = ralm.open_index(Path(folder) / "index").bm25.retrieve(questions, DEPTHS[-1])
        ranks = []
        for row, numbers in enumerate(hits.numbers_QK.tolist()):
            right = [place for place, one in enumerate(numbers, 1) if one >= 0 and is_right(row, passages[one])]
            ranks.append(right[0] if right else 0)
        return ranks


def table(name: str, rows: dict[str, list[int]], seconds: dict[str, float]) -> Iterator[str]:
    """Shares of questions, with their intervals; those of other splits are against words."""
    yield f"\n{name}: {len(rows['words'])} questions\n"
    yield f"| split | {' | '.join(f'first {depth}' for depth in DEPTHS)} | processor seconds |"
    yield "|---" * (len(DEPTHS) + 2) + "|"
    for split, ranks in rows.items():
        cells = []
        for depth in DEPTHS:
            found, words = (np.array([0 < one <= depth for one in some], float) for some in (ranks, rows["words"]))
            ends = compare(Units.each(found), Units.each(words), "share").ends
            cells.append(f"{found.mean():.0%}" + (" ({:+.0%} to {:+.0%})".format(*ends) if ends else ""))
        yield f"| {split} | {' | '.join(cells)} | {seconds[split]:.1f} |"


def documentation(folder: Path, words: int) -> Iterator[str]:
    rows, seconds = {}, {}
    questions = [question for question, _, _ in QUESTIONS]
    for split in get_args(Split):
        began = time.process_time()
        passages = passages_of([*ralm.read_documents(str(folder), skipped=ralm.Skipped())], split, words)
        seconds[split] = time.process_time() - began
        answers = {
            question: sum(page in one.document_id and words_of in one.contents for one in passages)
            for question, page, words_of in QUESTIONS
        }
        assert all(answers.values()), [question for question, count in answers.items() if not count]

        def is_right(row: int, passage: Passage) -> bool:
            _, page, said = QUESTIONS[row]
            return page in passage.document_id and said in passage.contents

        rows[split] = found_at(passages, questions, is_right)
    yield from table("Installed documentation", rows, seconds)


def xquad(words: int) -> Iterator[str]:
    paragraphs: defaultdict[str, list[str]] = defaultdict(list)
    asked: list[tuple[str, str, str]] = []
    for article in json.loads((DATA / "xquad" / "xquad.en.json").read_bytes())["data"]:
        for paragraph in article["paragraphs"]:
            paragraphs[article["title"]].append(paragraph["context"])
            asked += [(one["question"], article["title"], one["answers"][0]["text"]) for one in paragraph["qas"]]
    documents = [Document(title, title.replace("_", " "), "\n\n".join(some)) for title, some in paragraphs.items()]
    rows, seconds = {}, {}
    for split in get_args(Split):
        began = time.process_time()
        passages = passages_of(documents, split, words)
        seconds[split] = time.process_time() - began

        def is_right(row: int, passage: Passage) -> bool:
            return passage.document_id == asked[row][1] and asked[row][2] in passage.text

        rows[split] = found_at(passages, [question for question, _, _ in asked], is_right)
    yield from table("XQuAD's articles", rows, seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--words", type=int, default=100)
    given = parser.parse_args()
    for line in (*documentation(given.folder, given.words), *xquad(given.words)):
        print(line, flush=True)
