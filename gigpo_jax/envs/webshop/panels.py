"""The frozen panels of the generated catalogue of 1,000 products, and the command that makes and checks panels.

    python -m gigpo_jax.envs.webshop.panels freeze --name test [--data DIR] [--goals human] [--out FILE]
    python -m gigpo_jax.envs.webshop.panels check  --name test [--data DIR]

The panel `test` holds the 500 goals of the test split, `train` all others; both are lists of synthetic goals.
"""

import argparse
import sys
from pathlib import Path

from gigpo_jax.env_bridge.panels import Panel, check_panel, find_panel, freeze_panel, write_panel
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.webshop.data import generate
from gigpo_jax.envs.webshop.env import SPLITS, WebshopEnv, make
from gigpo_jax.errors import InputError

FOLDER = Path(__file__).with_name("panels")
ENVIRONMENT = "webshop"


def load_panel(name: str, env: WebshopEnv) -> tuple[Task, ...]:
    """The tasks of a panel, checked against the environment's catalogue.

    Raises:
      InputError: no such panel, or another catalogue.
    """
    return check_panel(find_panel(name, ENVIRONMENT, FOLDER), env)


def freeze(name: str, split: str, *, data: str | None = None, goals: str = "synthetic") -> Panel:
    """Freezes all goals of a split.

    Args:
      name: of the panel.
      split: "test" or "train".
      data: the catalogue; the generated one of 1,000 products by default.
      goals: which of its goals.
    """
    made_from = {"goals": goals}
    if data is None:
        made_from |= {"products": str(generate.PRODUCTS), "seed": "0", "generator": str(generate.VERSION)}
    return freeze_panel(name, ENVIRONMENT, make(data, goals=goals), split, made_from=made_from)


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m gigpo_jax.envs.webshop.panels", description="Frozen panels.")
    parser.add_argument("command", choices=("freeze", "check"))
    parser.add_argument("--name", required=True, help="a panel of the package, or a panel file")
    parser.add_argument("--split", choices=SPLITS, help="of which goals (freeze); the panel's name by default")
    parser.add_argument("--data", help="a catalogue; the generated one by default")
    parser.add_argument("--goals", default="synthetic", choices=("synthetic", "human"))
    parser.add_argument("--out", type=Path, help=f"panel file; {FOLDER.name}/NAME.json of the package by default")
    args = parser.parse_args(argv)
    try:
        if args.command == "check":
            tasks = load_panel(args.name, make(args.data, goals=args.goals))
            sys.stdout.write(f"{args.name}: {len(tasks)} goals are those of the panel\n")
            return 0
        panel = freeze(args.name, args.split or args.name, data=args.data, goals=args.goals)
        out = args.out or FOLDER / f"{args.name}.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        write_panel(out, panel)
    except InputError as err:
        sys.stderr.write(f"{err}\n")
        return 2
    sys.stdout.write(f"{out}: {len(panel.tasks)} goals, sha256 {panel.sha256}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
