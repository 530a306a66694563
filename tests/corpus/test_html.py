"""HTML: the text that a browser shows, from whole pages and broken ones."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from ralm.corpus.sources import Fields
from ralm.errors import CorpusError
from ralm.records import Document, Heading
from tests.corpus.reading import only

pytest.importorskip("turbohtml")

PAGE = """<!DOCTYPE html>
<html><head><meta charset="utf-8"><title> The
 title &amp; more </title>
<link rel="stylesheet" href="x.css"><link rel="canonical" href="https://example.org/page?a=1&amp;b=2">
<style>p { color: red }</style><script>var shown = "<p>no</p>";</script></head>
<body><noscript>Turn it on.</noscript><p hidden>no</p><p style="color: red; display: none">no</p><h1>Heading</h1>
<p>One <b>bold</b>ly&nbsp;put   <a href="x">link</a>.<br>Next line</p><p>Caf&eacute; &#128512; &lt;b&gt;</p>
<template>hidden</template><!-- comment --><ul><li>first<li>second</ul>
<table><tr><td>a</td><td> b </td></tr><tr><th>c<td>d</table><pre>
def f():
    return 1
</pre><div>end<div>of it</div></div></body></html>
"""
TEXT = """# Heading

One boldly\xa0put link.
Next line

Café 😀 <b>

- first
- second

a\tb
c\td

```
def f():
    return 1
```

end

