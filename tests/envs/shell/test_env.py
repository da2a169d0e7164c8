"""Shell tasks: every kind is solved, tests cannot be fooled, replays and states are exact."""

import json
import os
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from configs.shell_tiny import get_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.checker import check_environment
from gigpo_jax.env_bridge.prompts import PromptInput
from gigpo_jax.env_bridge.types import EnvError, Task
from gigpo_jax.envs import registry
from gigpo_jax.envs.shell.prompt import show_task_last
from gigpo_jax.envs.shell.sandbox import client
from gigpo_jax.envs.shell.sandbox.folder import CommandLimits
from gigpo_jax.envs.shell.tasks import FAULTS, KINDS
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.rollout.demonstrations import response_text
from tests.envs.futures import count_equal_anchors
from tests.envs.shell.sandboxes import skip_without_sandbox

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _sandbox() -> None:
    skip_without_sandbox()


def find_task(kind: str, number: int = 0, split: str = "test") -> Task:
    env = registry.make("shell", kinds=(kind,))
    return env.tasks(split)[number]


def play(task: Task, *commands: str, **options: object):
    env = registry.make("shell", **options)
    env.reset(task)
    return [env.step(command) for command in commands]


@pytest.mark.parametrize("kind", KINDS)
def test_the_expert_solves_every_kind(kind: str) -> None:
    env = registry.make("shell", kinds=(kind,), menu=True)
    for task in env.tasks("test")[:6]:
        expert = registry.make_expert("shell", 0)
        observation = env.reset(task)
        assert observation.task
        result = None
        while result is None or not result.done:
            action = expert.act(observation)
            assert action in (observation.admissible or ())
            result = env.step(action)
            observation = result.observation
            assert expert.thought.endswith(".")
        assert (result.reward, result.info) == (1.0, {"won": True, "score": 1.0})
        assert observation.text == "[test passed]"
        # After the end there is nothing more to win.
        assert env.step("submit").reward == 0.0
        # Without the solution the test fails, at once and at the step limit.
        env.reset(task)
        assert env.step("submit").observation.text == "[test failed]"
        env.reset(task)
        results = [env.step("ls") for _ in range(10)]
        assert [result.done for result in results] == [False] * 9 + [True]
        assert results[-1].observation.text.endswith("[test failed]")


def test_the_test_runs_at_the_step_limit() -> None:
    task = find_task("find")
    command = registry.make_expert("shell", 0).act(registry.make("shell").reset(task))
    result = play(task, command, max_steps=1)[0]
    assert (result.done, result.reward) == (True, 1.0)


def test_tasks_follow_from_their_ids_and_splits_are_disjoint() -> None:
    contents = {}
    for split in ("train", "test"):
        env = registry.make("shell")
        digests = [env.digest(task) for task in env.tasks(split)[:400]]
        assert digests == [registry.make("shell").digest(t) for t in env.tasks(split)[:400]]
        contents[split] = set(digests)
    assert contents["train"].isdisjoint(contents["test"])
    assert min(map(len, contents.values())) > 380
    assert [task.type for task in env.tasks("test")[:5]] == [*KINDS, "find"]


def test_a_script_that_prints_what_was_there_does_not_pass() -> None:
    task = find_task("fix")
    env = registry.make("shell")
    path = env.reset(task).task.split()[-1]
    words = env.step(f"cat {path}").observation.text.split()
    lines = "; ".join(f"echo found {word}" for word in words)
    assert env.step(f"echo '{lines}' > run; bash run").observation.text.split()[1::2] == words
    assert env.step("submit").info["won"] is False
    loop = f"echo 'sed s/^/found\\ / {path}' > run"
    assert play(task, loop, "submit")[-1].info["won"] is True


