"""A campaign of faults against real runs; prints a table: what was done, how often, what came of
it.

    python -m tests.chaos.campaign [--seed=0] [--case=NAME ...]

Exits with status 1 at the first result that docs/reliability.md does not promise.
"""

import argparse
import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gigpo_jax.core.errors import InputError
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.rl.optimizer import make_optimizer
from gigpo_jax.rl.train_step import init_state
from gigpo_jax.run.checkpoint import Checkpointer
from gigpo_jax.run.state_checkpoints import restore_state, save_state
from tests.metrics import CLOCK, records

CONFIG = "tests/configs/example.py"
LIMIT_S = 300

Run = subprocess.Popen[str]
Outcome = Counter[str]


def start(workdir: Path, *flags: str, mode: str = "train") -> Run:
    """Starts a run without progress bars."""
    command = [
        sys.executable,
        "-m",
        "gigpo_jax.main",
        f"--config={CONFIG}",
        f"--workdir={workdir}",
        f"--mode={mode}",
    ]
    return subprocess.Popen(
        [*command, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
        env=os.environ | {"TQDM_DISABLE": "1"},
    )


def end(run: Run, status: int = 0) -> tuple[str, str]:
    """What a run wrote to stdout and stderr; it must end with this status."""
    try:
        out, err = run.communicate(timeout=LIMIT_S)
    finally:
        run.kill()
    assert run.returncode == status, (run.returncode, out, err)
    assert "Traceback" not in err, err
    return out, err


def starts(workdir: Path) -> int:
    """How many runs have opened the metrics of a workdir: each cuts metrics.jsonl, then makes an
    event file.
    """
    return len(list(workdir.glob("tensorboard/*/*")))


def wait_for_record(run: Run, workdir: Path, step: int, start: int = 1) -> None:
    """Returns when a start of a run has the metrics of a step, or the run has ended."""
    metrics = workdir / "metrics.jsonl"
    until = time.monotonic() + LIMIT_S
    while run.poll() is None and not (
        starts(workdir) >= start and f'"step": {step},' in metrics.read_text()
    ):
        assert time.monotonic() < until, "the run hangs"
        time.sleep(0.02)


def workers_of(pid: int) -> list[int]:
    """The environment workers below a process; a stopped one lives for 2 s beside the one that
    replaced it.
    """
    try:
        process = Path(f"/proc/{pid}")
        if children := (process / f"task/{pid}/children").read_text().split():
            return [worker for child in children for worker in workers_of(int(child))]
        running = "(stopped)" not in (process / "status").read_text()
        return [pid] * (running and "worker" in (process / "cmdline").read_text())
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return []


def check_tensorboard(workdir: Path) -> None:
    """Every number of metrics.jsonl is there once."""
    (run,) = (workdir / "tensorboard").iterdir()
    board = EventAccumulator(str(run), size_guidance={"scalars": 0, "tensors": 0})
    board.Reload()
    for name in board.Tags()["scalars"]:
        steps = [record["step"] for record in records(workdir, ()) if name in record]
        assert [point.step for point in board.Scalars(name)] == steps, name


def make_model(folder: Path) -> Path:
    """The folder of a model."""
    flags = ("--config.sft.episodes=32", "--config.sft.epochs=4")
    end(start(folder / "sft", f"--out={folder / 'model'}", *flags, mode="sft"))
    return folder / "model"


def kills(folder: Path, model: Path, rng: random.Random, times: int) -> Outcome:
    """SIGKILL at a random moment, then the same command, until the run is done."""
    path = f"--config.model.path={model}"
    outcome = Counter()
    begun = time.monotonic()
    end(start(folder / "whole", path))
    whole_s = time.monotonic() - begun
    number = killed = 0
    while killed < times:
        number += 1
        workdir = folder / f"killed{number}"
        run = start(workdir, path)
        saved = 0
        while killed < times:
            before = starts(workdir)
            if rng.random() < 0.3:  # set-up, mostly
                time.sleep(rng.uniform(0, whole_s))
            else:
                wait_for_record(
                    run, workdir, rng.randint(saved + 1, 7), before + 1
                )  # 7: not before its end
                time.sleep(rng.uniform(0, 0.3))
            if run.poll() is not None:
                break
            run.kill()
            run.communicate()
            killed += 1
            saved = max(
                (int(path.name) for path in workdir.glob("checkpoints/*") if path.name.isdecimal()),
                default=0,
            )
            moment = "in set-up" if starts(workdir) == before else "while training"
            outcome[f"{moment}, {'with a checkpoint' if saved else 'without one'}"] += 1
            run = start(workdir, path)
        end(run)
        assert records(workdir) == records(folder / "whole")
        check_tensorboard(workdir)
    outcome["runs with metrics equal to an uninterrupted one"] = number
    return outcome


def workers(
    number: signal.Signals, folder: Path, model: Path, rng: random.Random, times: int
) -> Outcome:
    """A signal to a random environment worker, each time after the run got over the one before."""
    flags = [
        f"--config.model.path={model}",
        "--config.env.workers=2",
        "--config.env.step_timeout_s=2",
    ]
    flags.append("--config.env.start_timeout_s=20")  # the limit for a reset, too
    flags += [
        f"--config.train.iterations={12 * times}",
        "--config.train.save_rollouts=0",
        "--config.checkpoint.every=50",
    ]
    end(start(folder / "whole", *flags))
    run = start(folder / "run", *flags)
    last = 0
    for _ in range(times):
        wait_for_record(
            run, folder / "run", last + 3
        )  # the last workers are up, and have played a rollout
        time.sleep(rng.uniform(0, 0.3))
        found = workers_of(run.pid)
        last = (folder / "run/metrics.jsonl").read_bytes().count(b"\n") - 1
        os.kill(rng.choice(found), number)
    _, err = end(run)
    replaced = err.count("; it is replaced")
    assert replaced >= times, err
    without = (*CLOCK, "episode/replayed")
    assert records(folder / "run", without) == records(folder / "whole", without)
    return Counter(
        {"replaced, with a warning": replaced, "runs with the metrics of a run without faults": 1}
    )


def checkpoint_bits(folder: Path, model: Path, rng: random.Random, times: int) -> Outcome:
    """One flipped bit in the newest of two checkpoints."""

    def state(seed: int) -> object:
        normal = np.random.default_rng(seed).normal
        params = {
            "embed": normal(size=(70, 16)).astype(np.float32),
            "norm": normal(size=16).astype(np.float32),
        }
        return init_state(jax.tree.map(jax.numpy.asarray, params), make_optimizer(lr=1e-3))

    saved = Checkpointer(folder / "saved")
    for iteration in (1, 2):
        save_state(saved, iteration, state(iteration), {"iteration": iteration})
    saved.close()
    files = sorted(
        path.relative_to(folder / "saved")
        for path in (folder / "saved/2").rglob("*")
        if path.is_file()
    )
    outcome: Outcome = Counter()
    for _ in range(times):
        copy = shutil.copytree(folder / "saved", folder / "copy")
        flip(copy / rng.choice(files), rng)
        checkpoints = Checkpointer(copy)
        found, record = restore_state(checkpoints, state(9))
        checkpoints.close()
        for ours, theirs in zip(
            jax.tree.leaves(found), jax.tree.leaves(state(record["iteration"])), strict=True
        ):
            assert np.array_equal(ours, theirs), "another state was read"
        outcome[
            "no effect" if record["iteration"] == 2 else "found, the checkpoint before used"
        ] += 1
        shutil.rmtree(copy)
    return outcome


def model_bits(folder: Path, model: Path, rng: random.Random, times: int) -> Outcome:
    """One flipped bit in a file of a model folder."""
    files = sorted(path.name for path in model.iterdir() if path.is_file())
    _, before = load_hf(model, dtype=np.float32)
    outcome: Outcome = Counter()
    for _ in range(times):
        copy = shutil.copytree(model, folder / "copy")
        flip(copy / rng.choice(files), rng)
        try:
            _, params = load_hf(copy, dtype=np.float32)
            load_tokenizer(copy)
        except InputError as error:
            assert "\n" not in str(error), error  # noqa: PT017
            outcome["refused in one line"] += 1
        else:
            same = all(map(np.array_equal, jax.tree.leaves(before), jax.tree.leaves(params)))
            outcome[
                "weights as before" if same else "other weights (the format has no checksum)"
            ] += 1
        shutil.rmtree(copy)
    return outcome


def flip(path: Path, rng: random.Random) -> None:
    """Flips one bit of a file."""
    content = bytearray(path.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def full_disk(folder: Path, model: Path, rng: random.Random, times: int) -> Outcome:
    """A workdir on a disk that is soon full; then it is enlarged and the same command is given
    again.
    """
    path = f"--config.model.path={model}"
    outcome = Counter()
    end(start(folder / "whole", path))
    for number in range(times):
        disk = folder / f"disk{number}"
        disk.mkdir()
        size = rng.randrange(40, 600)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}k", "gigpo_jax_chaos", str(disk)],
            check=True,
        )
        try:
            _, err = end(start(disk / "run", path), 1)
            *warnings, line = err.splitlines()
            assert line.startswith("gigpo_jax: "), err
            assert all(
                "the logger tensorboard failed (No space left on device)" in warning
                for warning in warnings
            ), err
            subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
            out, _ = end(start(disk / "run", path))
            assert records(disk / "run") == records(folder / "whole")
            outcome["continued" if "continuing after" in out else "started again"] += 1
        finally:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)
    outcome["status 1, one line"] = times
    return outcome


