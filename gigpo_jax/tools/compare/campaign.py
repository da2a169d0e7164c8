"""Plays the missing runs of a comparison, one after the other; a stopped campaign resumes."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from gigpo_jax.config import resolve
from gigpo_jax.config.command_line import load_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.rl.algorithms import ALGORITHMS
from gigpo_jax.run.resumed import check_same_config
from gigpo_jax.run.workdir_names import CONFIG, METRICS

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class CampaignRun:
    """A run of a campaign.

    Attributes:
      folder: Workdir of the run.
      config: Config file.
      words: Words `--config.KEY=VALUE` of the command line.
    """

    folder: Path
    config: str
    words: tuple[str, ...]

    @property
    def command(self) -> list[str]:
        """The command that plays or continues the run."""
        program = [sys.executable, "-m", "gigpo_jax.main"]
        return [*program, f"--config={self.config}", f"--workdir={self.folder}", *self.words]


def list_runs(
    config: str, algorithms: Sequence[str], seeds: Sequence[int], out: Path, flags: Sequence[str]
) -> list[CampaignRun]:
    """Lists the runs of all algorithms and seeds, where each seed has all algorithms in turn.

    The finished seeds of a stopped campaign then have all algorithms, and can be compared.

    Args:
      config: Config file, as for `gigpo_jax.main --config`.
      algorithms: Names, each with its settings after colons, such as "gigpo:rl.preset=paper".
      seeds: Seeds of the runs.
      out: Parent folder of the workdirs.
      flags: Flags of all runs, such as "--config.train.iterations=60".
    """
    runs = []
    for seed in seeds:
        for algorithm in algorithms:
            runs.append(_make_run(config, algorithm, seed, out, flags))
    return runs


def _make_run(
    config: str, algorithm: str, seed: int, out: Path, flags: Sequence[str]
) -> CampaignRun:
    name, *settings = algorithm.split(":")
    if settings and settings[0].isidentifier() and name not in ALGORITHMS:  # module:NAME
        name = f"{name}:{settings.pop(0)}"
    for setting in settings:
        if "=" not in setting:
            raise InputError(
                f"{setting!r} is not KEY=VALUE, such as rl.preset=paper",
                key="--algorithms",
                value=algorithm,
            )
    # The folder names all settings of the arm, so that arms never share a workdir.
    folder = out / f"{algorithm.replace(':', '_').replace('/', '-')}_seed{seed}"
    # The flags of all runs come first: a setting of an arm overrides them.
    words = [*flags, f"--config.rl.algorithm={name}", f"--config.seed={seed}"]
    words += [f"--config.{setting}" for setting in settings]
    return CampaignRun(folder, config, tuple(words))


def check_runs(runs: Sequence[CampaignRun]) -> None:
    """Checks the configs of all runs, so that no run is refused after hours of other runs.

    Raises:
      InputError: the first mistake, as its run would report it; or a run has no panel.
    """
    for run in runs:
        config = resolve(load_config(run.config, run.words))
        if not config.eval.panel and not config.env.mix:
            raise InputError(
                "without evaluations there is nothing to compare",
                key="config.eval.panel",
                value="''",
                fix="name a panel",
            )
        # The folder may hold a run of an earlier campaign with other flags.
        check_same_config(run.folder, config)


def play_runs(runs: Sequence[CampaignRun]) -> int:
    """Plays the runs that are not finished.

    Returns:
      0, or the exit status of the first run that failed or was stopped.
    """
    for number, run in enumerate(runs, start=1):
        if is_finished(run.folder):
            continue
        # Flushed: the run's own output goes to the same place, from another process.
        print(f"run {number} of {len(runs)}: {run.folder}", flush=True)
        status = _play_run(run)
        if status:
            # Popen reports death by signal N as -N; shells report it as 128 + N.
            return status if status > 0 else 128 - status
    return 0


def _play_run(run: CampaignRun) -> int:
    """Plays a run in a process of its own, and passes signals for this process on to it."""
    process: subprocess.Popen[bytes] | None = None
    # Signals that arrive after the handlers are set and before there is a process. Without this
    # list they would be lost, and the run would play on.
    early_signals: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if process is None:
            early_signals.append(number)
        else:
            process.send_signal(number)

    previous_handlers = {number: signal.signal(number, pass_on) for number in INTERRUPTS}
    try:
        # A group of its own: Ctrl-C of a terminal would reach it twice, and the second one ends a
        # run without its checkpoint.
        process = subprocess.Popen(run.command, process_group=0)
        for number in early_signals:
            process.send_signal(number)
        # Python retries the wait after a handler ran: it ends with the run's last checkpoint.
        return process.wait()
    finally:
        # Between two runs, Ctrl-C must end the campaign again.
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def is_finished(folder: Path) -> bool:
    """Whether the run of a workdir has all its iterations."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        lines = (folder / METRICS).read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    if not lines:
        return False
    # Config and metrics are there long before the last iteration.
    return bool(json.loads(lines[-1])["step"] == config["train"]["iterations"])
