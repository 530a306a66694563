"""The pages of the documentation: their links lead somewhere, and the generated ones are up to date."""

import re
from pathlib import Path

from tools import python_api_page

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "tools").rglob("*.md")]


def test_every_page_that_a_page_links_to_is_there() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_heading_that_a_page_links_to_is_there() -> None:
    for page in PAGES:
        for target, heading in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
            linked = page.parent / target if target else page
            assert heading in _anchors(linked.read_text(encoding="utf-8")), f"{page.name}: {target}#{heading}"


def test_every_page_of_the_documentation_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"](docs/{page.name}" not in readme] == []


def test_the_page_of_the_python_api_is_what_the_docstrings_say() -> None:
    written = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    assert written == python_api_page.page(), "run `make docs`"


def test_the_page_of_the_python_api_has_every_public_name() -> None:
    stub = (ROOT / "src" / "ralm" / "__init__.pyi").read_text(encoding="utf-8")
    names = re.findall(r"\bas (\w+)", stub)
    assert sorted(re.findall(r"^### (\w+)$", python_api_page.page(), re.MULTILINE)) == sorted(names)


def _anchors(text: str) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
