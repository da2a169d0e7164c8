"""Trials of a task: one after the other until one succeeds, with what the agent wrote in
between.
"""

import asyncio
import dataclasses
import hashlib
import itertools
import random
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from gigpo_jax.config import default_config
from gigpo_jax.engines.base import Completion, SamplingParams, request_key
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.env_bridge.agents import AGENTS
from gigpo_jax.env_bridge.conversations import make_conversation
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.envs import registry
from gigpo_jax.envs.introductions import find_introduction
from gigpo_jax.methods.reflexion.episode_part import REFLECTION, ReflectionsPart
from gigpo_jax.models import decoder
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.rollout.demonstrations import response_text
from gigpo_jax.rollout.episode import EpisodeRunner
from gigpo_jax.rollout.episode_settings import EpisodeSettings
from gigpo_jax.rollout.rollout import RolloutJob, rollout
from gigpo_jax.trajectory import Trajectory
from tests.rollout.stand_in import same

EXAMPLE = registry.ENVIRONMENTS["example"]
AGENT = AGENTS["reflexion"]
ABOUT = find_introduction("example")
assert AGENT.template is not None
assert AGENT.reflection is not None
CONFIG = default_config()
CONFIG.agent = "reflexion"
CONFIG.env.name = "example"
SETTINGS = EpisodeSettings(
    template=AGENT.template(ABOUT, {}),
    parse=AGENT.make_parser(EXAMPLE.parse, response_text),
    max_steps=4,
    prompt_tokens=1500,
    seed=3,
    sampling=SamplingParams(temperature=0.7, max_tokens=80, stop_strings=AGENT.stop),
    trials=4,
    parts=[partial(ReflectionsPart, CONFIG)],
)


TEMPLATE = "{% for m in messages %}{{ '' if loop.first else '\n' }}{{ m['content'] }}{% endfor %}"


