"""The service's page in a real browser: pick a client, drop an image, read both predictions."""

import base64

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from pfedseq.serving.client_models import ClientModels
from pfedseq.serving.generations import Served
from pfedseq.serving.service import Limits, make_service
from pfedseq.serving.together import ModelsTogether, load_together
from tests import browser
from tests.serving.running import running

pytestmark = pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())

SHOWN = """
const text = (li, part) => li.querySelector(part).textContent;
const read = (id) => [...document.querySelectorAll(`#${id} li`)].map(
  (li) => [text(li, ".name"), parseFloat(text(li, ".share"))]
);
return !document.getElementById("results").hidden &&
  {title: document.getElementById("personal-title").textContent,
   personal: read("personal"), global: read("global")};
"""
DROP = """
const bytes = Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0));
const data = new DataTransfer();
data.items.add(new File([bytes], arguments[1], {type: "image/png"}));
document.getElementById("drop").dispatchEvent(
  new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
"""
CHOOSE = """
const select = document.getElementById("client");
select.value = arguments[0];
select.dispatchEvent(new Event("change"));
"""


@pytest.fixture(scope="module")
def served(finished):
    found = ClientModels.open(finished, "local")
    models, everyones, global_is = load_together(found)
    return Served(ModelsTogether([*models, everyones]), tuple(found.names), "local", global_is)


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    with browser.browser(tmp_path_factory.mktemp("profile")) as window:
        yield window


def shares(model, photo):
    probabilities = model.predict([model.read(("x", photo.read_bytes()))])[0]
    order = probabilities.argsort(descending=True).tolist()
    return [(model.class_names[n], round(100 * float(probabilities[n]), 1)) for n in order]


def close(shown, expected):
    return [name for name, _ in shown] == [name for name, _ in expected] and all(
        abs(a - b) < 0.11 for (_, a), (_, b) in zip(shown, expected, strict=True)
    )


def test_a_person_sees_the_personal_prediction_beside_the_global_one(
    served, photos, window, tmp_path
):
    photo = photos / "quarry/whole/001.png"
    models = served.together.models
    with running(make_service(served, Limits())) as address:
        window.open(address)
        window.wait("return document.getElementById('client').options.length === 3")
        about = window.run("return document.getElementById('about').textContent")
        assert about == "3 clients, 2 classes, tuned with local."
        window.type("#file", str(photo))
        shown = window.wait(SHOWN)
        assert shown["title"] == "Personal: harbour"
        assert close(shown["personal"], shares(models[0], photo))
        assert close(shown["global"], shares(models[3], photo))
        window.run(CHOOSE, "quarry")
        window.wait("return document.getElementById('personal-title').textContent.includes('qu')")
        shown = window.run(SHOWN)
        assert close(shown["personal"], shares(models[2], photo))
        assert close(shown["global"], shares(models[3], photo))
        assert "FedAvg" in window.run("return document.getElementById('global-is').textContent")
        window.screenshot(tmp_path / "page.png")

        other = photos / "quarry/cracked/002.png"
        window.run(DROP, base64.b64encode(other.read_bytes()).decode(), other.name)
        window.wait("return document.getElementById('hint').textContent === '002.png'")
        expected = shares(models[2], other)
        window.wait(
            "return document.querySelector('#personal .share').textContent"
            f" === '{expected[0][1]:.1f} %'"
        )


def test_what_is_no_image_gets_the_services_sentence(served, window):
    with running(make_service(served, Limits())) as address:
        window.open(address)
        window.wait("return document.getElementById('client').options.length === 3")
        window.run(DROP, base64.b64encode(b"no image").decode(), "notes.txt")
        sentence = window.wait(
            "const p = document.getElementById('problem'); return !p.hidden && p.textContent"
        )
        assert sentence.startswith("the body is not an image in a supported format")
        assert not window.run(SHOWN)


def test_the_page_asks_for_the_token(served, photos, window):
    with running(make_service(served, Limits(), token="s3cret")) as address:
        window.open(address)
        window.wait("return !document.getElementById('token').hidden")
        window.type("#token", "s3cret\n")
        window.wait("return document.getElementById('client').options.length === 3")
        window.type("#file", str(photos / "mill/whole/001.png"))
        assert window.wait(SHOWN)["title"] == "Personal: harbour"


def test_the_interface_is_described_without_any_other_host(served, window, tmp_path):
    with running(make_service(served, Limits())) as address:
        window.open(f"{address}/docs")
        window.wait("return document.querySelectorAll('article').length === 4")
        text = window.run("return document.body.innerText")
        window.screenshot(tmp_path / "docs.png")
    assert "POST /predict" in text
    assert "GET /readyz" in text
    assert "A client's name, or its number from 0." in text
    assert f"{address}/predict?client=0" in text
