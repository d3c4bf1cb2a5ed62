"""This file holds a small client for Chromium's DevTools protocol over a pipe: no port, no driver, no further package.

Chromium reads commands on descriptor 3 and answers on 4, each a JSON object that ends with a zero byte.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 60.0  # seconds for one answer

# the shell's redirections take one digit only, and preexec_fn is not safe in threads
# and a copy must not land on 3 or 4 itself: it would be closed on exec, or overwritten by the other
_LAUNCH = (
    "import fcntl, os, sys; read, write = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]);"
    "os.dup2(read, 3); os.dup2(write, 4); os.execvp(sys.argv[3], sys.argv[3:])"
)


def find() -> str | None:
    """The browser: what CHROMIUM names, or the first known name on PATH."""
    return os.environ.get("CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), None)


class Failure(Exception):
    """The browser refused a command, or a script threw."""


class Browser:
    """One headless process. Events of the page under test are kept in `events`."""

    def __init__(self, program: str, profile: Path) -> None:
        command_end, self._write = os.pipe()
        self._read, answer_end = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--disable-extensions",
                 "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
                 f"--user-data-dir={profile}", "about:blank"]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(command_end), str(answer_end), program, *flags],
            pass_fds=(command_end, answer_end), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(command_end)
        os.close(answer_end)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """The result of a command; events that come meanwhile are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._next(deadline)
            if answer is None:
                raise Failure(f"{method}: no answer in {PATIENCE:.0f} s")
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise Failure(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self.events.append(answer)

    def drain(self, seconds: float = 0.0) -> None:
        """Take events for so long."""
        deadline = time.monotonic() + seconds
        while (event := self._next(deadline)) is not None:
            self.events.append(event)

    def wait(self, method: str, since: int, seconds: float = PATIENCE) -> dict[str, Any]:
        """The first event of a name after the first `since`."""
        deadline = time.monotonic() + seconds
        while True:
            found = next((event for event in self.events[since:] if event.get("method") == method), None)
            if found:
                return found
            event = self._next(deadline)
            if event is None:
                raise Failure(f"no {method} in {seconds:.0f} s")
            self.events.append(event)

    def _next(self, deadline: float) -> dict[str, Any] | None:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            data = os.read(self._read, 1 << 20)
            if not data:
                raise Failure("the browser ended")
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(text))

    def close(self) -> None:
        with contextlib.suppress(OSError, Failure):
            self.send("Browser.close")
        os.close(self._write)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)


class Page:
    """One tab on one file, at one size and in one theme."""

    def __init__(self, browser: Browser, width: int, height: int, *, dark: bool = False, touch: bool = False) -> None:
        self.browser = browser
        self.width, self.height = width, height
        target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self._target = target
        self.session = browser.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility", "DOM"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        if touch:
            self.send("Emulation.setTouchEmulationEnabled", enabled=True)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self._since = len(browser.events)
        self.seconds = 0.0

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.send(method, self.session, **params)

    def open(self, path: Path) -> None:
        """Load the file, and wait for its load event and the first frame after it; `seconds` is how long that took."""
        self._since = len(self.browser.events)
        began = time.monotonic()
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.browser.wait("Page.loadEventFired", self._since)
        self.frame()
        self.seconds = time.monotonic() - began

    def open_without_script(self, path: Path) -> None:
        """As `open`, where no script of the page runs."""
        self._since = len(self.browser.events)
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.browser.wait("Page.loadEventFired", self._since)

    def text(self) -> str:
        """All text of the document, scripts and styles too."""
        root = self.send("DOM.getDocument", depth=0)["root"]["nodeId"]
        return str(self.send("DOM.getOuterHTML", nodeId=root)["outerHTML"])

    def count(self, selector: str) -> int:
        root = self.send("DOM.getDocument", depth=0)["root"]["nodeId"]
        return len(self.send("DOM.querySelectorAll", nodeId=root, selector=selector)["nodeIds"])

    def frame(self) -> None:
        """Two frames have been drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise Failure(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def key(self, key: str, *, shift: bool = False) -> None:
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35}
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=codes[key],
                modifiers=8 if shift else 0,
                **text,
            )

    def move(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A PNG of the page, or of what is in view."""
        params: dict[str, Any] = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            size = self.send("Page.getLayoutMetrics")["cssContentSize"]
            params["clip"] = {"x": 0, "y": 0, "width": self.width, "height": min(size["height"], 12_000), "scale": 1}
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", **params)["data"]))

    def accessible(self) -> list[dict[str, Any]]:
        """The accessibility tree, without what is ignored."""
        return [node for node in self.send("Accessibility.getFullAXTree")["nodes"] if not node.get("ignored")]

    def troubles(self) -> list[str]:
        """What the console, the policy and the script engine complained of since `open`."""
        self.browser.drain()
        found = []
        for event in self._own():
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"])[:500])
            elif event["method"] == "Runtime.consoleAPICalled":
                found.append(f"console.{params['type']}: {params['args']}")
            elif event["method"] == "Log.entryAdded":
                found.append(params["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """URLs that were asked for since `open`."""
        self.browser.drain()
        return [event["params"]["request"]["url"] for event in self._own() if event["method"] == "Network.requestWillBeSent"]

    def _own(self) -> Iterator[dict[str, Any]]:
        return (event for event in self.browser.events[self._since :] if event.get("sessionId") == self.session)

    def close(self) -> None:
        self.browser.send("Target.closeTarget", targetId=self._target)
