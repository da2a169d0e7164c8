"""Folders are found as users write them, by every environment."""

from pathlib import Path

import pytest

from gigpo_jax.env_bridge.paths import filled_in
from gigpo_jax.envs import registry
from gigpo_jax.errors import InputError


def test_home_and_variables_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("GAMES", "/big/games")
    monkeypatch.delenv("MISSING", raising=False)
    assert filled_in("data", "~/a b") == Path("/home/ada/a b")
    assert filled_in("data", "$GAMES/x") == filled_in("data", Path("${GAMES}/x")) == Path("/big/games/x")
    with pytest.raises(InputError, match=r"data=\$MISSING/x: the environment variable MISSING is not set"):
        filled_in("data", "$MISSING/x")


@pytest.mark.parametrize(
    ("name", "option"), [("alfworld", "data"), ("search", "data"), ("search", "index"), ("webshop", "data")]
)
def test_every_environment_does_so(name: str, option: str, tmp_path: Path) -> None:
    options = {"data": str(tmp_path)} | {option: "$NO_SUCH_VARIABLE/x"}
    with pytest.raises(InputError, match="NO_SUCH_VARIABLE is not set"):
        registry.make(name, **options).tasks("train")
