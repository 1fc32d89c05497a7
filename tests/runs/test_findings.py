"""What a run says of itself: every finding where it is true, and where it is not."""

from dataclasses import replace

import pytest

from pfedseq.runs.findings import FINDINGS, Seen, look
from pfedseq.runs.records import Cost, Finding, RoundRecord
from tests.scored import scores_of

COST = Cost(0, 0, 0.0, 0.0, 0.0)
NAMES = ("north", "south")


def scored(accuracies=(0.5, 0.75), losses=(1.0, 2.0), test=(100, 80), validation=(20, 20)):
    made = scores_of(accuracies, accuracies, examples=test)
    columns = {**made.test, "loss": tuple(losses)}
    held = {**made.validation, "loss": tuple(losses)}
    return replace(made, test=columns, validation=held, validation_examples=tuple(validation))


def rounds(*losses, method="a"):
    return [
        RoundRecord(method, t, scored(losses=(loss, loss)), COST)
        for t, loss in enumerate(losses, start=1)
    ]


def sound(**changes):
    """A run that there is nothing to say about."""
    seen = Seen(
        records={"a": rounds(2.0, 1.5), "b": rounds(2.0, 1.0)},
        scores={"a": scored(), "b": scored((0.75, 0.75))},
        names=NAMES,
        options={"a": {"warmup_rounds": 1, "learner_lr": 0.1}, "b": {"warmup_rounds": 9}},
        moved={"a": {0: 0.5, 1: 0.4}, "b": {0: 0.2}},
        trained_classes={"north": (30, 30), "south": (40, 50)},
        tested_classes={"north": (100, 100), "south": (200, 200)},
        class_names=("cat", "dog"),
    )
    return replace(seen, **changes)


def codes(seen):
    return [finding.code for finding in look(seen)]


def test_a_sound_run_has_no_findings():
    assert look(sound()) == ()
    assert look(Seen({}, {}, ())) == ()


def test_adapters_that_hardly_moved():
    (found,) = look(sound(moved={"a": {0: 0.002, 1: 0.009, 2: 3.0}}))
    assert found.code == "adapters_hardly_moved"
    assert found.methods == ("a",)
    assert "hardly moved from their initial values: a by 0.9 %; raise" in found.sentence
    assert codes(sound(moved={"a": {0: 0.002, 1: 0.011, 2: 3.0}})) == []
    moved = {"a": {0: 0.002}, "b": {0: 0.001, 1: 0.003}, "c": {0: 1.0}, "d": {}}
    (both,) = look(sound(moved=moved))
    assert both.methods == ("a", "b")
    assert "a by 0.2 %, b by 0.2 %;" in both.sentence


def test_methods_that_hardly_beat_a_constant_answer():
    # South's most frequent class is dog. Guesses: 0.5 of 200 and 0.25 of 400 examples, 0.375 on
    # average with the standard error √(0.25/200 + 0.1875/400) / 2 = 0.0207.
    tested = {"north": (100, 100), "south": (300, 100)}

    def seen(*accuracies, **more):
        return sound(scores={"a": scored(accuracies)}, **{"tested_classes": tested, **more})

    (found,) = look(seen(0.41, 0.42))
    assert (found.code, found.methods) == ("no_better_than_guessing", ("a",))
    assert "most frequent class (37.5 % on test data): a 41.5 %; `pfedseq tune`" in found.sentence
    assert codes(seen(0.41, 0.424)) == []
    (found,) = look(seen(0.41, 0.42, backbone="demo"))
    assert "set model.backbone to a pretrained one" in found.sentence
    assert codes(seen(0.41, 0.42, moved={"a": {0: 0.001}})) == ["adapters_hardly_moved"]
    north = {"trained_classes": {"north": (30, 30)}, "tested_classes": {"north": (100, 100)}}
    assert codes(seen(0.41, 0.42, **north)) == [], "not every client's classes are known"
    assert codes(seen(0.0, 0.0, class_names=(), trained_classes={}, tested_classes={})) == []


def test_methods_that_end_equal_for_every_client():
    twin = scored(losses=(1.0005, 1.9995))
    (found,) = look(sound(scores={"a": scored(), "b": twin}))
    assert (found.code, found.methods) == ("equal_methods", ("a", "b"))
    assert codes(sound(scores={"a": scored(), "b": scored(losses=(1.0, 2.002))})) == []
    assert codes(sound(scores={"a": scored(), "b": scored((0.5, 0.7501))})) == []
    other = replace(twin, clients=(0, 2))
    assert codes(sound(scores={"a": scored(), "b": other})) == []


