"""Generated tasks: a folder, words, a test script, and the commands that solve it."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gigpo_jax.envs.shell.sandbox.folder import FolderEntry

FOLDERS = ("data", "docs", "logs", "src")
FILES = ("index", "list", "memo", "notes", "plan", "report", "table")
WORDS = ("amber", "blue", "coral", "green", "lemon", "olive", "pink", "red", "teal", "white")
KEYS = ("color", "level", "port", "size")
VALUES = ("1", "2", "3", "4", "5", "6", "7", "8")
ANSWER = "answer"  # file that a task may ask for
SCRIPT = "run"
# Typing errors of the script: wrong word, right word.
FAULTS = (("ecko", "echo"), ("wrod", "word"), ("doen", "done"), ("lits", "list"))
_SCRIPT = "for word in $(cat {folder}/list)\ndo\necho found $word\ndone\n"


@dataclass(frozen=True)
class ShellTask:
    """A task.

    Attributes:
      words: Task in words.
      files: Path -> text of each file.
      test: Script that ends with status 0 if the task is done; it runs in the folder.
      solution: Commands that solve the task, without `submit`.
      menu: Commands that are listed, the solution among them.
    """

    words: str
    files: dict[str, str]
    test: str
    solution: tuple[str, ...]
    menu: tuple[str, ...]

    @property
    def folder(self) -> dict[str, FolderEntry]:
        """The folder that an episode starts with."""
        folder: dict[str, FolderEntry] = {}
        for path, text in sorted(self.files.items()):
            parent = path.rpartition("/")[0]
            if parent:
                folder[parent] = FolderEntry("folder", 0o755)
            folder[path] = FolderEntry("file", 0o644, text)
        return dict(sorted(folder.items()))

    @property
    def content(self) -> str:
        """All content, as text."""
        return json.dumps([self.words, self.files, self.test])


def _draw_text(rng: random.Random, words: Sequence[str]) -> str:
    """Draws lines of one or two words."""
    lines = [" ".join(rng.choices(words, k=rng.randint(1, 2))) for _ in range(rng.randint(2, 5))]
    return "\n".join(lines) + "\n"


def _draw_paths(rng: random.Random, count: int) -> list[str]:
    paths = [f"{folder}/{name}" for folder in FOLDERS for name in FILES]
    return sorted(rng.sample(paths, count))


def _check_answer(value: str) -> str:
    return f'[ "$(cat {ANSWER})" = "{value}" ]'


def _list_reads(files: dict[str, str]) -> tuple[str, ...]:
    return ("ls -R", *(f"cat {path}" for path in sorted(files)))


def _draw_find(rng: random.Random) -> ShellTask:
    words = rng.sample(WORDS, 4)
    paths = _draw_paths(rng, 3)
    files = {path: _draw_text(rng, words[1:]) for path in paths}
    target = rng.choice(paths)
    files[target] += f"{words[0]}\n"
    searches = tuple(f"grep -rl {word} * > {ANSWER}" for word in sorted(words))
    return ShellTask(
        f"write the path of the file that has the word {words[0]} to {ANSWER}",
        files,
        # As grep and find write it for a search in "."
        f"sed -i s=^[.]/== {ANSWER}; {_check_answer(target)}",
        (f"grep -rl {words[0]} * > {ANSWER}",),
        (*_list_reads(files), *searches),
    )


def _draw_count(rng: random.Random) -> ShellTask:
    words = rng.sample(WORDS, 3)
    files = {path: _draw_text(rng, words) for path in _draw_paths(rng, 2)}
    target = rng.choice(sorted(files))
    lines = files[target].splitlines()
    counts = {
        "lines": (f"wc -l < {target}", len(lines)),
        "words": (f"wc -w < {target}", len(files[target].split())),
        f"lines with {words[0]}": (
            f"grep -c {words[0]} {target}",
            sum(words[0] in line for line in lines),
        ),
    }
    name = rng.choice(list(counts))
    command, count = counts[name]
    commands = [f"wc {flag} < {path} > {ANSWER}" for path in sorted(files) for flag in ("-l", "-w")]
    commands += [f"grep -c {words[0]} {path} > {ANSWER}" for path in sorted(files)]
    return ShellTask(
        f"write the number of {name} in {target} to {ANSWER}",
        files,
        _check_answer(str(count)),
        (f"{command} > {ANSWER}",),
        (*_list_reads(files), *commands),
    )


def _draw_edit(rng: random.Random) -> ShellTask:
    path = _draw_paths(rng, 1)[0]
    settings = {key: rng.choice(VALUES) for key in rng.sample(KEYS, 3)}
    key = rng.choice(list(settings))
    value = rng.choice([value for value in VALUES if value != settings[key]])

    def write(values: dict[str, str]) -> str:
        return "".join(f"{name}={text}\n" for name, text in values.items())

    edits = tuple(
        f"sed -i s/{name}=.*/{name}={text}/ {path}" for name in sorted(settings) for text in VALUES
    )
    result = write({**settings, key: value})
    return ShellTask(
        f"set {key} to {value} in {path}",
        {path: write(settings)},
        f"[ \"$(cat {path})\" = '{result.rstrip()}' ]",
        (f"sed -i s/{key}=.*/{key}={value}/ {path}",),
        (*_list_reads({path: ""}), *edits),
    )


def _draw_fix(rng: random.Random) -> ShellTask:
    folder = rng.choice(FOLDERS)
    words = rng.sample(WORDS, 3)
    wrong, right = rng.choice(FAULTS)
    script = _SCRIPT.format(folder=folder)
    # The last place: the first "word" is the name that the loop gives.
    start = script.rindex(right)
    faulty_script = script[:start] + wrong + script[start + len(right) :]
    hidden_words = rng.sample(WORDS, 3)
    expected = "\n".join(f"found {word}" for word in hidden_words)
    # Other words than the agent saw: a script that prints these alone does not pass.
    test = (
        f"mkdir -p {folder}; printf '%s\\n' {' '.join(hidden_words)} > {folder}/list\n"
        f"[ \"$(bash {SCRIPT})\" = '{expected}' ]"
    )
    files = {SCRIPT: faulty_script, f"{folder}/list": "\n".join(words) + "\n"}
    fixes = tuple(f"sed -i s/{fault}/{fix}/ {SCRIPT}" for fault, fix in FAULTS)
    return ShellTask(
        f"fix the script {SCRIPT} so that it prints found and each word of {folder}/list",
        files,
        test,
        (f"cat {SCRIPT}", f"sed -i s/{wrong}/{right}/ {SCRIPT}"),
        (*_list_reads(files), f"bash {SCRIPT}", *fixes),
    )


KINDS: dict[str, Callable[[random.Random], ShellTask]] = {
    "find": _draw_find,
    "count": _draw_count,
    "edit": _draw_edit,
    "fix": _draw_fix,
}