@pytest.mark.parametrize(
    "script",
    [
        "kill -9 $PPID",
        "kill -9 -1",
        "exit 0",
        "sleep 100",
        "yes",
        "echo 0 >&9; exec 1>&-",
        "while read line; do echo $line; done < /proc/$PPID/cmdline",
        "ps -o args -p $PPID",
        "echo '[() { true; }' > .bashrc; cp .bashrc .profile; export -f [",
        "printf '#!/bin/sh\\n' > bash; chmod 755 bash; PATH=/task:$PATH bash",
    ],
)
def test_the_test_cannot_be_fooled_by_what_it_runs(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gigpo_jax.envs.shell.env.LIMITS", CommandLimits(seconds=1.0))
    task = find_task("fix")
    results = play(task, f"cat > run <<'END'\n{script}\nEND", "bash run", "submit")
    assert results[-1].observation.text == "[test failed]"


def test_the_test_script_is_not_in_the_folder_and_leaves_no_trace() -> None:
    env = registry.make("shell", anchor="state")
    env.reset(find_task("fix"))
    listing = env.step("find . /task -type f").observation.text
    assert len(listing.splitlines()) == 4
    env.step("printf '#!/bin/sh\\nexit 0\\n' > test; alias cat=true; set -- x; command=true")
    assert env.step("echo $command").observation.text.startswith("echo $command")
    state = env.step("true").observation.anchor
    # The words that the test wrote are in its own copy.
    assert env.step("submit").observation.anchor == state


def test_what_the_agent_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigpo_jax.envs.shell.env.LIMITS", CommandLimits(seconds=1.0))
    results = play(
        find_task("find"),
        "printf 'a\\tb\\033[31m\\377\\n'",
        "head -c 5000 /dev/zero | tr '\\0' x",
        "mkdir new && cd new",
        "false",
        "sleep 60",
        "x" * 5000,
        "a\0b",
        "",
    )
    texts = [result.observation.text for result in results]
    assert texts[0] == "a b\\x1b[31m\ufffd"
    assert texts[1] == "x" * 2000 + "[cut]"
    assert texts[2] == "[in /task/new]\n[no output]"
    assert texts[3] == "[in /task/new]\n[no output]\n[exit 1]"
    assert texts[4].endswith("[stopped and undone: more than 1 s, or 2 s of CPU time]")
    assert texts[5].endswith("[not run: longer than 4000 characters]")
    assert texts[6].endswith("[not run: it has a character 0]")
    assert texts[7].endswith("[no command]")


def test_a_menu_lists_commands_and_others_run_too() -> None:
    env = registry.make("shell", menu=True)
    task = find_task("count")
    observation = env.reset(task)
    actions = observation.admissible or ()
    squeezed = {"".join(action.split()).lower() for action in actions}
    assert len(squeezed) == len(actions) == len(set(actions))
    count = next(action for action in actions if action.startswith("wc -l"))
    # As a tiny policy writes it: words and marks with spaces between them.
    env.step(count.lower().replace("-", "- "))
    number = env.step("cat answer").observation.text
    assert int(number) > 0
    assert env.step("echo Free | tr F T").observation.text == "Tree"
    assert registry.make("shell").reset(task).admissible is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_tiny_policy_can_read_tasks_and_say_commands(kind: str) -> None:
    config = get_config()
    tokenizer = load_tokenizer(ROOT / config.model.path)
    unknown_id = tokenizer.encode("ß")[-1]
    env = registry.make("shell", kinds=(kind,), **config.env.options)
    for number, task in enumerate(env.tasks("test")[:3]):
        expert = registry.make_expert("shell", number)
        observation = env.reset(task)
        result = None
        while result is None or not result.done:
            text = show_task_last(PromptInput(observation.task, "", (), 0, observation.text, None))
            tokens = tokenizer.encode(text)
            assert unknown_id not in tokens
            assert len(tokens) + 2 <= config.sampling.max_prompt_tokens
            response = tokenizer.encode(response_text(expert.act(observation)))
            assert len(response) < config.sampling.max_response_tokens
            reading = registry.spec("shell").parse(tokenizer.decode(response))
            result = env.step(reading.action)
            observation = result.observation
        assert result.reward == 1.0


@pytest.mark.parametrize("anchor", ["observation", "state"])
def test_the_checker_holds(anchor: str) -> None:
    entry = registry.spec("shell")
    findings = check_environment(
        entry.build,
        {"anchor": anchor, "menu": anchor == "state"},
        split="test",
        make_expert=partial(registry.make_expert, "shell"),
        tasks=2,
        steps=entry.max_steps,
    )
    assert len(findings) == 6


def test_equal_states_have_equal_futures() -> None:
    env = registry.make("shell", anchor="state", menu=True, max_steps=100)
    commands = ("ls", "touch x", "rm x", "mkdir -p d", "cd d", "cd /task", "echo 1 > x", "submit")
    pairs = 0
    for number in range(2):
        pairs += count_equal_anchors(
            env,
            find_task("fix", number),
            episodes=3,
            steps=5,
            seed=number,
            list_actions=lambda observation: commands,
        )
    assert pairs > 3


def test_states_differ_by_content_mode_and_working_directory() -> None:
    task = find_task("edit")
    commands = ["true", "echo > x", "chmod 700 x", "ln -s x y", "mkdir d", "cd d", "cd .."]
    anchors = [result.observation.anchor for result in play(task, *commands, anchor="state")]
    assert len(set(anchors)) == 6
    assert anchors[-1] == anchors[-3]
    texts = play(task, "echo 1", "echo 2", "echo 1")
    assert texts[0].observation.anchor == texts[2].observation.anchor == "1"


def test_faults_break_the_script() -> None:
    env = registry.make("shell", kinds=("fix",))
    seen = set()
    for task in env.tasks("train")[:12]:
        env.reset(task)
        text = env.step("cat run").observation.text
        seen |= {wrong for wrong, _ in FAULTS if wrong in text}
        assert env.step("submit").info["won"] is False
    assert len(seen) == len(FAULTS)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("kinds", ("find", "dance")),
        ("kinds", ()),
        ("anchor", "text"),
        ("max_steps", 0),
    ],
)
def test_bad_options_are_refused(option: str, value: object) -> None:
    with pytest.raises(InputError, match=option):
        registry.make("shell", **{option: value})
    with pytest.raises(InputError, match="splits train, test"):
        registry.make("shell").tasks("valid")
    with pytest.raises(EnvError, match="before reset"):
        registry.make("shell").step("ls")


