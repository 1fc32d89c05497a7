"""Memories that are lost or damaged are noticed; the operator decides, by the site's name."""

import json
import stat

import pytest

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

from pfedseq.config import dump_config, make_config
from pfedseq.deployment.audit import Audit
from pfedseq.deployment.ledger import Ledger, read_stamp, stamp
from pfedseq.deployment.server import serve
from pfedseq.engines.privacy import PrivacyConfig
from pfedseq.errors import InputError
from pfedseq.runs.folder import RunFolder
from tests.deployment.configured_sites import digits_sites
from tests.deployment.grid import InProcessGrid

CONFIG = {
    "run": {"methods": ["fedrep"], "rounds": 3},
    "data": {"name": "digits", "num_clients": 2, "max_images_per_client": 24},
    "engine": {"clients_per_pass": 1, "device": "cpu"},
    "flower": {"answer_seconds": 60, "start_seconds": 60},
}


def test_a_stamp_names_a_version_and_a_checksum():
    assert read_stamp(stamp((3, 1), "ab12")) == ((3, 1), "ab12")
    for other in ("", "3:ab", "3-1", "3-1:", "../3-1:ab", "3-1:a/b", "²-1:a", "1" * 5000 + "-1:a"):
        with pytest.raises(InputError, match="is not the version"):
            read_stamp(other)


def test_the_ledger_knows_what_a_server_may_come_back_to(tmp_path):
    ledger = Ledger(tmp_path, begun=False)
    assert ledger.expected("m", "a", (1, 0)) == ""
    for t in (1, 2, 3):
        ledger.note("m", "a", stamp((t, 0), f"c{t}"), kept=t - 2)
    assert ledger.expected("m", "a", (3, 0)) == "000002-000:c2", "training asks for what was before"
    assert ledger.expected("m", "a", (3, float("inf"))) == "000003-000:c3"
    assert ledger.expected("m", "a", (1, 0)) == "", "of round 0 there is nothing"
    ledger.note("m", "a", stamp((2, 0), "again"), kept=1)
    assert ledger.expected("m", "a", (9, 0)) == "000002-000:again", "the server went back"
    assert ledger.expected("m", "b", (9, 0)) == ledger.expected("n", "a", (9, 0)) == ""
    ledger.save()
    again = Ledger(tmp_path, begun=True)
    assert (again.run, again.expected("m", "a", (9, 0))) == (ledger.run, "000002-000:again")
    again.forget("a")
    assert Ledger(tmp_path, begun=True).expected("m", "a", (9, 0)) == ""


def test_a_run_that_lost_its_ledger_does_not_go_on(tmp_path):
    with pytest.raises(InputError, match=r"memories\.json is missing"):
        Ledger(tmp_path, begun=True)
    (tmp_path / "memories.json").write_text('{"run": "r", "memories": {"m": {"a": ["x"]}}}')
    with pytest.raises(InputError, match="is damaged"):
        Ledger(tmp_path, begun=True)


class Meddled(InProcessGrid):
    """A grid on which something happens to a site's folder before a message of round 2."""

    def __init__(self, sites, happens):
        super().__init__(sites)
        self.happens = happens

    def push_messages(self, messages):
        if self.happens and any(m.metadata.group_id == "2" for m in messages):
            self.happens()
            self.happens = None
        return super().push_messages(messages)


def delete(file):
    file.unlink()


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("meddle", "says"), [(delete, "round 1 is lost"), (flip_a_bit, "another checksum")]
)
def test_a_site_without_its_memory_is_refused_until_the_operator_accepts_it(tmp_path, meddle, says):
    sites, out, config = digits_sites(tmp_path), tmp_path / "out", tmp_path / "run.toml"
    config.write_text(dump_config(make_config(CONFIG)))

    def happens():
        (file,) = (tmp_path / "site1").glob("*/fedrep/memory/*.safetensors")
        meddle(file)

    told = []
    serve(Meddled(sites, happens), out, config, told.append, pause=0.0)
    records = RunFolder(out).records()
    assert [record.absent for record in records] == [(), (1,), (1,)]
    assert any(says in sentence for sentence in told)
    refusals = [e for e in Audit(out).events() if e["event"] == "refused"]
    assert {e["site"] for e in refusals} == {"1"}
    assert says in refusals[0]["reason"]
    answers = [e for e in Audit(out).events() if e["event"] == "answered"]
    assert {(e["site"], e["round"], e["step"]) for e in answers} >= {
        ("0", 1, "train"), ("1", 1, "train"), ("0", 2, "train"), ("0", 2, "evaluate"),
    }  # fmt: skip
    assert all(len(e["sha256"]) == 64 and e["bytes"] > 0 for e in answers)

    # The run is begun again from round 1's checkpoint: the site is still refused, or accepted.
    for slot in (out / "checkpoints" / "fedrep").iterdir():
        manifest = json.loads((slot / "manifest.json").read_text())
        if manifest["round"] > 2:
            (slot / "manifest.json").unlink()
    (out / "federation.json").unlink()  # the run's id is in memories.json
    with pytest.raises(InputError, match="which is not a site of this run"):
        serve(InProcessGrid(sites), out, None, told.append, pause=0.0, accept=["z"])
    serve(InProcessGrid(sites), out, None, told.append, pause=0.0, accept=["1"])
    assert RunFolder(out).records()[-1].absent == ()
    assert [e["site"] for e in Audit(out).events() if e["event"] == "accepted"] == ["1"]
    assert [len(list(site.folder.path.glob("*/fedrep"))) for site in sites] == [1, 1], "one run"
    private = stat.S_IMODE((out / "checkpoints").stat().st_mode)
    files = {stat.S_IMODE(f.stat().st_mode) for f in (out / "checkpoints").rglob("*.*")}
    assert (private, files) == (0o700, {0o600}), "they hold everyone's updates"


def test_privacy_reaches_real_sites_and_their_noise_is_their_own(tmp_path, monkeypatch):
    """Two federations that differ only in the sites' secrets send other updates."""
    monkeypatch.setattr(
        PrivacyConfig, "epsilon", lambda self, rounds, replace_one=False: rounds * (1 + replace_one)
    )
    values = CONFIG | {"run": {"methods": ["fedavg"], "rounds": 1}, "privacy": {"noise": 1.0}}
    summaries, servers = [], []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "run.toml").write_text(dump_config(make_config(values)))
        grid = InProcessGrid(digits_sites(folder))
        summaries.append(serve(grid, folder / "out", folder / "run.toml", print, pause=0.0))
        secret = folder / "site0" / "noise.key"
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        answers = [e for e in Audit(folder / "out").events() if e.get("step") == "train"]
        servers.append({e["sha256"] for e in answers})
    assert not servers[0] & servers[1]
    epsilon = summaries[0].epsilon
    assert epsilon == {
        "method": 1, "all_methods": 1, "method_replace_one": 2, "all_methods_replace_one": 2,
    }  # fmt: skip
