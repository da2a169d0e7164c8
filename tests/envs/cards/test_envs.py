"""The card games as environments: deals, responses, prompts, pictures, experts, regret."""

import itertools
import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from gigpo_jax.env_bridge.prompt_building import build_prompt
from gigpo_jax.env_bridge.prompts import History
from gigpo_jax.env_bridge.types import IMAGE
from gigpo_jax.envs import registry
from gigpo_jax.envs.blackjack.env import BlackjackGame, choose_best, sum_points
from gigpo_jax.envs.cards.arithmetic import evaluate, evaluate_python
from gigpo_jax.envs.cards.deck import count_points
from gigpo_jax.envs.cards.picture import draw_blackjack_game, draw_numberline_game, draw_points_game
from gigpo_jax.envs.cards.points import PointsGame
from gigpo_jax.envs.ezpoints.env import draw_cards

CARDS = ("blackjack", "ezpoints", "numberline", "points24")


@pytest.mark.parametrize(
    ("name", "response", "action"),
    [
        ("ezpoints", '{"thoughts": "7 and 5", "action": "7"}', "7"),
        ("ezpoints", '{"ACTION": "10"}', "10"),
        ("ezpoints", '{"action": "10", "x": 1}', ""),  # 10 and 1
        ("ezpoints", '{"action": 1}{"action": 1}', "1"),
        ("ezpoints", '{"action": "+", "action": "*"}', ""),
        ("ezpoints", '{"action": "-"}', ""),
        ("ezpoints", "the answer is =", "="),  # without the key, the last character
        ("ezpoints", "the answer is = .", ""),
        ("ezpoints", "", ""),
        ("points24", '{"action": ")"}', ")"),
        ("points24", '{"action": "(2"}', ""),
        ("blackjack", '{"thoughts": "hit?", "action": "stand"}', "stand"),
        ("blackjack", '{"action": "stand or hit"}', ""),
        ("blackjack", '{"action": "I HIT"}', "hit"),
        ("numberline", '{"current number": 1, "action": "-"}', "-"),
        ("numberline", "+", "+"),
    ],
)
def test_responses_are_read_as_published(name: str, response: str, action: str) -> None:
    parsed = registry.spec(name).parse(response)
    assert (parsed.action, parsed.valid) == (action, action != "")


@pytest.mark.parametrize("name", CARDS)
def test_what_an_expert_writes_is_read_as_its_action(name: str) -> None:
    entry = registry.spec(name)
    env = registry.make(name, observation="text")
    assert entry.write is not None
    for action in env.reset(env.tasks("train")[0]).admissible or ():
        assert entry.parse(entry.write(action)).action == action


@pytest.mark.parametrize("name", CARDS)
def test_text_and_picture_belong_to_the_same_state_and_other_states_look_different(
    name: str,
) -> None:
    text, picture = (registry.make(name, observation=kind) for kind in ("text", "picture"))
    rng = random.Random(0)
    looks = dict[str, bytes]()
    for task in text.tasks("train")[:12]:
        text_observation = text.reset(task)
        picture_observation = picture.reset(task)
        for _ in range(6):
            assert text_observation.anchor == picture_observation.anchor
            assert (
                text_observation.images,
                text_observation.text.count(IMAGE),
                picture_observation.text.count(IMAGE),
            ) == ((), 0, 1)
            (image,) = picture_observation.images
            assert image.dtype == np.uint8
            assert image.shape[0] % 28 == image.shape[1] % 28 == 0
            assert looks.setdefault(text_observation.anchor, image.tobytes()) == image.tobytes()
            action = rng.choice((*(text_observation.admissible or ()), ""))
            text_observation = text.step(action).observation
            picture_observation = picture.step(action).observation
    assert len(set(looks.values())) == len(looks) > 15


