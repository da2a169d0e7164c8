"""Tasks done by shell commands: `registry.make("shell")`, with nothing downloaded.

A step is a command. It runs in a fresh sandbox on a copy of the task's folder, and what it leaves
in the folder is there for the next one. `submit` ends the episode: a test script runs in a sandbox
of its own, and its exit status is the reward. The script runs at the step limit, too.
"""

import functools
import hashlib
import json
from collections.abc import Generator, Sequence

from gigpo_jax.core.errors import InputError, escape_controls
from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.option_checks import check_split
from gigpo_jax.env_bridge.types import EnvError, Observation, StepResult, Task
from gigpo_jax.envs.games import SPLITS, draw_for_split
from gigpo_jax.envs.shell.sandbox.client import (
    check_sandbox,
    run_in_sandbox,
    run_in_sandbox_async,
)
from gigpo_jax.envs.shell.sandbox.folder import (
    ROOT,
    CommandLimits,
    CommandOutcome,
    CommandRequest,
    Folder,
)
from gigpo_jax.envs.shell.tasks import KINDS, ShellTask

SUBMIT = "submit"
REWARD = 1.0
LIMITS = CommandLimits()
MAX_COMMAND = 4000  # characters
MAX_OUTPUT = 2000  # characters that the agent sees: half of a prompt of the published length
CUT = "[cut]"
_NOTHING: Folder = {}


