"""Whole runs in processes of their own: warm start, training, evaluation, export; interrupted,
killed, resumed.
"""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gigpo_jax.learner import fitted_rows
from gigpo_jax.learner.learner import Learner
from gigpo_jax.rl.algorithms import ALGORITHMS
from gigpo_jax.rollout.evaluator import Evaluator
from gigpo_jax.rollout.read_record import read_rollouts
from gigpo_jax.run import cpu_estimate
from gigpo_jax.run.loggers.glossary import describe_metric
from tests.metrics import records
from tests.models.files import hub_server
from tests.runs import (
    CONFIG,
    LIMIT_S,
    run,
    run_process,
    run_two_hosts,
    start_process,
    wait_for_iteration,
)


@pytest.fixture(scope="module")
def whole(flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    done = run(workdir, "train", *flags)
    assert done.returncode == 0, done.stderr
    return workdir


def test_a_run_leaves_what_it_promises(whole: Path):
    steps = records(whole)
    assert [record["step"] for record in steps] == [0, 1, 2, 3, 4, 5, 6]
    assert all("val/sampled/success_rate" in steps[i] for i in (0, 3, 6))
    assert "val/sampled/success_rate" not in steps[1]
    assert (
        steps[1]["policy/behaviour_mismatch"] < 1e-4
    )  # the learner and the engine agree on what was sampled
    assert steps[1]["policy/kl"] < steps[6]["policy/kl"]  # the policy leaves its reference
    assert steps[1]["rollout/episodes"] == 16 + 4 * steps[1]["rollout/refilled_groups"]
    assert sum(step["rollout/refilled_groups"] for step in steps[1:]) > 0
    assert [
        name for step in steps for name in step if name != "step" and not describe_metric(name)
    ] == []
    names = {path.name for path in whole.iterdir()}
    assert {
        "config.json",
        "metrics.jsonl",
        "tensorboard",
        "checkpoints",
        "rollouts",
        "evaluations",
    } <= names
    evaluation = json.loads((whole / "evaluations" / "iteration_000003.json").read_text())
    won = evaluation["results"]["sampled"]["won"]
    assert sum(won) / len(won) == steps[3]["val/sampled/success_rate"]
    assert (
        len(evaluation["tasks"])
        == len(set(evaluation["tasks"]))
        == len(evaluation["types"])
        == len(won)
    )
    assert sorted(path.name for path in (whole / "rollouts").iterdir()) == [
        f"iteration_{i:06d}.host0.jsonl.gz"
        for i in (1, 3, 5, 6)  # every second one, and the last
    ]
    saved = read_rollouts(whole / "rollouts/iteration_000003.host0.jsonl.gz")
    learnt = [episode for episode in saved.episodes if not episode.replaced]
    assert (saved.iteration, len(learnt)) == (2, 16)
    assert len(saved.episodes) == steps[3]["rollout/episodes"]
    for step in (step for episode in learnt for step in episode.steps):
        assert len(step.tokens) == len(step.logprobs) == len(step.entropy)
        assert step.advantage == pytest.approx(
            step.episode_advantage + step.step_advantage, abs=1e-5
        )
        assert step.version == 2


def test_a_finished_run_that_is_run_again_says_that_nothing_is_left(
    whole: Path, flags: list[str]
) -> None:
    before = records(whole)
    done = run(whole, "train", *flags)
    assert done.returncode == 0, done.stderr
    assert f"nothing is left to do: all 6 iterations are in {whole}" in done.stdout
    assert "continuing after" not in done.stdout
    assert records(whole) == before


@pytest.mark.slow
def test_killed_at_a_random_moment_and_resumed_it_gives_the_same_metrics(
    whole: Path, flags: list[str], tmp_path: Path
):
    workdir = tmp_path / "run"
    process = start_process(workdir, "train", *flags)
    wait_for_iteration(process, workdir, 5)  # by then the checkpoint of iteration 2 is complete
    time.sleep(random.random() * 0.5)
    process.kill()
    process.wait(LIMIT_S)
    done = run(workdir, "train", *flags)
    assert done.returncode == 0, done.stderr
    assert "continuing after iteration" in done.stdout
    assert records(workdir) == records(whole)
    for path in (whole / "rollouts").iterdir():
        assert (workdir / "rollouts" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_sigterm_saves_and_exits_143(whole: Path, flags: list[str], tmp_path: Path):
    workdir = tmp_path / "run"
    process = start_process(workdir, "train", *flags)
    wait_for_iteration(process, workdir, 1)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143, err
    assert "the same command continues" in out
    saved = [int(path.name) for path in (workdir / "checkpoints").iterdir()]
    assert max(saved) == len(records(workdir)) - 1
    assert run(workdir, "train", *flags).returncode == 0
    assert records(workdir) == records(whole)


def test_sigterm_while_the_panel_is_played_loses_no_metrics(
    whole: Path, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    workdir = tmp_path / "run"
    play = Evaluator.play
    calls = itertools.count(1)

    async def play_with_signal(self, **arguments):
        if next(calls) == 2:  # the first is before training, the second after iteration 3
            os.kill(os.getpid(), signal.SIGTERM)
        return await play(self, **arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "play", play_with_signal)
        stopped = run(workdir, "train", *flags)
    assert stopped.returncode == 143, stopped.stderr
    assert records(workdir) == records(whole)[:3]  # iteration 3 has learnt but is not recorded yet
    assert max(int(path.name) for path in (workdir / "checkpoints").iterdir()) == 3
    again = run(workdir, "train", *flags)
    assert again.returncode == 0, again.stderr
    assert records(workdir) == records(whole)


@pytest.mark.slow
def test_a_warm_start_that_was_interrupted_ends_with_the_same_model(
    flags: list[str], tmp_path: Path
):
    workdir = tmp_path / "sft"
    out = tmp_path / "model"
    process = start_process(workdir, "sft", f"--out={out}")
    wait_for_iteration(process, workdir, 10)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 143
    assert not out.exists()
    done = run(workdir, "sft", f"--out={out}")
    assert done.returncode == 0, done.stderr
    assert "continuing after update" in done.stdout
    model = Path(flags[0].split("=")[1])
    assert (out / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert records(workdir) == records(model.parent / "sft")


@pytest.mark.slow
def test_two_hosts_play_the_same_episodes_as_one(whole: Path, flags: list[str], tmp_path: Path):
    run_two_hosts(tmp_path / "run", *flags, "--config.mesh.fsdp=2", "--config.train.iterations=1")
    first_record = records(whole)[1]
    second_record = records(tmp_path / "run")[1]
    equal_names = [
        name
        for name in first_record
        if name.startswith(("episode/", "action/", "rollout/", "response/", "batch/steps"))
    ]
    assert len(equal_names) > 10
    assert {name: second_record[name] for name in equal_names} == pytest.approx(
        {name: first_record[name] for name in equal_names}
    )
    assert second_record["policy/grad_norm"] > 0
    # The panel's union, on each host: the first evaluation has the policy and the keys of the other
    # run.
    panel = {name: value for name, value in records(whole)[0].items() if name.startswith("val/")}
    assert len(panel) > 5
    for host in (tmp_path / "run", tmp_path / "run" / "host1"):
        assert {name: records(host)[0][name] for name in panel} == pytest.approx(panel)
    assert sorted(path.name for path in (tmp_path / "run" / "rollouts").iterdir()) == [
        f"iteration_000001.host{host}.jsonl.gz" for host in (0, 1)
    ]
    alone = read_rollouts(whole / "rollouts/iteration_000001.host0.jsonl.gz").episodes
    together = [
        e
        for h in (0, 1)
        for e in read_rollouts(
            tmp_path / f"run/rollouts/iteration_000001.host{h}.jsonl.gz"
        ).episodes
    ]
    for episode, other_episode in zip(alone, together, strict=True):
        for a, b in zip(episode.steps, other_episode.steps, strict=True):
            assert (a.tokens, a.advantage) == (b.tokens, pytest.approx(b.advantage, abs=1e-4))
            assert a.entropy == pytest.approx(b.entropy, abs=1e-3)
    assert [e.replaced for e in alone] == [e.replaced for e in together]


def test_rollouts_during_the_update_have_weights_that_are_one_update_old(
    whole: Path, flags: list[str], tmp_path: Path
):
    short = [
        "--config.train.iterations=3",
        "--config.train.max_staleness=1",
        "--config.train.save_rollouts=1",
    ]
    done = run(tmp_path / "run", "train", *flags, *short, "--config.eval.every=0")
    assert done.returncode == 0, done.stderr
    steps = records(tmp_path / "run")[1:]
    assert [step["rollout/staleness"] for step in steps] == [0, 1, 1]
    assert steps[0]["policy/behaviour_mismatch"] < 1e-4 < steps[2]["policy/behaviour_mismatch"]
    first, second, third = (
        read_rollouts(tmp_path / f"run/rollouts/iteration_00000{number}.host0.jsonl.gz").episodes
        for number in (1, 2, 3)
    )
    assert {step.version for episode in first + second for step in episode.steps} == {0}
    assert {step.version for episode in third for step in episode.steps} == {1}
    alone = read_rollouts(whole / "rollouts/iteration_000001.host0.jsonl.gz").episodes
    assert [step.tokens for e in first for step in e.steps] == [
        step.tokens for e in alone for step in e.steps
    ]


def test_a_workdir_of_another_config_is_refused(whole: Path, flags: list[str]):
    previous_metrics = (whole / "metrics.jsonl").read_bytes()
    done = run(whole, "train", *flags, "--config.optim.lr=0.5", "--config.rl.gamma=0.5")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "optim.lr=0.5 (there: 0.003); rl.gamma=0.5 (there: 0.95)" in done.stderr
    assert (whole / "metrics.jsonl").read_bytes() == previous_metrics


def test_evaluation_and_export_use_the_newest_checkpoint(
    whole: Path, flags: list[str], tmp_path: Path
):
    done = run(whole, "eval", *flags, f"--out={tmp_path / 'eval.json'}")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "eval.json").read_text())
    assert result["iteration"] == 6
    sampled = result["results"]["temperature 0.4"]["all"]
    assert sampled["success_rate"] == pytest.approx(records(whole)[-1]["val/sampled/success_rate"])
    assert "| greedy | all | 16 |" in done.stdout
    evaluation = json.loads((whole / "evaluations/iteration_000006.json").read_text())
    assert result["tasks"] == evaluation["tasks"]
    assert result["outcomes"]["sampled"] == evaluation["results"]["sampled"]
    for decoding, temperature in (("sampled", 0.4), ("greedy", 0.0)):
        saved = read_rollouts(tmp_path / f"eval_{decoding}.jsonl.gz")
        assert saved.temperature == temperature
    won = [episode.won for episode in read_rollouts(tmp_path / "eval_greedy.jsonl.gz").episodes]
    assert sum(won) / 16 == result["results"]["greedy"]["all"]["success_rate"]
    done = run(whole, "export", *flags, f"--out={tmp_path / 'hf'}")
    assert done.returncode == 0, done.stderr
    stops = json.loads((tmp_path / "hf/gigpo_jax.json").read_text())["stop_strings"]
    assert stops == json.loads((whole / "config.json").read_text())["sampling"]["stop"]
    model = f"--config.model.path={tmp_path / 'hf'}"
    again = run(tmp_path / "fresh", "eval", "--initial", model, flags[1])
    assert again.returncode == 0, again.stderr
    again_result = json.loads((tmp_path / "fresh/eval_drawers.json").read_text())
    assert again_result["results"] == result["results"]


@pytest.mark.slow
def test_an_export_that_was_pushed_gives_the_results_of_its_run(
    whole: Path, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    done = run(whole, "eval", *flags, f"--out={tmp_path / 'eval.json'}")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "eval.json").read_text())
    with hub_server.serving() as hub:
        for name, value in {
            "ENDPOINT": hub.url,
            "HOME": tmp_path / "hub",
            "TOKEN": "secret",
            "HUB_OFFLINE": 0,
        }.items():
            monkeypatch.setenv(f"HF_{name}", str(value))
        done = run_process(whole, "export", *flags, f"--out={tmp_path / 'hf'}", "--push=me/run")
        assert done.returncode == 0, done.stderr
        assert (
            f"serve: vllm serve {tmp_path / 'hf'} --dtype float32 --max-model-len " in done.stdout
        )
        assert f"pushed to {hub.url}/me/run" in done.stdout
        again = run_process(
            tmp_path / "fresh", "eval", "--initial", "--config.model.path=me/run", flags[1]
        )
    assert again.returncode == 0, again.stderr
    assert (
        json.loads((tmp_path / "fresh/eval_drawers.json").read_text())["results"]
        == result["results"]
    )
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoTokenizer

    assert AutoTokenizer.from_pretrained(str(tmp_path / "hf")).vocab_size > 10


def credit(workdir: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    words = [
        sys.executable,
        "-m",
        "gigpo_jax",
        "credit",
        f"--config={CONFIG}",
        f"--workdir={workdir}",
        *flags,
    ]
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)


# Methods that need what saved episodes of this config do not have.
UNGRADED = {
    "hiper",
    "oprl",
    "rebel",
    "slea",
    "spa_rl",
    "strata",
    "rlvmr",
    "opd",
    "igpo",
    "a2tgpo",
    "text_critic",
    "ppo",
    "step_ppo",
    "turn_ppo",
    "bilevel",
    "vineppo",
}


def check_graded_methods(output: str, result: dict[str, Any]) -> None:
    """Methods are graded alone and over GiGPO; those that cannot be are named."""
    names = {
        name.partition(":")[0]
        for estimate in result["estimates"]
        for name in estimate["algorithms"]
    }
    assert {
        name for name in ALGORITHMS if f"not graded: {name}, which needs " in output
    } == UNGRADED
    over_gigpo = {
        f"{name} over gigpo"
        for name, algorithm in ALGORITHMS.items()
        if "base" in algorithm.settings and name not in UNGRADED
    }
    assert names == ({*ALGORITHMS} - UNGRADED) | over_gigpo | {"gigpo (step part)"}
    assert all("cosine" in estimate["grades"] for estimate in result["estimates"])


def check_refused_flags(workdir: Path, flags: list[str]) -> None:
    """Flags that do not fit the measured steps, or nothing, are one line."""
    for flag, message in (
        ("--continuations=6", "continuations=6 (there: 4)"),
        ("--variants=gama=1", "no such setting"),
        ("--config.sampling.temperature=0", "config.sampling.temperature=0"),
        ("--steps=many", "--steps"),
        ("--group-sizes=9", "--group-sizes=9: must be numbers from 2 to config.train.group_size=4"),
        ("--anchors=feedback", "anchor"),
    ):
        done = credit(workdir, *flags, flag)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert message in done.stderr


@pytest.mark.slow
def test_credit_of_the_newest_checkpoint_is_measured_once(whole: Path, flags: list[str]):
    few = [*flags, "--steps=8", "--continuations=4"]
    done = credit(whole, *few)
    assert done.returncode == 0, done.stderr
    assert "gigpo:paper" in done.stdout
    folder = whole / "credit/iteration_000006"
    grades, *measured = (
        folder / name for name in ("grades.json", "returns.jsonl", "rollouts.jsonl.gz")
    )
    result = json.loads(grades.read_text())
    assert len(result["steps"]) == 8
    check_graded_methods(done.stdout, result)
    played = [path.read_bytes() for path in measured]
    done = credit(whole, *few, "--variants=gamma=1", "--no-gradients", "--group-sizes=2")
    assert done.returncode == 0, done.stderr
    assert "gigpo gamma=1" in done.stdout
    estimates = json.loads(grades.read_text())["estimates"]
    assert {entry["group_size"] for entry in estimates} == {2, 4}
    done = credit(whole / "pool", "--pool", str(folder), str(folder))
    assert done.returncode == 0, done.stderr
    assert "16 steps of" in done.stdout
    assert [path.read_bytes() for path in measured] == played
    check_refused_flags(whole, few)


@pytest.mark.slow
def test_a_signal_drops_an_update_in_pieces(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As for a large model on a CPU: each microbatch is a device call.
    monkeypatch.setattr(fitted_rows, "SLOW_FLOP", 0)
    monkeypatch.setattr(cpu_estimate, "LONG_HOURS", 0)
    words = [*flags, "--config.checkpoint.every=1", "--config.train.iterations=2"]
    learn = Learner.learn

    def learn_with_signal(self, scored, iteration, timers, progress):
        def signal_in_second(done: int, total: int) -> None:
            if iteration == 1 and 0 < done < total:
                os.kill(os.getpid(), signal.SIGTERM)
            progress(done, total)

        return learn(self, scored, iteration, timers, signal_in_second)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "learn", learn_with_signal)
        stopped = run(tmp_path, "train", *words)
    assert (stopped.returncode, stopped.stdout.splitlines()[-1]) == (
        143,
        "stopped in the update of iteration 2; the same command continues after iteration 1",
    )
    # Before the engine's programs compile, and this line.
    assert 0 <= stopped.stdout.find("estimate: ") < stopped.stdout.index("gigpo on example")
    assert [record["step"] for record in records(tmp_path)] == [0, 1]
    done = run(tmp_path, "train", *words)
    assert done.returncode == 0, done.stderr
    assert "continuing after iteration 1" in done.stdout
    assert [record["step"] for record in records(tmp_path)] == [0, 1, 2]
