"""The report page: what it holds, and that a real browser shows it."""

import itertools
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pfedseq.config import dump_config, make_config
from pfedseq.errors import InputError
from pfedseq.experiments.statistics import mean_interval
from pfedseq.measures import score
from pfedseq.report.page import as_script, content, write_page
from pfedseq.report.page.content import page_content
from pfedseq.report.page.details import predictions_of
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.records import Cost, RoundRecord
from pfedseq.runs.run import run
from pfedseq.runs.scores import Assessment
from tests.scored import scores_of, summary_of

NASTY = "<script>document.title='hacked'</script>"
CLIENTS = [NASTY, "São Paulo", "</script><b>bold", "north"]
METHODS = ["pfedseq", "local", "fedavg", "fedrep"]
HERE = {"pfedseq": 0.05, "local": 0.0, "fedavg": -0.1, "fedrep": 0.02}


def accuracy(method, seed, i, t):
    return 0.4 + 0.02 * t + 0.03 * i + HERE[method] + 0.01 * seed * (i % 2)


def fill(folder, seed, rounds=6, clients=CLIENTS):
    """A run of four methods with invented numbers, evaluated every second round."""
    config = make_config({"run": {"rounds": rounds, "seed": seed, "methods": METHODS}})
    made = RunFolder.create(folder, dump_config(config))
    held = [
        {"name": n, "train": list(range(9 + i)), "validation": [], "test": [1]}
        for i, n in enumerate(clients)
    ]
    data = {"data": "tiles", "num_images": 99, "class_names": [NASTY, "cat"], "clients": held}
    made.partition.write_text(json.dumps(data))
    for method in METHODS:
        for t in range(1, rounds + 1):
            seen = [accuracy(method, seed, i, t) for i in range(len(clients))]
            cost = Cost(1000, 2000, 1.5, 0.5, 9.0)
            absent = (1, 3) if (method, t) == ("local", 5) else ()
            made.append(
                RoundRecord(
                    method, t, scores_of(seen, seen) if t % 2 == 0 else None, cost, absent=absent
                )
            )
    made.write_summary()
    return made


@pytest.fixture
def runs(tmp_path):
    for seed in (0, 1):
        fill(tmp_path / f"seed_{seed}", seed)
    return tmp_path


def test_the_content_is_that_of_the_runs(runs):
    (board,) = page_content([runs])["boards"]
    assert board["clients"] == CLIENTS
    assert [line["label"] for line in board["lines"]] == METHODS
    local = board["lines"][1]
    assert (local["rounds"], local["seeds"]) == ([2, 4, 6], [0, 1])
    by_hand = [[accuracy("local", s, i, 6) for i in range(4)] for s in (0, 1)]
    means = [sum(row) / 4 for row in by_hand]
    assert local["mean"][-1] == pytest.approx(100 * sum(means) / 2, abs=2e-3)
    assert (local["low"][-1], local["high"][-1]) == pytest.approx(
        (100 * means[0], 100 * means[1]), abs=2e-3
    )
    assert local["runs"][1]["cells"][-1] == [round(100 * a, 1) for a in by_hand[1]]
    assert (local["seconds"], local["bytes"]) == (2.0, 18_000)
    assert local["runs"][0]["absent"] == [[5, 2, [1, 3]]]
    assert board["lines"][0]["runs"][0]["absent"] == []


def test_leads_are_of_pfedseq_and_paired(runs):
    (board,) = page_content([runs])["boards"]
    lead = next(lead for lead in board["leads"] if lead["title"] == "FedAvg")
    expected = mean_interval([[15.0] * 4] * 2)
    assert (lead["mean"], lead["low"], lead["seeds"]) == (expected.mean, expected.low, 2)
    assert "pFedSeq" not in [lead["title"] for lead in board["leads"]]


def test_a_run_that_goes_on_is_compared_with_nobody(tmp_path):
    """FedAvg is at round 4 of 6: its curve is shown, but round 4 is not held against round 6."""
    made = fill(tmp_path / "run", 0)
    made.keep_records("fedavg", 4)
    (board,) = page_content([tmp_path])["boards"]
    fedavg = board["lines"][2]
    assert (fedavg["label"], fedavg["rounds"], fedavg["planned"]) == ("fedavg", [2, 4], 6)
    assert [lead["title"] for lead in board["leads"]] == ["Local", "FedRep"]


