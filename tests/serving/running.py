"""The service on a free port of this machine, in a thread."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from fastapi import FastAPI


@contextmanager
def running(app: FastAPI, **options) -> Iterator[str]:
    """Its address, until the block ends."""
    config = uvicorn.Config(app, port=0, log_level="warning", ws="none", **options)
    server, bound = uvicorn.Server(config), config.bind_socket()
    thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{bound.getsockname()[1]}"
    try:
        while not server.started:
            assert thread.is_alive(), "the service did not start"
            time.sleep(0.01)
        yield address
    finally:
        server.should_exit = True
        thread.join(20)


def client(address: str, **options) -> httpx.Client:
    return httpx.Client(base_url=address, timeout=60, trust_env=False, **options)
