"""When a group of episodes ends, and what is played in place of one without contrast."""

import asyncio
import dataclasses
from typing import Any

from gigpo_jax.engines.base import Completion, SamplingParams, request_key
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.rollout.early_ends import EarlyEnd
from gigpo_jax.rollout.episode import EpisodeRunner
from gigpo_jax.rollout.group_ends import spare_groups
from gigpo_jax.rollout.rollout import RolloutJob, rollout
from gigpo_jax.rollout.statistics import rollout_metrics
from gigpo_jax.trajectory import Trajectory, finished_steps, has_contrast
from tests.rollout.stand_in import EXAMPLE, SETTINGS, TOKENIZER, StandIn, play, same


def by_group(trajectories: list[Trajectory]) -> dict[int, list[Trajectory]]:
    return {
        n: [t for t in trajectories if t.group == n]
        for n in dict.fromkeys(t.group for t in trajectories)
    }


def test_groups_without_contrast_are_replaced_by_the_next_spare_group() -> None:
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        tasks = pool.tasks("train")
        spares = spare_groups(tasks, 5, 6, 2, seed=3)
        plain = play(pool, size=2)
        refilled = play(pool, size=2, ends=EarlyEnd(spares=spares))
        runner = EpisodeRunner(StandIn(), TOKENIZER, SETTINGS)
        expected = []
        contrasts = []
        for place, group in by_group(plain).items():
            for number, task in [(place, tasks[place]), *spares[place]]:
                alone = rollout(
                    RolloutJob([task], group_size=2, iteration=5, first_group=number),
                    {"": (runner, pool)},
                )
                group = asyncio.run(alone)
                last = has_contrast(group) or number == spares[place][-1][0]
                expected += [dataclasses.replace(episode, replaced=not last) for episode in group]
                contrasts += [has_contrast(group)] * last
                if last:
                    break
    assert same(refilled, expected)
    replaced = {t.group for t in refilled if t.replaced}
    assert len(replaced) > 6 > 0, "some groups were replaced twice"
    assert set(contrasts) == {True, False}, "the number of spare groups is a limit"
    assert {refilled[step.trajectory].replaced for step in finished_steps(refilled)} == {False}
    metrics = rollout_metrics(refilled, ())
    assert metrics["rollout/refilled_groups"] == len(replaced)
    assert metrics["rollout/groups_without_contrast"] == len(replaced) + contrasts.count(False)
    assert metrics["rollout/steps"] == sum(len(t.turns) for t in refilled)
    with EnvPool(EXAMPLE.build, workers=3, envs_per_worker=2) as pool:
        assert same(play(pool, size=2, ends=EarlyEnd(spares=spares)), refilled), (
            "whatever ends first"
        )
        # The second of two hosts has the spare groups of its own groups.
        ends = EarlyEnd(spares=spares)
        share = play(pool, size=2, ends=ends, tasks=tasks[3:6], first_group=3)
        assert same(share, [t for t in refilled if t.group % 6 >= 3])


class Straggling(StandIn):
    """Member 0 of each group gets no response, and member 3 an error, until `helped`."""

    helped = False

    async def generate(self, tokens: Any, params: SamplingParams) -> Completion:
        member = next(
            m
            for m in range(4)
            for g in range(6)
            if params.session == request_key(SETTINGS.seed, 5, g, m, 0)
        )
        if not self.helped and member == 0:
            await asyncio.sleep(3600)
        if not self.helped and member == 3:
            raise ValueError("no answer")
        return await super().generate(tokens, params)


def test_a_group_ends_when_enough_of_its_episodes_have_ended() -> None:
    engine = Straggling()
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=3) as pool:
        plain = play(pool)
        some = play(pool, engine, ends=EarlyEnd(fraction=0.4))
        assert set(engine.ended_sessions) >= {params.session for _, params in engine.requests}
        engine.helped = True
        assert same(play(pool, engine), plain), (
            "the environments of cancelled episodes are free again"
        )
    for group, whole in zip(by_group(some).values(), by_group(plain).values(), strict=True):
        assert [t.member for t in group] == [0, 1, 2, 3]
        assert same(group[1:3], whole[1:3]), (
            "40% of 4 episodes are 2; one that is aborted is none of them"
        )
        assert [t.aborted for t in group] == [True, False, False, True]
        assert group[0].unfinished
    metrics = rollout_metrics(some, ())
    aborted = sum(not t.unfinished for t in some if t.aborted)
    assert metrics["episode/unfinished"] == 12 - aborted
    assert metrics["episode/aborted"] == aborted
    assert metrics["rollout/episodes"] == 12


def test_a_group_whose_episodes_were_aborted_is_replaced_too() -> None:
    settings = dataclasses.replace(SETTINGS, max_aborted_fraction=0.9)
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        spares = spare_groups(pool.tasks("train"), 5, 6, 1, seed=3)
        hit = play(pool, StandIn(fail=0.2), size=3, settings=settings, ends=EarlyEnd(spares=spares))
    for group in by_group(hit).values():
        finished = [t for t in group if not t.aborted]
        assert group[0].replaced == (group[0].group < 6 and len({t.score for t in finished}) < 2)
    assert any(all(t.aborted for t in group) for group in by_group(hit).values())
