"""Freezes panels of questions.

    python -m gigpo_jax.envs.search.panels --name NAME --split test [--each N] [--data DIR | --people N]

The data sets take turns in a panel, so its first tasks are a fair sample of all of them (`eval.tasks`). Two panels of
invented worlds are committed beside this file: `test` (--each 300), and `tiny_test` (--people 2400 --each 64).
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from gigpo_jax.env_bridge.panels import Panel, freeze_panel, write_panel
from gigpo_jax.env_bridge.types import EnvError, Task
from gigpo_jax.envs.search.data import generate
from gigpo_jax.envs.search.env import SearchEnv
from gigpo_jax.envs.search.retrieval.retriever import Hit
from gigpo_jax.errors import InputError

FOLDER = Path(__file__).with_name("panels")


class _NoRetriever:
    """Freezing looks at questions alone."""

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        raise EnvError("this environment cannot search")

    def close(self) -> None:
        pass


def chosen(tasks: Sequence[Task], each: int) -> list[str]:
    """Ids of `each` tasks of every type (0 = all), spread evenly over it; the types take turns."""
    by_type: dict[str, list[str]] = {}
    for task in tasks:
        by_type.setdefault(task.type, []).append(task.id)
    rows = []
    for ids in by_type.values():
        count = min(each or len(ids), len(ids))
        rows.append([ids[place * len(ids) // count] for place in range(count)])
    return [name for turn in zip_longest(*rows) for name in turn if name is not None]


def freeze(name: str, split: str, data: str, each: int, made_from: dict[str, Any]) -> Panel:
    """Makes a panel of the questions of a folder.

    Args:
      name: of the panel.
      split: "train" or "test".
      data: folder of questions.
      each: questions of each data set; 0 = all.
      made_from: of a generated folder, what it was made with.

    Raises:
      InputError: the questions cannot be used.
    """
    env = SearchEnv(data, _NoRetriever(), topk=1, max_steps=1, document_chars=1)
    return freeze_panel(name, "search", env, split, ids=chosen(env.tasks(split), each), made_from=made_from)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m gigpo_jax.envs.search.panels", description="Freezes a panel of questions."
    )
    parser.add_argument("--name", required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--data", default="", metavar="DIR", help="a folder of questions; default: the invented world")
    parser.add_argument("--people", type=int, default=generate.PEOPLE, metavar="N", help="of the invented world")
    parser.add_argument("--each", type=int, default=0, metavar="N", help="questions of each data set; 0 = all")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"default: {FOLDER}/NAME.json")
    args = parser.parse_args(argv)
    try:
        made_from = {} if args.data else {"people": args.people, "questions": 0, "seed": 0}
        data = args.data or str(generate.ensure_world(people=args.people))
        panel = freeze(args.name, args.split, data, args.each, made_from)
        write_panel(args.out or FOLDER / f"{args.name}.json", panel)
    except (InputError, OSError) as err:
        sys.stderr.write(f"{err}\n")
        return 2
    sys.stdout.write(f"{args.name}: {len(panel.tasks)} questions, sha256 {panel.sha256}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
