"""`mix` and its twin in torch are the only averages, and few files lie between a command and `mix`."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import ralm
from ralm.lm.local import draw
from ralm.reading import mixture, score
from tests.cli.program import TEXT, done
from tests.serving.served import local, save_index, serving, tiny

READ = ralm.Parts(reader=ralm.Ensemble(documents=2))
BODY = {"model": "ralm-tiny", "prompt": "The dog", "max_tokens": 1, "ralm": {"reader": "ensemble", "documents": 2}}


def serve(index: Path) -> None:
    with serving(local(tiny(), folders={"few": index})) as url:
        assert httpx.post(f"{url}/v1/completions", json=BODY).status_code == 500
    raise ZeroDivisionError


USES: dict[str, Callable[[ralm.FromRetriever], Any]] = {
    "scoring": lambda source: ralm.evaluate_text(TEXT, tiny(), source=source, parts=READ),
    "generation": lambda source: list(ralm.generate("The dog", tiny(), None, source, READ)),
    "qa": lambda source: ralm.evaluate_questions(
        [ralm.Question("1", "who", ("x",))], tiny(), ralm.open_prompt("replug"), source=source, parts=READ
    ),
    "serve": lambda source: serve(Path(str(source.config["index"]))),
}


@pytest.mark.parametrize("use", USES)
def test_every_average_is_that_of_mix_or_its_twin(use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ralm.FromRetriever.of_index(save_index(tmp_path / "index"))
    monkeypatch.setattr(mixture.mix, "__code__", (lambda log_probs_KT, log_weights: 1 // 0).__code__)
    monkeypatch.setattr(draw._average, "__code__", (lambda logits_GKV, log_weights_GK: 1 // 0).__code__)
    with pytest.raises(ZeroDivisionError):
        USES[use](source)


def test_at_most_five_files_lie_below_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text(TEXT)
    index, below = save_index(tmp_path / "index"), list[str]()

    def seen(*given: Any) -> Any:
        files = [str(Path(frame.filename)) for frame in inspect.stack()]
        below[:] = [one for one in files[: [Path(one).name for one in files].index("eval.py")] if "src/ralm" in one]
        return mixture.mix(*given)

    monkeypatch.setattr(score, "mix", seen)
    done(
        "eval",
        tmp_path / "text",
        "--lm",
        "ralm-tiny",
        "--index",
        index,
        "--reader",
        "ensemble",
        "--out",
        tmp_path / "o",
    )
    named = (Path(__file__).parents[1] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert 1 < len({*below}) <= 4, "and that of mix"
    assert all(one.partition("src/ralm/")[2] in named for one in below)
