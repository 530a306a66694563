"""Names of models behind an API: what they stand for, which key goes where, and that no message shows one."""

import dataclasses

import pytest

from ralm.errors import UsageError
from ralm.lm.api.endpoint import PROVIDERS, Endpoint, endpoint_of, is_api

SECRET = "sk-very-secret"
ALL_KEYS = {provider.variable: f"{SECRET}-{name}" for name, provider in PROVIDERS.items()}


@pytest.mark.parametrize(
    ("name", "url", "model"),
    [
        ("http://localhost:8000#gpt2", "http://localhost:8000/v1", "gpt2"),
        ("HTTP://localhost:8000/#gpt2", "http://localhost:8000/v1", "gpt2"),
        ("https://host/api/v3/#org/model-7b@2:free#x", "https://host/api/v3", "org/model-7b@2:free#x"),
        ("http://127.0.0.1:1/v1#m", "http://127.0.0.1:1/v1", "m"),
        ("http://[::1]:8000# m ", "http://[::1]:8000/v1", "m"),
        ("http://my_host.example.:80#m", "http://my_host.example.:80/v1", "m"),
    ],
)
def test_urls(name: str, url: str, model: str) -> None:
    assert is_api(name)
    assert endpoint_of(name, {}) == Endpoint(url, model)


def test_a_providers_key_goes_to_that_provider_alone() -> None:
    for name, provider in PROVIDERS.items():
        assert is_api(f"{name}:some/model:free")
        found = endpoint_of(f"{name}:some/model:free", ALL_KEYS | {"RALM_API_KEY": "other"})
        assert found == Endpoint(provider.url, "some/model:free", f"{SECRET}-{name}", provider.variable)
        at_its_url = endpoint_of(f"{provider.url}#model", ALL_KEYS)
        assert at_its_url.key is None
    assert endpoint_of("https://api.openai.com#m", ALL_KEYS | {"RALM_API_KEY": "own"}).key == "own"


@pytest.mark.parametrize(
    "name", ["gpt2", "org/model", "openai", "openai/gpt2", "C:\\models\\x", "./http://x", "hf:x", ""]
)
def test_other_names(name: str) -> None:
    assert not is_api(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("http://localhost:8000", "http://localhost:8000 names no model; write http://localhost:8000#MODEL"),
        ("http://localhost:8000#", "names no model"),
        ("openai:", "openai: names no model; write openai:MODEL"),
        ("groq:m", "groq:m needs a key; put it into the environment variable GROQ_API_KEY"),
        ("http://#m", "http:// is not a URL; write http://HOST:PORT#MODEL"),
        ("http:///v1#m", "is not a URL"),
        ("http://host:port#m", "is not a URL"),
        ("http://host:99999#m", "is not a URL"),
        ("http://host:0#m", "is not a URL"),
        ("http://[::1#m", "is not a URL"),
        ("http://a b#m", "is not a URL"),
        ("http://a\nb#m", "is not a URL"),
        ("http://-x..y#m", "is not a URL"),
        ("https://host/v1?api-version=1#m", "may have no query; write https://host/v1#MODEL"),
    ],
)
def test_names_that_are_none(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("?", "\\?").replace("[", "\\[")):
        endpoint_of(name, {})


@pytest.mark.parametrize(
    "name",
    [
        f"http://user:{SECRET}@host#m",
        f"http://{SECRET}@host#m",
        f"http://user:{SECRET}@host",
        f"http://user:{SECRET}@ho st:x#m",
        f"https://host/v1?key={SECRET}#m",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_shown(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        endpoint_of(name, {})
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is refused.value.__context__ is None


@pytest.mark.parametrize("end", ["\n", "\r", " ", "\0", "é", "\x7f"])
def test_keys_that_cannot_be_sent(end: str) -> None:
    for name, variable in (("http://host#m", "RALM_API_KEY"), ("openai:m", "OPENAI_API_KEY")):
        with pytest.raises(UsageError, match=variable) as refused:
            endpoint_of(name, {variable: SECRET + end})
        assert SECRET not in str(refused.value)


def test_an_empty_key_is_none() -> None:
    assert endpoint_of("http://host#m", {"RALM_API_KEY": ""}).key is None
    with pytest.raises(UsageError, match="needs a key"):
        endpoint_of("openai:m", {"OPENAI_API_KEY": ""})


def test_the_key_is_not_shown() -> None:
    endpoint = endpoint_of("openai:m", ALL_KEYS)
    assert SECRET not in repr(endpoint)
    assert SECRET not in str(dataclasses.replace(endpoint, model="n"))


def test_addresses() -> None:
    endpoint = Endpoint("http://host:1/some/v1", "m")
    assert endpoint.address("/completions") == "http://host:1/some/v1/completions"
    assert endpoint.address("//generate") == "http://host:1/generate"
