"""Lessons in prompts, and how they are written."""

import asyncio
import dataclasses
import functools

import numpy as np

from gigpo_jax.engines.base import Completion
from gigpo_jax.env_bridge.exchanges import Advice
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.prompt_building import build_prompt
from gigpo_jax.env_bridge.prompts import History
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs import registry
from gigpo_jax.methods.slea.episode_part import LessonsPart
from gigpo_jax.methods.slea.lessons import LESSON, LESSON_TOKENS, write_lessons
from gigpo_jax.rollout.episode import EpisodeRunner
from tests.rollout.stand_in import EXAMPLE, SETTINGS, TOKENIZER, StandIn, play

ROOMY = dataclasses.replace(
    SETTINGS, prompt_tokens=200, sampling=dataclasses.replace(SETTINGS.sampling, max_tokens=100)
)


def test_prompts_show_lessons_where_there_is_room() -> None:
    observation = Observation("a coin", "a coin", ("take coin",), "find the ring")
    history = History(2)
    history.add("two drawers", "open drawer 1")
    tip_words = ("What worked here before: ", "tip")
    history.advice = (
        Advice("look <think>", *tip_words),
        Advice("be quick", *tip_words),
        Advice("never wait", "What failed here before: ", "avoid"),
    )
    for style, tip, warning in (
        ("full", "What worked here before: be quick", "What failed here before: never wait"),
        ("compact", "tip look <think> tip be quick", "avoid never wait now"),
    ):
        template = registry.find_style("example", style)
        build = functools.partial(build_prompt, template, observation, history, encode=str.split)
        whole = build(limit=500)
        assert tip in whole.text
        assert warning in whole.text
        # Lessons are left out before what the episode has shown.
        cut = build(limit=len(whole.tokens) - 1)
        assert not {"quick", "never"} & {*cut.text.split()}
        assert "open drawer 1" in cut.text
        assert cut.cut == "history"


class Writer(StandIn):
    """Writes a lesson where it is asked for one."""

    async def generate(self, tokens, params):
        text = TOKENIZER.decode(list(tokens))
        if not text.endswith(("tip", "avoid")):
            return await super().generate(tokens, params)
        self.requests.append((tuple(tokens), params))
        if params.key[0] % 5 == 0:
            raise ValueError("no")
        ids = np.asarray(TOKENIZER.encode(f"open drawer {params.key[0] % 9}"), np.int32)
        return Completion(ids, np.zeros(len(ids), np.float32), "stop", 7)


def test_episodes_show_lessons_and_get_some() -> None:
    calls = []

    def find_lessons(kind: str, state: str):
        calls.append((kind, state))
        return (("take pearl",), ()) if "open" in state else ((), ("open drawer 4",))

    engine = Writer()
    settings = dataclasses.replace(ROOMY, parts=[functools.partial(LessonsPart, find_lessons)])
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=4) as pool:
        trajectories = play(pool, engine, groups=2, size=3, settings=settings)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    assert {state for _, state in calls} == {turn.anchor for turn in turns}
    assert {kind for kind, _ in calls} == {trajectory.task.kind for trajectory in trajectories}
    for turn in turns:
        shown = "tip take pearl now" if "open" in turn.anchor else "avoid open drawer 4 now"
        assert shown in turn.prompt
    keys = [params.key for _, params in engine.requests]
    engine.requests.clear()
    runner = EpisodeRunner(engine, TOKENIZER, settings)

    def write(trajectory, zone: str) -> str:
        trajectory.notes.clear()
        asyncio.run(write_lessons({"": runner}, [(trajectory, zone)], 5))
        return trajectory.notes.get(LESSON, "")

    for zone, word in (("strategies", "tip"), ("warnings", "avoid")):
        texts = [write(trajectory, zone) for trajectory in trajectories]
        # One in five fails, and is no lesson.
        assert "" in texts
        assert {text[:11] for text in texts} == {"", "open drawer"}
        assert texts == [write(trajectory, zone) for trajectory in trajectories]
        tokens, params = engine.requests[-1]
        text = TOKENIZER.decode(list(tokens))
        assert text.endswith(word)
        assert "tip take pearl" not in text
        last = trajectories[-1].turns[-1]
        for turn in trajectories[-1].turns:
            assert turn.action in text
        assert last.feedback.split()[0].lower() in text
        assert params.max_tokens == LESSON_TOKENS == 64
        assert params.stop_strings == ()
    lesson_keys = {params.key for _, params in engine.requests}
    assert len(lesson_keys) == len(trajectories)
    assert not lesson_keys & {*keys}
