"""Folders are found as users write them, by every environment."""

from pathlib import Path

import pytest

from gigpo_jax.config import default_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.paths import cache_folder, expand_path
from gigpo_jax.envs import registry
from gigpo_jax.envs.search.data.generate import ensure_world
from gigpo_jax.envs.webshop.data.generate import ensure_catalogue
from gigpo_jax.rollout.environment import env_options


def test_home_and_variables_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("GAMES", "/big/games")
    monkeypatch.delenv("MISSING", raising=False)
    assert expand_path("data", "~/a b") == Path("/home/ada/a b")
    assert (
        expand_path("data", "$GAMES/x")
        == expand_path("data", Path("${GAMES}/x"))
        == Path("/big/games/x")
    )
    with pytest.raises(
        InputError, match=r"data=\$MISSING/x: the environment variable MISSING is not set"
    ):
        expand_path("data", "$MISSING/x")


@pytest.mark.parametrize(
    ("name", "option"),
    [("alfworld", "data"), ("search", "data"), ("webshop", "data")],
)
def test_every_environment_does_so(name: str, option: str, tmp_path: Path) -> None:
    options = {"data": str(tmp_path)} | {option: "$NO_SUCH_VARIABLE/x"}
    with pytest.raises(InputError, match="NO_SUCH_VARIABLE is not set"):
        registry.make(name, **options).tasks("train")


def test_one_rule_for_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Generated data of every environment, whoever asks for it, stands in the same place."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("GIGPO_JAX_CACHE", raising=False)
    assert cache_folder("x") == tmp_path / "home/.cache/gigpo_jax/x"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder("x") == tmp_path / "xdg/gigpo_jax/x"
    monkeypatch.setenv("GIGPO_JAX_CACHE", str(tmp_path / "own"))
    assert cache_folder("x") == tmp_path / "own/x"
    assert cache_folder("maze.env:MAZE") == tmp_path / "own/maze.env.MAZE"
    config = default_config()
    config.env.name = "alfworld"
    config.env.prompt = "compact"
    config.env.generate = {"splits": {"train": 1}, "size": "small"}
    assert env_options(config)["data"].startswith(str(tmp_path / "own/alfworld/"))
    assert ensure_catalogue(products=2).parent == tmp_path / "own/webshop"
    assert ensure_world(people=16).parent == tmp_path / "own/search"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GIGPO_JAX_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"GIGPO_JAX_CACHE='.*file': cannot make the folder"):
        cache_folder("x")
