"""The page at `/` in a real browser: what is typed, streamed, cited and kept."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ralm.protocols import WritingModel
from ralm.records import Document
from tests.api.writing import Reply
from tests.browser import Tab, browser_tab, needs_browser
from tests.serving.chat_upstream import EVENTS, NAME, WORDS, event, passing_on
from tests.serving.served import DOCUMENTS, MODEL, local, save_index, serving, tiny

NASTY = '</script><script>document.title="caught"</script><img src=x onerror="document.title=\'caught\'">'
KEY = "sk-the-key-of-the-page"
QUESTION = "What sings in the deep sea by night?"
TOLD = "document.getElementById('told').textContent"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser_tab(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture
def tab(browser: Tab) -> Iterator[Tab]:
    browser.size(1280, 900)
    browser.faults.clear()
    browser.requested.clear()
    yield browser
    assert not browser.faults, "nothing was refused by the policy, and no script failed"
    browser.value("sessionStorage.clear()")


def say(tab: Tab, text: str) -> None:
    """Send a message with the keyboard, and wait for the answer."""
    tab.type("#said", text)
    tab.press("Enter")
    tab.until(f"{TOLD} === 'done'")


def press_button(tab: Tab, name: str) -> None:
    """Press a button below the last answer."""
    buttons = "[...[...document.querySelectorAll('.acts')].at(-1).querySelectorAll('button')]"
    tab.value(f"{buttons}.find(one => one.textContent === {name!r}).click()")


# ---- what the server sends


def test_the_page_tells_nothing_of_what_is_served_and_loads_nothing(url: str) -> None:
    answer = httpx.get(f"{url}/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.search(r"https?://|@import|url\(|src=|innerHTML|insertAdjacent", answer.text)
    assert MODEL not in answer.text
    assert "few" not in answer.text
    assert httpx.get(f"{url}/", headers={"Host": "evil.example"}).status_code == 403


def test_what_the_page_learns_of_the_server(url: str, index: Path) -> None:
    told = httpx.get(f"{url}/choices").json()
    assert (told["model"], told["corpus"], told["defaults"]["index"]) == (MODEL, "", "few")
    assert told["can"] == {"chat": False, "turns": True}
    with serving(local(tiny(), folders={"few": index}, key=KEY)) as keyed:
        assert httpx.get(f"{keyed}/choices").status_code == 401
        assert httpx.get(f"{keyed}/").status_code == 200
        right = {"Authorization": f"Bearer {KEY}"}
        assert httpx.get(f"{keyed}/choices", headers=right).json() == told


# ---- in a browser


@needs_browser
def test_markup_stays_text(tab: Tab, tmp_path: Path) -> None:
    nasty = Document("nasty", NASTY, f"Markup {NASTY} stays text.", metadata={"url": "javascript:alert(1)"})
    with passing_on(save_index(tmp_path / "index", [*DOCUMENTS, nasty])) as (upstream, url):
        written = event({"delta": {"content": f"{NASTY} [1]"}, "finish_reason": "stop"})
        upstream.instead = Reply({}, raw=lambda _: iter([EVENTS, written]))
        tab.open(f"{url}/")
        say(tab, f"markup stays text {NASTY}")
        tab.value("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        tab.until("document.querySelector('.found li p')")
        for place in (".asked", ".answer", ".found li p"):
            assert NASTY in str(tab.value(f"document.querySelector('{place}').textContent"))
        assert tab.value("document.querySelectorAll('img, main script, a[href^=javascript]').length") == 0
        assert tab.value("document.title") == NAME


@needs_browser
def test_a_key_is_asked_for_and_kept_nowhere(tab: Tab, chat_model: WritingModel, index: Path) -> None:
    with serving(local(chat_model, folders={"few": index}, key=KEY)) as url:
        tab.open(f"{url}/")
        assert tab.value("document.getElementById('key').checkVisibility()")
        tab.type("#key", KEY)
        tab.press("Tab")
        tab.until("document.title === 'tiny-chat'")
        say(tab, QUESTION)
        kept = tab.value("location.href + document.cookie + JSON.stringify({...localStorage, ...sessionStorage})")
        assert QUESTION in kept
        assert KEY not in kept


@needs_browser
def test_errors_are_told(tab: Tab, index: Path) -> None:
    with passing_on(index) as (upstream, url):
        upstream.instead = Reply({"error": {"message": "slow down"}}, 429)
        tab.open(f"{url}/")
        tab.type("#said", QUESTION)
        tab.press("Enter")
        tab.until(f"{TOLD} === 'no answer'")
        assert tab.value("document.querySelector('.fault').textContent") == "slow down"
        tab.faults[:] = [one for one in tab.faults if "the server responded with a status of 429" not in one]


@needs_browser
def test_a_chat_in_front_of_another_server(tab: Tab, index: Path, tmp_path: Path) -> None:
    with passing_on(index) as (upstream, url):
        tab.open(f"{url}/")
        assert not tab.value("document.getElementById('chat').hidden")
        say(tab, QUESTION)
        sent = upstream.last.body
        assert sorted(sent) == ["messages", "model", "stream"], "what the reader does not choose is the server's"
        assert "[1] The Sea" in sent["messages"][0]["content"]
        assert tab.value("document.querySelector('.answer').textContent") == "".join(WORDS).replace("[1]", "1")
        assert tab.value("document.querySelector('.cite').ariaLabel") == "source 1: The Sea, cited"
        tab.value("document.querySelector('.cite').click()")
        assert tab.value("document.activeElement.parentElement.open")
        opened = str(tab.value("document.activeElement.parentElement.textContent"))
        assert "The whales sing in the deep blue sea by night." in opened
        assert "it shares with the query: " in opened
        assert tab.value("[...document.querySelectorAll('.kind')].map(one => one.textContent)") == [
            "cited",
            "retrieved only",
        ]

        press_button(tab, "without")
        tab.until(f"{TOLD} === 'done' && document.querySelectorAll('.found').length === 0")
        assert upstream.last.body["messages"] == [{"role": "user", "content": QUESTION}]
        press_button(tab, "with passages")
        assert tab.value("document.querySelectorAll('.found').length") == 1
        assert len(upstream.server.posts) == 2, "an answer is asked for once"
        say(tab, "And by day?")
        said = upstream.last.body["messages"]
        assert [one["role"] for one in said] == ["user", "assistant", "user"]
        assert (said[0]["content"], said[1]["content"]) == (QUESTION, "".join(WORDS))
        assert tab.value("[...document.querySelectorAll('.asked')].map(one => one.textContent)") == [
            QUESTION,
            "And by day?",
        ]
        press_button(tab, "retry")
        tab.until(f"{TOLD} === 'done'")
        assert upstream.last.body["messages"][:2] == said[:2]

        for width, dark, name in ((1280, False, "light"), (1280, True, "dark"), (360, True, "phone")):
            tab.size(width, 900 if width > 900 else 740)
            tab.dark(on=dark)
            assert tab.value("document.documentElement.scrollWidth") <= width
            tab.screenshot(tmp_path / f"{name}.png")
        tab.dark(on=False)
        tab.open(f"{url}/")
        assert tab.value("document.querySelectorAll('#log > li').length") == 2, "a tab keeps its conversation"
        tab.value("document.getElementById('fresh').click()")
        assert tab.value("document.querySelectorAll('#log > li').length") == 0
        assert tab.value("document.getElementById('hello').hidden") is False


@needs_browser
def test_a_chat_is_stopped_and_tried_again(tab: Tab, index: Path) -> None:
    with passing_on(index, seconds=0.3) as (upstream, url):
        tab.open(f"{url}/")
        tab.type("#said", QUESTION)
        tab.press("Enter")
        tab.until("document.querySelector('.answer')?.textContent.length > 3")
        assert tab.value("document.querySelector('.answer').getAttribute('aria-busy')") == "true"
        tab.press("Escape")
        assert tab.value(TOLD) == "stopped"
        assert upstream.left.wait(10)
        assert tab.value("document.querySelector('.answer').textContent") != "".join(WORDS)
        upstream.seconds = 0.0
        press_button(tab, "retry")
        tab.until(f"{TOLD} === 'done'")
        assert tab.value("document.querySelectorAll('.cite').length") == 1


@needs_browser
def test_a_chat_with_measured_sources(tab: Tab, chat_url: str) -> None:
    tab.open(f"{chat_url}/")
    tab.value(
        "(plain => { chatBody = (...asked) => ({...plain(...asked), max_tokens: 12, temperature: 0}); })(chatBody)"
    )
    say(tab, QUESTION)
    body = {"model": "tiny-chat", "messages": [{"role": "user", "content": QUESTION}]}
    answer: Any = httpx.post(
        f"{chat_url}/v1/chat/completions", json={**body, "max_tokens": 12, "temperature": 0}, timeout=60
    ).json()
    [source] = answer["ralm"]["choices"][0]["sources"]
    assert tab.value("turns[0].answers.with.text") == answer["choices"][0]["message"]["content"]
    assert tab.value("turns[0].answers.with.sources.map(one => [one.passage.passage, one.known])") == [
        [source["passage"], source["known"]]
    ]
    assert tab.value("document.querySelectorAll('.cite').length") == len(answer["choices"][0]["message"]["annotations"])
    assert tab.value("turns[0].answers.with.retriever") == "bm25"


@needs_browser
def test_the_page_asks_for_nothing_that_the_server_rejects(tab: Tab, url: str) -> None:
    tab.open(f"{url}/")  # this model has no chat template
    assert tab.value("document.getElementById('tell').disabled")
    assert "no chat template" in str(tab.value(TOLD))


@needs_browser
def test_cited_words_are_marked_by_characters(tab: Tab, url: str) -> None:
    """Two sources whose words overlap, after a character of two UTF-16 units; a marker of two numbers."""
    tab.open(f"{url}/")
    script = """
      (() => {
        const passage = {passage: 0, title: "A", document_id: "a", text: "x"};
        const source = (label, known, more) => ({label, passage, known, quotes: [], cited: [], spans: [], ...more});
        const quoted = (label, ...span) => source(label, "quoted", {quotes: [{answer: span, passage: [0, 1]}]});
        const answer = {text: "\U0001f40b the sea sings [3, 4]", sources: [quoted(1, 2, 9), quoted(2, 6, 15),
          source(3, "cited", {cited: [[16, 22]]}), source(4, "cited", {cited: [[16, 22]]})]};
        return make("div", {}, ...citedText(answer, null, "with")).innerHTML;
      })()"""
    found = re.sub("<button[^>]*>", "{", str(tab.value(script))).replace("</button>", "}")
    whale = "\U0001f40b"
    assert found == f"{whale} <mark>the </mark><mark>sea</mark>{{1}}<mark> sings</mark>{{2}} {{3}}{{4}}"
