"""Files of every format, written by hand: small ones to be damaged, and parts of ones that unpack to very much."""

import gzip
import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, repeat
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.corpus.test_pdf import pdf

GIB = 1 << 30
MAIN = "word/document.xml"
NAMESPACE = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"


def many(filling: bytes, size: int = GIB) -> Iterator[bytes]:
    """So many bytes of a filling, in blocks."""
    block = filling * ((1 << 24) // len(filling))
    return repeat(block, size // len(block))


def packed(begin: bytes, filling: bytes) -> bytes:
    """A gzip file of some bytes and three gigabytes of others: members that repeat."""
    return gzip.compress(begin) + gzip.compress(b"".join(many(filling, 1 << 26)), 1) * 48


def archive(parts: Mapping[str, Iterable[bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method, compresslevel=1) as written:
        for name, content in parts.items():
            with written.open(name, "w") as part:
                for block in content:
                    part.write(block)
    return out.getvalue()


def word(body: Iterable[bytes], main: str = MAIN, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A DOCX file of the fewest parts."""
    of_package = "http://schemas.openxmlformats.org/package/2006/relationships"
    relation = f'<Relationship Id="a" Type="{OFFICE}" Target="{main}"/>'
    begin = f'<w:document xmlns:w="{NAMESPACE}"><w:body>'.encode()
    parts = {
        "_rels/.rels": [f'<Relationships xmlns="{of_package}">{relation}</Relationships>'.encode()],
        main: chain([begin], body, [b"</w:body></w:document>"]),
    }
    return archive(parts, method)


def table(columns: list[tuple[str, Any]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(
        pa.Table.from_arrays([pa.array(one) for _, one in columns], names=[name for name, _ in columns]), out
    )
    return out.getvalue()


ROWS = [{"id": f"d{n}", "title": f"Title {n}", "text": f"some text {n} " * 5, "page": n} for n in range(20)]
_LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
_CELLS = "".join(f'{row["id"]},"{row["text"]}",{row["title"]}\n' for row in ROWS).encode()
FILES: dict[str, bytes] = {
    "x.txt": b"# Title\n" + b"some text " * 50,
    "x.jsonl": _LINES,
    "x.jsonl.gz": gzip.compress(_LINES),
    "x.json": json.dumps(ROWS).encode(),
    "x.csv": b"id,text,title\n" + _CELLS,
    "x.tsv": _CELLS.replace(b",", b"\t"),
    "x.parquet": table([(name, [row[name] for row in ROWS]) for name in ROWS[0]]),
    "x.html": b"<meta charset=utf-8><title>Title</title>" + b"<p>some <b>text</b><table><tr><td>a<td>b</table>" * 9,
    "x.pdf": pdf("first page", "second page", title="title"),
    "x.docx": word([b"<w:p><w:r><w:t>text</w:t><w:tab/></w:r></w:p><w:tbl><w:tr><w:tc/></w:tr></w:tbl>" * 9]),
}
