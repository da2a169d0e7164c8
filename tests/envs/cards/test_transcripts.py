"""The card games against what the public environments said, action by action."""

from typing import Any

import pytest

from gigpo_jax.envs.blackjack.env import BlackjackGame
from gigpo_jax.envs.cards.points import PointsGame
from gigpo_jax.envs.ezpoints import prompt as ezpoints
from gigpo_jax.envs.numberline.env import NumberLineGame
from gigpo_jax.envs.points24 import prompt as points24
from tests.envs.transcripts import transcripts


@pytest.mark.parametrize("compat", [False, True])
@pytest.mark.parametrize(("name", "rules"), [("ezpoints", ezpoints), ("points24", points24)])
def test_points_games(name: str, rules: Any, compat: bool) -> None:
    for episode in transcripts(name):
        first = episode["first"]
        game = PointsGame(first["Cards"], rules.TARGET, rules.OPERATORS, compat=compat)
        assert sorted(int(n) for n in game.actions() if n.isdigit()) == sorted(
            set(first["Numbers"])
        )
        for step in episode["steps"]:
            reward, is_over = game.act(rules.ACTIONS[step["action"]] if step["action"] >= 0 else "")
            assert (reward, is_over, game.won) == (
                step["reward"],
                step["done"],
                step["info"]["won"],
            )
            assert game.formula == [str(symbol) for symbol in step["info"]["Formula"]]


def test_blackjack() -> None:
    for episode in transcripts("blackjack"):
        last = episode["steps"][-1]["info"]
        dealer, player = (
            [suit + (rank if rank != "10" else "T") for _, rank, suit in last[key]]
            for key in ("Dealer Card", "Player Card")
        )
        game = BlackjackGame((*dealer[:2], *player[:2], *player[2:], *dealer[2:]))
        for step in episode["steps"]:
            reward, is_over = game.act({0: "stand", 1: "hit"}.get(step["action"], ""))
            assert (reward, is_over, game.won) == (
                step["reward"],
                step["done"],
                step["info"]["won"],
            )
            assert len(game.player) == len(step["info"]["Player Card"])
            assert len(game.dealer) == len(step["info"]["Dealer Card"])
        assert (game.dealer, game.player) == (dealer, player)


def test_numberline() -> None:
    for episode in transcripts("numberline"):
        first = episode["first"]
        game = NumberLineGame(first["Current"], first["Target"])
        for step in episode["steps"]:
            reward, is_over = game.act({0: "-", 1: "+"}.get(step["action"], ""))
            assert (reward, is_over, game.won) == (
                step["reward"],
                step["done"],
                step["info"]["won"],
            )
            assert game.current == step["info"]["Current"]


def test_there_are_transcripts_of_all_games_with_wins_and_losses() -> None:
    for name in ("ezpoints", "blackjack", "numberline"):
        rewards = {step["reward"] for episode in transcripts(name) for step in episode["steps"]}
        assert len(rewards) > 1, name
    assert len(transcripts("points24")) == 14