@pytest.mark.parametrize("name", CARDS)
def test_prompts_begin_with_the_picture_and_name_every_action(name: str) -> None:
    env = registry.make(name)
    prompt = build_prompt(
        registry.find_style(name, "full"),
        env.reset(env.tasks("test")[0]),
        History(0),
        encode=lambda text, images: list(text),
        limit=10**4,
    ).text
    assert prompt.startswith(IMAGE)
    assert prompt.count(IMAGE) == 1
    assert '"action": "' in prompt
    for action in {"blackjack": ("stand", "hit"), "numberline": ("-", "+")}.get(
        name, ("1", "10", "+", "*", "=")
    ):
        assert f'"{action}"' in prompt
    assert ("Formula:" in prompt) == (name in ("ezpoints", "points24"))


def test_deals_of_ezpoints_are_distributed_as_published() -> None:
    rng = random.Random(0)
    pairs = Counter(tuple(sorted(map(count_points, draw_cards(rng)))) for _ in range(6000))
    assert set(pairs) == {(2, 6), (2, 10), (3, 4), (3, 9), (4, 8), (5, 7), (6, 6)}
    assert pairs[2, 10] / 6000 == pytest.approx(0.37, abs=0.03)


@pytest.mark.parametrize("name", ["ezpoints", "points24"])
def test_experts_of_points_games_win_every_deal_without_regret(name: str) -> None:
    env = registry.make(name, observation="text", regret=True)
    for task in env.tasks("test")[:6]:
        observation = env.reset(task)
        expert = registry.make_expert(name, 0)
        done = False
        while not done:
            result = env.step(expert.act(observation))
            observation = result.observation
            done = result.done
            assert result.info["regret"] == 0
        assert (result.reward, result.info["won"], result.info["score"]) == (10.0, True, 1.0)
        formula = observation.anchor.partition(" |")[2].split()
        assert evaluate(formula) == Fraction(12 if name == "ezpoints" else 24)


def test_regret_of_points_games() -> None:
    env = registry.make("ezpoints", observation="text", regret=True)
    task = next(
        task
        for task in env.tasks("train")
        if sorted(env.reset(task).admissible or ())[2:4] == ["5", "7"]
    )
    env.reset(task)
    assert env.step("4").info["regret"] == 1  # no such card: one action more
    assert env.step("7").info["regret"] == 0
    assert env.step("*").info["regret"] == 8 - 3 + 1  # lost: all that is left of an episode of 8
    assert env.step("5").info["regret"] == 0
    assert env.step("=").reward == 0


def test_joined_digits_win_under_compat_alone() -> None:
    envs = [
        registry.make("points24", observation="text", compat=compat) for compat in (False, True)
    ]
    task, formula = next(
        (task, formula)
        for task in envs[0].tasks("train")[:200]
        for a, b, c, d in itertools.permutations(
            count_points(card) for card in envs[0].reset(task).anchor[:-2].split()
        )
        if evaluate_python(formula := [str(a), str(b), "-", str(c), "-", str(d)]) == 24
    )
    for env, reward in zip(envs, (0.0, 10.0)):
        env.reset(task)
        for action in formula:
            env.step(action)
        result = env.step("=")
        assert (result.reward, result.done, result.info["won"]) == (reward, True, reward > 0)


def test_a_formula_without_all_cards_is_wrong() -> None:
    for formula, reward in (("4 * 6", 0.0), ("4 * 6 * 1 * 1", 10.0), ("4 * 6 * 1 * 1 +", 0.0)):
        game = PointsGame(("C4", "D6", "HA", "SA"), 24, "+-*/()")
        for action in formula.split():
            assert game.act(action) == (0.0, False)
        assert game.act("=") == (reward, True)


def test_numberline_has_six_test_tasks_that_training_never_starts_from() -> None:
    env = registry.make("numberline", observation="text", regret=True)
    train = env.tasks("train")
    test = env.tasks("test")
    assert (len(train), len(test)) == (24, 6)
    starts = {
        split: {env.reset(task).anchor for task in tasks}
        for split, tasks in (("train", train), ("test", test))
    }
    assert not starts["train"] & starts["test"]
    for task in (*train, *test):
        observation = env.reset(task)
        expert = registry.make_expert("numberline", 0)
        _, target, _, current = observation.anchor.split()
        wrong = env.step({"+": "-", "-": "+"}[expert.act(observation)])
        assert wrong.reward == -1
        result = wrong
        while not result.done:
            result = env.step(expert.act(result.observation))
            assert result.info["regret"] == 0
        assert result.reward == 1
        assert int(target) != int(current)


