"""The command gigpo envs: data of environments, panels and servers.

`gigpo envs --help` lists its commands; commands.py has their actions.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gigpo_jax.core.errors import InputError, escape_controls
from gigpo_jax.env_bridge.checker import EnvCheckError, ReplayError
from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.envs import commands
from gigpo_jax.envs.alfworld.data.room_size import SIZES
from gigpo_jax.envs.alfworld.tasks import SPLITS, TASK_TYPES
from gigpo_jax.envs.flags import parse_key_value
from gigpo_jax.envs.panel_score import FORM
from gigpo_jax.envs.search.data import generate as search
from gigpo_jax.envs.webshop.catalogue import goals
from gigpo_jax.envs.webshop.data import generate as webshop

Parser = argparse.ArgumentParser
Subparsers = Any  # argparse keeps this type private
_NOT_REPLAYABLE = (
    "not replayable: episodes of a task group start from different states, and gigpo credit "
    "refuses the environment\n"
)


def _add_command(
    subparsers: Subparsers, name: str, run: Callable[[argparse.Namespace], str], help: str
) -> Parser:
    parser: Parser = subparsers.add_parser(name, help=help, description=help)
    parser.set_defaults(run=run)
    return parser


def _add_group(subparsers: Subparsers, name: str, help: str) -> Subparsers:
    parser = subparsers.add_parser(name, help=help, description=help)
    return parser.add_subparsers(required=True, metavar="COMMAND")


def _parse_bounds(text: str) -> int | tuple[int, int]:
    """The type of flags that take a number or MIN,MAX."""
    try:
        bounds = [int(bound) for bound in text.split(",")]
    except ValueError:
        bounds = []
    if len(bounds) == 1:
        return bounds[0]
    if len(bounds) == 2:
        return bounds[0], bounds[1]
    raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor MIN,MAX")


def _add_environment(parser: Parser, name: str) -> None:
    parser.add_argument(name, metavar="ENV", help="a name of the registry, or module:NAME")


def _add_options(parser: Parser, flag: str = "--option", key: str = "env.options") -> None:
    parser.add_argument(
        flag,
        action="append",
        type=parse_key_value,
        default=[],
        metavar="KEY=VALUE",
        help=f"value as in {key}; repeatable",
    )


def _add_alfworld(subparsers: Subparsers) -> None:
    parser = _add_command(
        subparsers,
        "generate",
        commands.write_games,
        "makes games from the alfworld package's floor plans",
    )
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="data folder; the split becomes a folder in it"
    )
    parser.add_argument("--split", required=True, help=f"one of {', '.join(SPLITS)}")
    parser.add_argument("--games", required=True, type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--size", choices=sorted(SIZES), default="full")
    parser.add_argument(
        "--receptacles", type=_parse_bounds, help="a number or MIN,MAX; default: as for the size"
    )
    parser.add_argument(
        "--objects", type=_parse_bounds, help="a number or MIN,MAX; default: as for the size"
    )
    parser.add_argument(
        "--task-types",
        help=f"types from {', '.join(TASK_TYPES)}, separated by commas; default: all",
    )


def _add_webshop(subparsers: Subparsers) -> None:
    parser = _add_command(
        subparsers,
        "generate",
        commands.generate_catalogue,
        "makes a catalogue in the format of the genuine files",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="an empty folder, or one to make"
    )
    parser.add_argument("--products", type=int, default=webshop.PRODUCTS, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")

    parser = _add_command(
        subparsers,
        "prepare",
        commands.prepare_catalogue,
        "turns a catalogue into memory-mapped files, once",
    )
    parser.add_argument(
        "folder",
        metavar="DIR",
        type=Path,
        help="folder with items_shuffle*.json and its companions",
    )
    parser.add_argument(
        "--out", type=Path, metavar="OUT", help="the folder to make; default: DIR/prepared"
    )
    parser.add_argument("--variant", help="name of one of several catalogues in DIR, such as _1000")
    parser.add_argument(
        "--num-products", type=int, metavar="N", help="use only the first N entries"
    )
    parser.add_argument(
        "--rebuild", action="store_true", help="build even if prepared files that fit exist"
    )

    parser = _add_command(
        subparsers, "browse", commands.browse_shop, "serves the shop as a web page on this machine"
    )
    parser.add_argument(
        "folder", metavar="DIR", type=Path, nargs="?", help="a catalogue; default: a generated one"
    )
    parser.add_argument("--port", type=int, default=8000, metavar="P")
    parser.add_argument("--goals", default="synthetic", choices=goals.KINDS)
    parser.add_argument("--variant", help="name of one of several catalogues in DIR, such as _1000")


def _add_search(subparsers: Subparsers) -> None:
    parser = _add_command(
        subparsers,
        "generate",
        commands.generate_world,
        "makes a synthetic world: passages, questions, index",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--people", type=int, default=search.PEOPLE, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")

    parser = _add_command(
        subparsers, "index", commands.index_passages, "builds a BM25 index of a corpus, once"
    )
    parser.add_argument(
        "--corpus",
        required=True,
        metavar="FILE|DIR",
        help="JSON lines {id, contents}, also gzipped",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the index folder to make"
    )

    parser = _add_command(
        subparsers,
        "dense",
        commands.encode_passages,
        "encodes the passages of an index folder for dense retrieval",
    )
    parser.add_argument(
        "--index", type=Path, required=True, metavar="DIR", help="a BM25 index folder"
    )
    parser.add_argument(
        "--encoder", required=True, metavar="DIR", help="folder of an encoder of the e5 family"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the faiss index to write"
    )


def _add_search_server(subparsers: Subparsers) -> None:
    parser = _add_command(subparsers, "serve", commands.serve_passages, "serves passages over HTTP")
    parser.add_argument(
        "--corpus",
        type=Path,
        required=True,
        metavar="FILE|DIR",
        help="JSON lines {id, contents} (their index is built beside them, once), "
        "or an index folder",
    )
    _add_address(parser)
    parser.add_argument(
        "--threads",
        type=int,
        default=0,
        metavar="N",
        help="number of concurrent searches; 0: one for each core",
    )
    parser.add_argument(
        "--faiss", default="", metavar="FILE", help="search the vectors of this faiss index instead"
    )
    parser.add_argument(
        "--encoder", default="", metavar="DIR", help="folder of the encoder (e5) of --faiss"
    )


def _add_panels(subparsers: Subparsers) -> None:
    parser = _add_command(
        subparsers,
        "freeze",
        commands.write_frozen_panel,
        "writes a panel (eval set) of the tasks of a split",
    )
    _add_environment(parser, "environment")
    parser.add_argument("--name", required=True, help="name of the panel")
    parser.add_argument("--split", required=True)
    parser.add_argument(
        "--each", type=int, metavar="N", help="N tasks of every type, in turn; default: all tasks"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    _add_options(parser, "--generate", "env.generate")
    _add_options(parser)

    parser = _add_command(
        subparsers,
        "check-panel",
        commands.compare_panel,
        "compares an environment's data with a panel",
    )
    _add_environment(parser, "environment")
    parser.add_argument("--name", required=True, help="a panel of the package, or a panel file")
    _add_options(parser)

    parser = _add_command(
        subparsers,
        "score",
        commands.score_panel,
        "prints the success on a panel, with its interval, of a program that played it",
    )
    _add_environment(parser, "environment")
    parser.add_argument("--name", required=True, help="a panel of the package, or a panel file")
    parser.add_argument("--results", type=Path, required=True, metavar="FILE", help=f"JSON {FORM}")


def _add_check(subparsers: Subparsers) -> None:
    help = "checks that an environment keeps its promises"
    parser = _add_command(subparsers, "check", commands.check_promises, help)
    _add_environment(parser, "name")
    parser.add_argument("--split", default="train")
    parser.add_argument("--tasks", type=int, default=4, metavar="N", help="number of tasks to play")
    parser.add_argument(
        "--limit",
        type=float,
        default=10.0,
        metavar="S",
        help="time limit of a call in seconds (building: 60)",
    )
    _add_options(parser)


def _add_picture(subparsers: Subparsers) -> None:
    help = "writes what an agent sees as a PNG file"
    parser = _add_command(subparsers, "picture", commands.write_picture, help)
    _add_environment(parser, "name")
    parser.add_argument("--split", default="train")
    parser.add_argument(
        "--task", type=int, default=0, metavar="N", help="index of the task in its split"
    )
    parser.add_argument("--actions", default="", help="actions to play first, separated by spaces")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the PNG file to write"
    )
    _add_options(parser)


def _add_openenv(subparsers: Subparsers) -> None:
    help = "serves an environment over OpenEnv (docs/interfaces.md)"
    parser = _add_command(subparsers, "openenv", commands.serve_openenv, help)
    _add_environment(parser, "name")
    parser.add_argument("--panel", help="a panel of the package, or a panel file")
    parser.add_argument("--split", help="split whose tasks are all served, instead of a panel")
    parser.add_argument("--prompt", default="full", help="style of the prompts")
    parser.add_argument("--history", type=int, metavar="N", help="past steps that a prompt shows")
    _add_address(parser)
    parser.add_argument(
        "--sessions", type=int, default=64, metavar="N", help="largest number of episodes at once"
    )
    _add_options(parser)


def _add_address(parser: Parser) -> None:
    parser.add_argument(
        "--port",
        type=int,
        default=8000,
        metavar="P",
        help="port to listen on; 0: any free one, which is printed",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; default: this machine only"
    )


def _make_parser() -> Parser:
    program = "gigpo-worlds" if Path(sys.argv[0]).name == "gigpo-worlds" else "gigpo"
    description = "The environments: their data, panels and servers."
    parser = Parser(prog=f"{program} envs", description=description)
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_command(
        subparsers,
        "list",
        commands.describe_environments,
        "lists the environments and their panels",
    )
    _add_alfworld(_add_group(subparsers, "alfworld", "generated ALFWorld games"))
    _add_webshop(_add_group(subparsers, "webshop", "WebShop catalogues"))
    search_group = _add_group(subparsers, "search", "worlds, indices and the server of search QA")
    _add_search(search_group)
    _add_search_server(search_group)
    _add_panels(subparsers)
    _add_check(subparsers)
    _add_picture(subparsers)
    _add_openenv(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status: 0 done, 1 a broken promise, 2 bad input."""
    args = _make_parser().parse_args(argv)
    try:
        output = args.run(args)
    except InputError as err:
        # Keys of a config are flags here. Texts of files and panels may hold control sequences of a
        # terminal, so they are escaped.
        sys.stderr.write(escape_controls(f"{err.with_key(_name_flag(err.key))}\n"))
        return 2
    except (OSError, OverflowError, EnvError) as err:
        sys.stderr.write(escape_controls(f"{err}\n"))
        return 2
    except EnvCheckError as err:
        sys.stderr.write(escape_controls(f"{args.name} breaks a promise: {err}\n"))
        if isinstance(err, ReplayError):
            sys.stderr.write(_NOT_REPLAYABLE)
        return 1
    if output:
        sys.stdout.write(escape_controls(f"{output}\n"))
    return 0


def _name_flag(key: str) -> str:
    """Names the flag that sets a config key; a key without a flag stays as it is."""
    flags = {"name": "ENV", "split": "--split", "options": "--option", "generate": "--generate"}
    flags["anchor"] = "--option anchor"
    section, _, option = key.removeprefix("config.env.").partition(".")
    if not key.startswith("config.env.") or section not in flags:
        return key
    return f"{flags[section]} {option}".rstrip()
