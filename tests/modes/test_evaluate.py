"""Evaluations: intervals and summaries against numbers worked out elsewhere, and whole runs."""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jax
import pytest

from gigpo_jax.config import resolve
from gigpo_jax.config.command_line import load_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.core.proportion import wilson_interval
from gigpo_jax.env_bridge.freeze import freeze_panel, write_panel
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs import registry
from gigpo_jax.modes import evaluate as evaluation
from gigpo_jax.modes.evaluate import run as evaluate
from gigpo_jax.rollout.evaluator import Evaluator
from gigpo_jax.rollout.read_record import read_rollouts
from gigpo_jax.rollout.results import (
    Outcome,
    collect_outcomes,
    list_ids,
    mean_interval,
    panel_metrics,
    record_outcomes,
    summarise_outcomes,
)
from gigpo_jax.rollout.results_table import results_table
from gigpo_jax.rollout.rollout import RolloutJob
from gigpo_jax.trajectory import Trajectory
from tests.runs import LIMIT_S, command, run
from tests.turns import make_turn


def test_wilson_interval_matches_published_values():
    # Newcombe 1998, table I, method 3 (score, no continuity correction): 81/263, 15/148, 0/20,
    # 1/29.
    for successes, trials, low, high in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=5e-5)
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_mean_interval():
    # Standard deviation 1 over 4 values: half width 1.96 / 2.
    values = [0.0, 0.0, 3**0.5, 3**0.5]
    low, high = mean_interval(values)
    assert high - low == pytest.approx(1.96, abs=1e-3)
    assert (low + high) / 2 == pytest.approx(3**0.5 / 2)


def episode(kind: str, won: bool, aborted: bool = False) -> Outcome:
    return Outcome(kind, won, float(won), 0, aborted)


def test_aborted_episodes_are_counted_and_left_out():
    result = summarise_outcomes(
        [
            episode("heat", True),
            episode("heat", False),
            episode("cool", True),
            episode("cool", False, True),
        ]
    )
    assert result["all"]["episodes"] == 3
    assert result["all"]["aborted"] == 1
    assert result["all"]["success_rate"] == pytest.approx(2 / 3)
    # Standard deviation of 1, 0, 1: 1 / sqrt(3), so the half width is 1.96 / 3.
    assert result["all"]["score_interval"] == pytest.approx([0.01, 1.32], abs=0.005)
    assert result["all"]["success_interval"] == list(wilson_interval(2, 3))
    assert result["cool"]["success_rate"] == 1.0
    assert list(result) == ["all", "cool", "heat"]
    assert "| greedy | heat | 1" not in results_table({"greedy": result})
    assert "| greedy | heat | 2 | 50.0 | " in results_table({"greedy": result})
    assert results_table({"greedy": result}).endswith(
        "greedy: 1 episodes were aborted and left out (0 policy-dependent)"
    )
    lost = Outcome("heat", False, 0.0, 0, aborted=True, policy_dependent=True)
    result = summarise_outcomes([episode("heat", True), lost])
    assert (
        result["all"]["aborted_policy_dependent"],
        result["heat"]["aborted_policy_dependent"],
    ) == (1, 1)
    assert results_table({"greedy": result}).endswith("(1 policy-dependent)")


def test_the_unweighted_mean_of_the_types_counts_each_type_once():
    played = [episode("nq", True)] * 9 + [episode("nq", False)] + [episode("hotpotqa", False)] * 2
    result = summarise_outcomes([*played, episode("lost", True, aborted=True)])
    assert result["all"]["success_rate"] == pytest.approx(9 / 12)
    assert result["all"]["type_average"] == pytest.approx((0.9 + 0.0) / 2)
    assert "| greedy | unweighted mean of the types | | 45.0 |" in results_table({"greedy": result})
    assert summarise_outcomes([episode("", True)])["all"]["type_average"] == 1.0


def test_environments_are_summed_up_beside_all_and_their_types() -> None:
    played = [
        Outcome("a/x", True, 1.0, 2, environment="a"),
        Outcome("a/y", False, 0.0, 4, environment="a"),
    ]
    played += [Outcome("b", True, 1.0, 9, environment="b")] * 4
    result = summarise_outcomes(played)
    assert list(result) == ["all", "a", "a/x", "a/y", "b"]
    assert (result["all"]["success_rate"], result["all"]["type_average"]) == pytest.approx(
        (5 / 6, (0.5 + 1) / 2)
    )
    assert (result["a"]["episodes"], result["a"]["length"], result["b"]["episodes"]) == (2, 3.0, 4)
    assert "| greedy | unweighted mean of the environments | | 75.0 |" in results_table(
        {"greedy": result}
    )
    values = panel_metrics({"sampled": played})
    assert values["val/sampled/success_rate/a/x"] == 1.0
    assert (
        values["val/sampled/success_low/a"],
        values["val/sampled/success_high/a"],
    ) == wilson_interval(1, 2)
    assert (values["val/sampled/length/b"], values["val/sampled/success_rate_type_average"]) == (
        9.0,
        0.75,
    )
    assert not {"val/sampled/length/a/x", "val/sampled/success_rate_type_average/a"} & set(values)


