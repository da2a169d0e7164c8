"""The training loop: roll out, learn, hand the weights over, log; evaluate and save now and then."""

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from gigpo_jax import evaluate
from gigpo_jax.config.mix import shares
from gigpo_jax.files import write_json
from gigpo_jax.learner import Learner, objective, text_critic
from gigpo_jax.models.qwen2 import param_count
from gigpo_jax.policy import load_policy
from gigpo_jax.rollout.environment import all_tasks, environments
from gigpo_jax.rollout.groups import GroupEnd
from gigpo_jax.rollout.record import SUFFIX, saved, write_rollouts
from gigpo_jax.rollout.rollout import TooManyAborted
from gigpo_jax.rollout.sample import PICTURES, sample, sample_pictures
from gigpo_jax.rollout.statistics import metrics_by_environment
from gigpo_jax.rollout.tasks import Curriculum, draw_tasks, host_share, spare_groups
from gigpo_jax.rollout.worker import RolloutWorker
from gigpo_jax.run import partition, report
from gigpo_jax.run.checkpoint import OLDER, Checkpointer
from gigpo_jax.run.finite import NotFinite
from gigpo_jax.run.hosts import Hosts, HostsStopped, Stop
from gigpo_jax.run.interrupts import Interrupts
from gigpo_jax.run.loggers import find_loggers, verbatim
from gigpo_jax.run.metrics import MetricsWriter, Timers
from gigpo_jax.run.workdir import check_adapter, claim_workdir, host_folder, open_workdir
from gigpo_jax.sampling.base import EngineLost
from gigpo_jax.trajectory import Trajectory, finished_steps


def run(config: ConfigDict, workdir: Path, out: str) -> int:
    """Trains until `train.iterations` are done, from the last checkpoint of the workdir if there is one.

    Args:
      config: as from `config.resolve`.
      workdir: for config.json, metrics.jsonl, tensorboard/, checkpoints/, evaluations/, rollouts/.
      out: not used.

    Returns:
      The exit status: 0 done, 1 stopped because losses were not finite, no engine was left or too many episodes were
      aborted, 143 or 130 after SIGTERM or Ctrl-C; in each case a checkpoint is there.
    """
    del out
    hosts = Hosts()
    try:
        with hosts.stopping(), open_workdir(workdir, config), Trainer(config, workdir, hosts) as trainer:
            return asyncio.run(_train(trainer))
    except HostsStopped as stopped:
        report.say(stopped.stop.text)
        return stopped.stop.status


async def _train(trainer: "Trainer") -> int:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    with Interrupts(lambda: loop.call_soon_threadsafe(task.cancel)) as interrupts:
        try:
            await trainer.train()
            stop = Stop(0, "")
        except asyncio.CancelledError:
            if not interrupts.status:
                raise
            text = f"stopped after iteration {trainer.done}; the same command continues from there"
            stop = await trainer.hosts.stop(Stop(interrupts.status, text))
        except (NotFinite, EngineLost, TooManyAborted) as error:
            stop = await trainer.hosts.stop(Stop(1, f"stopped in iteration {trainer.done + 1}: {error}"))
        except HostsStopped as stopped:
            stop = stopped.stop
        if stop.text:
            report.say(stop.text)
        if stop.saves:
            trainer.save()
        return stop.status or interrupts.status


