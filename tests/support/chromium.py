"""A real Chromium without a window, driven over its own pipe: no driver and no package needed.

`--remote-debugging-pipe` speaks the DevTools protocol in JSON messages that end with a zero byte,
in on file descriptor 3 and out on 4.
"""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4);"
    "os.execv(sys.argv[3], sys.argv[3:])"
)


class Browser:
    """One page. Clicks go through the input system, as a mouse's do."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self._commands = os.pipe()
        self._replies, replies = os.pipe()
        # Numbers from 10 up, so that neither end is in the way of descriptors 3 and 4.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (commands, replies)]
        flags = [*FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *map(str, ends), CHROMIUM, *flags],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (commands, replies, *ends):
            os.close(end)
        self._buffer = b""
        self._last = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        os.close(self._commands)  # the browser ends with its pipe
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._replies)
        self._profile.cleanup()

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._replies, 1 << 16)
            if not chunk:
                self.close()
                raise RuntimeError("Chromium closed its pipe")
            self._buffer += chunk
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and wait for its answer; events on the way are kept."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == self._last:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']}")
                return reply["result"]
            self.events.append(reply)

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def prefer(self, scheme: str) -> None:
        """What the system asks for: light or dark."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def open(self, path: Path) -> None:
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def js(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        reply = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in reply:
            raise RuntimeError(f"{expression}: {reply['exceptionDetails']}")
        return reply["result"].get("value")

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of the first element that the selector finds."""
        found = json.dumps(selector)
        x, y = self.js(
            f"(() => {{ const e = document.querySelector({found});"
            " e.scrollIntoView({block: 'center', inline: 'nearest'});"
            " const b = e.getBoundingClientRect();"
            " return [b.left + Math.min(b.width / 2, 40), b.top + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, selector: str, text: str) -> None:
        self.click(selector)
        self.call("Input.insertText", text=text)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option; the list that a real click opens lies outside the page."""
        self.js(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            f" e.value = {json.dumps(value)};"
            " e.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )

    def wait_for(self, condition: str) -> None:
        """Wait until an expression in the page is true."""
        self.js(
            f"new Promise(done => {{ const look = () => ({condition}) ? done() : "
            "setTimeout(look, 10); look(); })"
        )

    def settled(self) -> None:
        """Wait until what the page has put off for later is done."""
        self.js("new Promise(done => setTimeout(done, 30))")

    def screenshot(self, path: Path, whole: bool = False) -> None:
        parameters: dict[str, Any] = {"format": "png"}
        if whole:
            box = self.call("Page.getLayoutMetrics")["cssContentSize"]
            parameters |= {"captureBeyondViewport": True, "clip": {**box, "scale": 1}}
        reply = self.call("Page.captureScreenshot", **parameters)
        path.write_bytes(base64.b64decode(reply["data"]))


def complaints(page: Browser) -> list[Any]:
    """What the page wrote to the console: warnings, errors and all else."""
    kinds = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
    return [event for event in page.events if event.get("method") in kinds]
