"""The page at `/` in a real browser: what is typed, streamed, shaded, pointed at, searched and linked to."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from ralm.reading.plan import PlanOptions
from ralm.records import Document
from ralm.serving.options import ServeOptions, Settings
from tests.browser import Tab, browser_tab, needs_browser
from tests.serving.chat_upstream import WORDS, passing_on
from tests.serving.served import DOCUMENTS, MODEL, local, save_index, serving, tiny
from tests.serving.test_limits import SlowTable

NASTY = '</script><script>document.title="caught"</script><img src=x onerror="document.title=\'caught\'">'
PROMPT = "The function open() opens a"
KEY = "sk-the-key-of-the-page"
DONE = "document.getElementById('status').textContent === 'done'"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    metadata = {"url": "javascript:alert(1)", "note": NASTY}
    nasty = Document("nasty", NASTY, f"Markup {NASTY} stays text, and open() opens a file.", metadata=metadata)
    return save_index(tmp_path_factory.mktemp("page") / "index", [*DOCUMENTS, nasty])


@pytest.fixture(scope="module")
def page_url(folder: Path) -> Iterator[str]:
    with serving(local(tiny(), folders={"few": folder})) as url:
        yield f"{url}/"


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


def text_of(tab: Tab, name: str) -> str:
    return str(tab.value(f"document.getElementById({name!r}).textContent"))


def continued(tab: Tab, name: str) -> str:
    """The text of a column, whose lines are blocks."""
    lines = tab.value(f"[...document.querySelectorAll('#{name} p')].map(one => one.textContent).join('\\n')")
    return str(lines).replace("\u200b", "").strip()


def write(tab: Tab, url: str, prompt: str = PROMPT, **options: object) -> None:
    """Open the page with options in its link, type a prompt and have it continued."""
    given = {"tab": "play", "max_tokens": 12, "temperature": 0, **options}
    tab.open(url + "#" + "&".join(f"{name}={value}" for name, value in given.items()))
    tab.type("#prompt", prompt)
    tab.press("Enter", control=True)
    tab.until(DONE)


def completed(url: str, **more: Any) -> Any:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, **more}
    return httpx.post(f"{url}v1/completions", json=body, timeout=60).json()


# ---- what the server sends


def test_the_page_tells_nothing_of_what_is_served_and_loads_nothing(page_url: str) -> None:
    answer = httpx.get(page_url)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.search(r"https?://|@import|url\(|src=|innerHTML|insertAdjacent", answer.text)
    assert MODEL not in answer.text
    assert "few" not in answer.text
    assert httpx.get(page_url, headers={"Host": "evil.example"}).status_code == 403


def test_what_may_be_chosen(page_url: str, folder: Path) -> None:
    told = httpx.get(f"{page_url}choices").json()
    assert told["model"] == MODEL
    assert told["corpus"] == "", "a program built the index"
    assert told["defaults"]["index"] == "few"
    assert told["choices"]["index"] == {"values": ["few"]}
    assert told["choices"]["retriever"] == {"values": ["bm25", "random"]}, "the index has no vectors"
    assert told["choices"]["documents"] == {"least": 1, "most": 100}
    assert told["can"] == {"chat": False, "turns": True, "completions": True}
    with serving(local(tiny(), ServeOptions(allow=("reader",)), folders={"few": folder}, key=KEY)) as url:
        assert httpx.get(f"{url}/choices").status_code == 401
        assert httpx.get(f"{url}/").status_code == 200
        told = httpx.get(f"{url}/choices", headers={"Authorization": f"Bearer {KEY}"}).json()
        assert told["choices"] == {"reader": {"values": ["in-context", "ensemble", "concatenation"]}}


# ---- in a browser


@needs_browser
def test_a_prompt_is_continued_with_and_without_passages(tab: Tab, page_url: str) -> None:
    write(tab, page_url, reader="ensemble", documents=2)
    chosen = {"reader": "ensemble", "documents": 2, "gain": True}
    told, plain = completed(page_url, ralm=chosen), completed(page_url, ralm={"index": None}, logprobs=0)
    for name, answer in (("text", told), ("plain", plain)):
        assert continued(tab, name) == (PROMPT + answer["choices"][0]["text"]).strip()
    log_probs = plain["choices"][0]["logprobs"]["token_logprobs"]
    assert tab.value("plain.tokens.map(one => one.baseline_log_prob)") == pytest.approx(log_probs, abs=1e-4)

    choice = told["ralm"]["choices"][0]
    shades = tab.value(
        "read.spans.map(one => [one.classList.contains('h'), Number(one.style.getPropertyValue('--g'))])"
    )
    assert len(shades) == len(choice["gains"]) == 12
    for (helped, strength), gain in zip(shades, choice["gains"], strict=True):
        assert helped is (gain >= 0)
        assert strength == pytest.approx(min(1, abs(gain) / 3), abs=0.006)
    colours = tab.value("read.spans.map(one => getComputedStyle(one).backgroundColor)")
    assert len(set(colours)) > 3, "the policy lets the shades be drawn"
    assert f"{abs(choice['gain']['nats']):.2f} nats" in text_of(tab, "gain")
    assert all(one.startswith(page_url) for one in tab.requested if not one.startswith(("about:", "data:")))


@needs_browser
def test_tokens_and_passages_show_each_other(tab: Tab, page_url: str) -> None:
    write(tab, page_url, reader="ensemble", documents=2)
    token = completed(page_url, ralm={"reader": "ensemble", "documents": 2})["ralm"]["choices"][0]["tokens"][4]
    tab.point("#t4")
    rows = tab.value("[...document.querySelectorAll('#card .docs .number')].map(one => one.textContent)")
    shares = sorted(token["posteriors"], reverse=True)
    assert [float(row.strip("<%")) / 100 for row in rows] == pytest.approx(shares, abs=0.006)
    tab.value("document.querySelector('#card .docs button').click()")
    first = token["passages"][token["posteriors"].index(max(token["posteriors"]))]
    assert tab.value("read.traced") == first
    assert tab.value("document.querySelectorAll('.t.by').length") >= 1
    assert tab.value("document.getElementById('t4').classList.contains('by')")
    listed = tab.value("[...document.querySelectorAll('#passages .number')].map(one => one.textContent)")
    assert len(listed) >= 2
    tab.press("Escape")
    assert tab.value("document.querySelectorAll('.t.by').length") == 0


@needs_browser
def test_tokens_without_passages_tell_how_likely_they_were(tab: Tab, page_url: str, plain_url: str) -> None:
    write(tab, page_url)
    first = tab.value("document.querySelector('#text .t.on').id")
    tab.point("#p2")
    assert tab.value("[...document.querySelectorAll('.t.on')].map(one => one.id)") == ["p2"]
    shown = tab.value("percent(Math.exp(plain.tokens[2].baseline_log_prob))")
    assert tab.value("document.querySelector('#card .odds').textContent") == f"without{shown}"
    assert "read without a passage" in text_of(tab, "card")
    tab.point("#title")
    assert tab.value("[...document.querySelectorAll('.t.on')].map(one => one.id)") == [first], (
        "back to the one that is kept"
    )
    tab.value("document.querySelector('#plain .t[tabindex=\"0\"]').focus()")
    tab.press("ArrowRight")
    assert tab.value("[document.activeElement.id, document.querySelectorAll('.t.on').length]") == ["p1", 1]
    write(tab, f"{plain_url}/")
    assert tab.value("document.getElementById('with').hidden"), "without an index there is one column"
    assert continued(tab, "plain") == (PROMPT + completed(f"{plain_url}/")["choices"][0]["text"]).strip()
    tab.point("#p1")
    assert text_of(tab, "card").find("without") > 0, "also where there is no index"


@needs_browser
def test_keys_move_among_tokens(tab: Tab, page_url: str) -> None:
    write(tab, page_url)
    tab.value("document.querySelector('.t[tabindex=\"0\"]').focus()")
    seen = []
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowLeft", "End"):
        tab.press(key)
        seen.append(tab.value("document.activeElement.id"))
        assert tab.value("document.querySelector('.t.on').id") == seen[-1]
    assert seen == ["t0", "t1", "t2", "t1", "t11"]
    names = "[...document.querySelectorAll('input, select, textarea')].every(one => one.labels.length === 1)"
    assert tab.value(names), "every field has a label"
    assert tab.value("document.getElementById('text').getAttribute('aria-live')") == "polite"
    assert tab.value("document.getElementById('text').hasAttribute('aria-busy')") is False


@needs_browser
def test_markup_stays_text(tab: Tab, page_url: str) -> None:
    write(tab, page_url, f"{PROMPT} {NASTY}", reader="ensemble", documents=4)
    assert NASTY in text_of(tab, "text")
    assert NASTY in text_of(tab, "plain")
    tab.type("#query", f"markup stays text {NASTY}")
    tab.press("Enter")
    tab.until("document.querySelectorAll('#hits details').length > 0")
    tab.value("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    tab.until("document.querySelector('#hits details p') && document.querySelector('#passages details p')")
    assert NASTY in text_of(tab, "hits")
    assert NASTY in text_of(tab, "passages")
    assert tab.value("document.querySelectorAll('img, main script').length") == 0
    assert tab.value("document.title") == MODEL
    assert "javascript:alert(1)" in text_of(tab, "hits")
    assert tab.value("document.querySelectorAll('a[href^=javascript]').length") == 0


@needs_browser
def test_a_link_holds_prompt_and_options(tab: Tab, page_url: str) -> None:
    prompt = 'Two lines\n& "more" + caf\u00e9 #1'
    tab.open(f"{page_url}#tab=play&prompt={quote(prompt)}&reader=ensemble&documents=3&seed=7&temperature=0.5")
    assert tab.value("document.getElementById('prompt').value") == prompt
    found = tab.value("['reader', 'documents', 'seed', 'temperature'].map(name => document.getElementById(name).value)")
    assert found == ["ensemble", "3", "7", "0.5"]
    tab.type("#prompt", "!")
    link = tab.value("document.getElementById('link').href")
    assert link == tab.value("location.href")
    tab.open(link)
    assert sorted(tab.value("document.getElementById('prompt').value")) == sorted(prompt + "!")
    assert not [one for one in tab.requested if "completions" in one], "a link writes nothing by itself"


@needs_browser
def test_on_a_phone_it_is_one_column_and_the_sources_of_a_token_can_be_closed(tab: Tab, page_url: str) -> None:
    tab.size(360, 740)
    write(tab, page_url)
    assert tab.value("document.documentElement.scrollWidth") <= 360
    columns = tab.value("['with', 'without'].map(name => document.getElementById(name).getBoundingClientRect().x)")
    assert columns[0] == columns[1]
    tab.value("document.getElementById('t3').click()")
    card = tab.value("(box => [box.bottom, box.height])(document.getElementById('card').getBoundingClientRect())")
    assert card[0] == 740, "the sources are at the lower edge"
    assert 0 < card[1] < 400
    is_open = "document.getElementById('card').checkVisibility()"
    assert tab.value(is_open)
    assert tab.value("document.querySelector('#card .close').ariaLabel") == "close the sources of this token"
    width, height = tab.value(
        "(box => [box.width, box.height])(document.querySelector('#card .close').getBoundingClientRect())"
    )
    assert min(width, height) >= 40, "a finger finds it"
    tab.value("document.querySelector('#card .close').focus()")
    tab.press("Enter")
    assert not tab.value(is_open)
    assert tab.value("document.activeElement.id") == "t3"
    assert tab.value("document.querySelectorAll('.t.on').length") == 0
    tab.value("document.getElementById('text').dispatchEvent(new PointerEvent('pointerleave'))")
    assert not tab.value(is_open), "it stays closed"
    tab.press("ArrowRight")
    assert tab.value(is_open)
    tab.value("document.querySelector('#card .close').click()")
    tab.value("document.getElementById('t5').click()")
    assert tab.value(is_open)
    tab.size(1280, 900)
    assert not tab.value("document.querySelector('#card .close').checkVisibility()"), "beside the text it hides nothing"


@needs_browser
def test_escape_stops_and_errors_are_told(tab: Tab, folder: Path) -> None:
    settings = Settings(plan=PlanOptions(max_length=256, document_tokens=32))
    service = local(SlowTable(0.05), settings=settings, folders={"few": folder})
    with serving(service) as url:
        tab.open(f"{url}/#tab=play&max_tokens=200&temperature=0")
        tab.type("#prompt", "abc")
        tab.press("Enter", control=True)
        tab.until("read.tokens.length > 2")
        assert tab.value("document.getElementById('text').getAttribute('aria-busy')") == "true"
        tab.press("Escape")
        assert text_of(tab, "status") == "stopped"
        many = tab.value("read.tokens.length")
        assert many < 200
        tab.value("new Promise(done => setTimeout(done, 500))")
        assert tab.value("read.tokens.length") == many
        tab.value("document.getElementById('max_tokens').value = '1000000'")
        tab.press("Enter", control=True)
        tab.until("!document.getElementById('with-fault').hidden && !document.getElementById('without-fault').hidden")
        assert "max_tokens" in text_of(tab, "with-fault")
        tab.faults[:] = [one for one in tab.faults if "the server responded with a status of 400" not in one]


@needs_browser
def test_a_key_is_asked_for_and_kept_nowhere(tab: Tab, folder: Path) -> None:
    options = ServeOptions(allow=("reader", "gain"))
    with serving(local(tiny(), options, folders={"few": folder}, key=KEY)) as url:
        tab.open(f"{url}/#tab=play&max_tokens=4&reader=ensemble")
        assert tab.value("document.getElementById('key').checkVisibility()")
        tab.type("#key", KEY)
        tab.press("Tab")
        tab.until(f"document.title === {MODEL!r}")
        assert tab.value("document.getElementById('reader').value") == "ensemble"
        assert tab.value("document.getElementById('without').hidden"), "requests may not leave out the index"
        assert tab.value("document.getElementById('stride').parentElement.hidden")
        tab.type("#prompt", PROMPT)
        tab.press("Enter", control=True)
        tab.until(DONE)
        assert tab.value("read.tokens.length") >= 1
        kept = tab.value("location.href + document.cookie + JSON.stringify({...localStorage, ...sessionStorage})")
        assert KEY not in kept


# ---- the chat

QUESTION = "What sings in the deep sea by night?"
TOLD = "document.getElementById('told').textContent"


def say(tab: Tab, text: str) -> None:
    """Send a message with the keyboard, and wait for the answer."""
    tab.type("#said", text)
    tab.press("Enter")
    tab.until(f"{TOLD} === 'done'")


def press_button(tab: Tab, name: str) -> None:
    """Press a button below the last answer."""
    buttons = "[...[...document.querySelectorAll('.acts')].at(-1).querySelectorAll('button')]"
    tab.value(f"{buttons}.find(one => one.textContent === {name!r}).click()")


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
        tab.value("fresh()")


@needs_browser
def test_a_chat_with_measured_sources_and_every_tab_by_keyboard(tab: Tab, chat_url: str) -> None:
    tab.open(f"{chat_url}/#max_tokens=12&temperature=0")
    tab.value("document.getElementById('tab-chat').focus()")
    tab.press("ArrowRight")
    assert tab.value("[document.activeElement.id, document.getElementById('play').hidden]") == ["tab-play", False]
    tab.press("ArrowLeft")
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
    tab.value("fresh()")


@needs_browser
def test_the_page_asks_for_nothing_that_the_server_rejects(tab: Tab, page_url: str) -> None:
    tab.open(page_url)  # this model has no chat template
    assert tab.value("document.getElementById('tab-chat').disabled")
    assert not tab.value("document.getElementById('play').hidden")


@needs_browser
def test_cited_words_are_marked_by_characters(tab: Tab, page_url: str) -> None:
    """Two sources whose words overlap, after a character of two UTF-16 units; a marker of two numbers."""
    tab.open(page_url)
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
