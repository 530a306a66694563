from pathlib import Path

from ralm.demo import MIN_WORDS, docstrings_of_package, split_held_out
from ralm.records import Document
from tests.demo.conftest import Gathered

FILLER = " ".join(["word"] * MIN_WORDS)


def write(path: Path, source: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")


def test_the_reference_and_the_docstrings_are_there(documents: list[Document]) -> None:
    by_id = {document.id: document for document in documents}
    assert len(by_id) == len(documents) > 500
    assert '"assert"' in by_id["topic:assert"].text
    assert by_id["class:threading.Thread"].title == "threading.Thread"
    assert (
        "def join(self, timeout=None):\n    Wait until the thread terminates." in by_id["class:threading.Thread"].text
    )
    assert "def loads(" in by_id["module:json"].text
    assert all(len(document.text.split()) >= MIN_WORDS for document in documents)


def test_documents_are_in_order(documents: list[Document]) -> None:
    assert [document.id for document in documents] == sorted(document.id for document in documents)


def test_nothing_is_imported(gathered: Gathered) -> None:
    assert not {"turtle", "pydoc_data.topics", "nntplib", "antigravity", "this"} & gathered.imported


def test_tests_and_bundled_programs_are_left_out(documents: list[Document]) -> None:
    names = {document.title.split(".")[0] for document in documents}
    assert not names & {"test", "idlelib", "lib2to3", "site-packages", "pydoc_data"}


def test_a_topic_that_stands_inside_a_longer_one_is_left_out(documents: list[Document]) -> None:
    topics = {document.title: document.text for document in documents if document.id.startswith("topic:")}
    assert "specialnames" in topics
    assert "customization" not in topics
    assert "object.__new__(cls" in topics["specialnames"]


def test_held_out_documents_are_a_tenth_and_never_in_the_corpus(documents: list[Document]) -> None:
    corpus, held_out = split_held_out(documents)
    assert sorted([*corpus, *held_out], key=lambda document: document.id) == documents
    assert not {document.id for document in corpus} & {document.id for document in held_out}
    assert 0.07 < len(held_out) / len(documents) < 0.13


def test_a_module_and_its_class_by_hand(tmp_path: Path) -> None:
    source = f'''"""About shapes. {FILLER}"""
raise RuntimeError("this must not run")

def area(side, *, unit="m"):
    """The area.

    In square units.
    """

def _private():
    """Not shown."""

def undocumented(): ...

class Square(Shape, Closed):
    """Four equal sides. {FILLER}"""

    async def draw(self) -> None:
        """Put it on the canvas."""

    def __len__(self):
        """Always four."""

class Small:
    """Too little."""
'''
    write(tmp_path / "geometry" / "__init__.py", "")
    write(tmp_path / "geometry" / "flat.py", source)
    assert docstrings_of_package(tmp_path / "geometry") == [
        Document(
            "class:geometry.flat.Square",
            "geometry.flat.Square",
            f"class Square(Shape, Closed):\n    Four equal sides. {FILLER}\n\n"
            "async def draw(self):\n    Put it on the canvas.\n\ndef __len__(self):\n    Always four.",
        ),
        Document(
            "module:geometry.flat",
            "geometry.flat",
            f"About shapes. {FILLER}\n\ndef area(side, *, unit='m'):\n    The area.\n\n    In square units.",
        ),
    ]


def test_a_package_gives_its_name_and_a_folder_of_packages_does_not(tmp_path: Path) -> None:
    write(tmp_path / "alone.py", f'"""{FILLER} one"""')
    write(tmp_path / "pack" / "__init__.py", f'"""{FILLER} two"""')
    assert [d.id for d in docstrings_of_package(tmp_path)] == ["module:alone", "module:pack"]
    assert [d.id for d in docstrings_of_package(tmp_path / "pack")] == ["module:pack"]


def test_broken_files_tests_and_copies_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "broken.py", "def (:")
    (tmp_path / "binary.py").write_bytes(b"\x00\xff")
    write(tmp_path / "warns.py", f'"""{FILLER}"""\nx = "\\d" is 1\n')
    write(tmp_path / "zcopy.py", f'"""{FILLER}"""')
    write(tmp_path / "test_it.py", f'"""{FILLER} test"""')
    write(tmp_path / "tests" / "deep.py", f'"""{FILLER} deep"""')
    assert [d.id for d in docstrings_of_package(tmp_path)] == ["module:warns"]
