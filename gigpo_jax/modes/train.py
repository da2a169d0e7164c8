"""The training loop: roll out, learn, hand the weights over, log; evaluate and save when due."""

import asyncio
import collections
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.devices.exchange import local_rows
from gigpo_jax.devices.mesh import learner_mesh
from gigpo_jax.engines.base import EngineLost
from gigpo_jax.learner.finite import NotFinite
from gigpo_jax.learner.learner import Learner
from gigpo_jax.learner.signals.table import signal_bytes
from gigpo_jax.models.decoder import active_param_count
from gigpo_jax.rollout.environment import RunEnvironment, all_tasks, list_environments
from gigpo_jax.rollout.part_table import part_metrics
from gigpo_jax.rollout.record import SUFFIX, collect_rollouts, write_rollouts
from gigpo_jax.rollout.rollout import TooManyAborted
from gigpo_jax.rollout.shown_episode import PICTURES, episode_markdown, episode_pictures
from gigpo_jax.rollout.statistics import metrics_by_environment
from gigpo_jax.rollout.tasks import choose_tasks, make_sources
from gigpo_jax.rollout.worker import RolloutWorker
from gigpo_jax.run import report
from gigpo_jax.run.checkpoint import Checkpointer
from gigpo_jax.run.cpu_estimate import describe_cpu_estimate, measure_flops
from gigpo_jax.run.hosts import Hosts, HostsStopped, Stop, open_hosts
from gigpo_jax.run.interrupts import Interrupts, UpdateStopped
from gigpo_jax.run.loggers.loggers import as_code_block, find_loggers
from gigpo_jax.run.loggers.metrics import MetricsWriter, Timers
from gigpo_jax.run.open_policy import open_policy
from gigpo_jax.run.progress import show_progress, show_stage
from gigpo_jax.run.workdir import claim_workdir, host_folder, open_workdir, record_machine
from gigpo_jax.run.workdir_names import CHECKPOINTS, ROLLOUTS
from gigpo_jax.trajectory import StepCredit, Trajectory, finished_steps

if TYPE_CHECKING:
    from gigpo_jax.modes.panel_evaluation import PanelEvaluation

SAVE_S = 600.0  # time after which an iteration is saved, whatever `checkpoint.every`


def run(config: ConfigDict, workdir: Path, out: str) -> int:
    """Trains until `train.iterations` are done, from the newest checkpoint if there is one.

    Args:
      config: Config as from `config.resolve`.
      workdir: Folder for config.json, metrics.jsonl, tensorboard/, checkpoints/, evaluations/ and
        rollouts/.
      out: Not used: `main` calls all modes alike.

    Returns:
      The exit status: 0 done, 1 stopped because losses were not finite, no engine was left or too
      many episodes were aborted, 143 or 130 after SIGTERM or Ctrl-C. A checkpoint is written
      unless an update was dropped or a host failed.
    """
    del out
    hosts = open_hosts()
    try:
        with (
            # Left in reverse order: the processes and files of the trainer, the lock of the folder,
            # and last the vote. So other hosts hear of a failure in any of them.
            hosts.stopping(),
            open_workdir(workdir, config),
            Trainer(config, workdir, hosts) as trainer,
        ):
            return asyncio.run(_train_until_stopped(trainer))
    except HostsStopped as stopped:
        report.say(stopped.stop.text)
        return stopped.stop.status


