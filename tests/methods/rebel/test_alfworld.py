"""Grades of stated beliefs by hand, and beliefs of the expert in whole episodes."""

import asyncio
import json
import re
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gigpo_jax.config import default_config
from gigpo_jax.engines.base import Completion
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs import registry
from gigpo_jax.envs.alfworld.expert.beliefs import Beliefs
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.methods.rebel.alfworld import (
    HouseGrader,
    grade_expectation,
    grade_facts,
    name_phase,
)
from gigpo_jax.methods.rebel.belief_grades import BeliefGrades
from gigpo_jax.methods.rebel.beliefs import (
    BELIEF,
    ask_belief,
    belief_parser,
    grade_response,
    read_belief,
)
from gigpo_jax.methods.rebel.episode_part import GRADE, BeliefsPart
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.rollout.demonstrations import demonstrate_episode
from gigpo_jax.rollout.episode import EpisodeRunner
from gigpo_jax.rollout.episode_settings import EpisodeSettings
from gigpo_jax.rollout.prompt_encoding import prompt_encoder
from gigpo_jax.rollout.record import collect_rollouts
from gigpo_jax.rollout.recorded_starts import RecordedStarts
from gigpo_jax.rollout.rollout import RolloutJob, rollout
from gigpo_jax.rollout.statistics import rollout_metrics
from gigpo_jax.tools.credit.replay import replay_episodes
from gigpo_jax.trajectory import Past, StepCredit, finished_steps
from tests.envs.alfworld.generated import small

__all__ = ["small"]

ENTRY = registry.ENVIRONMENTS["alfworld"]


def make_facts() -> Beliefs:
    """Two places of three were seen; a heated mug is in the hand."""
    facts = Beliefs("Around you, you see a shelf 1, a drawer 1, and a fridge 1.")
    facts.contents = {"shelf 1": {"plate 1", "pan 1"}, "drawer 1": set()}
    facts.held = "mug 1"
    facts.changed["heat"].add("mug 1")
    return facts


TRUE = {
    "objects": {"plate 1": "shelf 1", "pan 1": "On the_shelf 1", "mug 1": "in_hand"},
    "states": {"mug 1": "heated"},
    "visited": ["shelf 1", "drawer 1"],
    "unvisited": ["fridge 1"],
}


@pytest.mark.parametrize(
    ("change", "grade"),
    [
        ({}, 1.0),
        # Objects 0.35: one of three facts is missing, or wrong.
        ({"objects": {"plate 1": "shelf 1", "mug 1": "in_hand"}}, 1 - 0.35 / 3),
        ({"objects": TRUE["objects"] | {"pan 1": "fridge 1"}}, 1 - 0.35 / 3),
        # Two things in the hand; the place of the knife alone is known to nobody.
        ({"objects": TRUE["objects"] | {"knife 1": "in_hand"}}, 1 - 0.35 / 3),
        ({"objects": TRUE["objects"] | {"knife 1": "fridge 1"}}, 1.0),
        ({"objects": {}}, 0.65),
        ({"objects": {"a 1": "b", "c 1": "d", "e 1": "in_hand", "f 1": "in_hand"}}, 0.65),
        ({"states": {"mug 1": "cooled"}}, 0.75),
        ({"states": {}}, 0.75),
        # F1 of one place of two: 2/3; with a wrong one beside it 1/2, less 0.1.
        ({"visited": ["shelf 1"]}, 0.75 + 0.25 * 2 / 3),
        ({"visited": ["shelf 1", "fridge 1"]}, 0.75 + 0.25 * 0.4),
        ({"visited": []}, 0.75 + 0.25 * 0.3),
        ({"unvisited": ["fridge 1", "shelf 1"]}, 0.85 + 0.15 * 0.5),
        ({"unvisited": []}, 0.85 + 0.15 * 0.4),
        # Malformed fields are as missing ones.
        ({"objects": ["mug 1"], "states": {"mug 1": 3}}, 0.4),
        ({"visited": {"shelf 1": 1}, "unvisited": [["fridge 1"]]}, 0.6 + 0.075 + 0.06),
    ],
)
def test_grades_of_the_state(change, grade: float) -> None:
    assert grade_facts(TRUE | change, make_facts()) == pytest.approx(grade)


