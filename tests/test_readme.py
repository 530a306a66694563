"""The README's Python does what it says, on a folder of documents and a model of one's own."""

import re
from pathlib import Path

import pytest

from tests.cli.program import ralm

README = Path(__file__).parents[1] / "README.md"
TEXT = "The dog keeps the sheep together on the green hill. The whales sing in the deep blue sea by night. " * 12


def test_the_python_of_the_readme(
    tmp_path: Path, tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my-documents").mkdir()
    (tmp_path / "my-documents" / "sea.txt").write_text("The sea is deep and blue. The whales sing in the deep.")
    monkeypatch.chdir(tmp_path)
    assert ralm("index", "my-documents", "--out", "my-index").status == 0
    found = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    code = found[1].replace('"gpt2"', repr(str(tiny_folders["bloom"])))
    exec(compile(code, "README.md", "exec"), {"text": TEXT})
    with_passages, without = map(float, capsys.readouterr().out.split())
    assert with_passages != without


def test_every_page_that_a_page_links_to_is_there() -> None:
    root = README.parent
    for page in [README, *root.glob("*.md"), *(root / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"
