"""Which runs are compared, how they are named, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gigpo_jax.config import default_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.tools.compare.command import main
from gigpo_jax.tools.compare.report import make_rows
from gigpo_jax.tools.compare.runs import check_comparable, group_arms, read_run


def write_run(
    folder: Path, won: list[str], *, tasks: int = 4, sha: str = "ab", **changes: Any
) -> Path:
    """A workdir as a run leaves it; `won` has one text of 0, 1 and - an evaluation, the last after
    iteration 10.
    """
    config = default_config().unlock()
    config.train.iterations = 10
    config.eval.every = 10 // max(len(won) - 1, 1)
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            config[section][name] = value
        else:
            config[key] = value
    (folder / "evaluations").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    metrics = [{"step": 0}] + [
        {"step": i, "rollout/steps": 100.0, "time/iteration": 2.0} for i in range(1, 11)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    for number, outcomes in enumerate(won):
        iteration = number * config.eval.every
        values = [None if x == "-" else x == "1" for x in outcomes]
        evaluation = {
            "iteration": iteration,
            "panel": "tiny",
            "sha256": sha,
            "tasks": [f"t{i}" for i in range(tasks)],
            "results": {"sampled": {"won": values}},
        }
        (folder / "evaluations" / f"iteration_{iteration:06d}.json").write_text(
            json.dumps(evaluation)
        )
    return folder


def test_a_run_is_read_as_it_was_written(tmp_path: Path):
    run = read_run(write_run(tmp_path / "a", ["0000", "01-0", "1110"], seed=3))
    assert run.seed == 3
    assert run.iterations.tolist() == [0, 5, 10]
    np.testing.assert_array_equal(run.won[1], [0, 1, np.nan, 0])
    assert run.env_steps.tolist() == [0, 500, 1000]
    assert run.seconds.tolist() == [0, 10, 20]


def test_a_run_that_was_killed_behind_its_last_evaluation_is_not_finished(tmp_path: Path):
    """It resumes before that evaluation, and makes it again."""
    folder = write_run(tmp_path / "a", ["0000", "0011", "0111"])
    metrics = folder / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:8]))
    with pytest.raises(InputError, match="stopped after iteration 7 of 10"):
        read_run(folder)


def test_runs_are_sorted_into_arms_and_named_by_what_tells_them_apart(tmp_path: Path):
    grpo = [
        write_run(tmp_path / f"g{s}", ["0000", "0001"], seed=s, rl__algorithm="grpo")
        for s in (1, 0)
    ]
    paper = write_run(
        tmp_path / "p",
        ["0000", "0011"],
        seed=0,
        rl__algorithm="gigpo",
        rl__preset="paper",
        optim__lr=1.0,
    )
    ours = write_run(
        tmp_path / "o", ["0000", "0111"], seed=0, rl__algorithm="gigpo", rl__preset="verl_agent"
    )
    arms = group_arms([read_run(folder) for folder in (*grpo, paper, ours)])
    assert [arm.label for arm in arms] == ["grpo", "gigpo preset=paper", "gigpo"]
    assert arms[0].seeds == (0, 1)


def test_all_tasks_of_a_panel_and_their_number_are_the_same(tmp_path: Path):
    runs = [
        read_run(write_run(tmp_path / str(asked), ["0000", "0001"], seed=seed, eval__tasks=asked))
        for seed, asked in enumerate((0, 4))
    ]
    check_comparable(runs)
    assert len(group_arms(runs)) == 1


def test_differences_are_taken_between_the_same_seeds_and_tasks(tmp_path: Path):
    folders = [
        write_run(tmp_path / f"{name}{seed}", ["0000", won], seed=seed, rl__algorithm=name)
        for name, by_seed in {"grpo": ("1000", "0-11"), "gigpo": ("1100", "0011")}.items()
        for seed, won in enumerate(by_seed)
    ]
    runs = [read_run(folder) for folder in folders]
    check_comparable(runs)
    base, ours = make_rows(group_arms(runs))
    assert np.nanmean(base.outcomes["final"]) == pytest.approx(3 / 7)
    assert np.nanmean(ours.outcomes["final"]) == pytest.approx(4 / 8)
    assert np.nanmean(ours.outcomes["final_difference"]) == pytest.approx(1 / 7)
    assert np.nanmean(ours.outcomes["area_difference"]) == pytest.approx(1 / 14)
    assert ours.shared == 2
    assert "final_difference" not in base.outcomes


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"env__max_steps": 9}, "env.max_steps=50 and 9"),
        ({"train__groups": 8}, "train.groups=16 and 8"),
        ({"model__path": "other"}, "model.path='' and 'other'"),
        ({"sha": "cd"}, "panel tiny (ab) and tiny (cd)"),
    ],
)
def test_runs_of_another_task_model_or_budget_are_refused(
    tmp_path: Path, changes: dict[str, Any], named: str
):
    a = write_run(tmp_path / "a", ["0000", "0001"])
    b = write_run(tmp_path / "b", ["0000", "0001"], seed=1, **changes)
    with pytest.raises(InputError) as refused:
        check_comparable([read_run(a), read_run(b)])
    assert named in str(refused.value)


def test_what_differs_may_be_the_algorithm_and_where_it_ran(tmp_path: Path):
    a = write_run(tmp_path / "a", ["0000", "0001"], rl__gamma=0.95)
    b = write_run(
        tmp_path / "b", ["0000", "0001"], rl__gamma=0.9, env__workers=7, checkpoint__every=3
    )
    forks = {"rl__gamma": 0.95, "train__forks": 4}
    c = write_run(tmp_path / "c", ["0000", "0001"], **forks)
    d = write_run(tmp_path / "d", ["0000", "0001"], train__fork_choice="uniform", **forks)
    runs = [read_run(folder) for folder in (a, b, c, d)]
    check_comparable(runs)
    assert [arm.label for arm in group_arms(runs)] == [
        "gigpo",
        "gigpo gamma=0.9",
        "gigpo forks=4",
        "gigpo forks=4 fork_choice=uniform",
    ]


def test_the_anchors_of_a_mix_may_differ_but_not_its_environments(tmp_path: Path):
    runs = []
    for number, options in enumerate(({}, {"anchor": "state"}, {"size": 5})):
        folder = write_run(tmp_path / str(number), ["0000", "0001"])
        config = json.loads((folder / "config.json").read_text())
        config["env"]["mix"] = {"go": {"name": "frozenlake", "options": options}}
        (folder / "config.json").write_text(json.dumps(config))
        runs.append(read_run(folder))
    check_comparable(runs[:2])
    assert [arm.label for arm in group_arms(runs[:2])] == ["gigpo", "gigpo anchor=state"]
    with pytest.raises(InputError, match=r"env\.mix\.go\.options\.size=None and 5"):
        check_comparable([runs[0], runs[2]])


def test_a_run_may_be_older_than_a_key(tmp_path: Path):
    new = write_run(tmp_path / "new", ["0000", "0001"])
    old = write_run(tmp_path / "old", ["0000", "0001"], seed=1)
    config = json.loads((old / "config.json").read_text())
    del config["train"]["refill_groups"], config["rl"]["kl_in"]
    (old / "config.json").write_text(json.dumps(config))
    runs = [read_run(new), read_run(old)]
    check_comparable(runs)
    (arm,) = group_arms(runs)
    assert arm.seeds == (0, 1)


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture):
    a = write_run(tmp_path / "a", ["0000", "0001"])
    duplicate = write_run(tmp_path / "same", ["0000", "0001"])
    short = write_run(tmp_path / "short", ["0000"], seed=1)
    bare = write_run(tmp_path / "bare", [], seed=1)
    torn = write_run(tmp_path / "torn", ["0000", "0001"], seed=1)
    (torn / "config.json").write_text('{"seed":')
    for arguments, named in (
        ([str(a)], "two or more workdirs"),
        ([str(a), str(tmp_path / "absent")], "absent: holds no run; give the workdir"),
        ([str(a), str(torn)], "holds no run that can be read (Expecting"),
        ([str(a), str(duplicate)], "the same config and seed=0"),
        ([str(a), str(short)], "stopped after iteration"),
        ([str(a), str(bare)], "config.eval.panel"),
        ([str(a), str(duplicate), "--confg.seed=1"], "--confg.seed=1: not a flag"),
        (["--config=x.py"], "--algorithms"),
        (["--config=x.py", "--algorithms=grpo:paper"], "not KEY=VALUE"),
    ):
        assert main([*arguments, f"--out={tmp_path / 'out'}"]) == 2
        error_text = capsys.readouterr().err
        assert named in error_text
        assert error_text.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_machines_of_different_types_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = []
    for algorithm, cpu in (("grpo", "A \x1b[1m"), ("gigpo", "B"), ("rloo", "")):
        folder = write_run(tmp_path / algorithm, ["0000", "1110"], rl__algorithm=algorithm)
        if cpu:
            starts = {"starts": [{"done": 0, "cpu": cpu}]}
            (folder / "machine.json").write_text(json.dumps(starts))
        folders.append(str(folder))
    main([*folders, f"--out={tmp_path / 'out'}"])
    output = capsys.readouterr().out
    assert "machines of different types" in output
    assert f"  A \\x1b[1m: {folders[0]}\n  B: {folders[1]}\n  not recorded: {folders[2]}" in output
    main([folders[0], str(write_run_beside(folders[0], tmp_path)), f"--out={tmp_path / 'out'}"])
    assert "different types" not in capsys.readouterr().out


def write_run_beside(folder: str, tmp_path: Path) -> Path:
    """Another run on the same machine."""
    other = write_run(tmp_path / "beside", ["0000", "0110"], rl__algorithm="dapo")
    (other / "machine.json").write_text((Path(folder) / "machine.json").read_text())
    return other
