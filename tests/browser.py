"""A real Chromium for tests of pages. With CI=true it must be there; else tests that need it skip."""

import itertools
import json
import os
import shutil
import subprocess
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None and os.environ.get("CI") != "true", reason="no Chromium here")


def browser_command(profile: Path, *arguments: str) -> list[str]:
    """How Chromium is started without a window."""
    assert BROWSER is not None, "Chromium is not installed: the checks need it (the Debian package chromium)."
    own = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={profile}"]
    return [BROWSER, *own, *arguments]


class Tab:
    """A tab of a browser, which the DevTools protocol drives."""

    def __init__(self, socket: ClientConnection) -> None:
        self.faults: list[str] = []
        """What the page wrote on its console, and what it did not catch."""
        self.requested: list[str] = []
        """The address of every request."""
        self._socket = socket
        self._numbers = itertools.count(1)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """The result of a method of the protocol."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message: Any) -> None:
        match message["method"]:
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded":
                self.faults.append(json.dumps(message["params"]))
            case "Network.requestWillBeSent":
                self.requested.append(message["params"]["request"]["url"])

    def value(self, script: str) -> Any:
        """What a script gives, awaited if it is a promise."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str, seconds: float = 60) -> None:
        """Wait until a script gives something true."""
        end = time.monotonic() + seconds
        while not self.value(f"Boolean({script})"):
            assert time.monotonic() < end, f"{script} did not come true; {self.faults}"
            time.sleep(0.05)

    def open(self, url: str) -> None:
        """Go to an address, and wait until the page says that it is ready."""
        self.call("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank'")
        self.call("Page.navigate", url=url)
        self.until("document.body?.dataset.ready === 'true'")

    def type(self, selector: str, text: str) -> None:
        """Type a text into an element."""
        self.value(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, control: bool = False) -> None:
        """Press a key."""
        codes = {"Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35, "Tab": 9}
        typed = {"text": "\r"} if key == "Enter" and not control else {}
        for kind, more in (("keyDown", typed), ("keyUp", {})):
            self.call(
                "Input.dispatchKeyEvent",
                **more,
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=codes[key],
                modifiers=2 if control else 0,
            )

    def point(self, selector: str) -> None:
        """Move the pointer onto an element."""
        box = self.value(
            f"(box => [box.x + box.width / 2, box.y + box.height / 2])"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])

    def size(self, width: int, height: int, *, scale: float = 1) -> None:
        """Give the window a size; a narrow one is that of a phone."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )

    def dark(self, *, on: bool) -> None:
        """Prefer dark colours, or light ones."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, file: Path) -> None:
        """Save what the window shows."""
        file.write_bytes(b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser_tab(folder: Path) -> Iterator[Tab]:
    """A tab of a new browser, which keeps its files in a folder."""
    profile = folder / "profile"
    process = subprocess.Popen(
        browser_command(profile, "--remote-debugging-port=0", "about:blank"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with connect(_address(profile, process), max_size=None, compression=None) as socket:
            yield Tab(socket)
    finally:
        process.terminate()
        process.wait(30)


def _address(profile: Path, process: "subprocess.Popen[bytes]", seconds: float = 60) -> str:
    """Where the first tab listens, once it does."""
    told, end = profile / "DevToolsActivePort", time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, f"the browser ended with status {process.returncode}"
        if told.exists() and (lines := told.read_text().splitlines()):
            tabs = httpx.get(f"http://127.0.0.1:{lines[0]}/json").json()
            pages = [tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"]
            if pages:
                return str(pages[0])
        time.sleep(0.05)
    raise AssertionError("the browser does not listen")
