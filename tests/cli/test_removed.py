"""What was removed is named with what to use instead, wherever a user may still write it."""

from pathlib import Path

import pytest

from ralm.removed import SUCCESSORS
from tests.cli.program import failed, ralm

OPTIONS = ("eval", "text.txt", "--lm", "ralm-tiny")


@pytest.fixture(autouse=True)
def old_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "old-option",
        "eval --questions",
        "train reranker --own",
        "old",
        "ralm list",
        "train old",
        "mixer=old",
    ):
        monkeypatch.setitem(SUCCESSORS, name, "use the new one")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("eval", "--old-option", "3"), "old-option"),
        (("eval", "--old-option=3"), "old-option"),
        (("eval", "text.txt", "--questions", "3"), "eval --questions"),
        (("train", "reranker", "signals", "--own", "3"), "train reranker --own"),
        (("old", "--lm", "gpt2"), "old"),
        (("list", "index"), "ralm list"),
        (("train", "old", "signals"), "train old"),
        ((*OPTIONS, "--mixer", "old"), "--mixer old"),
    ],
)
def test_removed_name_is_named_with_its_successor(arguments: tuple[str, ...], name: str) -> None:
    failed(ralm(*arguments), 2, "was removed: use the new one.")
    assert name in ralm(*arguments).err


@pytest.mark.parametrize(
    ("arguments", "way"),
    [
        ("encode index --encoder e --device cpu", "--encoder-args device=..."),
        ("index corpus --no-titles", "--encoder-args titles=..."),
        ("index corpus --id-field key", "--fields id=..."),
        ("serve --max-tokens 3", "--limits prompt_tokens=..."),
        ("qa questions --turns", "--prompt chat:turns=..."),
        ("eval text.txt --ray auto", "--lm-args ray=..."),
        ("recipe run replug/table-1", "ralm recipe NAME --out DIR"),
    ],
)
def test_what_became_a_key_is_named_with_its_key(arguments: str, way: str) -> None:
    answer = ralm(*arguments.split())
    failed(answer, 2, f"`{way}`")
    assert "was removed: write " in answer.err


@pytest.mark.parametrize(("key", "name"), [("old_option", "old-option"), ("questions", "eval --questions")])
def test_removed_key_of_a_settings_file_is_named(tmp_path: Path, key: str, name: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f"{key} = 3\n")
    failed(ralm(*OPTIONS, "--settings", file), 2, f"sets {key}: `{name}` was removed: use the new one.")


def test_removed_value_in_a_settings_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('mixer = "old"\n')
    failed(ralm(*OPTIONS, "--settings", file), 2, f"{file}: --mixer old was removed: use the new one.")


def test_every_removal_reads_as_a_sentence() -> None:
    assert all(text and not text.endswith(".") and text[0].islower() for text in SUCCESSORS.values())
