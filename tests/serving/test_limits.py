"""What strangers and crowds can do to the service: connections, pixels, bodies."""

import asyncio
import importlib.util
import io
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("uvicorn", reason="needs the extra `serve`")

import httpx
from uvicorn.protocols.http.h11_impl import H11Protocol

from pfedseq.errors import InputError
from pfedseq.serving import connections
from pfedseq.serving.budget import Budget, Tally
from pfedseq.serving.client_models import ClientModels
from pfedseq.serving.connections import RESERVE, allow_files, limited
from pfedseq.serving.generations import Served
from pfedseq.serving.metrics import Metrics
from pfedseq.serving.service import Limits, make_service
from pfedseq.serving.together import ModelsTogether, load_together
from tests.serving.running import client, running

PROTOCOLS = [H11Protocol]
if importlib.util.find_spec("httptools"):
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    PROTOCOLS.append(HttpToolsProtocol)


@pytest.fixture(scope="module")
def served(finished):
    found = ClientModels.open(finished, "local")
    models, everyones, global_is = load_together(found)
    return Served(ModelsTogether([*models, everyones]), tuple(found.names), "local", global_is)


@pytest.fixture
def photo(photos):
    return (photos / "mill/whole/001.png").read_bytes()


def connect(address):
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def is_closed(connection):
    connection.settimeout(20)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_half_open_connections_keep_nobody_out(served, photo, protocol):
    """Thrice as many as the limit, half of them with half a head; none has a token."""
    counted = Metrics()
    app = make_service(served, Limits(), token="s3cret", metrics=counted)
    http = limited(100, 60, counted.closed, protocol)
    with running(app, http=http) as address:
        crowd = [connect(address) for _ in range(300)]
        try:
            for one in crowd[150:]:
                one.sendall(b"POST /predict?client=0 HTTP/1.1\r\nHost: x\r\n")
            with client(address, headers={"Authorization": "Bearer s3cret"}) as friend:
                assert friend.get("/healthz").status_code == 200
                answer = friend.post("/predict", params={"client": 0}, content=photo)
                assert answer.status_code == 200
                assert 'reason="room"' in friend.get("/metrics").text
            assert is_closed(crowd[0]), "the oldest made room"
            assert counted.connections_closed["room"] >= 200
        finally:
            for one in crowd:
                one.close()


def drip(connection):
    """Send a byte now and then, for twenty seconds at most."""
    for _ in range(400):
        connection.sendall(b"P")
        time.sleep(0.05)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_head_must_come_in_time(served, photo, protocol):
    """On a new connection, byte by byte, and after an answer whose request was never finished."""
    counted = Metrics()
    http = limited(100, 0.5, counted.closed, protocol)
    app = make_service(served, Limits(), token="s3cret", metrics=counted)
    with running(app, http=http, timeout_keep_alive=60) as address:
        silent, dripping, unfinished = (connect(address) for _ in range(3))
        unfinished.sendall(
            b"POST /predict?client=0 HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
        )
        assert b" 401 " in unfinished.recv(65536)
        for one in (dripping, unfinished):
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                drip(one)
        assert is_closed(silent)
        assert counted.connections_closed["head"] >= 2
        with client(address) as later:
            assert later.get("/healthz").status_code == 200


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_health_is_answered_while_every_connection_is_busy(served, photo, protocol, monkeypatch):
    go = threading.Event()
    held = ModelsTogether(served.together.models)
    monkeypatch.setattr(
        held, "probabilities", lambda rows, images: (go.wait(20), torch.ones(len(rows), 2))[1]
    )
    app = make_service(Served(held, served.clients, None, ""), Limits())
    http = limited(4, 20, lambda why: None, protocol)

    async def ask(address):
        async with httpx.AsyncClient(base_url=address, timeout=60, trust_env=False) as busy:
            tasks = [
                asyncio.create_task(busy.post("/predict", params={"client": 0}, content=photo))
                for _ in range(4)
            ]
            while app.state.generations.current.users < 4:
                await asyncio.sleep(0.01)
            async with httpx.AsyncClient(base_url=address, trust_env=False) as doctor:
                found = {path: await doctor.get(path) for path in ("/healthz", "/readyz")}
                refused = await doctor.post("/predict", params={"client": 0}, content=photo)
            extra = [await asyncio.to_thread(connect, address) for _ in range(2 * RESERVE)]
            await asyncio.sleep(0.1)
            async with httpx.AsyncClient(base_url=address, trust_env=False) as doctor:
                found["again"] = await doctor.get("/healthz")
            for one in extra:
                one.close()
            go.set()
            return found, refused, [await task for task in tasks]

    with running(app, http=http) as address:
        found, refused, answers = asyncio.run(ask(address))
    assert [one.status_code for one in found.values()] == [200, 200, 200]
    assert refused.status_code == 503
    assert refused.json()["detail"] == "too many connections are in use: try again later"
    assert [one.status_code for one in answers] == [200] * 4