def test_clients_served_worse_are_named(tmp_path):
    """On validation pFedSeq loses nowhere; after a dent at one client of seed 0, just there."""
    made = fill(tmp_path / "run", 0)
    made.keep_records("fedrep", 0)  # below FedAvg nowhere, below Local nowhere; but no yardstick
    assert page_content([tmp_path])["boards"][0]["worse_off"]["total"] == 0
    lines = made.metrics.read_text().splitlines()
    dented = json.loads(lines[5])
    assert (dented["method"], dented["round"]) == ("pfedseq", 6)
    dented["validation"]["accuracy"][3] = 0.1
    made.metrics.write_text("\n".join([*lines[:5], json.dumps(dented), *lines[6:]]) + "\n")
    found = page_content([tmp_path])["boards"][0]["worse_off"]
    named = {(b["client"], b["title"], b["ours"]) for b in found["listed"]}
    assert named == {("north", "pFedSeq", 10.0)}
    theirs = [b["theirs"] for b in found["listed"]]
    assert theirs == sorted(theirs, reverse=True)  # the largest loss first
    assert [(p["than"], p["number"]) for p in found["pairs"]] == [("Local", 1), ("FedAvg", 1)]
    assert [p["mean"] for p in found["pairs"]] == pytest.approx([t - 10 for t in theirs])


def test_a_name_cannot_leave_its_place(runs, tmp_path):
    page = tmp_path / "page.html"
    write_page([runs], page)
    text = page.read_text()
    assert NASTY not in text
    assert "<b>bold" not in text
    assert json.loads(as_script({"a": NASTY})) == {"a": NASTY}
    assert page.stat().st_size < 2_000_000
    assert "https://" not in text.split("<script>")[0]


