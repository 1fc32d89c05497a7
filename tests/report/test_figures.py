"""Learning curves of a comparison: a marker wherever it was measured."""

from pathlib import Path

from pfedseq.report import figures
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.records import Cost, RoundRecord
from tests.scored import scores_of


def run_folder(path, method, accuracies):
    """A run that was evaluated after the rounds that `accuracies` names."""
    folder = RunFolder(path)
    path.mkdir(parents=True)
    for t in range(1, 1 + max(accuracies)):
        scores = scores_of((accuracies[t],)) if t in accuracies else None
        folder.append(RoundRecord(method, t, scores, Cost(0, 0, 0.0, 0.0, 0.0)))
    return folder


def test_mean_range_and_markers_are_at_the_measured_rounds(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "save_picture", lambda figure, path: drawn.append((figure, path)))
    runs = {
        "local": [
            run_folder(tmp_path / "a", "local", {2: 0.2, 4: 0.6}),
            run_folder(tmp_path / "b", "local", {2: 0.4, 4: 0.7}),
        ]
    }
    figures.draw_comparison(runs, Path("curves.png"))
    ((figure, path),) = drawn
    assert path == Path("curves.png")
    (axes,) = figure.axes
    (line,) = axes.lines
    assert line.get_marker() == "o"
    assert line.get_xdata().tolist() == [2, 4]
    assert [round(y, 6) for y in line.get_ydata()] == [30.0, 65.0]
    (area,) = axes.collections
    corners = {(round(x), round(y)) for x, y in area.get_paths()[0].vertices}
    assert corners == {(2, 20), (2, 40), (4, 60), (4, 70)}