def test_large_images_are_decoded_within_a_budget_of_pixels(served, monkeypatch):
    """Eight images of 4 megapixels, 9 megapixels at a time: never more than two together."""
    content = io.BytesIO()
    Image.new("RGB", (2000, 2000)).save(content, "PNG")
    together, lock = ModelsTogether(served.together.models), threading.Lock()
    now, most = 0, 0

    def read(name, content):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        example = ModelsTogether.read(together, name, content)
        with lock:
            now -= 1
        return example

    monkeypatch.setattr(together, "read", read)
    app = make_service(Served(together, served.clients, None, ""), Limits(pixels=9_000_000))

    async def ask(address):
        async with httpx.AsyncClient(base_url=address, timeout=60, trust_env=False) as http:
            sent = content.getvalue()
            posts = (http.post("/predict", params={"client": 0}, content=sent) for _ in range(8))
            return [answer.status_code for answer in await asyncio.gather(*posts)]

    with running(app) as address:
        assert asyncio.run(ask(address)) == [200] * 8
    assert most == 2


def test_bodies_beyond_the_common_limit_are_refused(served, photo):
    """One that is half sent holds what it has sent; another finds too little left."""
    limits = Limits(bodies_bytes=len(photo) + 100)
    with running(make_service(served, limits)) as address, connect(address) as slow:
        head = f"POST /predict?client=0 HTTP/1.1\r\nHost: x\r\nContent-Length: {len(photo)}\r\n\r\n"
        slow.sendall(head.encode() + photo[:-10])
        with client(address) as http:
            deadline = time.monotonic() + 20
            while "pfedseq_body_bytes 0\n" in http.get("/metrics").text:
                assert time.monotonic() < deadline
            answer = http.post("/predict", params={"client": 0}, content=photo)
            assert answer.status_code == 503
            assert "too many large requests at once" in answer.json()["detail"]
            slow.sendall(photo[-10:])
            assert b" 200 " in slow.recv(65536)
            assert http.post("/predict", params={"client": 0}, content=photo).status_code == 200
            assert "pfedseq_body_bytes 0\n" in http.get("/metrics").text


def test_a_budget_serves_in_order_and_forgets_who_gives_up():
    async def use():
        budget, order = Budget(10), []

        async def take(name, amount, hold):
            async with budget.take(amount):
                order.append((name, budget.used))
                await hold.wait()

        one, rest = asyncio.Event(), asyncio.Event()
        tasks = [asyncio.create_task(take("a", 7, one))]
        await asyncio.sleep(0)
        for name, amount in (("b", 99), ("c", 8), ("d", 2)):
            tasks.append(asyncio.create_task(take(name, amount, rest)))
            await asyncio.sleep(0)
        assert order == [("a", 7)], "d would fit, and waits its turn"
        tasks[1].cancel()
        await asyncio.sleep(0)
        one.set()
        await tasks[0]
        await asyncio.sleep(0)
        rest.set()
        await asyncio.gather(*tasks[2:])
        assert order == [("a", 7), ("c", 10), ("d", 10)]
        assert budget.used == 0
        async with budget.take(99):
            assert budget.used == 10, "more than all counts as all"
        assert budget.used == 0

    asyncio.run(use())


def test_a_budget_takes_back_what_came_as_its_owner_gave_up():
    async def use():
        budget, hold = Budget(10), asyncio.Event()

        async def take():
            async with budget.take(10):
                await hold.wait()

        first = asyncio.create_task(take())
        await asyncio.sleep(0)
        second = asyncio.create_task(take())
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second.cancel()  # its turn has come, and it has not run since
        with pytest.raises(asyncio.CancelledError):
            await second
        assert budget.used == 0

    asyncio.run(use())


def test_a_tally_refuses_and_keeps_nothing_of_it():
    tally = Tally(10)
    assert tally.add(10)
    assert not tally.add(1)
    assert tally.used == 10
    tally.give_back(4)
    assert tally.add(4)
    assert tally.used == 10


def test_connections_need_files(monkeypatch):
    resource = pytest.importorskip("resource")
    limits = [100, 200]
    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda which, new: limits.__setitem__(0, new[0]))
    allow_files(20)
    assert limits == [100, 200], "there are enough"
    allow_files(120)
    assert limits == [120 + RESERVE + connections.OTHER_FILES, 200]
    with pytest.raises(InputError, match="set --max-connections to 120 or less"):
        allow_files(121)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_eight_images_of_50_megapixels_take_no_gigabytes(finished):
    """The command in a process of its own; before the budget eight such files took 3.6 GB."""
    content = io.BytesIO()
    Image.new("RGBA", (7071, 7071)).save(content, "PNG")
    sent = content.getvalue()
    process = subprocess.Popen(
        [sys.executable, "-m", "pfedseq", "serve", str(finished), "-m", "local", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")},
    )

    def peak():
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

    async def ask(address):
        async with httpx.AsyncClient(base_url=address, timeout=120, trust_env=False) as http:
            posts = (http.post("/predict", params={"client": 0}, content=sent) for _ in range(8))
            return [answer.status_code for answer in await asyncio.gather(*posts)]

    try:
        address = process.stdout.readline().split()[3]
        before = peak()
        assert set(asyncio.run(ask(address))) <= {200, 504}  # a slow machine may run out of time
        assert peak() - before < 1000, "MiB"
        print(f"{peak() - before:.0f} MiB")
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()
