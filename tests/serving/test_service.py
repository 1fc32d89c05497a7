"""The HTTP service: its answers, its limits, and hundreds of requests at once."""

import asyncio
import io
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import pytest
import torch
from PIL import Image

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("uvicorn", reason="needs the extra `serve`")

import httpx

from pfedseq.serving.client_models import ClientModels
from pfedseq.serving.generations import Served
from pfedseq.serving.service import Limits, make_service
from pfedseq.serving.together import ModelsTogether, load_together
from tests.serving.running import client, running

SRC = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture(scope="module")
def served(finished):
    found = ClientModels.open(finished, "local")
    models, everyones, global_is = load_together(found)
    return Served(ModelsTogether([*models, everyones]), tuple(found.names), "local", global_is)


@pytest.fixture(scope="module")
def address(served):
    with running(make_service(served, Limits(body_bytes=100_000))) as address:
        yield address


@pytest.fixture
def http(address):
    with client(address) as connection:
        yield connection


@pytest.fixture
def photo(photos):
    return (photos / "mill/whole/001.png").read_bytes()


def test_predictions_are_those_of_the_clients_models(http, served, photo):
    shares = [m.predict([m.read(("x", photo))])[0] for m in served.together.models]
    for number, name in enumerate(("harbour", "mill", "quarry")):
        for wanted in (name, str(number)):
            answer = http.post("/predict", params={"client": wanted, "top": 1}, content=photo)
            assert answer.status_code == 200
            (best,) = answer.json()["prediction"]
            assert answer.json()["client"] == name
            assert answer.json()["global_prediction"] is None
            assert best["name"] == ("cracked", "whole")[int(shares[number].argmax())]
            assert best["probability"] == pytest.approx(float(shares[number].max()), abs=1e-5)
    answer = http.post("/predict", params={"client": "mill", "compare": True}, content=photo)
    compared = {one["name"]: one["probability"] for one in answer.json()["global_prediction"]}
    assert compared == pytest.approx(
        dict(zip(("cracked", "whole"), shares[3].tolist(), strict=True)), abs=1e-5
    )


def test_clients_and_health(http):
    found = http.get("/clients").json()
    assert found["clients"] == ["harbour", "mill", "quarry"]
    assert found["class_names"] == ["cracked", "whole"]
    assert found["method"] == "local"
    health = http.get("/healthz").json()
    assert health["status"] == "ok"
    assert health["clients"] == 3


def chunk(kind, content):
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + checksum