def test_grades_where_nothing_was_seen() -> None:
    facts = Beliefs("Around you, you see a shelf 1, and a drawer 1.")
    # Nothing stated: 0.5, 0.5, 0.6, and 0.4 as places are left.
    empty = 0.35 * 0.5 + 0.25 * 0.5 + 0.25 * 0.6 + 0.15 * 0.4
    assert grade_facts({}, facts) == pytest.approx(empty)
    stated = {"objects": {"mug 1": "shelf 1"}, "states": {"mug 1": "heated"}}
    assert grade_facts(stated, facts) == pytest.approx(empty + 0.6 * 0.2)


@pytest.mark.parametrize(
    ("prediction", "grade"),
    [
        # Words: see, no; drawer, mug. Pairs: drawer 1, 1 mug, mug 2.
        ("if i go there, i expect to see drawer 1 mug 2", 1.0),
        ("i expect drawer 2 mug 1", 2 / 5),
        ("a mug", 1.0),
        ("i expect a plate", 0.0),
        ("i expect 1", 0.0),
        ("", 0.0),
    ],
)
def test_grades_of_predictions(prediction: str, grade: float) -> None:
    feedback = "You open the drawer 1. In it, you see a mug 2."
    assert grade_expectation(prediction, "Drawer 1, mug 2. " + feedback) == pytest.approx(grade)


def test_phases() -> None:
    assert name_phase(["go to shelf 1", "heat mug 1 with microwave 1"], holds=True) == "transform"
    assert name_phase(["move mug 1 to shelf 1"], holds=True) == "place"
    assert name_phase(["move mug 1 to shelf 1", "take pan 1 from shelf 1"], holds=False) == "pickup"
    assert name_phase(["go to shelf 1"], holds=True) == "find"


def test_a_response_is_graded_by_what_it_has_read() -> None:
    grader = HouseGrader()
    first = Observation(
        "Around you, you see a shelf 1, and a drawer 1.", "", ("go to shelf 1",), "put"
    )
    grader.observe(first)
    words = {"phase": "find", "target": "the Mug!", "prediction": "i expect a mug 1"}
    answer = "On the shelf 1, you see a mug 1."

    def grade(response: str, **changes):
        settings = {"valid": True, "admissible": True, "feedback": answer} | changes
        return grade_response(grader, response, **settings)

    found = grade(f"<belief>{json.dumps(words)}</belief>")
    assert found.parts[1:] == (1.0, 1.0, 0.01)
    assert found.parts[0] == pytest.approx(0.51)
    assert (found.key, found.is_stated) == ("find|mug||", True)
    grader.observe(Observation(answer, "", ("take mug 1 from shelf 1",), "put"))
    # Without a belief there is no grade but the format's, and the last target.
    for response in ("<belief>[1]</belief>", "<belief>{</belief>", "no"):
        found = grade(response, valid=False, admissible=False)
        assert found == ((0.0, 0.0, 0.0, -0.05), "pickup|mug||", False)
    words |= {"objects": {"pan 1": "in hand"}, "states": {"pan 1": "cooled"}}
    found = grade(f"<belief>{json.dumps(words)}</belief>", admissible=False)
    assert found.parts[1:] == (0.0, 1.0, pytest.approx(-0.01))
    assert found.key == "pickup|mug|holding|changed"
    # Keys of a tokenizer of words.
    assert grade('<belief> { " phase " : " pickup " } </belief>').parts[1] == 1.0


def test_broken_beliefs_take_linear_time() -> None:
    start = time.thread_time()
    for text in ("<belief>" * 20_000, "<belief>" + "[" * 200_000 + "</belief>"):
        assert read_belief(text).belief is None
    assert time.thread_time() - start < 2.0


SETTINGS = EpisodeSettings(
    template=ask_belief(ENTRY.styles["compact"], "alfworld"),
    parse=belief_parser(ENTRY.parse),
    max_steps=12,
    prompt_tokens=400,
    plan=BELIEF,
    parts=[partial(BeliefsPart, default_config())],
)