def test_the_dealer_and_the_sum_of_a_hand() -> None:
    assert [
        sum_points(hand) for hand in ([1, 10], [1, 1], [1, 5, 5], [1, 10, 10], [10, 10, 2])
    ] == [
        21,
        12,
        21,
        21,
        22,
    ]
    soft = BlackjackGame(("SA", "S6", "H9", "H9"))  # 17 with an ace as 11: the dealer stands
    assert soft.act("stand") == (1.0, True)
    sixteen = BlackjackGame(("SK", "S6", "H9", "H8", "C5"))  # the dealer draws once more
    assert sixteen.act("stand") == (0.0, True)
    draw = BlackjackGame(("SK", "S8", "H9", "H9"))
    assert draw.act("stand") == (0.0, True)


def test_the_expert_of_blackjack_plays_what_wins_most_often_over_many_deals() -> None:
    """Against playing each action out, for hands on both sides of the line."""
    rng = np.random.default_rng(0)
    for dealer, player in (
        ("S6", "HK C4"),
        ("SK", "HK C4"),
        ("S4", "HA C7"),
        ("SK", "HA C6"),
        ("S9", "H2 C9"),
    ):
        hand = [count_points(card) for card in player.split()]

        def play(hit: bool, hand: list[int] = hand, dealer: str = dealer) -> bool:
            player_points = list(hand)
            dealer_points = [count_points(dealer)]
            card = lambda: min(int(rng.integers(1, 14)), 10)  # noqa: E731
            while hit:
                player_points.append(card())
                if sum_points(player_points) > 21:
                    return False
                hit = sum_points(player_points) < 17
            while sum_points(dealer_points) < 17:
                dealer_points.append(card())
            return sum_points(dealer_points) > 21 or sum_points(player_points) > sum_points(
                dealer_points
            )

        stand, hit = (np.mean([play(choice) for _ in range(4000)]) for choice in (False, True))
        if abs(stand - hit) > 0.03:
            assert choose_best(f"{dealer} | {player}") == ("hit" if hit > stand else "stand"), (
                dealer,
                player,
            )


def test_regret_in_blackjack_knows_the_deck() -> None:
    env = registry.make("blackjack", observation="text", regret=True)
    outcomes = Counter()
    for task in env.tasks("train")[:80]:
        env.reset(task)
        plans = [[*itertools.repeat("hit", hits), "stand"] for hits in range(4)]
        won = []
        regrets = []
        for plan in plans:
            env.reset(task)
            results = [env.step(action) for action in plan]
            won.append(results[-1].info["won"])
            regrets.append(sum(result.info["regret"] for result in results))
        for plan_won, regret, plan in zip(won, regrets, plans):
            best = won.index(True) + 1 if any(won) else None
            assert not plan_won or regret == len(plan) - best
            assert plan_won or not best or regret > 0
        outcomes[any(won)] += 1
    assert min(outcomes.values()) > 10


def test_pictures_of_long_hands_and_formulas_keep_their_size() -> None:
    for hand in (("S2",), ("S2",) * 5, ("S2",) * 21):
        assert draw_blackjack_game("HK", hand).shape == (308, 308, 3)
    assert (
        draw_points_game(("HT", "S2"), "").shape
        == draw_points_game(("HT", "S2"), "10*" * 200).shape
        == (168, 196, 3)
    )
    assert draw_numberline_game(0, 5).shape == (112, 252, 3)
    assert not np.array_equal(
        draw_points_game(("HT", "S2"), "10*" * 200),
        draw_points_game(("HT", "S2"), "10*" * 199 + "2"),
    )
