"""Signs of life of hosts, with a store and a clock of this test."""

import atexit
from types import SimpleNamespace

import jax
import pytest

from gigpo_jax.run import host_beats, host_votes
from gigpo_jax.run.host_beats import SILENT_S, HostBeats
from gigpo_jax.run.host_votes import HostVotes
from gigpo_jax.run.hosts import HostsStopped


class Store:
    """The store of two hosts; out of reach on demand."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}
        self.is_reached = True

    def key_value_set(self, key: str, value: str, *, allow_overwrite: bool) -> None:
        assert allow_overwrite
        self._check()
        self.entries[key] = value

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        self._check()
        return [entry for entry in self.entries.items() if entry[0].startswith(folder)]

    def _check(self) -> None:
        if not self.is_reached:
            raise jax.errors.JaxRuntimeError("UNAVAILABLE")


def test_a_host_is_silent_without_a_new_count_and_not_after_it_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = SimpleNamespace(now=0.0, host=0)
    clock = SimpleNamespace(monotonic=lambda: at.now)
    monkeypatch.setattr(host_beats, "time", clock)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: at.host)
    store = Store()
    beats = [HostBeats(store), HostBeats(store)]
    for at.now in (1.0, 2.0):
        for at.host in (0, 1):
            beats[at.host].exchange()
    at.host = 0
    beats[0].exchange()
    at.now = 2.0 + SILENT_S
    beats[0].exchange()
    assert beats[0].silent_host() is None
    at.now += 0.1
    beats[0].exchange()
    assert beats[0].silent_host() == 1
    # The other one, which cannot reach the store, names the host that has it.
    at.host = 1
    store.is_reached = False
    with pytest.raises(jax.errors.JaxRuntimeError):
        beats[1].exchange()
    assert beats[1].silent_host() == 0
    store.is_reached = True
    beats[1].leave()
    at.host = 0
    beats[0].exchange()
    at.now += 10 * SILENT_S
    beats[0].exchange()
    assert beats[0].silent_host() is None


@pytest.mark.parametrize("lost", [True, False])
def test_an_error_beside_a_lost_host_names_the_host(
    lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 0)
    monkeypatch.setattr(HostVotes, "_store", Store())
    monkeypatch.setattr(host_votes, "WATCH_S", 0.01)
    monkeypatch.setattr(host_votes, "STOP_LIMIT_S", 0.5)
    if not lost:
        monkeypatch.setattr(HostBeats, "silent_host", lambda *_: None)
    error = RuntimeError("connection closed by peer")
    try:
        with (
            pytest.raises(HostsStopped if lost else RuntimeError) as raised,
            HostVotes().stopping(),
        ):
            raise error
    finally:
        atexit.unregister(host_votes.leave_run)
    message = "host 0 stopped: no sign of life from host 1; the same command continues"
    assert str(raised.value).startswith(message if lost else "connection closed by peer")
