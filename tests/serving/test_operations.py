"""What operators need: metrics, readiness, logs, reloading, settings from the environment."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from pfedseq.errors import InputError
from pfedseq.serving.client_models import ClientModels
from pfedseq.serving.loading import load_served
from pfedseq.serving.metrics import Histogram, Metrics
from pfedseq.serving.model_cache import ModelCache, NotYet
from pfedseq.serving.service import Limits, make_service
from pfedseq.serving.together import mean_model
from tests.serving.running import client, running

SRC = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture
def photo(photos):
    return (photos / "mill/whole/001.png").read_bytes()


@pytest.fixture
def exported(finished, tmp_path):
    """A copy of one method's models, without FedAvg's beside them."""
    shutil.copytree(finished / "adapters" / "local", tmp_path / "models")
    return tmp_path / "models"


def wait_for(what, seconds=60):
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_a_histogram_counts_up_to_each_bound():
    """0.5, 1, 1 and 3 with the bounds 1 and 2: three up to 1, three up to 2, four in all."""
    found = Histogram((1, 2))
    for value in (0.5, 1, 1, 3):
        found.add(value)
    assert list(found.lines("x")) == [
        'x_bucket{le="1"} 3',
        'x_bucket{le="2"} 3',
        'x_bucket{le="+Inf"} 4',
        "x_sum 5.5",
        "x_count 4",
    ]


def test_metrics_escape_names_and_are_well_formed():
    metrics = Metrics()
    metrics.prediction('a"b\\c\nd')
    metrics.request("/predict", 200, 0.02)
    metrics.batch(2, 3)
    text = metrics.text({"pfedseq_waiting": ("Requests in the queue.", 4)})
    assert r'pfedseq_predictions_total{client="a\"b\\c\nd"} 1' in text
    assert 'pfedseq_requests_total{path="/predict",status="200"} 1' in text
    assert 'pfedseq_batch_rows_bucket{le="2"} 0\npfedseq_batch_rows_bucket{le="4"} 1' in text
    assert "# TYPE pfedseq_waiting gauge\npfedseq_waiting 4\n" in text
    assert (metrics.answered, metrics.passes) == (2, 1)
    sample = re.compile(r'[a-z_]+(\{[a-z]+="(\\.|[^"\\])*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+')
    for line in text.splitlines():
        assert line.startswith(("# HELP pfedseq_", "# TYPE pfedseq_")) or sample.fullmatch(line)


def test_requests_are_counted_logged_and_numbered(finished, photo):
    lines = []

    def log(event, **known):
        lines.append({"event": event, **known})

    served = load_served(finished, "local", 100)
    with running(make_service(served, Limits(), log=log)) as address, client(address) as http:
        for name in ("mill", "mill", "quarry"):
            http.post("/predict", params={"client": name, "compare": True}, content=photo)
        given = http.get("/nowhere", headers={"X-Request-ID": "from-the-proxy.7"})
        evil = http.get("/healthz", headers={"X-Request-ID": 'a"b' * 40})
        text = http.get("/metrics")
    assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
    for expected in (
        'pfedseq_predictions_total{client="mill"} 2',
        'pfedseq_predictions_total{client="quarry"} 1',
        'pfedseq_requests_total{path="/predict",status="200"} 3',
        'pfedseq_requests_total{path="other",status="404"} 1',
        "pfedseq_request_seconds_count 5",
        "pfedseq_batch_rows_sum 6",
        "pfedseq_clients 3",
        "pfedseq_models_in_memory 3",
        "pfedseq_waiting 0",
    ):
        assert expected + "\n" in text.text
    assert given.headers["x-request-id"] == "from-the-proxy.7"
    assert re.fullmatch("[0-9a-f]{16}", evil.headers["x-request-id"])
    first = lines[0]
    assert (first["event"], first["path"], first["status"]) == ("request", "/predict", 200)
    assert (first["client"], first["bytes"], first["method"]) == ("mill", len(photo), "POST")
    assert len({line["id"] for line in lines}) == 6


def test_a_failure_names_the_request_and_is_counted(finished, photo, monkeypatch):
    served, metrics, lines = load_served(finished, "local", 100), Metrics(), []

    def fail(rows, examples):
        raise RuntimeError("no memory")

    monkeypatch.setattr(served.together, "probabilities", fail)
    app = make_service(served, Limits(), metrics=metrics, log=lambda e, **k: lines.append(k))
    with running(app) as address, client(address) as http:
        answer = http.post("/predict", params={"client": 0}, content=photo)
    assert answer.status_code == 500
    assert answer.json()["detail"].endswith(f"its log says why at {lines[0]['id']}")
    assert metrics.requests["/predict", 500] == 1
    assert not metrics.predictions


def test_readiness_is_not_health(finished):
    served = load_served(finished, "local", 100)
    app = make_service(
        served, Limits(waiting=0)
    )  # a queue without an end, always full by our count
    with running(app) as address, client(address) as http:
        assert http.get("/healthz").status_code == 200
        answer = http.get("/readyz")
        assert answer.status_code == 503
        assert answer.json() == {"ready": False, "why": "too many requests are waiting"}
        app.state.generations.current.batcher.close()
        assert http.get("/readyz").json()["why"] == "the thread that owns the model has ended"
        app.state.generations.current.batcher._thread.join()


def test_metrics_need_the_token_as_they_name_clients(finished):
    served = load_served(finished, "local", 100)
    with running(make_service(served, Limits(), token="s3cret")) as address:
        with client(address) as stranger:
            assert stranger.get("/metrics").status_code == 401
            assert stranger.get("/readyz").status_code == 200
        with client(address, headers={"Authorization": "Bearer s3cret"}) as friend:
            assert friend.get("/metrics").status_code == 200


def test_more_clients_than_models_in_memory(exported, photo):
    """Two of three in memory: the same answers, the longest unused dropped, the same mean."""
    everything, lazy = load_served(exported, None, 3), load_served(exported, None, 2)
    cache = lazy.together.models
    assert isinstance(cache, ModelCache)
    assert not isinstance(everything.together.models, ModelCache)
    wait_for(lambda: cache._everyones is not None)
    expected = mean_model(everything.together.models[:3]).phi
    torch.testing.assert_close(cache[3].phi.adapter, expected.adapter)
    torch.testing.assert_close(cache[-1].phi.head, expected.head)
    example = lazy.together.read("x", photo)
    rows, loads = [0, 1, 2, 3, 1], cache.loads
    torch.testing.assert_close(
        lazy.together.probabilities(rows, [example] * 5),
        everything.together.probabilities(rows, [example] * 5),
    )
    assert cache.kept == lazy.in_memory == 2
    assert cache.loads == loads + 2
    cache[1], cache[2]
    assert cache.loads == loads + 2, "both are in memory"
    cache[1], cache[0], cache[1]
    assert cache.loads == loads + 3, "2 was dropped, which was unused for longest"
    cache[2]
    assert cache.loads == loads + 4
    assert len(cache) == 4
    cache.close()


def test_a_lazy_mean_weighs_all_alike_where_a_size_is_unknown(exported):
    about = exported / "mill" / "personal_model.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "num_train": None}))
    cache = load_served(exported, None, 1).together.models
    found = ClientModels.open(exported)
    plain = sum(found.load(index).phi.adapter for index in range(3)) / 3
    wait_for(lambda: cache._everyones is not None)
    torch.testing.assert_close(cache[3].phi.adapter, plain)


def test_the_global_model_may_not_be_there_yet(exported, finished, photo, monkeypatch):
    monkeypatch.setattr(ModelCache, "_average", lambda self: None)
    served = load_served(exported, None, 1)
    with pytest.raises(NotYet):
        served.together.models[3]
    with running(make_service(served, Limits())) as address, client(address) as http:
        query = {"client": "mill", "compare": True}
        answer = http.post("/predict", params=query, content=photo)
        assert answer.status_code == 503
        assert "is still being computed: try again" in answer.json()["detail"]
        assert http.post("/predict", params={"client": "mill"}, content=photo).status_code == 200
    beside = load_served(finished, "local", 1)  # FedAvg's model is there at once
    assert beside.global_is == "FedAvg's global model"
    assert beside.together.models[3] is beside.together.models[-1]


def test_a_damaged_model_fails_its_client_alone(exported, photo):
    (exported / "quarry" / "adapter_model.safetensors").write_bytes(b"no weights")
    served = load_served(exported, None, 1)
    with running(make_service(served, Limits())) as address, client(address) as http:
        answer = http.post("/predict", params={"client": "quarry"}, content=photo)
        assert answer.status_code == 500
        assert "the client's model cannot be loaded" in answer.json()["detail"]
        assert http.post("/predict", params={"client": "mill"}, content=photo).status_code == 200
        wait_for(lambda: served.together.models._problem)
        answer = http.post("/predict", params={"client": 0, "compare": True}, content=photo)
        assert "the mean of all clients' models cannot be computed" in answer.json()["detail"]


def test_the_command_reloads_and_reads_the_environment(exported, photo, tmp_path):
    """A process set up by variables alone: SIGHUP finds a new client, and survives a bad folder."""
    log = open(tmp_path / "log", "w")  # noqa: SIM115 (closed below)
    process = subprocess.Popen(
        [sys.executable, "-m", "pfedseq", "serve"],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=os.environ
        | {
            "PYTHONPATH": str(SRC),
            "PFEDSEQ_SERVE_RUN": str(exported),
            "PFEDSEQ_SERVE_PORT": "0",
            "PFEDSEQ_SERVE_MODELS_IN_MEMORY": "2",
            "PFEDSEQ_SERVE_MAX_MEGABYTES": "0.1",
            "PFEDSEQ_SERVE_MAX_CONNECTIONS": "20",
        },
    )

    def events():
        return [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines()]

    try:
        line = process.stdout.readline()
        assert line.startswith("3 clients at http://127.0.0.1:")
        with client(line.split()[3]) as http:
            before = http.post("/predict", params={"client": "mill"}, content=photo).json()
            assert "pfedseq_models_in_memory 2\n" in http.get("/metrics").text
            large = http.post("/predict", params={"client": "mill"}, content=bytes(100_001))
            assert large.status_code == 413
            shutil.copytree(exported / "mill", exported / "bay")
            about = exported / "bay" / "personal_model.json"
            about.write_text(json.dumps({**json.loads(about.read_text()), "client": "bay"}))
            process.send_signal(signal.SIGHUP)
            wait_for(lambda: "reloaded" in events())
            after = http.post("/predict", params={"client": "bay"}, content=photo).json()
            assert after["prediction"] == before["prediction"]
            assert len(http.get("/clients").json()["clients"]) == 4
            exported.rename(tmp_path / "elsewhere")
            process.send_signal(signal.SIGHUP)
            wait_for(lambda: "reload failed" in events())
            again = http.get("/metrics").text
            assert 'pfedseq_reloads_total{outcome="done"} 1\n' in again
            assert 'pfedseq_reloads_total{outcome="failed"} 1\n' in again
            assert http.get("/readyz").status_code == 200
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) is not None
        process.stdout.close()
        log.close()
    assert events().count("request") == 7


def test_models_of_another_kind_are_not_taken_by_a_reload(finished, monkeypatch):
    import asyncio

    from pfedseq.serving import generations

    served, lines = load_served(finished, "local", 100), []

    async def reload():
        with monkeypatch.context() as patch:
            metrics = Metrics()
            found = generations.Generations(
                served, lambda models: FakeBatcher(), metrics, lambda *e, **k: lines.append((e, k))
            )
            other = load_served(finished, "fedavg", 100)
            patch.setattr(type(other.together), "unit", property(lambda self: self.kind))
            served.together.kind, other.together.kind = "image", "text"
            await found.reload(lambda: other)
            assert found.current.served is served
            other.together.kind = "image"
            used = found.use()
            old = await used.__aenter__()
            task = asyncio.create_task(found.reload(lambda: other))
            while found.current.served is served:
                await asyncio.sleep(0.01)
            assert not old.batcher.closed, "a request still uses it"
            await used.__aexit__(None, None, None)
            await task
            assert old.batcher.closed
            assert dict(metrics.reloads) == {"failed": 1, "done": 1}

    class FakeBatcher:
        closed = False

        def close(self):
            self.closed = True

    asyncio.run(reload())
    assert "restart the service" in lines[0][1]["problem"]


def test_a_reload_may_fail_at_a_damaged_folder(tmp_path):
    with pytest.raises(InputError, match="there is no folder"):
        load_served(tmp_path / "none", None, 10)