class Trainer:
    """Everything a training run holds.

    Attributes:
      hosts: those that train together.
      done: iterations whose updates are made; what a checkpoint records.
      pending: metrics of iteration `done` that wait for its evaluation; None once they are written.
      rollouts: those of iterations `done`, `done` + 1, ... that were begun.
    """

    def __init__(self, config: ConfigDict, workdir: Path, hosts: Hosts) -> None:
        """Checks everything that is cheap to check; then loads, restores the last checkpoint, and starts processes."""
        self.config, self.workdir, self.hosts = config, workdir, hosts
        self.mesh = partition.learner_mesh(config)
        partition.local_rows(self.mesh, config.batch.rows)
        objective(config)
        loggers = find_loggers(config)
        run_environments = environments(config)
        self.tasks = all_tasks(run_environments)
        self.curriculum = Curriculum(self.tasks) if config.train.curriculum == "success" else None
        self.panel = evaluate.panel_tasks(run_environments)
        policy = load_policy(config, self.mesh)
        check_adapter(workdir, config, policy.base)
        # Frozen parameters get no gradient, which is a third of the work.
        self.flops = param_count(policy.config) * (6 if policy.frozen is None else 4)
        self.learner = Learner(config, policy, self.mesh)
        self.timers, self.remaining = Timers(), report.Remaining()
        self.done = 0
        self.pending: dict[str, float] | None = None
        self.rollouts: collections.deque[asyncio.Task[list[Trajectory]]] = collections.deque()
        self._playing = asyncio.Lock()  # rollouts and evaluations have the engine one after the other
        with contextlib.ExitStack() as opened:
            opened.enter_context(self.timers.compilation())
            self.checkpoints = opened.enter_context(
                contextlib.closing(Checkpointer(workdir / "checkpoints", keep=config.checkpoint.keep))
            )
            restored = self.checkpoints.restore_parts(self.learner.parts)
            covered: dict[str, int] = {}
            if restored is not None:
                self.learner.restore(restored)
                record = restored["record"]
                self.done, self.pending = record["iteration"], record["pending"]
                self.learner.text_critic = text_critic(config, record)
                if self.curriculum is not None:
                    self.curriculum.rates = record["curriculum"]
                covered = {"step": record["metrics_step"], "done": self.done}
                report.say(f"continuing after iteration {self.done}")
            self.writer = opened.enter_context(contextlib.closing(MetricsWriter(host_folder(workdir), **covered)))
            self.worker = opened.enter_context(
                contextlib.closing(
                    RolloutWorker(
                        config,
                        policy,
                        self.learner.params,
                        environments=run_environments,
                        version=self.done,
                        folder=host_folder(workdir) / "servers",
                    )
                )
            )
            claim_workdir(workdir, config, policy.base)
            self.writer.open_loggers(loggers, config)
            self._opened = opened.pop_all()

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._opened.close()

    async def train(self) -> None:
        """All iterations that are left."""
        if self.done == 0:
            report.start(self.config, self.workdir, len(self.tasks))
            self.writer.text(0, "config", verbatim(str(self.config)))
            self.record(await self.evaluate(last=True))
        await self.finish_iteration()
        train = self.config.train
        try:
            await self.play_again()
            while self.done < train.iterations:
                with self.timers.time("iteration"):
                    while len(self.rollouts) < min(train.max_staleness + 1, train.iterations - self.done):
                        self.begin_rollout()
                    trajectories = await self.hosts.share(self.rollouts.popleft())
                    await self.update(trajectories)
                await self.finish_iteration()
        finally:
            for rollout in self.rollouts:
                rollout.cancel()
            await asyncio.gather(*self.rollouts, return_exceptions=True)
        report.finish(self.config, self.workdir)

    async def play_again(self) -> None:
        """After a restart, plays the rollouts that the stopped run had begun, with the weights that they had there."""
        left = self.config.train.iterations - self.done if self.done else 0
        for version, trained in self.learner.older[:left]:
            self.worker.update_weights(self.learner.whole(trained), version)
            self.begin_rollout()
            await self.hosts.share(self.rollouts[-1])
        if self.rollouts:
            self.worker.update_weights(self.learner.params, self.done)

    def begin_rollout(self) -> None:
        """Begins the next rollout; the weights of now sample all of it."""
        worker = self.worker.snapshot() if self.config.train.max_staleness > 1 else self.worker
        self.rollouts.append(asyncio.create_task(self.roll_out(self.done + len(self.rollouts), worker)))

    async def update(self, trajectories: list[Trajectory]) -> None:
        """One iteration's updates, in a thread while rollouts run; the engine has the new weights afterwards.

        The new weights wait for the end of the next rollout: so an iteration learns from weights that are
        `train.max_staleness` updates old, whatever takes longer. An update that was begun is finished and counts,
        whatever becomes of the rollouts or the servers.
        """
        if not self.rollouts:
            self.worker.engine.free_memory()
            self.pending = self.learn(trajectories)
            self.done += 1
        else:
            learning = asyncio.get_running_loop().run_in_executor(None, self.learn, trajectories)
            try:
                await asyncio.wait({learning})
            finally:
                self.pending = await uninterrupted(learning)
                self.done += 1
            await self.hosts.share(self.rollouts[0])  # raises what it failed with
        with self.timers.time("weight_sync"):
            self.worker.update_weights(self.learner.params, self.done)

    async def finish_iteration(self) -> None:
        """Evaluates, writes metrics and saves, as far as due and not yet done."""
        if self.pending is None:
            return
        # Stopped here, the checkpoint holds what is pending, and the next run comes here first.
        evaluation = await self.evaluate(last=self.done == self.config.train.iterations)
        self.record(self.pending | evaluation)
        self.pending = None
        if self.done % self.config.checkpoint.every == 0:
            await self.hosts.share(asyncio.sleep(0))
            self.save()

    async def roll_out(self, iteration: int, worker: RolloutWorker) -> list[Trajectory]:
        """The episodes of an iteration, `train.group_size` of each drawn task and of what took its place."""
        train, seed = self.config.train, self.config.seed
        how = (None if self.curriculum is None else self.curriculum.weights(), shares(self.config))
        tasks = draw_tasks(self.tasks, iteration, train.groups, seed, *how)
        spares = spare_groups(self.tasks, iteration, train.groups, train.refill_groups, seed, *how)
        first, mine = host_share(tasks)
        async with self.engine_for("rollout"):
            return await worker.play(
                mine,
                group_size=train.group_size,
                iteration=iteration,
                first_group=first,
                ends=GroupEnd(train.finish_fraction, host_share(spares)[1]),
                temperature=self.config.sampling.temperature,
                title=f"rollout {iteration + 1}",
            )

    @contextlib.asynccontextmanager
    async def engine_for(self, what: str) -> AsyncIterator[None]:
        """Waits until the rollouts that were begun before have ended; takes the time of the block."""
        async with self._playing:
            with self.timers.time(what):
                yield

    def learn(self, trajectories: list[Trajectory]) -> dict[str, float]:
        """One iteration's updates."""
        steps = finished_steps(trajectories)
        metrics = metrics_by_environment(trajectories, self.tasks)
        metrics["rollout/staleness"] = staleness(trajectories, self.done)
        with tqdm(desc=f"update {self.done + 1}", leave=False, delay=1, disable=None) as bar:

            def progress(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            saving = bool(self.config.train.save_rollouts) and self.done % self.config.train.save_rollouts == 0
            entropies = self.learner.token_logprobs(steps).entropy if saving else None
            learnt, credit = self.learner.learn(steps, self.done, self.timers, progress)
        if saving:
            name = f"iteration_{self.done + 1:06d}.host{jax.process_index()}{SUFFIX}"
            how = {
                "gamma": self.config.rl.gamma,
                "iteration": self.done,
                "temperature": self.config.sampling.temperature,
                "decode": self.worker.tokenizer.decode,
            }
            rollouts = saved(trajectories, credit, entropies, **how)
            write_rollouts(self.workdir / "rollouts" / name, rollouts)
            self.writer.text(self.done + 1, "rollout/sample", sample(rollouts))
            self.writer.pictures(self.done + 1, PICTURES, sample_pictures(rollouts))
        self.writer.histogram(self.done + 1, "credit/anchor_group_size", np.bincount(credit.anchor_group))
        if self.curriculum is not None:
            self.curriculum.add(metrics)
        return {name: float(value) for name, value in (metrics | learnt).items()}

    async def evaluate(self, *, last: bool) -> dict[str, float]:
        """Results on the panel when they are due."""
        every = self.config.eval.every
        if self.panel is None or not (last or (every and self.done % every == 0)):
            return {}
        panel, tasks = self.panel
        evaluator = evaluate.Evaluator(self.config, self.worker, tasks)

        async def play() -> dict[str, list[Trajectory]]:
            async with self.engine_for("eval"):
                return await evaluator.play(greedy=self.config.eval.greedy and last)

        results = evaluator.outcomes(await self.hosts.share(play()))
        if jax.process_index() == 0:
            name = f"iteration_{self.done:06d}.json"
            write_json(self.workdir / "evaluations" / name, evaluate.record(panel, tasks, self.done, results))
        return evaluate.metrics(results)

    def record(self, metrics: dict[str, float]) -> None:
        """Writes and prints the metrics of an iteration."""
        times = self.timers.take()
        metrics |= times
        metrics["compile/count"] = self.learner.compile_count + self.worker.engine.compile_count
        metrics |= report.throughput(metrics, self.flops, self.mesh.size)
        self.writer.scalars(self.done, metrics)
        self.remaining.add(metrics)
        report.iteration(self.config, self.done, metrics, self.remaining.seconds(self.config, self.done))

    def save(self) -> None:
        """Writes a checkpoint, unless there is one of this iteration."""
        record: dict[str, Any] = {"iteration": self.done, "metrics_step": self.writer.step, "pending": self.pending}
        if self.learner.older:
            record[OLDER] = [version for version, _ in self.learner.older]
        if self.learner.text_critic is not None:
            record["text_critic"] = self.learner.text_critic.record()
        if self.curriculum is not None:
            record["curriculum"] = self.curriculum.rates
        self.checkpoints.save_parts(self.done, self.learner.parts, record)


def staleness(trajectories: list[Trajectory], iteration: int) -> float:
    """The most updates that weights which sampled a response were behind those that learn from it; 0 is on-policy."""
    return float(max((iteration - turn.version for t in trajectories for turn in t.turns), default=0))


async def uninterrupted(work: "asyncio.Future[dict[str, float]]") -> dict[str, float]:
    """Waits for work that cannot be stopped; a cancellation of this coroutine does not end the wait."""
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({work})
    return work.result()