async def _train_until_stopped(trainer: "Trainer") -> int:
    """Trains to the end, an interrupt or a failure, saves if it can; returns the exit status."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    # A cancellation ends waits for rollouts at once. An update that runs is finished first, or
    # stopped between two device calls where it is in pieces (`progress` in `learn`).
    with Interrupts(lambda: loop.call_soon_threadsafe(task.cancel)) as interrupts:
        trainer.interrupted = lambda: interrupts.status > 0
        try:
            await trainer.train()
            stop = Stop(0, "")
        except asyncio.CancelledError:
            # No interrupt, so this is a bug: it keeps its traceback.
            if not interrupts.status:
                raise
            text = f"stopped after iteration {trainer.done}; the same command continues from there"
            stop = await trainer.hosts.stop(Stop(interrupts.status, text))
        except UpdateStopped:
            # Parts of the update are made, so there is nothing to save.
            text = (
                f"stopped in the update of iteration {trainer.done + 1}; the same command "
                f"continues after iteration {trainer.saved}"
            )
            stop = Stop(interrupts.status, text, saves=False)
        except (NotFinite, EngineLost, TooManyAborted) as error:
            text = f"stopped in iteration {trainer.done + 1}: {error}"
            stop = await trainer.hosts.stop(Stop(1, text))
        except HostsStopped as stopped:
            stop = stopped.stop
        if stop.text:
            report.say(stop.text)
        # All hosts have the same `stop` here, so all save or none does.
        if stop.saves:
            trainer.save()
        # An interrupt may have come after the last iteration.
        return stop.status or interrupts.status


class Trainer:
    """Everything a training run holds.

    Attributes:
      hosts: Hosts that train together.
      tasks: Tasks of training, of all environments.
      evaluation: Player of the panel that evaluates the policy; None without one.
      sources: What chooses the tasks of groups and learns from their results, by name.
      done: Number of iterations whose updates are made, which a checkpoint records.
      pending: Metrics of iteration `done` that wait for its evaluation; None once they are written.
      rollouts: Running rollouts of iterations `done`, `done` + 1, ...
      saved: Number of iterations that the newest checkpoint has.
      interrupted: Function that tells whether an interrupt came.
    """

    def __init__(self, config: ConfigDict, workdir: Path, hosts: Hosts) -> None:
        """Makes cheap checks, then loads, restores and starts processes."""
        self.config = config
        self.workdir = workdir
        self.hosts = hosts
        self.mesh = learner_mesh(config)
        # These calls raise the errors of the config before a model is loaded.
        local_rows(self.mesh, config.batch.rows)
        loggers = find_loggers(config)
        environments = list_environments(config)
        with show_stage("reading the tasks"):
            self.tasks = all_tasks(environments)
            self.evaluation = self._open_evaluation(environments)
        self.sources = make_sources(config, self.tasks, is_training=True)

        policy = open_policy(config, workdir, self.mesh, signal_bytes)
        # Frozen parameters get no gradient, which is a third of the work.
        self.flops = active_param_count(policy.config) * (6 if policy.frozen is None else 4)
        self._shape = policy.config
        self.learner = Learner(config, policy, self.mesh)
        self.timers = Timers()
        self.remaining = report.Remaining()
        self.done = 0
        self.saved = 0
        self._saved_s = time.monotonic()
        self.interrupted: Callable[[], bool] = lambda: False
        self.pending: dict[str, float] | None = None
        self.rollouts: collections.deque[asyncio.Task[list[Trajectory]]] = collections.deque()
        # Rollouts and evaluations have the engine one after the other.
        self._engine_lock = asyncio.Lock()

        # A failure in the middle closes what is open. The order is the reverse: workers and
        # servers, then metrics, then checkpoints.
        with contextlib.ExitStack() as resources:
            resources.enter_context(self.timers.compilation())
            self.checkpoints = Checkpointer(workdir / CHECKPOINTS, keep=config.checkpoint.keep)
            resources.callback(self.checkpoints.close)
            # Before writer and worker: it says where metrics.jsonl ends, and the engine's weights.
            covered = self._restore()
            self._print_estimate()
            with show_stage("compiling the programs of checkpoints"):
                self.checkpoints.compile_programs(self.learner.checkpoint_parts())
            self.writer = MetricsWriter(host_folder(workdir), **covered)
            resources.callback(self.writer.close)
            self.worker = RolloutWorker(
                config,
                policy,
                self.learner.params,
                environments=environments,
                version=self.done,
                folder=host_folder(workdir) / "servers",
            )
            resources.callback(self.worker.close)
            self.worker.parts = [source.make_part for source in self.sources.values()]
            # All that can refuse the run has passed: from now on the folder is one of this config.
            claim_workdir(workdir, config, policy.base)
            record_machine(workdir, self.done)
            self.writer.open_loggers(loggers, config)
            # Set-up has succeeded: `__exit__` closes them.
            self._resources = resources.pop_all()

    def _open_evaluation(self, environments: list[RunEnvironment]) -> "PanelEvaluation | None":
        """Reads the panel of a run; None for a run that is not evaluated."""
        if not report.has_panel(self.config):
            return None
        # Imported here: an iteration needs none of it.
        from gigpo_jax.modes.panel_evaluation import PanelEvaluation

        return PanelEvaluation(self.config, environments, self.workdir)

    def _restore(self) -> dict[str, int]:
        """Restores the newest checkpoint; returns what it covers, as `MetricsWriter` takes it."""
        with show_stage("reading the newest checkpoint"):
            restored = self.checkpoints.restore_parts(self.learner.checkpoint_parts())
        if restored is None:
            return {}
        self.learner.restore(restored)
        record = restored["record"]
        self.done = self.saved = record["iteration"]
        self.pending = record["pending"]
        for name, source in self.sources.items():
            # Without a record, as in checkpoints older than the source, it has nothing to continue.
            if record.get(name) is not None:
                source.restore(record[name])
        iterations = self.config.train.iterations
        if self.done >= iterations and self.pending is None:
            report.say(
                f"nothing is left to do: all {iterations} iterations are in {self.workdir}; a "
                "larger config.train.iterations continues the run"
            )
        else:
            report.say(f"continuing after iteration {self.done}")
        return {"step": record["metrics_step"], "done": self.done}

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with show_stage("finishing the checkpoints"):
            self._resources.close()

    def _print_estimate(self) -> None:
        """Prints what a long run on CPUs needs, before programs compile for minutes."""
        if self.done == 0 and jax.default_backend() == "cpu" and jax.process_count() == 1:
            estimate = describe_cpu_estimate(self.config, self._shape, self.flops, measure_flops())
            if estimate:
                report.say(estimate)

    async def train(self) -> None:
        """Makes all remaining iterations."""
        if self.done == 0:
            report.print_start(self.config, self.workdir, len(self.tasks))
            self.writer.text(0, "config", as_code_block(str(self.config)))
            self.write_metrics(await self.evaluate(in_full=True))
        else:
            # The iterations that follow have not compiled what the start has.
            self.timers.take()
        await self.finish_iteration()
        try:
            # Policies of earlier updates: rollouts with them were running when the run stopped.
            if self.done and self.learner.older:
                from gigpo_jax.modes.ahead import play_again

                await play_again(self)
            while self.done < self.config.train.iterations:
                with self.timers.time("iteration"):
                    self.begin_rollouts()
                    trajectories = await self.hosts.share(self.rollouts.popleft())
                    await self.write_notes(trajectories)
                    await self.update(trajectories)
                await self.finish_iteration()
        finally:
            # They use the engine and the environments, which are closed next.
            for rollout in self.rollouts:
                rollout.cancel()
            await asyncio.gather(*self.rollouts, return_exceptions=True)
        report.print_end(self.config, self.workdir)

    def begin_rollouts(self) -> None:
        """Begins rollouts until `train.max_staleness` run ahead of the learner."""
        train = self.config.train
        rollout_count = min(train.max_staleness + 1, train.iterations - self.done)
        while len(self.rollouts) < rollout_count:
            self.begin_rollout()

    def begin_rollout(self) -> None:
        """Begins the next rollout with the present weights.

        With `train.inflight` newer weights sample its later tokens.
        """
        worker = self.worker
        train = self.config.train
        # Several rollouts wait for the engine, and each keeps the weights that it began with. A
        # single one ends before the weights change (`update`).
        if train.max_staleness > 1 and not train.inflight:
            worker = worker.snapshot()
        rollout = self.roll_out(self.done + len(self.rollouts), worker)
        self.rollouts.append(asyncio.create_task(rollout))

    async def update(self, trajectories: list[Trajectory]) -> None:
        """Makes one iteration's updates; then the engine gets them.

        An update that was begun counts, whatever becomes of the rollouts or the servers; an
        interrupt may drop it (`UpdateStopped`).
        """
        if self.rollouts:
            from gigpo_jax.modes.ahead import learn_beside_rollouts

            await learn_beside_rollouts(self, trajectories)
        else:
            # Gradients take the place of the engine's weights and cache (devices/memory.py).
            self.worker.engine.free_memory()
            self.pending = self.learn(trajectories)
            self.done += 1
        with self.timers.time("weight_sync"):
            self.worker.update_weights(self.learner.params, self.done)

    async def finish_iteration(self) -> None:
        """Evaluates, writes metrics and saves, as far as still due."""
        if self.pending is None:
            return
        # A checkpoint written during the evaluation holds the pending metrics, and the resumed run
        # comes here first.
        evaluation = await self.evaluate(in_full=self.done == self.config.train.iterations)
        self.write_metrics(self.pending | evaluation)
        self.pending = None
        is_overdue = time.monotonic() - self._saved_s > SAVE_S and jax.process_count() == 1
        if self.done % self.config.checkpoint.every == 0 or is_overdue:
            await self.hosts.share(asyncio.sleep(0))  # all hosts save together, or none does
            self.save()

    async def roll_out(self, iteration: int, worker: RolloutWorker) -> list[Trajectory]:
        """Plays `train.group_size` episodes of each drawn task, and of replacements."""
        job = choose_tasks(self.config, self.tasks, self.sources, iteration)
        async with self.reserve_engine("rollout"):
            return await worker.play(
                job,
                temperature=self.config.sampling.temperature,
                title=f"rollout {iteration + 1}",
                is_training=True,
            )

    async def write_notes(self, trajectories: list[Trajectory]) -> None:
        """Lets the policy write the notes on an iteration's episodes that task sources ask for."""
        make_writers = partial(self.worker.make_writers, self.config.sampling.temperature)
        for source in self.sources.values():
            writing = source.write_notes(trajectories, self.done, make_writers)
            # All hosts write together, or none does.
            if writing is not None:
                async with self.reserve_engine("rollout"):
                    await self.hosts.share(writing)

    @contextlib.asynccontextmanager
    async def reserve_engine(self, timer: str) -> AsyncIterator[None]:
        """Waits until earlier rollouts have ended, and times the block that then uses the engine.

        With `train.inflight` it does not wait: all requests have the same weights and share the
        engine.
        """
        is_shared = self.config.train.inflight
        async with contextlib.nullcontext() if is_shared else self._engine_lock:
            with self.timers.time(timer):
                yield

    def learn(self, trajectories: list[Trajectory]) -> dict[str, float]:
        """Makes one iteration's updates; returns its metrics."""
        metrics = metrics_by_environment(trajectories, self.tasks, part_metrics(self.config))
        metrics["rollout/staleness"] = staleness(trajectories, self.done)
        train = self.config.train
        save_every = train.save_rollouts
        # The last one always: the newest policy is what people look at.
        is_last = self.done + 1 == train.iterations
        is_saved = bool(save_every) and (is_last or self.done % save_every == 0)
        title = f"update {self.done + 1}"
        with show_progress(title, unit="tokens") as bar:

            def progress(done: int, total: int) -> None:
                bar.set_progress(done, total)
                # Several hosts stop together, after the update.
                is_alone = jax.process_count() == 1
                if self.interrupted() and is_alone and self.learner.stops_in_updates:
                    raise UpdateStopped

            scored = self.learner.score_steps(finished_steps(trajectories))
            # Before the updates, which change the policy that scores.
            entropies = scored.token_logprobs.entropy if is_saved else None
            learner_metrics, credit = self.learner.learn(scored, self.done, self.timers, progress)
        if is_saved:
            self.save_rollouts(trajectories, credit, entropies)
        group_sizes = np.bincount(credit.anchor_group)
        self.writer.histogram(self.done + 1, "credit/anchor_group_size", group_sizes)
        # Last: an update that fails is made again with the same memory, and a checkpoint of an
        # earlier iteration has nothing of this one.
        for source in self.sources.values():
            metrics |= source.add(trajectories, self.done, metrics)
        return {name: float(value) for name, value in (metrics | learner_metrics).items()}

    def save_rollouts(
        self,
        trajectories: list[Trajectory],
        credit: StepCredit,
        entropies: list[np.ndarray] | None,
    ) -> None:
        """Writes an iteration's episodes, and a sample to the loggers."""
        rollouts = collect_rollouts(
            trajectories,
            credit,
            entropies,
            gamma=self.config.rl.gamma,
            iteration=self.done,
            temperature=self.config.sampling.temperature,
            decode=self.worker.tokenizer.decode,
        )
        # The folder is shared: each host writes a file of its own.
        name = f"iteration_{self.done + 1:06d}.host{jax.process_index()}{SUFFIX}"
        write_rollouts(self.workdir / ROLLOUTS / name, rollouts)
        self.writer.text(self.done + 1, "rollout/sample", episode_markdown(rollouts))
        self.writer.pictures(self.done + 1, PICTURES, episode_pictures(rollouts))

    async def evaluate(self, *, in_full: bool) -> dict[str, float]:
        """Plays the panel when due, or in full: greedily too; returns the results' metrics."""
        every = self.config.eval.every
        is_due = in_full or (every and self.done % every == 0)
        evaluation = self.evaluation
        if evaluation is None or not is_due:
            return {}

        async def play_panel() -> dict[str, list[Trajectory]]:
            # A rollout that runs ahead has the engine until its end.
            async with self.reserve_engine("eval"):
                return await evaluation.play(self.worker, in_full=in_full)

        return evaluation.record(self.done, await self.hosts.share(play_panel()))

    def write_metrics(self, metrics: dict[str, float]) -> None:
        """Writes and prints the metrics of an iteration."""
        # The seconds since the last record: the evaluation is in them.
        metrics |= self.timers.take()
        metrics["compile/count"] = self.learner.compile_count + self.worker.engine.compile_count
        metrics |= report.throughput_metrics(metrics, self.flops, self.mesh.size)
        self.writer.scalars(self.done, metrics)
        self.remaining.add(metrics)
        remaining_s = self.remaining.seconds(self.config, self.done)
        report.print_iteration(self.config, self.done, metrics, remaining_s)

    def save(self) -> None:
        """Writes a checkpoint, unless there is one of this iteration."""
        record: dict[str, Any] = {
            "iteration": self.done,
            # A resumed run cuts metrics.jsonl after this record and writes the later ones again.
            "metrics_step": self.writer.step,
            "pending": self.pending,
            **self.learner.checkpoint_record(),
        }
        for name, source in self.sources.items():
            record[name] = source.record()
        self.checkpoints.save_parts(self.done, self.learner.checkpoint_parts(), record)
        self.saved = self.done
        self._saved_s = time.monotonic()


def staleness(trajectories: list[Trajectory], iteration: int) -> float:
    """Age of the oldest token, in updates; 0 is on-policy."""
    versions = [turn.version for trajectory in trajectories for turn in trajectory.turns]
    return float(iteration - min(versions, default=iteration))