def test_a_task_is_won_when_one_of_its_trials_is() -> None:
    tasks = [Task(f"{n}", kind, "test") for n, kind in enumerate(("heat", "cool", "heat", "cool"))]

    def trial(
        group: int, member: int, score: float, steps: int = 1, aborted: bool = False
    ) -> Trajectory:
        turns = [make_turn()] * steps
        won = score == 1.0
        trial = Trajectory(tasks[group], group, member, turns, won, score, aborted=aborted)
        trial.policy_dependent = aborted
        return trial

    played = [
        *(trial(0, 0, 0.5, 2), trial(0, 1, 0.25, 3), trial(0, 2, 1.0, 4)),
        trial(1, 0, 1.0),
        *(trial(2, 0, 0.75), trial(2, 1, 0.0, 5), trial(2, 2, 0.5)),
        *(trial(3, 0, 0.0), trial(3, 1, 0.0, aborted=True)),
    ]
    outcomes_by_trials = [collect_outcomes(played, tasks, trials) for trials in (1, 2, 3)]
    assert outcomes_by_trials[0] == collect_outcomes(played, tasks)
    assert [[outcome.won for outcome in outcomes] for outcomes in outcomes_by_trials] == [
        [False, True, False, False],
        [False, True, False, False],
        [True, True, False, False],
    ]
    assert [outcome.score for outcome in outcomes_by_trials[1]] == [0.5, 1.0, 0.75, 0.0]
    assert [outcome.length for outcome in outcomes_by_trials[2]] == [9, 1, 7, 2]
    assert [[outcome.aborted for outcome in outcomes] for outcomes in outcomes_by_trials] == [
        [False] * 4,
        *[[False, False, False, True]] * 2,
    ]
    assert [
        summarise_outcomes(outcomes)["all"]["success_rate"] for outcomes in outcomes_by_trials
    ] == pytest.approx([1 / 4, 1 / 3, 2 / 3])
    cool = summarise_outcomes(outcomes_by_trials[2])["cool"]
    assert (cool["episodes"], cool["aborted_policy_dependent"]) == (1, 1)
    assert [outcome.task_type for outcome in outcomes_by_trials[2]] == [
        "heat",
        "cool",
        "heat",
        "cool",
    ]


def test_results_by_task_leave_an_aborted_episode_open() -> None:
    """A comparison of two runs would take false or 0 for a lost episode."""
    played = [episode("heat", False), episode("heat", True), episode("cool", False, True)]
    assert record_outcomes(played) == {"won": [False, True, None], "score": [0.0, 1.0, None]}
    tasks = [Task("7", "", "test", environment="house"), Task("7", "", "test")]
    assert list_ids(tasks) == ["house/7", "7"]


def test_hosts_share_a_panel_and_play_it_with_the_keys_of_one_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = resolve(load_config("quickstart", ["--config.eval.temperature=0.4"]))
    tasks = [Task(f"{number}", "", "test") for number in range(7)]

    class Recorder:
        async def play(self, job: RolloutJob, *, temperature: float, title: str) -> Any:
            ids = [task.id for task in job.tasks]
            return title, temperature, job.iteration, job.first_group, ids

    monkeypatch.setattr(jax, "process_count", lambda: 3)
    firsts = []
    ids = []
    for host in range(3):
        monkeypatch.setattr(jax, "process_index", lambda host=host: host)
        evaluator = Evaluator(config, Recorder(), tasks)  # type: ignore[arg-type]
        played: Any = asyncio.run(evaluator.play(greedy=True))
        title, temperature, iteration, first, own = played["sampled"]
        assert (title, temperature, iteration) == ("panel, sampled", 0.4, -1)
        assert played["greedy"] == ("panel, greedy", 0.0, -2, first, own)
        firsts.append(first)
        ids += own
    # The number of a group is the position of its task in the panel.
    assert ids == [task.id for task in tasks]
    assert firsts == [0, 2, 4]


def test_results_of_another_evaluation_have_a_file_of_their_own(tmp_path: Path) -> None:
    record = {"panel": "test", "agent": "plain", "iteration": 3, "settings": {"seed": 0}}
    path = evaluation._result_path(tmp_path, record)
    assert path == tmp_path / "eval_test.json"
    path.write_text(json.dumps({**record, "results": {}}))
    assert evaluation._result_path(tmp_path, record) == path
    later = record | {"iteration": 4}
    second = evaluation._result_path(tmp_path, later)
    assert second == tmp_path / "eval_test_2.json"
    second.write_text('{"pan')  # what is damaged may be results of anything
    assert evaluation._result_path(tmp_path, later) == tmp_path / "eval_test_3.json"
    agent = later | {"agent": "own.agents:TERSE"}
    assert evaluation._result_path(tmp_path, agent) == tmp_path / "eval_test_TERSE.json"