def malformed(folder: Path, model: Path, rng: random.Random, times: int) -> Outcome:
    """An environment that spoils one result in twenty."""
    flags = [
        "--config.env.name=tests.chaos.environments:MALFORMED_NOW_AND_THEN",
        f"--config.train.iterations={times}",
    ]
    end(start(folder / "run", f"--config.model.path={model}", *flags))
    aborted = sum(record.get("episode/aborted", 0) for record in records(folder / "run"))
    played = sum(record.get("rollout/episodes", 0) for record in records(folder / "run"))
    assert aborted > 0
    return Counter(
        {
            "iterations": times,
            "episodes left out": int(aborted),
            "episodes learnt from": int(played),
        }
    )


def hostile(folder: Path, model: Path, rng: random.Random, times: int) -> Outcome:
    """Terminal control, chat templates and tags in observations, in errors, and in the words of the
    policy.
    """
    flags = [
        "--config.env.name=tests.chaos.environments:HOSTILE_TEXT",
        f"--config.train.iterations={times}",
    ]
    seen = "".join(end(start(folder / "run", f"--config.model.path={model}", *flags)))
    assert all(char.isprintable() or char == "\n" for char in seen), seen
    assert "\\x1b" in seen
    return Counter({"iterations": times, "control characters on the console": 0})


CASES: dict[str, tuple[Callable[[Path, Path, random.Random, int], Outcome], int]] = {
    "SIGKILL of the run at a random moment": (kills, 20),
    "SIGKILL of an environment worker": (functools.partial(workers, signal.SIGKILL), 10),
    "SIGSTOP of an environment worker": (functools.partial(workers, signal.SIGSTOP), 5),
    "flipped bit in a checkpoint": (checkpoint_bits, 200),
    "flipped bit in a model folder": (model_bits, 200),
    "full disk, 40 to 600 KiB": (full_disk, 5),
    "malformed results of an environment": (malformed, 30),
    "hostile text": (hostile, 10),
}


def main() -> None:
    """Runs the cases and prints a row for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", action="append", choices=list(CASES))
    args = parser.parse_args()
    print("| Fault | Times | Result | s |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as shared:
        model = make_model(Path(shared))
        for name in args.case or CASES:
            case, times = CASES[name]
            begun = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                outcome = case(Path(folder), model, random.Random(f"{args.seed} {name}"), times)
            shown = ", ".join(f"{what}: {count}" for what, count in outcome.items())
            print(f"| {name} | {times} | {shown} | {time.monotonic() - begun:.0f} |", flush=True)


if __name__ == "__main__":
    main()
