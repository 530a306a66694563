"""How long a text a model behind an API reads: what its server says, and the option for those that do not say it."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ralm import evaluate_text
from ralm.errors import UsageError
from ralm.protocols import UNLIMITED
from ralm.reading.plan import PlanOptions
from tests.api.backings import OfTable
from tests.api.dialects import VLLM, Call, Dialect, OpenAI, TransformersServe
from tests.api.scripted_server import ScriptedServer
from tests.api.served import VOCABULARY, opened, served
from tests.api.writing import Json
from tests.cli.program import ralm

TABLE = OfTable(seed=2, vocabulary=VOCABULARY)
SILENT: list[Dialect] = [OpenAI(), TransformersServe()]


@pytest.mark.parametrize("dialect", SILENT)
def test_a_server_that_does_not_say_it(dialect: Dialect, caplog: pytest.LogCaptureFixture) -> None:
    with served(TABLE, dialect) as (_, model):
        assert model.max_length == UNLIMITED
    [told] = caplog.messages
    assert told.endswith("does not report its length; write context_length=N, or long texts may be cut")
    with served(TABLE, dialect, options={"context_length": 100}) as (_, model):
        assert model.max_length == 100 - model.backend.reserved_tokens
    with served(TABLE, dialect) as (_, model):
        assert model.max_length == UNLIMITED, "what was found out before has no part in it"


def test_a_length_that_is_no_number_is_not_known() -> None:
    with served(TABLE, OddLength()) as (_, model):
        assert model.max_length == UNLIMITED


@dataclass(frozen=True, kw_only=True)
class OddLength(VLLM):
    def model_card(self, call: Call) -> Json:
        return {**super().model_card(call), "max_model_len": "1024"}


def test_less_than_the_server_says() -> None:
    with served(TABLE, VLLM()) as (server, model):
        assert model.max_length == 254
        sent = len(server.posts)
        again = opened(server, context_length=50)
        assert (again.max_length, again.capabilities.identity) == (48, model.capabilities.identity)
        assert len(server.posts) == sent + 1, "nothing else is found out anew"
        again.client.close()


def test_more_than_the_server_says() -> None:
    said = "`context_length` is 300, and URL says that its model reads 256 tokens: lower it or leave it out."
    with ScriptedServer(TABLE, VLLM()) as server:
        with pytest.raises(UsageError, match=re.escape(said.replace("URL", server.url))):
            opened(server, context_length=300)
        assert not server.posts
        opened(server, context_length=256).client.close()


def test_a_plan_beyond_it_is_refused_before_anything_is_asked() -> None:
    with served(TABLE, OpenAI(), options={"context_length": 40}) as (server, model):
        sent = len(server.posts)
        with pytest.raises(UsageError, match="38"):
            evaluate_text("The list. " * 9, model, PlanOptions(max_length=60, document_tokens=8))
        assert len(server.posts) == sent
        evaluate_text("The list. " * 9, model, PlanOptions(max_length=30, document_tokens=8, stride=4))
        longest = max(len(request.body["prompt"]) for request in server.posts[sent:])
        assert longest <= 39


def test_the_probe_names_the_flag(tmp_path: Path) -> None:
    backing = OfTable(seed=2, vocabulary=VOCABULARY)
    with ScriptedServer(backing, TransformersServe(), model="m") as server:
        asked = ["probe", f"{server.url}#m", "--lm-args", f"tokenizer=ralm-tiny,answers={tmp_path / 'a.sqlite'}"]
        command = [sys.executable, "-m", "ralm", *asked]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "not reported; write --lm-args context_length=N" in ended.stdout
        assert "asked again         no figures" in ended.stdout
        assert ended.stderr == ""
        assert "reads at once       99 tokens" in ralm(*asked, "--lm-args", "context_length=100").out
