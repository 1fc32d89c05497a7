"""Headless Chromium by the WebDriver protocol, for tests of pages."""

import base64
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The protocol's key for a reference to an element."""
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--disable-dev-shm-usage",
)


def missing() -> str:
    """Why there is no browser; '' where there is one."""
    lacking = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"needs {' and '.join(lacking)}" if lacking else ""


class Browser:
    """One window."""

    def __init__(self, driver: httpx.Client, session: str) -> None:
        self._driver, self._session = driver, session

    def _post(self, path: str, **values: Any) -> Any:
        answer = self._driver.post(f"/session/{self._session}/{path}", json=values)
        answer.raise_for_status()
        return answer.json()["value"]

    def open(self, address: str) -> None:
        self._post("url", url=address)

    def run(self, script: str, *arguments: Any) -> Any:
        """What a function body returns in the page."""
        return self._post("execute/sync", script=script, args=list(arguments))

    def wait(self, script: str, seconds: float = 20) -> Any:
        """Run a function body until it returns something true."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"never became true: {script}"
            time.sleep(0.05)
        return value

    def type(self, selector: str, text: str) -> None:
        """Type into an element; of a file input, choose the file of that path."""
        found = self._post("element", using="css selector", value=selector)
        self._post(f"element/{found[ELEMENT]}/value", text=text)

    def screenshot(self, path: Path) -> None:
        answer = self._driver.get(f"/session/{self._session}/screenshot")
        path.write_bytes(base64.b64decode(answer.json()["value"]))


@contextmanager
def browser(profile: Path, width: int = 900, height: int = 800) -> Iterator[Browser]:
    """A window with an empty profile in the folder `profile`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    flags = [*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"]
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False
        ) as driver:
            _until_ready(driver)
            wanted = {"browserName": "chrome", "goog:chromeOptions": {"args": flags}}
            answer = driver.post("/session", json={"capabilities": {"alwaysMatch": wanted}})
            answer.raise_for_status()
            session = answer.json()["value"]["sessionId"]
            try:
                yield Browser(driver, session)
            finally:
                driver.delete(f"/session/{session}")
    finally:
        process.terminate()
        process.wait(20)


def _until_ready(driver: httpx.Client) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            if driver.get("/status").json()["value"]["ready"]:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < end, "chromedriver does not answer"
        time.sleep(0.05)