def test_a_large_table_stays_under_two_megabytes(tmp_path):
    for seed in range(3):
        fill(tmp_path / f"seed_{seed}", seed, rounds=60, clients=[f"c{n:03d}" for n in range(200)])
    write_page([tmp_path], tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 2_000_000
    (board,) = page_content([tmp_path])["boards"]
    assert board["lines"][0]["runs"][0]["rounds"][-1] == 60  # the last round is never left out
    assert len(board["lines"][0]["rounds"]) == 30  # curves keep all


def counted(labels, predicted, classes=2):
    """Counts of a client that was this sure of these predictions."""
    logits = 3 * torch.nn.functional.one_hot(torch.tensor(predicted), classes).double()
    return score(logits, torch.tensor(labels), counts=True).counts


def test_test_sets_confusions_and_measures_are_those_of_the_assessment(tmp_path):
    """Client 0: 3 of one class and 1 of the other, of which 3 are right; the others alike."""
    made = fill(tmp_path / "run", 0)
    last = made.by_method()["pfedseq"][-1].scores
    (board,) = page_content([tmp_path])["boards"]
    assert board["tests"] == [
        {"examples": n, "classes": None, "largest": None} for n in last.test_examples
    ], "without counts, the numbers of examples are known all the same"
    with_auroc = replace(last, test={**last.test, "auroc": (0.5, None, 0.75, 1.0)})
    counts = {i: counted([0, 0, 0, 1], [0, 0, 1, 1]) for i in range(4)}
    made.write_assessment("pfedseq", Assessment(6, "last", 6, with_auroc, counts))
    (board,) = page_content([tmp_path])["boards"]
    assert board["tests"][0] == {"examples": 4, "classes": 2, "largest": 75.0}
    found = board["lines"][0]["predictions"]
    assert found["together"]["confusion"] == [[0, 0, 8], [0, 1, 4], [1, 1, 4]]
    assert found["clients"]["3"]["confusion"] == [[0, 0, 2], [0, 1, 1], [1, 1, 1]]
    assert sum(n for n, _, _ in found["together"]["reliability"]) == 16
    assert sum(k for _, k, _ in found["together"]["reliability"]) == 12
    auroc = board["lines"][0]["measures"]["auroc"]
    assert (auroc["mean"], auroc["undefined"], auroc["worst"]) == ("75.00", 1, "50.00")
    assert board["lines"][1]["predictions"] is None
    crowded = predictions_of(made.read_assessment("pfedseq"), 5)
    assert (crowded["clients"], crowded["together"]) == (None, found["together"])


def test_who_is_refused_is_not_called_absent(tmp_path):
    made = fill(tmp_path / "run", 0)
    record = made.by_method()["fedrep"][-1]
    made.keep_records("fedrep", 5)
    made.append(replace(record, absent=(2,), refused=(0,)))
    run_of = page_content([tmp_path])["boards"][0]["lines"][3]["runs"][0]
    assert (run_of["absent"], run_of["refused"]) == ([[6, 1, [2]]], [[6, 1, [0]]])


def test_groups_of_clients_are_not_drawn_as_layers(tmp_path):
    made = fill(tmp_path / "run", 0)
    lines = [json.loads(line) for line in made.metrics.read_text().splitlines()]
    for line in lines:
        group = {"group": [0, 0, 2, 3]} if line["round"] > 3 else {}
        if line["method"] == "pfedseq":
            line["server"] = {"delta_rms": [0.1, 0.2]} | group
        elif group:
            line["server"] = group
    made.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (board,) = page_content([tmp_path])["boards"]
    ours, other = (line["runs"][0]["server"] for line in board["lines"][:2])
    assert ours == {"rounds": [1, 2, 3, 4, 5, 6], "sizes": {"delta_rms": [[0.1, 0.2]] * 6}}
    assert other is None


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(InputError, match="no finished rounds"):
        write_page([tmp_path], tmp_path / "page.html")
    with pytest.raises(InputError, match="is not a folder"):
        write_page([tmp_path / "gone"], tmp_path / "page.html")


def test_origins_come_from_the_checkpoint_alone(tmp_path):
    """No data, no backbone: the account of a real run's last ξ sums to one for every client."""
    config = make_config(
        {
            "run": {"rounds": 3, "methods": ["pfedseq"], "checkpoint_every": 1},
            "data": {"name": "digits", "num_clients": 3, "max_images_per_client": 16},
            "training": {"lr": 0.02, "batch_size": 8},
            "methods": {"pfedseq": {"warmup_rounds": 1}},
        }
    )
    run(config, tmp_path / "run")
    (board,) = page_content([tmp_path])["boards"]
    found = board["origins"]
    assert (found["round"], found["rounds"]) == (3, [1, 2, 3])
    for row, by_round in zip(found["by_client"], found["by_round"], strict=True):
        assert sum(row) == pytest.approx(1, abs=0.01)
        assert sum(by_round) == pytest.approx(1, abs=0.01)
    assert "version of torch: " in board["environment"]


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("there is no chromium or no chromedriver here")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (
        *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run"),
        *("disable-background-networking", "disable-component-update", "disable-sync"),
        *("disable-dev-shm-usage", "window-size=1200,900"),
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as opened:
        yield opened


def visible_text(browser, selector):
    return [e.text for e in browser.find_elements("css selector", selector)]


def test_a_browser_shows_it_without_an_error(browser, runs, tmp_path):
    page = tmp_path / "page.html"
    write_page([runs], page, title="Tiles")
    browser.get(page.as_uri())
    assert browser.title == "Tiles"  # no name of the data has run as a script
    rows = visible_text(browser, "#scoreboard tr")
    assert rows[1].startswith("pFedSeq 61")
    for chart in ("curves", "leads", "bars", "heat", "fair", "cost-seconds", "cost-bytes"):
        assert browser.find_elements("css selector", f"#{chart} svg path"), chart
    assert browser.find_element("id", "sizes-section").is_displayed() is False
    assert NASTY in browser.find_element("id", "data").get_attribute("textContent")
    labels = [
        e.get_attribute("textContent") for e in browser.find_elements("css selector", "#bars text")
    ]
    assert "<script>document.titl…" in labels
    assert "bold" not in visible_text(browser, "b")  # `<b>bold` stayed text
    assert [m for m in browser.get_log("browser") if m["level"] in ("SEVERE", "WARNING")] == []


def test_sizes_by_layer_are_shown_where_the_server_wrote_them_down(browser, tmp_path):
    made = fill(tmp_path / "run", 0)
    lines = [json.loads(line) for line in made.metrics.read_text().splitlines()]
    for line in lines:
        if line["method"] == "pfedseq":
            line["server"] = {"delta_rms": [0.1 * line["round"], 0.2], "calibration_rms": [1, 2]}
    made.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (board,) = page_content([tmp_path])["boards"]
    sizes = board["lines"][0]["runs"][0]["server"]
    assert sizes["rounds"] == [1, 2, 3, 4, 5, 6]
    assert sizes["sizes"]["delta_rms"][1] == [0.2, 0.2]
    assert board["lines"][1]["runs"][0]["server"] is None
    page = tmp_path / "page.html"
    write_page([tmp_path], page)
    browser.get(page.as_uri())
    assert browser.find_element("id", "sizes-section").is_displayed()
    names = visible_text(browser, "#size-name option")
    assert names == ["clients' updates Δ", "calibrations ξ"]  # one method, one seed
    assert not browser.find_element("id", "client-seed").is_displayed()
    assert len(browser.find_elements("css selector", "#sizes svg path")) > 12
    assert [m for m in browser.get_log("browser") if m["level"] in ("SEVERE", "WARNING")] == []


def test_the_switches_work(browser, runs, tmp_path):
    page = tmp_path / "page.html"
    write_page([runs], page)
    browser.get(page.as_uri())

    def shown():
        return browser.execute_script(
            "const o = charts.get('curves').getOption().legend[0].selected;"
            "return board.lines.filter((l) => o[l.title]).map((l) => l.title)"
        )

    assert shown() == ["pFedSeq", "Local", "FedAvg", "FedRep"]
    browser.find_element("id", "none").click()
    assert shown() == ["pFedSeq"]
    name = next(
        e for e in browser.find_elements("css selector", "#curves text") if e.text == "FedAvg"
    )
    name.click()
    assert shown() == ["pFedSeq", "FedAvg"]
    browser.find_element("id", "all").click()
    assert len(shown()) == 4

    before = browser.find_element("id", "bars").get_attribute("innerHTML")
    browser.execute_script(
        "const s = document.getElementById('client-method'); s.value = 'fedavg';"
        "s.dispatchEvent(new Event('change'))"
    )
    assert browser.find_element("id", "bars").get_attribute("innerHTML") != before

    def paper():
        return browser.execute_script("return getComputedStyle(document.body).backgroundColor")

    light = paper()
    browser.find_element("id", "theme").click()
    assert paper() != light


def test_a_thousand_clients_are_paged_and_found(browser, tmp_path):
    made = fill(tmp_path / "run", 0, clients=[f"site {n:04d}" for n in range(1000)])
    last = made.by_method()["pfedseq"][-1].scores
    counts = {i: counted([0, 0, 1], [0, 1, 1]) for i in range(1000)}
    made.write_assessment("pfedseq", Assessment(6, "last", 6, last, counts))
    page = tmp_path / "page.html"
    write_page([tmp_path], page)
    browser.get(page.as_uri())
    assert len(browser.find_elements("css selector", "#client-table tr")) == 26
    assert len(browser.find_elements("css selector", "#bars svg path")) < 100
    browser.find_element("id", "client-search").send_keys("0777")
    rows = visible_text(browser, "#client-table tr")
    assert len(rows) == 2
    assert rows[1].startswith("site 0777 3 ")
    assert [m for m in browser.get_log("browser") if m["level"] in ("SEVERE", "WARNING")] == []


def test_long_lists_of_clients_are_counted(browser, tmp_path, monkeypatch):
    """Ten absent clients are too many to name; of four that are worse off, two are listed."""
    monkeypatch.setattr(content, "MOST_WORSE_OFF", 2)
    made = fill(tmp_path / "run", 0, clients=[f"site {n}" for n in range(12)])
    made.keep_records("pfedseq", 5)
    seen = [0.1 if i < 2 else 0.99 for i in range(12)]
    record = RoundRecord("pfedseq", 6, scores_of(seen, seen), Cost(1000, 2000, 1.5, 0.5, 9.0))
    made.append(replace(record, absent=tuple(range(10))))
    (board,) = page_content([tmp_path])["boards"]
    (run_of,) = board["lines"][0]["runs"]
    assert run_of["absent"] == [[6, 10, list(range(8))]]
    found = board["worse_off"]
    assert (found["total"], len(found["listed"])) == (4, 2)
    listed = [(b["client"], b["than"]) for b in found["listed"]]
    assert listed == [("site 1", "Local"), ("site 0", "Local")]  # FedAvg's scores are lower
    assert [(p["than"], p["number"]) for p in found["pairs"]] == [("Local", 2), ("FedAvg", 2)]
    page = tmp_path / "page.html"
    write_page([tmp_path], page)
    browser.get(page.as_uri())
    assert visible_text(browser, "#absent") == ["Absent: 10 of 12 clients in 1 of 6 rounds."]
    assert visible_text(browser, "#worse-listed") == ["The 2 largest of 4 differences."]
    assert visible_text(browser, "#worse-pairs tr")[1].startswith("pFedSeq Local 2 −")


def test_labels_and_curves_on_top_of_each_other_can_be_read(browser, tmp_path, monkeypatch):
    """Four methods that cost and score the same: separate labels, curves called identical."""
    monkeypatch.setitem(HERE, "local", 0.05)
    monkeypatch.setitem(HERE, "fedavg", 0.05)
    monkeypatch.setitem(HERE, "fedrep", 0.0501)
    fill(tmp_path / "run", 0)
    page = tmp_path / "page.html"
    write_page([tmp_path], page)
    browser.get(page.as_uri())
    said = browser.find_element("id", "identical").text
    assert said == (
        "pFedSeq, Local, FedAvg, FedRep: almost identical curves, which lie on top of each other."
    )
    labels = browser.execute_script(
        "return [...document.querySelectorAll('#cost-bytes text')]"
        ".filter((t) => board.lines.some((l) => l.title === t.textContent))"
        ".map((t) => t.getBoundingClientRect()).map((r) => [r.left, r.top, r.right, r.bottom])"
    )
    assert len(labels) == 4
    for one, other in itertools.combinations(labels, 2):
        assert not overlap(one, other)
    dots = browser.execute_script(
        "const place = byId('cost-bytes').getBoundingClientRect();"
        "return board.lines.map((l) => charts.get('cost-bytes')"
        ".convertToPixel('grid', [l.bytes, l.scores.client_mean[0]]))"
        ".map(([x, y]) => [place.left + x - 4, place.top + y - 4,"
        " place.left + x + 4, place.top + y + 4])"
    )
    for label in labels:
        assert not any(overlap(label, dot) for dot in dots)


def overlap(one, other):
    """Whether two boxes (left, top, right, bottom) share more than a pixel each way."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return wide > 1 and high > 1


@pytest.mark.parametrize("share", [0, 0.3, 0.5, 0.6, 1])
@pytest.mark.parametrize("shades", [["#fbfbf9", "#9cc3ef", "#1f5fbf"], ["#10141b", "#9cc3ef"]])
def test_numbers_in_cells_can_be_read(browser, runs, tmp_path, share, shades):
    """Of dark and white, the one with the higher contrast; text needs 4.5 to 1, large text 3."""
    page = tmp_path / "page.html"
    write_page([runs], page)
    browser.get(page.as_uri())
    chosen = browser.execute_script("return legible(arguments[0], arguments[1])", share, shades)
    cell = mixed(share, shades)
    contrasts = {ink: contrast(rgb(ink), cell) for ink in ("#1c2430", "#fff")}
    assert contrasts[chosen] > 0.95 * max(contrasts.values())
    assert contrasts[chosen] > 3


def rgb(colour):
    digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    return [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]


def mixed(share, shades):
    """The colour at a share of an even scale of shades."""
    at = share * (len(shades) - 1)
    k = min(int(at), len(shades) - 2)
    return [a + (b - a) * (at - k) for a, b in zip(rgb(shades[k]), rgb(shades[k + 1]), strict=True)]


def contrast(one, other):
    """WCAG's contrast ratio."""

    def luminance(colour):
        light = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.slow
def test_ten_thousand_clients_open_within_two_seconds(browser, tmp_path):
    clients = [f"site {n:05d}" for n in range(10_000)]
    made = fill(tmp_path / "run", 0, clients=clients)
    counts = {i: counted([0, 0, 1], [0, 1, 1]) for i in range(len(clients))}
    for method, records in made.by_method().items():
        made.write_assessment(method, Assessment(6, "last", 6, records[-1].scores, counts))
    page = tmp_path / "page.html"
    write_page([tmp_path], page)
    browser.get(page.as_uri())
    timing = "return performance.getEntriesByType('navigation')[0].loadEventEnd"
    assert browser.execute_script(timing) < 2000  # milliseconds
    browser.find_element("id", "client-search").send_keys("07777")
    assert len(visible_text(browser, "#client-table tr")) == 2


def test_it_fits_a_phone(browser, runs, tmp_path):
    page = tmp_path / "page.html"
    write_page([runs], page)
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        browser.get(page.as_uri())
        wide = "return [innerWidth, document.documentElement.scrollWidth]"
        assert browser.execute_script(wide) == [390, 390]  # nothing to scroll or zoom
        assert visible_text(browser, ".more")  # a table that goes on sideways says so
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def finished(accuracies):
    """A run of three clients, of which these were there at the last evaluation."""
    clients = [{"name": name} for name in "abc"]
    values = tuple(accuracies.values())
    of = summary_of(values, validation=values, clients=tuple(accuracies))
    return [SimpleNamespace(moment=(0, 4), seed=0, data={"clients": clients}, summary=of)]


def test_a_site_that_was_absent_at_the_end_is_compared_with_nobody():
    """Of b nothing is known with Local, of a nothing with pFedSeq: only c has both."""
    lines = {"pfedseq": finished({1: 0.2, 2: 0.5}), "local": finished({0: 0.9, 2: 0.75})}
    (worse,) = content._worse_off(lines)["listed"]
    assert (worse["client"], worse["ours"], worse["theirs"]) == ("c", 50.0, 75.0)
    (lead,) = content._leads(lines, "pfedseq")
    assert lead["mean"] == -25.0
    strangers = {"pfedseq": finished({1: 0.2}), "local": finished({0: 0.9})}
    assert content._worse_off(strangers)["listed"] == content._leads(strangers, "pfedseq") == []
