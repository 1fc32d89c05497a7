"""The service's metrics, in Prometheus' text format."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Histogram:
    """Counts of values up to each bound, as in Prometheus."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self._counts)

    def lines(self, name: str) -> Iterator[str]:
        """The samples, with cumulative counts."""
        below = 0
        for bound, number in zip(self.bounds, self._counts, strict=False):
            below += number
            yield f'{name}_bucket{{le="{bound:g}"}} {below}'
        yield f'{name}_bucket{{le="+Inf"}} {self.count}'
        yield f"{name}_sum {self.total:g}"
        yield f"{name}_count {self.count}"


class Metrics:
    """The service's counters, which are kept when models are reloaded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests: Counter[tuple[str, int]] = Counter()
        self.predictions: Counter[str] = Counter()
        self.reloads: Counter[str] = Counter()
        self.connections_closed: Counter[str] = Counter()
        self.seconds, self.rows = Histogram(SECONDS), Histogram(ROWS)
        self.answered = 0

    @property
    def passes(self) -> int:
        """The number of passes through the backbone."""
        return self.rows.count

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request that has been answered."""
        with self._lock:
            self.requests[path, status] += 1
            self.seconds.add(seconds)

    def prediction(self, client: str) -> None:
        """Count an answered prediction for a client."""
        with self._lock:
            self.predictions[client] += 1

    def batch(self, requests: int, rows: int) -> None:
        """Count a pass and the requests it answered."""
        with self._lock:
            self.answered += requests
            self.rows.add(rows)

    def reload(self, outcome: str) -> None:
        """Count a reload of the models: `done` or `failed`."""
        with self._lock:
            self.reloads[outcome] += 1

    def closed(self, why: str) -> None:
        """Count a connection that the service closed."""
        with self._lock:
            self.connections_closed[why] += 1

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """All metrics as text; `gauges` are (description, current value) by name."""
        with self._lock:
            lines = [
                *_counter(
                    "pfedseq_requests_total",
                    "Requests by path and status.",
                    ((f'path="{p}",status="{s}"', n) for (p, s), n in self.requests.items()),
                ),
                *_described("pfedseq_request_seconds", "Time to an answer.", "histogram"),
                *self.seconds.lines("pfedseq_request_seconds"),
                *_described("pfedseq_batch_rows", "Rows in a pass.", "histogram"),
                *self.rows.lines("pfedseq_batch_rows"),
                *_counter(
                    "pfedseq_predictions_total",
                    "Predictions by client.",
                    ((f'client="{_escaped(c)}"', n) for c, n in self.predictions.items()),
                ),
                *_counter(
                    "pfedseq_reloads_total",
                    "Reloads of the models by outcome.",
                    ((f'outcome="{o}"', n) for o, n in self.reloads.items()),
                ),
                *_counter(
                    "pfedseq_connections_closed_total",
                    "Connections closed by the service by reason.",
                    ((f'reason="{w}"', n) for w, n in self.connections_closed.items()),
                ),
            ]
        for name, (what, value) in gauges.items():
            lines += [*_described(name, what, "gauge"), f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _described(name: str, what: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} {kind}"


def _counter(name: str, what: str, samples: Iterable[tuple[str, int]]) -> Iterator[str]:
    yield from _described(name, what, "counter")
    for labels, number in sorted(samples):
        yield f"{name}{{{labels}}} {number}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