def byte_tokenizer() -> Tokenizer:
    """One token a byte: the tokenizer of tiny models has no line ends."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = tokenizers.Tokenizer(
        models.BPE({letter: index for index, letter in enumerate(letters)}, [])
    )
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(["<eos>"])
    return Tokenizer(bpe, {"eos_token": "<eos>"}, TEMPLATE)


TOKENIZER = byte_tokenizer()


class Talker:
    """Opens random drawers, takes what it sees, and writes notes; a function of the prompt and the
    key alone.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, SamplingParams]] = []
        self._order = random.Random(id(self))

    async def generate(
        self, tokens: Sequence[int] | np.ndarray, params: SamplingParams
    ) -> Completion:
        prompt = TOKENIZER.decode(list(tokens))
        self.requests.append((prompt, params))
        await asyncio.sleep(self._order.random() * 0.003)
        draw = random.Random(hashlib.sha256(repr((prompt, params.key)).encode()).digest())
        drawer = draw.randint(1, 4)
        if "note to yourself" in prompt:
            text = f"Open drawer {drawer}\n first."
        else:
            listed = [line[2:] for line in prompt.splitlines() if line.startswith("- ")]
            action = next((name for name in listed if name.startswith("take")), draw.choice(listed))
            text = f"Thought: Perhaps {drawer}.\nAction: {action}\nObservation"
        ids = np.asarray(TOKENIZER.encode(text), np.int32)
        return Completion(ids, np.zeros(len(ids), np.float32), "stop", 0)

    def end_session(self, session: tuple[int, int]) -> None:
        pass

    def update_weights(self, params: Any, version: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


def play(
    engine: Any,
    *,
    settings: EpisodeSettings = SETTINGS,
    workers: int = 1,
    places: int = 4,
    tasks: int = 12,
) -> list[Trajectory]:
    with EnvPool(EXAMPLE.build, {}, workers=workers, envs_per_worker=places) as pool:
        runner = EpisodeRunner(engine, TOKENIZER, settings)
        drawn = pool.tasks("test")[:tasks]
        return asyncio.run(
            rollout(
                RolloutJob(drawn, group_size=1, iteration=-1, first_group=5), {"": (runner, pool)}
            )
        )


def by_group(trajectories: Sequence[Trajectory]) -> dict[int, list[Trajectory]]:
    groups = defaultdict(list)
    for trajectory in trajectories:
        groups[trajectory.group].append(trajectory)
    return groups


def test_a_task_is_tried_until_it_is_done_and_prompts_show_every_note() -> None:
    engine = Talker()
    played = play(engine)
    groups = by_group(played)
    assert sorted(groups) == list(range(5, 17))
    assert {len(trials) for trials in groups.values()} >= {1, 2, 4}, (
        "a test with equal tasks would show nothing"
    )
    asked = {params.key: (prompt, params) for prompt, params in engine.requests}
    assert len(asked) == len(engine.requests)
    for group, trials in groups.items():
        assert [trial.member for trial in trials] == list(range(len(trials)))
        assert not any(trial.won for trial in trials[:-1])
        assert trials[-1].won or len(trials) == 4
        notes: list[str] = []
        for number, trial in enumerate(trials):
            for step, turn in enumerate(trial.turns):
                prompt, params = asked.pop(request_key(3, -1, group, number, step))
                assert params.stop_strings == ("\nObservation",)
                note_lines = [line for line in prompt.splitlines() if line.startswith("Your note")]
                expected = [
                    f"Your note after trial {n}, which failed: {note}"
                    for n, note in enumerate(notes, 1)
                ]
                assert note_lines == expected[-3:]
                assert turn.thought.startswith("Perhaps ")
                past = trial.turns[max(step - 2, 0) : step]
                assert all(
                    f"Thought {n}: {t.thought}" in prompt
                    for n, t in enumerate(past, step - len(past) + 1)
                )
            if trial.won or number == 3:
                assert trial.notes.get(REFLECTION, "") == "", "nobody would read it"
            else:
                prompt, params = asked.pop(request_key(3, -1, group, number, 4))
                assert (params.stop_strings, params.max_tokens) == ((), 80)
                assert params.session == request_key(3, -1, group, number, 0)
                for step, turn in enumerate(
                    trial.turns
                ):  # all of them, whatever the window of the history
                    assert f"Observation {step}: {turn.observation}" in prompt
                    assert f"Action {step + 1}: {turn.action}" in prompt
                assert "- open drawer" not in prompt
                assert trial.notes.get(REFLECTION, "").startswith("Open drawer ")
                assert trial.notes.get(REFLECTION, "").endswith(" first.")
                notes.append(trial.notes.get(REFLECTION, ""))
    assert not asked, "nothing else was asked"


def test_trials_are_conversations_whose_system_messages_have_the_notes() -> None:
    template = make_conversation(SETTINGS.template)
    engine = Talker()
    settings = dataclasses.replace(SETTINGS, template=template, prompt_tokens=9000)
    groups = by_group(play(engine, settings=settings))
    assert max(map(len, groups.values())) == 4
    for trials in groups.values():
        notes: list[str] = []
        for trial in trials:
            first, *others = trial.turns
            note_lines = [
                line for line in first.prompt.splitlines() if line.startswith("Your note")
            ]
            expected = [
                f"Your note after trial {number}, which failed: {note}"
                for number, note in enumerate(notes, 1)
            ]
            assert note_lines == expected
            for turn, later in itertools.pairwise(trial.turns):
                assert later.continues(turn)
            for number, turn in enumerate(others, 1):
                # The new message alone.
                assert turn.prompt.startswith(f"Observation {number}: {turn.observation}")
            notes.append(trial.notes.get(REFLECTION, ""))
    # A note is asked for in a prompt of its own, which shows what was done.
    asked = [prompt for prompt, _ in engine.requests if "note to yourself" in prompt]
    assert len(asked) == sum(len(trials) - 1 for trials in groups.values())
    assert all("Action 4: " in prompt for prompt in asked)


def test_trials_do_not_depend_on_batching() -> None:
    assert same(play(Talker(), workers=1, places=1), play(Talker(), workers=3, places=5))


def test_without_reflections_trials_are_independent() -> None:
    engine = Talker()
    alone = dataclasses.replace(SETTINGS, parts=())
    first = play(engine, settings=dataclasses.replace(alone, trials=1))
    assert [trial.member for trial in first] == [0] * 12
    engine = Talker()
    played = play(engine, settings=alone)
    assert same([trial for trial in played if trial.member == 0], first), (
        "the first trial is that of one trial"
    )
    assert max(trial.member for trial in played) == 3
    assert not any("note" in prompt for prompt, _ in engine.requests)


class Forgetful(Talker):
    """Fails where it is shown two notes."""

    async def generate(
        self, tokens: Sequence[int] | np.ndarray, params: SamplingParams
    ) -> Completion:
        if "Your note after trial 2" in TOKENIZER.decode(list(tokens)):
            raise ValueError("too much")
        return await super().generate(tokens, params)


def test_an_aborted_trial_is_the_last_of_its_task() -> None:
    whole = by_group(play(Talker()))
    played = by_group(
        play(Forgetful(), settings=dataclasses.replace(SETTINGS, max_aborted_fraction=1.0))
    )
    assert any(trials[-1].aborted for trials in played.values())
    for group, trials in played.items():
        assert len(trials) == min(len(whole[group]), 3)
        assert [trial.aborted for trial in trials] == [number == 2 for number in range(len(trials))]
        assert same(trials[:2], whole[group][:2])


@pytest.fixture(scope="module")
def tiny_engine() -> Any:
    """The real engine with a tiny random model over bytes."""
    config = decoder.DecoderConfig(
        vocab_size=TOKENIZER.vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
    )
    params = decoder.init_params(config, jax.random.key(0), np.float32)
    settings = EngineSettings(slots=8, max_length=720, prefill_buckets=(704,), prefill_rows=(4,))
    with JaxEngine(config, params, settings, tokenizer=TOKENIZER) as engine:
        yield engine


@pytest.mark.slow
def test_the_real_engine_tries_and_reflects_the_same_way_in_any_company(
    tiny_engine: JaxEngine,
) -> None:
    sampling = dataclasses.replace(SETTINGS.sampling, max_tokens=16)
    settings = dataclasses.replace(
        SETTINGS, max_steps=2, trials=2, sampling=sampling, prompt_tokens=704
    )
    crowd = play(tiny_engine, settings=settings, tasks=4)
    assert same(crowd, play(tiny_engine, settings=settings, tasks=4, places=1))
    assert [trial.member for trial in crowd] == [0, 1] * 4
    for first, second in zip(crowd[::2], crowd[1::2], strict=True):
        assert first.notes.get(REFLECTION, "")
        assert second.notes.get(REFLECTION, "") == ""
        assert all(f"failed: {first.notes[REFLECTION]}" in turn.prompt for turn in second.turns)