def test_the_expert_states_true_beliefs(small: Path) -> None:
    env = registry.make("alfworld", data=str(small))
    for task in env.tasks("train")[:6]:
        demonstration = demonstrate_episode(
            env,
            registry.make_expert("alfworld", 3),
            task,
            SETTINGS,
            encode=str.split,
            encode_response=str.split,
        )
        previous = ""
        grader = HouseGrader()
        observation = env.reset(task)
        for turn in demonstration.turns:
            grader.observe(observation)
            parsed = SETTINGS.parse(turn.response)
            assert parsed.valid
            result = env.step(parsed.action)
            grade = grade_response(
                grader,
                turn.response,
                valid=True,
                admissible=True,
                feedback=result.observation.text,
            )
            state, phase, prediction, _ = grade.parts
            # 1, but for what cannot be stated yet: objects and states.
            assert state > 0.59
            assert (phase, prediction > 0.3) == (1.0, True)
            assert (f"belief {previous} now" in turn.prompt) == bool(previous)
            previous = parsed.plan
            observation = result.observation


class Believer:
    """States a belief in two responses of three."""

    def __init__(self, tokenizer) -> None:
        self.tokenizer = tokenizer

    async def generate(self, tokens, params):
        text = self.tokenizer.decode(list(tokens))
        places = re.findall(r"go to (\w+ \d+)", text.rpartition(" can ")[2])
        place = places[sum(params.key) % len(places)]
        response = f"<think></think><action>go to {place}</action>"
        if sum(params.key) % 3:
            prediction = f"I expect {place}"
            belief = {"phase": "find", "visited": places[:2], "prediction": prediction}
            response = f"<belief>{json.dumps(belief)}</belief>{response}"
        ids = np.asarray(self.tokenizer.encode(response), np.int32)
        return Completion(ids, np.zeros(len(ids), np.float32), "stop", 0)

    def end_session(self, session) -> None:
        pass


def test_episodes_are_graded_and_replays_give_the_same_grades(small: Path) -> None:
    tags = '<belief></belief>{}"phase":"visited":"prediction":'
    tokenizer = word_tokenizer(["find cabinet mug go to open take", tags])
    env = registry.make("alfworld", data=str(small))
    with EnvPool(ENTRY.build, {"data": str(small)}, workers=1, envs_per_worker=6) as pool:
        runner = EpisodeRunner(Believer(tokenizer), tokenizer, SETTINGS)
        tasks = pool.tasks("train")[:2]
        # Replayed observations are part of what was seen.
        listed = env.reset(tasks[1]).admissible or ()
        past = Past(tuple(action for action in listed if action.startswith("go to "))[:2])
        play = rollout(
            RolloutJob(tasks, group_size=3, iteration=0, starts=RecordedStarts({1: past})),
            {"": (runner, pool)},
        )
        trajectories = asyncio.run(play)
    assert len(past.actions) == 2
    assert len({turn.observation for turn in trajectories[0].turns}) > 3
    steps = finished_steps(trajectories)
    grades = [step.turn.extra[GRADE] for step in steps]
    stated = [grade.is_stated for grade in grades]
    assert 0.4 < np.mean(stated) < 0.9
    assert [step.turn.valid for step in steps] == stated
    columns = BeliefGrades().compute_columns(ScoredSteps(steps, (None, None), None))
    np.testing.assert_array_equal(
        columns["belief_grade"], np.array([grade.parts for grade in grades], np.float32)
    )
    keys = [tuple(lanes) for lanes in columns["belief"].tolist()]
    assert len({*keys}) == len({grade.key for grade in grades}) > 1
    metrics = rollout_metrics(trajectories, (), BeliefsPart.metrics)
    assert metrics["belief/stated"] == pytest.approx(np.mean(stated))
    assert 0.0 < metrics["belief/state"] < np.mean(stated)
    # Every action arrives at its place.
    assert metrics["belief/prediction"] == pytest.approx(np.mean(stated))
    zeros = np.zeros(len(steps), np.float32)
    credit = StepCredit(zeros, zeros, zeros, zeros.astype(np.int32))
    saved = collect_rollouts(
        trajectories, credit, None, gamma=1.0, iteration=0, temperature=1.0, decode=tokenizer.decode
    )
    encode = prompt_encoder(tokenizer, None)
    repeated = replay_episodes(
        env,
        saved.episodes,
        SETTINGS,
        prompt=lambda observation, history: (SETTINGS.prompt(observation, history, encode), None),
    )
    assert [turn.extra[GRADE] for t in repeated for turn in t.turns] == grades
