"""Measures against scikit-learn's on hand-made predictions, also where classes are missing."""

import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics

from pfedseq import plugins
from pfedseq.config import make_config
from pfedseq.errors import InputError
from pfedseq.measures import MEASURES, Counts, Measure, Predictions, register_measure, score
from pfedseq.measures.counts import CONFIDENCE_BINS

EVERY = tuple(MEASURES)


def predictions(number, classes, present=None, seed=0, *, ties=False):
    """Logits that lean towards the truth, labels from the classes that are present."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(np.arange(classes) if present is None else present, number)
    logits = rng.normal(size=(number, classes))
    logits[np.arange(number), labels] += 1
    if ties:
        logits = np.round(logits)
    return torch.from_numpy(logits), torch.from_numpy(labels)


CASES = {
    "many": predictions(200, 5),
    "few": predictions(7, 5),
    "ties": predictions(60, 4, ties=True),
    "two classes": predictions(50, 2),
    "two classes with ties": predictions(50, 2, ties=True),
    "classes missing": predictions(40, 6, present=[1, 4]),
    "first class missing": predictions(40, 3, present=[1, 2]),
    "one class": predictions(9, 3, present=[2]),
    "only positives": predictions(9, 2, present=[1]),
    "only negatives": predictions(9, 2, present=[0]),
    "one example": predictions(1, 3),
}


def expected(logits, labels):
    """By scikit-learn; what it cannot compute is missing."""
    probabilities = logits.double().softmax(1).numpy()
    true, predicted = labels.numpy(), logits.argmax(1).numpy()
    classes, present = logits.shape[1], np.unique(labels.numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that are only predicted
        found = {
            "accuracy": metrics.accuracy_score(true, predicted),
            "balanced_accuracy": metrics.balanced_accuracy_score(true, predicted),
            "macro_f1": metrics.f1_score(true, predicted, average="macro", zero_division=0),
            "weighted_f1": metrics.f1_score(true, predicted, average="weighted", zero_division=0),
            "loss": metrics.log_loss(true, probabilities, labels=range(classes)),
            "brier": metrics.brier_score_loss(
                true, probabilities if classes > 2 else probabilities[:, 1], labels=range(classes)
            ),
        }
    if len(present) > 1:
        shown = [1] if classes == 2 else present
        own, scores = true[:, None] == shown, probabilities[:, shown]
        found["auroc"] = metrics.roc_auc_score(own, scores, average="macro")
        found["average_precision"] = metrics.average_precision_score(own, scores, average="macro")
    for name, wanted in (("sensitivity", 1), ("specificity", 0)):
        if classes == 2 and wanted in present:
            found[name] = metrics.recall_score(true, predicted, pos_label=wanted)
    return found


@pytest.mark.parametrize("case", CASES)
def test_measures_are_scikit_learns(case):
    logits, labels = CASES[case]
    found = score(logits, labels, EVERY)
    wanted = expected(logits, labels)
    assert found.values.keys() - {"ece"} == wanted.keys()
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, abs=1e-12), name
    assert found.num_examples == len(labels)


def test_two_classes_by_hand():
    """Truth 1 1 1 0 0, said 1 0 1 0 1: two of three positives, one of two negatives are found.

    P(1) is .9 .4 .8 .3 .6. Of the six pairs of a positive and a negative one is in the wrong order,
    (.4, .6). By falling score: 1, 1, 0, 1, 0, so precisions at the positives 1, 1 and 3/4.
    """
    likely = torch.tensor([0.9, 0.4, 0.8, 0.3, 0.6], dtype=torch.float64)
    logits = torch.stack([torch.zeros(5, dtype=torch.float64), torch.logit(likely)], dim=1)
    found = score(logits, torch.tensor([1, 1, 1, 0, 0]), EVERY)
    assert found["sensitivity"] == pytest.approx(2 / 3)
    assert found["specificity"] == pytest.approx(1 / 2)
    assert found["balanced_accuracy"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found["auroc"] == pytest.approx(5 / 6)
    assert found["average_precision"] == pytest.approx((1 + 1 + 3 / 4) / 3)
    assert found["brier"] == pytest.approx((0.01 + 0.36 + 0.04 + 0.09 + 0.36) / 5)
    # Confidences .9 .6 .8 .7 .6, right but for the second and the last, which share a bin.
    assert found["ece"] == pytest.approx((0.1 + 1.2 + 0.2 + 0.3) / 5)


@pytest.mark.parametrize("case", CASES)
def test_calibration_error_is_that_of_a_slow_loop(case):
    logits, labels = CASES[case]
    probabilities = logits.double().softmax(1).numpy()
    top, right = probabilities.max(1), (logits.argmax(1) == labels).numpy()
    total = 0.0
    for k in range(CONFIDENCE_BINS):
        low, high = k / CONFIDENCE_BINS, (k + 1) / CONFIDENCE_BINS
        here = (top > low) & (top <= high)
        if here.any():
            total += here.sum() / len(top) * abs(right[here].mean() - top[here].mean())
    assert score(logits, labels, ["ece"])["ece"] == pytest.approx(total, abs=1e-12)


def halves(logits, labels):
    """The same predictions as two clients' of different size."""
    cut = len(labels) // 3
    return [Counts.of(Predictions.of(logits[s], labels[s])) for s in (slice(cut), slice(cut, None))]