def png(width, height):
    """A PNG that promises so many pixels and holds none."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"")


def test_bad_requests_get_a_4xx_and_a_sentence(http, photo):
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
    for status, words, params, sent in [
        (404, "there is no client 'bay': /clients lists them", {"client": "bay"}, {}),
        (404, "there is no client '3'", {"client": "3"}, {}),
        (404, f"there is no client '{'9' * 59}…'", {"client": "9" * 5000}, {}),
        (422, "top: Unable to parse", {"client": 0, "top": "9" * 5000}, {}),
        (422, "client: Field required", {}, {}),
        (422, "top: Input should be greater than or equal to 1", {"client": 0, "top": 0}, {}),
        (400, "the request has no image", {"client": 0}, {"content": b""}),
        (
            415,
            "the body is not an image in a supported format",
            {"client": 0},
            {"content": b"hello"},
        ),
        (415, "the body is not an image in a supported format", {"client": 0}, {"content": eps}),
        (415, "not multipart/form-data", {"client": 0}, {"files": {"image": photo}}),
        (415, "not application/json", {"client": 0}, {"json": {}}),
        (400, "is not a readable image", {"client": 0}, {"content": photo[:300]}),
        (413, "larger than 100,000 bytes", {"client": 0}, {"content": bytes(100_001)}),
        (413, "larger than 100,000 bytes", {"client": 0}, {"content": iter([bytes(60_000)] * 2)}),
        (413, "10000 × 10000 pixels", {"client": 0}, {"content": png(10_000, 10_000)}),
        (413, "too many pixels: send one of", {"client": 0}, {"content": png(20_000, 20_000)}),
    ]:
        body = sent or {"content": photo}
        answer = http.post("/predict", params=params, **body)
        assert answer.status_code == status, answer.text
        assert words in answer.json()["detail"]
    assert http.get("/predict").status_code == 405
    assert http.post("/predict", params={"client": 0}, content=photo).status_code == 200


def test_every_kind_of_image_is_taken(http):
    picture = Image.linear_gradient("L").convert("RGB").resize((64, 64))
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"):
        content = io.BytesIO()
        picture.save(content, kind)
        answer = http.post("/predict", params={"client": 1}, content=content.getvalue())
        assert answer.status_code == 200, (kind, answer.text)


def test_a_token_guards_all_but_health_and_the_page(served, photo):
    with running(make_service(served, Limits(), token="s3cret")) as address:
        with client(address) as stranger:
            assert stranger.get("/clients").status_code == 401
            answer = stranger.post("/predict", params={"client": 0}, content=photo)
            assert answer.status_code == 401
            assert answer.json()["detail"] == "this service needs its bearer token"
            assert stranger.get("/healthz").status_code == 200
            assert stranger.get("/").status_code == 200
        with client(address, headers={"Authorization": "Bearer s3cre"}) as guesser:
            assert guesser.get("/clients").status_code == 401
        with client(address, headers={"Authorization": "Bearer s3cret"}) as friend:
            assert friend.get("/clients").status_code == 200
            answer = friend.post("/predict", params={"client": 0}, content=photo)
            assert answer.status_code == 200


def test_an_answer_that_takes_too_long_is_a_504(served, photo, monkeypatch):
    go = threading.Event()
    pause = ModelsTogether(served.together.models)
    monkeypatch.setattr(
        pause, "probabilities", lambda rows, images: (go.wait(20), torch.ones(len(rows), 2))[1]
    )
    slow = Served(pause, served.clients, None, "")
    app = make_service(slow, Limits(seconds=0.3))
    with running(app) as address, client(address) as http:
        answer = http.post("/predict", params={"client": 0}, content=photo)
        assert answer.status_code == 504
        assert answer.json()["detail"] == "no answer within 0.3 s: try again"
        go.set()
        assert http.post("/predict", params={"client": 0}, content=photo).status_code == 200


def test_a_full_queue_is_a_503(served, photo, monkeypatch):
    go, entered = threading.Event(), threading.Event()
    pause = ModelsTogether(served.together.models)

    def held(rows, images):
        entered.set()
        assert go.wait(20)
        return torch.ones(len(rows), 2)

    monkeypatch.setattr(pause, "probabilities", held)
    app = make_service(Served(pause, served.clients, None, ""), Limits(waiting=1, batch=1))

    async def ask(address):
        async with httpx.AsyncClient(base_url=address, timeout=60, trust_env=False) as http:

            def post():
                return asyncio.create_task(
                    http.post("/predict", params={"client": 0}, content=photo)
                )

            first = post()
            await asyncio.to_thread(entered.wait, 20)
            second = post()
            while app.state.generations.current.batcher.waiting < 1:
                await asyncio.sleep(0.01)
            third = await post()
            go.set()
            return [answer.status_code for answer in (await first, await second, third)]

    with running(app) as address:
        assert asyncio.run(ask(address)) == [200, 200, 503]


def test_hundreds_of_requests_at_once_are_all_answered_as_alone(served, photos):
    """400 requests of mixed clients by 100 connections; each as one at a time would be."""
    files = sorted(photos.rglob("00[0-4].png"))
    contents = [file.read_bytes() for file in files]
    expected = [
        [m.predict([m.read(("x", content))])[0] for content in contents]
        for m in served.together.models
    ]

    async def load(address):
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(
            base_url=address, timeout=120, limits=limits, trust_env=False
        ) as http:

            async def one(number):
                who, what = number % 3, number % len(contents)
                query = {"client": who, "compare": number % 2 == 0}
                answer = await http.post("/predict", params=query, content=contents[what])
                return who, what, answer

            return await asyncio.gather(*(one(number) for number in range(400)))

    app = make_service(served, Limits())
    with running(app) as address:
        answers = asyncio.run(load(address))
        batcher = app.state.generations.current.batcher
    assert len(answers) == 400
    for who, what, answer in answers:
        assert answer.status_code == 200
        found = {one["name"]: one["probability"] for one in answer.json()["prediction"]}
        alone = dict(zip(("cracked", "whole"), expected[who][what].tolist(), strict=True))
        assert found == pytest.approx(alone, abs=1e-4)
        if compared := answer.json()["global_prediction"]:
            everyones = dict(zip(("cracked", "whole"), expected[3][what].tolist(), strict=True))
            assert {o["name"]: o["probability"] for o in compared} == pytest.approx(
                everyones, abs=1e-4
            )
    assert batcher.answered == 400
    assert batcher.passes < 400, "requests share passes"  # how many, the load decides


def test_pages_load_nothing_from_elsewhere(http):
    for path in ("/", "/docs", "/page.css", "/page.js", "/docs.js"):
        answer = http.get(path)
        assert answer.status_code == 200
        assert "http://" not in answer.text
        assert "https://" not in answer.text
        assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    described = http.get("/openapi.json").json()
    assert set(described["paths"]) == {"/healthz", "/readyz", "/clients", "/predict"}


def test_the_command_serves_until_it_is_stopped(finished, photo, tmp_path):
    """As a user starts it: a process, a free port, a token in a file, Ctrl-C."""
    (tmp_path / "token").write_text("abc\n")
    words = ["serve", finished, "-m", "fedrep", "--port", 0, "--token-file", tmp_path / "token"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pfedseq", *map(str, words)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SRC)},
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("3 clients at http://127.0.0.1:")
        with client(line.split()[3], headers={"Authorization": "Bearer abc"}) as http:
            answer = http.post("/predict", params={"client": "quarry"}, content=photo)
            assert answer.status_code == 200
            assert http.get("/clients").json()["method"] == "fedrep"
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) is not None


@pytest.mark.parametrize(
    ("host", "alone"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("nas", False)],
)
def test_who_can_reach_the_service(host, alone, finished, command, monkeypatch):
    """Beyond this machine, and without a token, there is a warning."""
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    monkeypatch.setattr("pfedseq.cli.serve._listen", lambda host, port: socket.socket())
    warning = f"anyone who reaches {host} can use these models"
    assert (warning in command("serve", finished, "--host", host)[2]) is not alone
    monkeypatch.setenv("PFEDSEQ_TOKEN", "abc")
    assert warning not in command("serve", finished, "--host", host)[2]


def test_a_port_in_use_is_a_sentence(finished, command):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = command("serve", finished, "--port", port)
    assert (code, out) == (2, "")
    assert f"cannot listen at 127.0.0.1, port {port} (Address already in use)" in err


def test_wrong_arguments_get_a_sentence(finished, command, tmp_path, monkeypatch):
    (tmp_path / "empty").write_text("\n")
    for arguments, sentence in [
        (["--token-file", tmp_path / "empty"], "is empty"),
        (["--token-file", tmp_path / "none"], "cannot read the token file"),
        (["--method", "sgd"], "no models of 'sgd'"),
    ]:
        code, _, err = command("serve", finished, *arguments)
        assert code == 2
        assert sentence in err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = command("serve", finished)
    assert code == 2
    assert "pip install 'pfedseq[serve]'" in err
