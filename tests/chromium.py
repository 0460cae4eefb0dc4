"""A headless Chromium driven through its DevTools protocol; nothing but Debian's package and tornado."""

import asyncio
import base64
import json
import shutil
import subprocess
import time
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from urllib.request import urlopen

import numpy as np
from PIL import Image
from tornado.websocket import websocket_connect

EXECUTABLE = shutil.which("chromium")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --remote-debugging-port=0"
)
_ERRORS = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")


@contextmanager
def browser(profile):
    """A page of a fresh browser whose profile is the given empty folder; the browser ends with it."""
    words = [EXECUTABLE, *FLAGS.split(), f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    loop = asyncio.new_event_loop()
    try:
        page = Page(loop, _socket(Path(profile) / "DevToolsActivePort", process))
        yield page
        page.send("Browser.close")  # or it leaves folders behind
        process.wait(20)
    finally:
        process.kill()
        process.wait(20)
        loop.close()


class Page:
    """One tab: `evaluate` JavaScript, move the mouse, press keys, look. `errors` and `requests` collect."""

    def __init__(self, loop, address):
        self.loop, self.number, self.errors, self.requests = loop, 0, [], []
        self.socket = loop.run_until_complete(_connected(address))
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method, **parameters):
        self.number += 1
        message = json.dumps({"id": self.number, "method": method, "params": parameters})
        return self.loop.run_until_complete(asyncio.wait_for(self._answer(message), 60))

    async def _answer(self, message):
        await self.socket.write_message(message)
        while True:
            got = json.loads(await self.socket.read_message())
            if got.get("id") == self.number:
                assert "error" not in got, got
                return got["result"]
            self._note(got["method"], got["params"])

    def _note(self, method, parameters):
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method in _ERRORS:
            self.errors.append(parameters)

    def open(self, path, *, width=1200, height=900, mobile=False, dark=False):
        """Load a file in a window of that size."""
        self.errors.clear()
        self.requests.clear()
        scale = {"deviceScaleFactor": 2 if mobile else 1, "mobile": mobile}
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, **scale)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=Path(path).resolve().as_uri())
        self.until("document.readyState === 'complete' && document.querySelector('canvas, .time') !== null")

    def evaluate(self, expression):
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, condition, *, tries=200):
        for _ in range(tries):
            if self.evaluate(condition):
                return
            time.sleep(0.05)
        raise AssertionError(f"never became true: {condition}")

    def box(self, selector):
        """(x, y, width, height) of an element in the window, scrolled into view first."""
        return self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            "return [b.x, b.y, b.width, b.height]; })()"
        )

    def mouse(self, kind, x, y, **more):
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector):
        x, y, width, height = self.box(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x + width / 2, y + height / 2, button="left", clickCount=1)

    def press(self, key, *, text=""):
        code = {"windowsVirtualKeyCode": {"Enter": 13, "Tab": 9, " ": 32}.get(key, 0)}
        shown = {"text": text or (key if len(key) == 1 else "")}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **shown, **code)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    def screenshot(self, path=None, *, whole=False):
        """The window, or the whole page, as an array (height, width, 3)."""
        found = self.send(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole)
        )
        image = base64.b64decode(found["data"])
        if path is not None:
            Path(path).write_bytes(image)
        return np.asarray(Image.open(BytesIO(image)).convert("RGB"))

    def _clip(self, whole):
        if not whole:
            return {}
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}


async def _connected(address):
    return await websocket_connect(address, max_message_size=2**28)


def _socket(file, process):
    """The address of the first tab's socket, once the browser has written its port."""
    for _ in range(600):
        assert process.poll() is None, f"chromium ended with {process.returncode}"
        if file.exists() and file.read_text().count("\n"):
            port = file.read_text().split()[0]
            tabs = json.load(urlopen(f"http://127.0.0.1:{port}/json"))
            pages = [tab for tab in tabs if tab["type"] == "page"]
            if pages:
                return pages[0]["webSocketDebuggerUrl"]
        time.sleep(0.1)
    raise AssertionError("chromium did not come up")