@pytest.mark.parametrize("case", ["many", "ties", "two classes", "classes missing"])
def test_counts_of_two_clients_give_what_their_examples_together_give(case):
    logits, labels = CASES[case]
    together = Counts.pooled(halves(logits, labels))
    whole = score(logits, labels, EVERY)
    for name, measure in MEASURES.items():
        if callable(measure.pooled) and name in whole.values:
            close = 3e-2 if name in ("auroc", "average_precision") else 1e-12  # up to the bins
            assert measure.pooled(together) == pytest.approx(whole[name], abs=close), name
    assert (
        together.matrix().tolist()
        == metrics.confusion_matrix(
            labels, logits.argmax(1), labels=range(logits.shape[1])
        ).tolist()
    )


@pytest.mark.parametrize("case", ["many", "two classes"])
def test_pooled_areas_are_scikit_learns_on_binned_scores(case):
    """Bins of 0.1 in the log-odds, ties within a bin."""
    logits, labels = CASES[case]
    likely = logits.double().softmax(1).numpy()
    binned = np.floor(10 * np.log(likely / (1 - likely)))
    shown = [1] if logits.shape[1] == 2 else range(logits.shape[1])
    pooled = Counts.pooled(halves(logits, labels))
    for name, function in (
        ("auroc", metrics.roc_auc_score),
        ("average_precision", metrics.average_precision_score),
    ):
        wanted = np.mean([function(labels.numpy() == c, binned[:, c]) for c in shown])
        assert MEASURES[name].pooled(pooled) == pytest.approx(wanted, abs=1e-12)


def test_pooled_auroc_is_not_the_mean_of_the_clients():
    """Each client ranks its own examples rightly, but one says 0.9 and 0.8, the other 0.2 and 0.1.

    Of the four pairs of a positive and a negative, (0.2, 0.8) is in the wrong order.
    """
    logits = torch.logit(torch.tensor([[0.9, 0.8], [0.2, 0.1]], dtype=torch.float64))
    labels = torch.tensor([1, 0])
    clients = [torch.stack([torch.zeros(2).double(), own], dim=1) for own in logits]
    assert [score(own, labels, ["auroc"])["auroc"] for own in clients] == [1, 1]
    pooled = Counts.pooled([Counts.of(Predictions.of(own, labels)) for own in clients])
    assert MEASURES["auroc"].pooled(pooled) == pytest.approx(3 / 4)


def test_counts_survive_messages_and_files_and_others_are_refused():
    counts = halves(*CASES["many"])[1]
    for again in (Counts.read(counts.tensors(), 5), Counts.from_json(counts.to_json(), 5)):
        assert all(np.array_equal(getattr(again, k), getattr(counts, k)) for k in vars(counts))
    sent = counts.tensors()
    assert Counts.read(sent, 4) is None  # a class that there is not
    assert Counts.read({}, 5) is None
    for name in sent:
        assert Counts.read(sent | {name: -sent[name].long()}, 5) is None, name
        assert Counts.read(sent | {name: torch.zeros(2)}, 5) is None, name
    assert Counts.read(sent | {"reliability": sent["reliability"] + 10**13}, 5) is None


@pytest.mark.parametrize("case", ["many", "two classes"])
def test_tables_that_contradict_each_other_are_noticed(case):
    logits, labels = CASES[case]
    whole = Counts.of(Predictions.of(logits, labels))
    assert whole.examples == len(labels)
    for name in ("confusion", "reliability", "histograms"):
        table = getattr(whole, name).copy()
        table[0, -1] += 1
        assert replace(whole, **{name: table}).examples is None, name
    more = replace(whole, reliability=whole.reliability + np.array([1, 0]))
    assert more.examples is None


def test_with_many_classes_there_are_no_histograms_to_contradict():
    logits = torch.randn(7, 101, generator=torch.Generator().manual_seed(0))
    assert Counts.of(Predictions.of(logits, torch.arange(7))).examples == 7


def test_a_split_without_examples_has_no_measure_but_zeros():
    found = score(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), EVERY, counts=True)
    assert found.values == {"accuracy": 0.0, "loss": 0.0}
    assert found.counts.confusion.shape == (0, 3)


def test_a_measure_is_one_function_and_one_line():
    def at_most_one_wrong(p):
        return float((p.predicted != p.labels).sum() <= 1)

    mine = Measure("at_most_one_wrong", "at most one wrong", True, at_most_one_wrong)
    register_measure(mine)
    try:
        logits, labels = CASES["one example"]
        assert score(logits, labels, ["at_most_one_wrong"])["at_most_one_wrong"] == 1
        with pytest.raises(InputError, match="already"):
            register_measure(replace(mine, title="another"))
    finally:
        del MEASURES["at_most_one_wrong"]
    with pytest.raises(InputError, match="there is no measure 'at_most_one_wrong'"):
        score(logits, labels, ["at_most_one_wrong"])


def test_a_measure_may_come_from_a_file():
    """The example's: right among the two likeliest; of two classes it says nothing."""
    place = Path(__file__).parents[1] / "examples/plugin/pfedseq_example/top_two.py"
    plugins.load_file(place)
    try:
        assert make_config({"run": {"headline": "top_two"}}).run.each_evaluation[-1] == "top_two"
        logits, labels = CASES["many"]
        expected = metrics.top_k_accuracy_score(labels, logits, k=2)
        assert score(logits, labels, ["top_two"])["top_two"] == pytest.approx(expected)
        assert score(*CASES["two classes"], ["top_two"]).values == {}
    finally:
        del MEASURES["top_two"]
        del plugins._files[place.resolve()]
    with pytest.raises(InputError, match="there is no measure 'top_two'"):
        make_config({"run": {"headline": "top_two"}})


def test_the_page_names_every_measure():
    page = (Path(__file__).parents[1] / "docs/reference/measures.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(EVERY)
