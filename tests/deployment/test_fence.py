"""The fence: through the proxy a site takes part in a run, and nobody reaches the controls."""

import json
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request

import pytest

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

from pfedseq.deployment.certificates import make_certificates
from pfedseq.deployment.loopback import HOST, Loopback, command, free_ports
from pfedseq.deployment.proxy import write_proxy
from pfedseq.errors import InputError

needs_nginx = pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed")


def test_the_config_lets_the_fleet_through_alone(tmp_path):
    make_certificates(tmp_path / "certificates", ["link.example.org"], [])
    path = write_proxy(tmp_path / "proxy", tmp_path / "certificates", "0.0.0.0:1", "127.0.0.1:2")
    text = path.read_text()
    assert text.count("proxy_pass") == 1
    assert "proxy_request_buffering off;" in text  # else workers write bodies, perhaps as nobody
    assert "location /v1/fleet/ {\n            proxy_pass https://127.0.0.1:2;" in text
    assert "location / {\n            return 403;" in text


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(InputError, match=r"has no ca\.crt"):
        write_proxy(tmp_path / "proxy", tmp_path, "0.0.0.0:1", "127.0.0.1:2")
    make_certificates(tmp_path, ["127.0.0.1"], [])
    with pytest.raises(InputError, match="must be HOST:PORT"):
        write_proxy(tmp_path / "proxy", tmp_path, "everywhere", "127.0.0.1:2")
    with pytest.raises(InputError, match="not accept paths with blanks"):
        write_proxy(tmp_path / "my proxy", tmp_path, "0.0.0.0:1", "127.0.0.1:2")


def asked(port, authority, path):
    """What the proxy says to a POST without a key."""
    trusted = ssl.create_default_context(cafile=str(authority))
    request = urllib.request.Request(f"https://{HOST}:{port}{path}", data=b"")
    try:
        with urllib.request.urlopen(request, context=trusted) as answer:
            return answer.status
    except urllib.error.HTTPError as refusal:
        return refusal.code


@pytest.mark.slow
@needs_nginx
def test_a_site_joins_through_the_fence_and_no_app_gets_in(tmp_path):
    """A real SuperLink behind a real nginx: `flwr run` and registration only work inside."""
    inside, outside = free_ports(2)
    here = Loopback(tmp_path)
    made = make_certificates(tmp_path / "certificates", [HOST], ["clinic-a"])
    config = write_proxy(tmp_path / "proxy", made.folder, f"{HOST}:{outside}", f"{HOST}:{inside}")
    started = []

    def start(log, *arguments):
        what, env = [command(arguments[0]), *arguments[1:]], here.environment()
        with (tmp_path / log).open("wb") as file:
            started.append(subprocess.Popen(what, env=env, stdout=file, stderr=file))

    def wait_for(log, line):
        deadline = time.monotonic() + 120
        while line not in (tmp_path / log).read_text():
            assert time.monotonic() < deadline, (tmp_path / log).read_text()
            time.sleep(0.2)

    try:
        link = ["--host", HOST, "--port", str(inside), "--enable-supernode-auth"]
        start("link.log", "flower-superlink", *link, *made.server_options())
        start("nginx.log", "nginx", "-c", str(config), "-g", "daemon off;")
        wait_for("link.log", "running on")
        here.write_connection(outside, made.node_options())
        public = str(made.node_public_key("clinic-a"))
        with pytest.raises(InputError):
            here.flwr("supernode", "register", public, "here", "--name", "clinic-a")
        here.write_connection(inside, made.node_options())
        here.flwr("supernode", "register", public, "here", "--name", "clinic-a")

        site = ["--superlink", f"{HOST}:{outside}", "--key", str(made.node_key("clinic-a"))]
        site += ["--name", "clinic-a", "--partition", "0", "--state", str(tmp_path / "state")]
        start("site.log", "pfedseq", "flower", "site", *made.node_options(), *site)
        wait_for("site.log", "has joined the federation")
        nodes = json.loads(here.flwr("supernode", "ls", "here", "--format", "json"))
        assert "online" in json.dumps(nodes)

        for path in (
            "/v1/control/start-run", "/v1/control/", "/v1/runtime/acquire-task", "/health", "/",
            "/v1/fleet/register-node", "/v1/fleet/get-fab", "/v1/fleet/../control/start-run",
            "/v1/fleet/%2e%2e/control/start-run", "//v1/control/start-run", "/docs",
        ):  # fmt: skip
            assert asked(outside, made.authority, path) == 403, path
        own = asked(outside, made.authority, "/v1/fleet/pull-messages")
        assert own in (400, 401, 415, 422), "the SuperLink's own refusal of what is not signed"
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(timeout=30)
