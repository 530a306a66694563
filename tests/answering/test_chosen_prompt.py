"""How answers are asked for: the prompt and the length follow the model."""

import json
from pathlib import Path

import pytest

from tests.chat_models import save_chat_model
from tests.cli.program import ralm


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judged")
    save_chat_model(folder / "chat")
    (folder / "q.jsonl").write_text('{"question": "Who sings?", "answers": ["whales"]}\n')
    return folder


@pytest.mark.parametrize(
    ("lm", "options", "prompt", "tokens", "said"),
    [
        (
            "chat",
            [],
            "chat",
            256,
            "asked with the prompt chat, as the model has a chat template; answers have at most 256",
        ),
        ("chat", ["--new-tokens", "9"], "chat", 9, "has a chat template; answers have at most 9 tokens"),
        ("chat", ["--prompt", "replug"], "replug", 10, "asked with the prompt replug; answers have at most 10 tokens"),
        ("chat", ["--prompt", "chat"], "chat", 256, "asked with the prompt chat; answers have at most 256 tokens"),
        ("ralm-tiny", [], "in-context-ralm", 10, "asked with the prompt in-context-ralm; answers have at most 10"),
    ],
)
def test_the_prompt_and_the_length_follow_the_model(
    work: Path, lm: str, options: list[str], prompt: str, tokens: int, said: str
) -> None:
    asking = ["qa", work / "q.jsonl", "--lm", work / lm if lm == "chat" else lm, *options]
    found = json.loads(ralm(*asking, "--json").out)
    assert (found["config"]["prompt"]["name"], found["config"]["options"]["new_tokens"]) == (prompt, tokens)
    assert found["config"]["options"]["stop"] == ([] if prompt == "chat" else ["\n"])
    assert {"exact_match", "contains", "f1", "token_recall"} <= found.keys()
    assert said in ralm(*asking).out