def test_a_launcher_that_died_is_started_again() -> None:
    env = registry.make("shell")
    env.reset(find_task("edit"))
    client._start_launcher()._process.kill()
    client._start_launcher()._process.wait(timeout=10)
    with pytest.raises(EnvError, match="gave no answer"):
        env.step("echo 1")
    assert env.step("echo 1").observation.text == "1"


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        # A user namespace that allows no further ones, as the settings of some systems do.
        ("--map-user=1000", "namespaces of a user without rights: No space left on device"),
        # Root that cannot become another user would be root in the sandbox.
        ("--map-root-user", "Operation not permitted"),
    ],
)
def test_a_machine_without_namespaces_is_refused_in_one_line(
    user: str, reason: str, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root is root in a namespace without other users")
    code = (
        "open('/proc/sys/user/max_user_namespaces', 'w').write('0');"
        "from gigpo_jax.envs.command_line import main;"
        "raise SystemExit(main(['check', 'shell']))"
    )
    command = ["unshare", "--user", user, "--keep-caps", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("ENV=shell: the sandbox failed (")
    assert reason in done.stderr
    assert "sysctl" in done.stderr


def test_contents_are_data(seed: int) -> None:
    for kind, draw in KINDS.items():
        task = draw(random.Random(f"{kind} {seed}"))
        assert json.loads(task.content)[0] == task.words
        assert set(task.solution) <= set(task.menu)