def test_rows_that_do_not_fit_the_mesh_are_found_before_a_model_is_loaded(tmp_path: Path) -> None:
    env = registry.make("example", drawers=2, games=16)
    write_panel(tmp_path / "panel.json", freeze_panel("drawers", "example", env, "test"))
    flags = [
        "--initial",
        f"--config.model.path={tmp_path / 'nothing'}",
        f"--config.eval.panel={tmp_path / 'panel.json'}",
        "--config.batch.rows=3",
        "--config.mesh.data=2",
    ]
    devices = {"JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu"}
    process = subprocess.run(
        command(tmp_path / "run", "eval", *flags),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        env=os.environ | devices,
    )
    assert process.returncode == 2
    assert "config.batch.rows=3: must be a multiple of mesh.data x mesh.fsdp" in process.stderr
    assert len(process.stderr.splitlines()) == 1


@pytest.mark.slow
def test_another_evaluation_does_not_overwrite_the_results_of_the_first(tmp_path: Path) -> None:
    env = registry.make("example", drawers=2, games=16)
    write_panel(tmp_path / "panel.json", freeze_panel("drawers", "example", env, "test"))
    model = tmp_path / "model"
    assert run(tmp_path / "sft", "sft", f"--out={model}", "--config.sft.epochs=1").returncode == 0
    written = []
    for temperature in ("1.0", "0.5", "1.0"):
        flags = [
            "--initial",
            f"--config.model.path={model}",
            f"--config.eval.panel={tmp_path / 'panel.json'}",
            f"--config.eval.temperature={temperature}",
        ]
        done = run(tmp_path / "run", "eval", *flags)
        assert done.returncode == 0, done.stderr
        line = next(line for line in done.stdout.splitlines() if line.endswith(".json"))
        written.append(Path(line.removeprefix("written: ")).name)
    assert written == ["eval_drawers.json", "eval_drawers_2.json", "eval_drawers.json"]
    second = json.loads((tmp_path / "run/eval_drawers_2.json").read_text())
    assert second["settings"]["eval.temperature"] == 0.5
    assert len(list((tmp_path / "run").glob("eval_drawers*.jsonl.gz"))) == 4


def test_an_evaluation_without_a_panel_names_the_panels(tmp_path: Path) -> None:
    config = resolve(load_config("quickstart", ["--config.eval.panel="]), trains=False)
    with pytest.raises(
        InputError, match=r"^config.eval.panel='': no panel; panels of alfworld: .*"
    ):
        evaluate(config, tmp_path / "run", "")


@pytest.mark.slow
def test_trials_of_an_agent_are_evaluated_and_saved(flags: list[str], tmp_path: Path):
    room = ["--config.sampling.max_prompt_tokens=900", "--config.engine.prefill_buckets=(900,)"]
    room += ["--config.batch.row_length=912", "--config.batch.rows=1", "--config.eval.examples=0"]
    agent = ["--config.agent=reflexion", "--config.eval.trials=2", "--config.eval.tasks=8"]
    done = run(tmp_path, "eval", "--initial", *flags, *room, *agent)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "eval_drawers_reflexion.json").read_text())
    assert result["agent"] == "reflexion"
    names = [
        "temperature 0.4, 1 trial",
        "temperature 0.4, 2 trials",
        "greedy, 1 trial",
        "greedy, 2 trials",
    ]
    assert sorted(result["results"]) == sorted(names)
    for decoding, label, two in (("sampled", *names[:2]), ("greedy", *names[2:])):
        assert f"| {two} | all | 8 |" in done.stdout
        episodes = read_rollouts(tmp_path / f"eval_drawers_reflexion_{decoding}.jsonl.gz").episodes
        first = [episode.won for episode in episodes if episode.member == 0]
        won = {episode.group for episode in episodes if episode.won}
        assert len(first) == 8
        assert result["results"][label]["all"]["success_rate"] == sum(first) / 8
        assert result["results"][two]["all"]["success_rate"] == len(won) / 8
        second = {episode.group: episode for episode in episodes if episode.member == 1}
        assert len(second) + sum(first) == 8
        for episode in episodes:
            if episode.notes:
                assert all(
                    f"Your note after trial 1, which failed: {episode.notes['reflection']}"
                    in step.prompt
                    for step in second[episode.group].steps
                )
        assert any(episode.notes for episode in episodes)