class ShellEnv:
    """An environment of generated tasks, one episode at a time; see `make`."""

    def __init__(
        self,
        *,
        kinds: Sequence[str],
        anchor: str,
        menu: bool,
        max_steps: int,
    ) -> None:
        self._kinds = tuple(kinds)
        self._anchor = anchor
        self._menu = menu
        self._max_steps = max_steps
        self._task: ShellTask | None = None
        self._folder = _NOTHING
        self._cwd = ROOT
        self._steps = 0
        self._last: StepResult | None = None

    def tasks(self, split: str) -> Sequence[Task]:
        """Lists a split's tasks; their type is the kind."""
        check_split(split, SPLITS)
        tasks = []
        for number in range(SPLITS[split]):
            kind = self._kinds[number % len(self._kinds)]
            tasks.append(Task(f"shell/{split}/{kind}/{number:05d}", kind, split))
        return tasks

    def digest(self, task: Task) -> str:
        """SHA-256 of the task's content, in hexadecimal; panels freeze it."""
        return hashlib.sha256(_draw_task(task).content.encode()).hexdigest()

    def reset(self, task: Task) -> Observation:
        if task.split not in SPLITS or task.type not in KINDS:
            raise InputError(
                f"there is no {task.type!r} in {task.split!r}",
                key="task",
                value=repr(task.id),
                fix="list the tasks again",
            )
        self._task = _draw_task(task)
        self._folder = self._task.folder
        self._cwd = ROOT
        self._steps = 0
        observation = self._observe(f"files: {' '.join(sorted(self._task.files))}")
        self._last = StepResult(observation, 0.0, False, {"won": False, "score": 0.0})
        return observation

    def step(self, action: str) -> StepResult:
        """Runs a command, or the test; after the end, gives the last observation with reward 0.

        Raises:
          EnvError: no episode was started, or there is no sandbox.
        """
        requests = self._act(action)
        outcome = None
        while True:
            try:
                outcome = run_in_sandbox(requests.send(outcome))
            except StopIteration as end:
                return end.value

    async def step_async(self, action: str) -> StepResult:
        """Acts as `step`; other episodes can run during a command."""
        requests = self._act(action)
        outcome = None
        while True:
            try:
                request = requests.send(outcome)
            except StopIteration as end:
                return end.value
            outcome = await run_in_sandbox_async(request)

    def _act(self, action: str) -> Generator[CommandRequest, CommandOutcome | None, StepResult]:
        """Yields what runs in a sandbox, and takes the outcomes.

        Sandboxes may fail, so the episode changes after the last of them.
        """
        task = self._task
        last = self._last
        if task is None or last is None:
            raise EnvError("step before reset: start an episode with reset(task)")
        if last.done:
            return StepResult(last.observation, 0.0, True, last.info)
        command = self._read_action(task, action)
        folder = self._folder
        cwd = self._cwd
        lines = []
        if command != SUBMIT:
            text = _refuse(command)
            if not text:
                outcome = yield CommandRequest(command, folder, cwd, LIMITS)
                assert outcome is not None
                folder = outcome.folder
                cwd = outcome.cwd
                text = self._show(outcome)
            lines.append(text)
        done = command == SUBMIT or self._steps + 1 >= self._max_steps
        won = False
        if done:
            # On a copy of the folder.
            verdict = yield CommandRequest(task.test, folder, limits=LIMITS)
            won = verdict is not None and not verdict.stop and verdict.status == 0
            lines.append(f"[test {'passed' if won else 'failed'}]")
        self._folder = folder
        self._cwd = cwd
        self._steps += 1
        info: dict[str, bool | float] = {"won": won, "score": float(won)}
        observation = self._observe("\n".join(lines))
        self._last = StepResult(observation, REWARD if won else 0.0, done, info)
        return self._last

    def close(self) -> None:
        """Ends the episode."""
        self._task = None
        self._last = None
        self._folder = _NOTHING

    def _read_action(self, task: ShellTask, action: str) -> str:
        """Returns the command of an action.

        With a menu, an entry counts in any case and spacing: tiny policies write words alone.
        """
        # A lone surrogate is no text of UTF-8.
        command = action.strip().encode("utf-8", "replace").decode()
        if self._menu:
            entries = {_squeeze(entry): entry for entry in (*task.menu, SUBMIT)}
            return entries.get(_squeeze(command), command)
        return command

    def _show(self, outcome: CommandOutcome) -> str:
        if outcome.stop:
            return f"[stopped and undone: {self._name_limit(outcome.stop)}]"
        output = outcome.output.encode("latin-1").decode("utf-8", "replace").replace("\t", " ")
        # Escape sequences would act on the terminal of a reader.
        text = escape_controls(output[: MAX_OUTPUT + 1]).rstrip("\n")
        if len(text) > MAX_OUTPUT:
            text = text[:MAX_OUTPUT] + CUT
        lines = [text or "[no output]"]
        if outcome.status:
            lines.append(f"[exit {outcome.status}]")
        return "\n".join(lines)

    def _name_limit(self, stop: str) -> str:
        names = {
            "time": f"more than {LIMITS.seconds:g} s, or {LIMITS.cpu_seconds} s of CPU time",
            "memory": f"more than {LIMITS.memory >> 20} MiB of memory",
            "output": f"more than {LIMITS.output >> 10} KiB of output",
            "folder": (
                f"the folder has more than {LIMITS.folder >> 20} MiB or {LIMITS.entries} files"
            ),
        }
        return names.get(stop, "the sandbox ended")

    def _observe(self, text: str) -> Observation:
        assert self._task is not None
        if self._cwd != ROOT:
            text = f"[in {escape_controls(self._cwd)}]\n{text}"
        anchor = text
        if self._anchor == "state":
            anchor = self._hash_state()
        admissible = (*self._task.menu, SUBMIT) if self._menu else None
        return Observation(text, anchor, admissible, self._task.words)

    def _hash_state(self) -> str:
        """Hashes the folder and the working directory."""
        entries = [[path, *entry] for path, entry in sorted(self._folder.items())]
        # ASCII, as names and contents may be any bytes.
        return hashlib.sha256(json.dumps([self._cwd, entries]).encode()).hexdigest()


def _refuse(command: str) -> str:
    """Says why a command cannot run, else ""."""
    if not command:
        return "[no command]"
    if len(command) > MAX_COMMAND:
        return f"[not run: longer than {MAX_COMMAND} characters]"
    # No argument of a program can have it.
    return "[not run: it has a character 0]" if "\0" in command else ""


def _squeeze(text: str) -> str:
    return "".join(text.split()).lower()


# The episodes of a group have the same task, many of them in one worker.
@functools.lru_cache(maxsize=64)
def _draw_task(task: Task) -> ShellTask:
    return draw_for_split(task, "0", KINDS[task.type], lambda content: content.content)


def make(
    *,
    kinds: tuple[str, ...] = tuple(KINDS),
    anchor: str = "observation",
    menu: bool = False,
    max_steps: int = 10,
) -> ShellEnv:
    """Builds the environment; entry.py explains the options.

    Raises InputError for an unusable option, and where commands cannot be isolated.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(f"must be of {', '.join(KINDS)}", key="kinds", value=repr(kind))
    if not kinds:
        raise InputError(f"must be of {', '.join(KINDS)}", key="kinds", value=repr(kinds))
    check_whole("max_steps", max_steps, 1)
    check_sandbox()
    return ShellEnv(kinds=kinds, anchor=anchor, menu=menu, max_steps=max_steps)
