"""The frozen panels of ALFWorld, and the command that freezes more.

    python -m gigpo_jax.envs.alfworld.panels freeze --name NAME --split SPLIT --games N [--size S] [--out FILE]
    python -m gigpo_jax.envs.alfworld.panels freeze --name NAME --split SPLIT --data DIR [--out FILE]
    python -m gigpo_jax.envs.alfworld.panels check  --name NAME|FILE --data DIR

`freeze` takes all games of a split: of generated ones, which it makes, or of a data folder such as the genuine one,
sorted by path. The panels of generated games are committed beside this file.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gigpo_jax.env_bridge.panels import Panel, check_panel, find_panel, freeze_panel, write_panel
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.alfworld.data.draw import room_size
from gigpo_jax.envs.alfworld.data.generate import Progress, add_game_arguments, ensure_games, game_options
from gigpo_jax.envs.alfworld.env import AlfworldEnv, make
from gigpo_jax.errors import InputError

FOLDER = Path(__file__).with_name("panels")
ENVIRONMENT = "alfworld"


def load_panel(name: str, env: AlfworldEnv) -> tuple[Task, ...]:
    """The tasks of a panel, checked against the environment's games.

    Args:
      name: a panel of the package, or the path of a panel file.
      env: made with the data folder of its games.

    Raises:
      InputError: no such panel, or other games.
    """
    return check_panel(find_panel(name, ENVIRONMENT, FOLDER), env)


def make_panel_games(name: str, cache_root: Path, progress: Progress | None = None) -> Path:
    """Generates the games of a panel, or finds those made before.

    Args:
      name: a panel of generated games.
      cache_root: as for `ensure_games`.
      progress: called with 1 after every game.

    Returns:
      The data folder, for `make(data=...)`; `load_panel` accepts it.

    Raises:
      InputError: the panel is one of games that are downloaded.
    """
    panel = find_panel(name, ENVIRONMENT, FOLDER)
    made_from = dict(panel.made_from)
    if not made_from:
        raise InputError(f"panel={name!r}: made of downloaded games; get them with alfworld-download")
    games = made_from.pop("games", 0)
    if unknown := made_from.keys() - {"seed", "size", "receptacles", "objects", "task_types"}:
        raise InputError(f"panel={name!r}: made_from has {min(unknown)!r}, which is no option of generated games")
    return ensure_games(cache_root, {panel.split: games}, progress=progress, **made_from)


def freeze_generated(name: str, split: str, games: int, progress: Progress | None = None, **options: Any) -> Panel:
    """Generates games and freezes all of them.

    Args:
      name: of the panel.
      split, games: as for `generate_games`.
      progress: called with 1 after every game.
      **options: seed, size, receptacles, objects, task_types.
    """
    with tempfile.TemporaryDirectory() as folder:
        data = ensure_games(folder, {split: games}, progress=progress, **options)
        made_from = {"games": games, **{key: value for key, value in options.items() if value is not None}}
        return freeze_panel(name, ENVIRONMENT, make(data), split, made_from=made_from)


def freeze_data(name: str, split: str, data: str) -> Panel:
    """Freezes all tasks of a split of a data folder, sorted by path; the rule for the genuine splits."""
    return freeze_panel(name, ENVIRONMENT, make(data), split)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Freezes panels of ALFWorld tasks, and checks games against them.")
    commands = parser.add_subparsers(dest="command", required=True)
    freeze = commands.add_parser("freeze", help="makes a panel of all games of a split")
    freeze.add_argument("--name", required=True)
    freeze.add_argument("--data", help="freeze the games of this data folder instead of generated ones")
    freeze.add_argument("--out", type=Path, help=f"panel file; {FOLDER}/NAME.json by default")
    add_game_arguments(freeze, games_required=False)
    check = commands.add_parser("check", help="compares a data folder with a panel")
    check.add_argument("--name", required=True, help="a panel of the package, or a panel file")
    check.add_argument("--data", required=True, help="data folder")
    return parser


def _run(args: argparse.Namespace) -> str:
    if args.command == "check":
        tasks = load_panel(args.name, make(args.data))
        return f"{args.name}: {len(tasks)} games are those of the panel"
    out = args.out or FOLDER / f"{args.name}.json"
    if args.data:
        panel = freeze_data(args.name, args.split, args.data)
    elif args.games is None:
        raise InputError("games: give --games N to generate games, or --data DIR to freeze those of a folder")
    else:
        options: Mapping[str, Any] = game_options(args)
        room_size(options["size"], options["receptacles"], options["objects"])
        panel = freeze_generated(args.name, args.split, args.games, **options)
    write_panel(out, panel)
    return f"{out}: {len(panel.tasks)} games, sha256 {panel.sha256}"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    args = _arguments().parse_args(argv)
    try:
        sys.stdout.write(f"{_run(args)}\n")
    except InputError as err:
        sys.stderr.write(f"{err}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