of it"""


@pytest.mark.parametrize("name", ["x.html", "X.HTM", "x.xhtml"])
def test_a_page(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(PAGE, encoding="utf-8")
    url = {"url": "https://example.org/page?a=1&b=2"}
    heading = Heading(0, 10, 1, "Heading")
    assert only(tmp_path / name) == Document(name, "The title & more", TEXT, metadata=url, headings=(heading,))
    assert only(tmp_path / name, Fields(metadata=())).metadata == {}


@pytest.mark.parametrize(
    ("page", "title"),
    [
        ("<h2>no</h2><h1> First\n<i>one</i> </h1><h1>Second</h1>", "First one"),
        ("<title></title><h1></h1><h1>Second</h1>", "Second"),
        ("<svg><title>drawing</title></svg>text", "x"),
        ("<title>One</title>text<title>Two</title>", "One"),
        ("only text", "x"),
    ],
)
def test_titles(page: str, title: str, tmp_path: Path) -> None:
    (tmp_path / "x.html").write_text(page)
    assert only(tmp_path / "x.html").title == title


@pytest.mark.parametrize(("name", "begin"), [("x.xhtml", ""), ("x.html", '<?xml version="1.0"?>\n')])
def test_empty_elements_of_xml(name: str, begin: str, tmp_path: Path) -> None:
    page = '<html><head><script src="x"/><title>Title</title><style/></head><body><p/>a<br/>b<a id="c"/>d</body></html>'
    (tmp_path / name).write_text(begin + page)
    document = only(tmp_path / name)
    assert (document.title, document.text) == ("Title", "a\nbd")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<p>é".encode(), "é"),
        (b"<p>a&#xD800;b&#x110000;c", "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"),
        (b"\xef\xbb\xbf<meta charset=latin1><p>\xc3\xa9", "é"),
        ("<p>é".encode("utf-16"), "é"),
        (b'<meta charset="iso-8859-1"><p>\xe9 \x80', "é €"),
        (b"<META http-equiv='Content-Type' content='text/html; charset=windows-1251'>\xe4\xe0", "да"),
        (b'<?xml version="1.0" encoding="koi8-r"?><html><body>\xc4\xc1</body></html>', "да"),
        ('<meta charset="gb2312"><p>镕'.encode("gbk"), "镕"),
        (b"<p>a\0b", "ab"),
        (b"<p>\xe9</p>", "é"),
        (b'<meta charset="utf-8"><p>\xe9</p>', "\N{REPLACEMENT CHARACTER}"),
        (b'<meta charset="klingon"><p>x</p>', "x"),
    ],
)
def test_encodings(content: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / "x.html").write_bytes(content)
    assert only(tmp_path / "x.html").text == text


@pytest.mark.parametrize(
    ("part", "is_text"),
    [
        ("<b hidden>part</b>", False),
        ("<b style='display :\n NONE !important'>part</b>", False),
        ("<b style='color:red;visibility: hidden'>part</b>", False),
        ("<b style='display:/* x */none'>part</b>", False),
        ("<b style='opacity:0.0'>part</b>", False),
        ("<b style='font-size: 0px;'>part</b>", False),
        ("<b style='font-size: 0.5em; opacity: .5'>part</b>", True),
        ("<b style='--display:none'>part</b>", True),
        ("<template>part</template>", False),
        ("<img alt=part title=part>", False),
        ("<b aria-hidden=true>part</b>", True),
        ("<details>part</details>", True),
        ("<dialog>part</dialog>", False),
        ("<dialog open>part</dialog>", True),
        *((f"<{tag}>part</{tag}>", False) for tag in ("canvas", "iframe", "noembed", "noframes", "noscript")),
        ("<svg><title>part</title><desc>part</desc></svg>", False),
        ("<svg><text>part</text></svg>", True),
        ("<nav>part</nav>", False),
        ("<div role=navigation>part</div>", False),
        ("<div class='sphinxsidebar x'><h4>Previous topic</h4>part</div>", False),
        ("<div class=related>part</div>", False),
        ("<aside class=toc-drawer>part</aside>", False),
        ("<aside>part</aside>", True),
    ],
)
def test_what_is_text_of_a_page(part: str, is_text: bool, tmp_path: Path) -> None:
    (tmp_path / "x.html").write_text(f"<title>Title</title><p>before {part} after")
    text = only(tmp_path / "x.html").text
    assert "before" in text
    assert "after" in text
    assert ("part" in text) == is_text


def test_a_page_that_a_script_shows_is_text(tmp_path: Path) -> None:
    (tmp_path / "x.html").write_text("<html style='visibility:hidden'><body style='display:none'><p>text")
    assert only(tmp_path / "x.html").text == "text"


@pytest.mark.parametrize("content", [b"<script>all of it</script>", b"<!-- -->", b"<p hidden>all of it"])
def test_pages_without_text(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.html").write_bytes(content)
    with pytest.raises(CorpusError, match=r"x.html holds no document; skipped: documents without text: 1"):
        only(tmp_path / "x.html")


def test_a_table_that_lays_out_a_page_is_blocks(tmp_path: Path) -> None:
    table = "<table><tr><th>animal<th>price<tr><td>dog<td>120</table>"
    (tmp_path / "x.html").write_text(f"<table><tr><td>menu<td><h2>Prices</h2><p>of dogs</p>{table}</table>")
    document = only(tmp_path / "x.html")
    assert document.text == "menu\n\n## Prices\n\nof dogs\n\nanimal\tprice\ndog\t120"
    assert [heading.title for heading in document.headings] == ["Prices"]


@pytest.mark.parametrize(
    "page",
    [
        "<div>" * 200_000 + "deep",
        "<p>" + "x" * 12_000_000 + "</p> deep",
        "<b><i>" * 1000 + "</b>deep",
        "<p>deep" + "</p>" * 100_000,
        "<table><tr><td>" * 5000 + "deep",
        "<a title='" + "y" * 12_000_000 + "'>deep",
    ],
)
def test_pages_of_any_depth_are_whole(page: str, tmp_path: Path) -> None:
    (tmp_path / "x.html").write_text(page)
    assert only(tmp_path / "x.html").text.endswith("deep")


@given(st.lists(st.sampled_from([*"<>/!-\"'&;= ab", "<p", "</", "<!--", "&amp", "<script>", "]]>", "<?", "<title>"])))
def test_markup_that_is_none(tmp_path: Path, parts: list[str]) -> None:
    (tmp_path / "x.html").write_text("<p>before</p>" + "".join(parts))
    assert only(tmp_path / "x.html").text.startswith("before")