def test_a_loss_that_rose():
    (found,) = look(sound(records={"a": rounds(2.0, 1.0, 1.5)}))
    assert found.code == "loss_rose"
    assert "validation loss rose: a from 1 in round 2 to 1.5 in round 3; lower" in found.sentence
    assert "best_on_validation" in found.sentence
    (found,) = look(sound(records={"a": rounds(2.0, 1.0, 1.5)}, keeps_last=False))
    assert "best_on_validation" not in found.sentence
    (found,) = look(sound(records={"a": rounds(1.0, 1.5), "b": rounds(1.0, 1.3)}))
    assert found.methods == ("a", "b")
    assert "1.5 in round 2, b from 1 in round 1 to 1.3 in round 2;" in found.sentence
    assert codes(sound(records={"a": rounds(2.0, 1.0, 1.19)})) == []
    unvalidated = [
        replace(r, scores=replace(r.scores, validation={"loss": (None, None)}))
        for r in rounds(1.0, 3.0)
    ]
    (found,) = look(sound(records={"a": unvalidated}))
    assert "the mean test loss rose: a from 1 in round 1" in found.sentence


def test_a_learner_that_was_never_used():
    options = {"a": {"warmup_rounds": 2, "learner_lr": 0.1}}
    (found,) = look(sound(options=options))
    assert found.code == "learner_never_used"
    assert "warm-up of 2 rounds lasted to the end (round 2)" in found.sentence
    longer = {"a": rounds(2.0, 1.5, 1.4)}
    assert codes(sound(options=options, records=longer)) == []


def test_sets_too_small_to_judge_by():
    few = {"a": scored(test=(60, 9), validation=(4, 12))}
    found = {finding.code: finding for finding in look(sound(scores=few))}
    assert "fewer than 10: south (9)" in found["small_test_set"].sentence
    assert found["small_test_set"].clients == ("south",)
    assert "fewer than 10: north (4)" in found["small_validation_set"].sentence
    assert codes(sound(scores={"a": scored(test=(60, 50), validation=(10, 0))})) == []


def test_how_much_one_test_example_weighs():
    (found,) = look(sound(scores={"a": scored(test=(20, 80))}))
    assert found.code == "coarse_scores"
    assert "test sets have 20 to 80 examples: one example is up to 5 points" in found.sentence
    assert codes(sound(scores={"a": scored(test=(50, 80))})) == []


def test_of_dialogues_tokens_are_counted():
    made = scored(test=(20, 4))
    made = replace(made, test={**made.test, "token_accuracy": (0.5, 0.5)})
    said = [finding.sentence for finding in look(sound(scores={"a": made}))]
    assert any(
        "have 4 to 20 tokens: one token is up to 25 points of a client's token acc" in s
        for s in said
    )
    assert any(one.startswith("too few test tokens to judge by") for one in said)
    assert not any("example" in one for one in said)


def test_classes_that_are_trained_but_not_tested():
    (found,) = look(sound(tested_classes={"north": (100, 100), "south": (200, 0)}))
    assert found.code == "classes_missing_from_test"
    assert "(south: dog)" in found.sentence
    assert found.clients == ("south",)


def test_every_finding_is_listed_and_comes_back_from_json():
    assert len(FINDINGS) == len(set(FINDINGS)) == 9
    for finding in (Finding("x", "y"), Finding("x", "y", ("a",), ("north",))):
        assert Finding.from_json(finding.to_json()) == finding
    with pytest.raises(KeyError):
        Finding.from_json({"code": "x"})


def test_groups_that_share_a_mean_are_named():
    def told(labels, left=(), method="pfedseq"):
        last = replace(rounds(1.0, method=method)[0], server={"group": labels})
        records = {method: [replace(last, left=left), last]}
        return look(sound(records=records, names=("n", "s", "e", "w"), options={}))

    (found,) = told([0.0, 1.0, 0.0, 1.0])
    assert (found.code, found.methods) == ("groups_found", ("pfedseq",))
    assert found.sentence.endswith("gave each group a mean of its own: n, e; s, w")
    assert told([0.0, 1.0, 2.0, 1.0])[0].sentence.endswith("mean of its own: s, w")
    assert not told([])
    assert not told([0.0, 0.0]), "clients have left: places are no numbers any more"
    assert not told([0.0, 1.0, 0.0, 1.0], left=(1,)), "it has come back, to the last place"
