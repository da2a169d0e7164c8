"""What hosts agree on, given their votes; whole runs of several hosts are in tests/test_hosts.py."""

from gigpo_jax.run.host_votes import _agreed
from gigpo_jax.run.hosts import Stop


def test_the_first_host_by_number_gives_the_reason_and_all_save_or_none() -> None:
    stop, broken = Stop(143, "stopped"), Stop(1, "failed", saves=False)
    assert _agreed({}) is None
    assert _agreed({0: None, 1: None}) is None
    assert _agreed({2: broken, 0: None}) == Stop(1, "host 2 failed", saves=False)
    # In the order of the store: the hosts have one reason all the same.
    assert _agreed({3: Stop(1, "failed"), 1: stop, 0: None}) == Stop(143, "host 1 stopped")
    assert _agreed({3: broken, 1: stop}) == Stop(143, "host 1 stopped", saves=False)
    assert _agreed({0: broken, 1: stop}) == Stop(1, "host 0 failed", saves=False)
