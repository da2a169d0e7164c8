"""The command of the environments: data, panels and servers. `python -m gigpo_jax.envs --help` lists it all."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gigpo_jax.env_bridge.base import no_progress
from gigpo_jax.env_bridge.checker import EnvCheckError, check_environment
from gigpo_jax.env_bridge.panels import write_panel
from gigpo_jax.env_bridge.png import encode_png
from gigpo_jax.envs import panels, registry
from gigpo_jax.envs.alfworld.data import generate as alfworld
from gigpo_jax.envs.alfworld.data.draw import SIZES
from gigpo_jax.envs.alfworld.data.scenes import SPLITS
from gigpo_jax.envs.alfworld.tasks import TASK_TYPES
from gigpo_jax.envs.options import key_value
from gigpo_jax.envs.search.data import generate as search
from gigpo_jax.envs.search.retrieval import bm25_index, dense_index, service
from gigpo_jax.envs.webshop import browse
from gigpo_jax.envs.webshop.catalogue import goals, prepare, store
from gigpo_jax.envs.webshop.catalogue.sources import find_sources
from gigpo_jax.envs.webshop.data import generate as webshop
from gigpo_jax.errors import InputError, printable

Parser = argparse.ArgumentParser
Commands = Any  # what add_subparsers returns


def _command(commands: Commands, name: str, run: Callable[[argparse.Namespace], str], text: str) -> Parser:
    parser: Parser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run)
    return parser


def _group(commands: Commands, name: str, text: str) -> Commands:
    return commands.add_parser(name, help=text, description=text).add_subparsers(required=True, metavar="COMMAND")


def _bar(unit: str, total: int | None = None) -> Any:
    """A progress bar on a terminal, shown after half a second; none where tqdm is not installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return contextlib.nullcontext(SimpleNamespace(update=no_progress))
    return tqdm(total=total, unit=unit, file=sys.stderr, delay=0.5, leave=False, disable=None)


def _range(text: str) -> int | tuple[int, int]:
    try:
        ends = [int(end) for end in text.split(",")]
    except ValueError:
        ends = []
    if len(ends) not in (1, 2):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor MIN,MAX")
    return ends[0] if len(ends) == 1 else (ends[0], ends[1])


def _alfworld(commands: Commands) -> None:
    parser = _command(commands, "generate", _generate_games, "makes games from the alfworld package's floor plans")
    parser.add_argument("--out", required=True, metavar="DIR", help="data folder; the split becomes a folder in it")
    parser.add_argument("--split", required=True, help=f"one of {', '.join(SPLITS)}")
    parser.add_argument("--games", required=True, type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--size", choices=sorted(SIZES), default="full")
    parser.add_argument("--receptacles", type=_range, help="a number or MIN,MAX; default: those of the size")
    parser.add_argument("--objects", type=_range, help="a number or MIN,MAX; default: those of the size")
    parser.add_argument("--task-types", help=f"comma-separated, of {', '.join(TASK_TYPES)}; default: all")


def _generate_games(args: argparse.Namespace) -> str:
    names = ("split", "games", "seed", "size", "receptacles", "objects")
    types = None if args.task_types is None else [kind.strip() for kind in args.task_types.split(",")]
    with _bar("game", args.games) as bar:
        options = {name: getattr(args, name) for name in names}
        return str(alfworld.generate_games(args.out, task_types=types, progress=bar.update, **options))


def _webshop(commands: Commands) -> None:
    parser = _command(commands, "generate", _generate_catalogue, "makes a catalogue in the format of the genuine files")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="an empty folder, or one to make")
    parser.add_argument("--products", type=int, default=webshop.PRODUCTS, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")

    parser = _command(commands, "prepare", _prepare, "turns a catalogue into memory-mapped files, once")
    parser.add_argument("folder", metavar="DIR", type=Path, help="holds items_shuffle*.json and its companions")
    parser.add_argument("--out", type=Path, metavar="OUT", help="the folder to make; default: DIR/prepared")
    parser.add_argument("--variant", help="which of several catalogues in DIR, such as _1000")
    parser.add_argument("--num-products", type=int, metavar="N", help="use only the first N entries")
    parser.add_argument("--rebuild", action="store_true", help="build even if prepared files that fit exist")

    parser = _command(commands, "browse", _browse, "serves the shop as a web page on this machine")
    parser.add_argument("folder", metavar="DIR", type=Path, nargs="?", help="a catalogue; default: a generated one")
    parser.add_argument("--port", type=int, default=8000, metavar="P")
    parser.add_argument("--goals", default="synthetic", choices=goals.KINDS)
    parser.add_argument("--variant", help="which of several catalogues in DIR, such as _1000")


def _generate_catalogue(args: argparse.Namespace) -> str:
    with _bar("product", args.products) as bar:
        webshop.generate(args.out, products=args.products, seed=args.seed, progress=bar.update)
    return str(args.out)


def _prepare(args: argparse.Namespace) -> str:
    sources = find_sources(args.folder, variant=args.variant)
    out = args.out or args.folder / "prepared"
    with _bar("product", args.num_products) as bar:
        built = prepare.ensure(sources, out, num_products=args.num_products, rebuild=args.rebuild, progress=bar.update)
    manifest = store.read_manifest(out)
    if manifest is None:
        raise InputError(f"--out {out}: incomplete, something else writes there; run this again")
    counts = manifest["goals"]
    return (
        f"{out}: {manifest['products']:,} products, {counts['human']:,} human and {counts['synthetic']:,} synthetic "
        f"goals, content {manifest['content']}{'' if built else ' (already there)'}"
    )


def _browse(args: argparse.Namespace) -> str:
    browse.serve(args.folder or webshop.ensure_catalogue(), args.port, goals=args.goals, variant=args.variant)
    return ""


def _search(commands: Commands) -> None:
    parser = _command(commands, "generate", _generate_world, "makes a synthetic world: passages, questions, index")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--people", type=int, default=search.PEOPLE, metavar="N")
    parser.add_argument("--questions", type=int, default=0, metavar="N", help="the most of a split; 0 = all")
    parser.add_argument("--seed", type=int, default=0, metavar="S")

    parser = _command(commands, "index", _index, "builds a BM25 index of a corpus, once")
    parser.add_argument("--corpus", required=True, metavar="FILE|DIR", help="JSON lines {id, contents}, also gzipped")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the index folder to make")

    parser = _command(commands, "dense", _dense, "encodes the passages of an index folder for dense retrieval")
    parser.add_argument("--index", type=Path, required=True, metavar="DIR", help="a BM25 index folder")
    parser.add_argument("--encoder", required=True, metavar="DIR", help="folder of an encoder of the e5 family")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the faiss index to write")

    parser = _command(commands, "serve", _serve, "serves passages over HTTP")
    parser.add_argument(
        "--corpus",
        type=Path,
        required=True,
        metavar="FILE|DIR",
        help="JSON lines {id, contents} (their index is built beside them, once), or an index folder",
    )
    parser.add_argument("--port", type=int, default=8000, metavar="P", help="0 = any free one; it is printed")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; default: this machine only")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="concurrent searches; 0 = one a core")
    parser.add_argument("--faiss", default="", metavar="FILE", help="search the vectors of this faiss index instead")
    parser.add_argument("--encoder", default="", metavar="DIR", help="with --faiss: folder of the encoder (e5)")


def _generate_world(args: argparse.Namespace) -> str:
    with _bar("passage") as bar:
        search.generate(args.out, people=args.people, questions=args.questions, seed=args.seed, progress=bar.update)
    return str(args.out)


def _index(args: argparse.Namespace) -> str:
    with _bar("passage") as bar:
        bm25_index.index_corpus(Path(args.corpus), args.out, progress=bar.update)
    return str(args.out)


def _dense(args: argparse.Namespace) -> str:
    with _bar("passage") as bar:
        dense_index.encode_index(args.index, args.encoder, args.out, bar.update)
    return str(args.out)


def _serve(args: argparse.Namespace) -> str:
    with _bar("passage") as bar:
        index = bm25_index.ensure_index(args.corpus, progress=bar.update)
    service.run(index, args.host, args.port, threads=args.threads, faiss=args.faiss, encoder=args.encoder)
    return ""


def _options(parser: Parser) -> None:
    parser.add_argument(
        "--option",
        action="append",
        type=key_value,
        default=[],
        metavar="KEY=VALUE",
        help="as in env.options; repeatable",
    )


def _panels(commands: Commands) -> None:
    parser = _command(commands, "freeze", _freeze, "writes a panel (eval set) of the tasks of a split")
    parser.add_argument("environment", metavar="ENV", help="a name of the registry, or module:NAME")
    parser.add_argument("--name", required=True, help="of the panel")
    parser.add_argument("--split", required=True)
    parser.add_argument("--each", type=int, metavar="N", help="N tasks of every type, in turn; default: all tasks")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--generate", action="append", type=key_value, default=[], metavar="KEY=VALUE", help="as in env.generate"
    )
    _options(parser)

    parser = _command(commands, "check-panel", _check_panel, "compares an environment's data with a panel")
    parser.add_argument("environment", metavar="ENV", help="a name of the registry, or module:NAME")
    parser.add_argument("--name", required=True, help="a panel of the package, or a panel file")
    _options(parser)


def _freeze(args: argparse.Namespace) -> str:
    if args.each is not None and args.each < 1:
        raise InputError(f"--each {args.each}: give a number of at least 1, or leave it out for all tasks")
    options, generate = dict(args.option), dict(args.generate)
    panel = panels.freeze(args.environment, args.name, args.split, options=options, generate=generate, each=args.each)
    write_panel(args.out, panel)
    return f"{args.out}: {len(panel.tasks)} tasks, sha256 {panel.sha256}"


def _check_panel(args: argparse.Namespace) -> str:
    tasks = panels.check(args.environment, args.name, options=dict(args.option))
    return f"{args.name}: {len(tasks)} tasks are those of the panel"


def _check(parser: Parser) -> None:
    parser.add_argument("name", metavar="ENV", help="a name of the registry, or module:NAME")
    parser.add_argument("--split", default="train")
    parser.add_argument("--tasks", type=int, default=4, metavar="N", help="how many tasks are played")
    parser.add_argument("--limit", type=float, default=10.0, metavar="S", help="seconds a call may take (building: 60)")
    _options(parser)


def _check_environment(args: argparse.Namespace) -> str:
    if args.tasks < 1 or args.limit <= 0:
        raise InputError(f"--tasks {args.tasks} --limit {args.limit:g}: give at least one task and some time")
    entry, options = registry.playable(args.name), dict(args.option)
    registry.check_options(entry.options, options)
    expert = partial(registry.make_expert, args.name) if entry.expert else None
    limits = {"tasks": args.tasks, "steps": entry.max_steps, "limit_s": args.limit}
    held = check_environment(entry.build, options, split=args.split, make_expert=expert, **limits)
    return "\n".join("holds: " + line for line in held)


def _picture(parser: Parser) -> None:
    parser.add_argument("name", metavar="ENV", help="a name of the registry, or module:NAME")
    parser.add_argument("--split", default="train")
    parser.add_argument("--task", type=int, default=0, metavar="N", help="the number of the task in its split")
    parser.add_argument("--actions", default="", help="played first, separated by spaces")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the PNG file to write")
    _options(parser)


def _write_picture(args: argparse.Namespace) -> str:
    registry.playable(args.name)
    env = registry.make(args.name, **dict(args.option))
    try:
        tasks = env.tasks(args.split)
        if not 0 <= args.task < len(tasks):
            raise InputError(f"--task {args.task}: the split {args.split} has the tasks 0 to {len(tasks) - 1}")
        observation = env.reset(tasks[args.task])
        for action in args.actions.split():
            observation = env.step(action).observation
    finally:
        env.close()
    if not observation.images:
        raise InputError(f"{args.name}: this observation has no picture")
    args.out.write_bytes(encode_png(observation.images[0]))
    return f"{args.out}: {tasks[args.task].id}\n{observation.anchor}"


def _parser() -> Parser:
    parser = Parser(prog="python -m gigpo_jax.envs", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _alfworld(_group(commands, "alfworld", "generated ALFWorld games"))
    _webshop(_group(commands, "webshop", "WebShop catalogues"))
    _search(_group(commands, "search", "worlds, indices and the server of search QA"))
    _panels(commands)
    _check(_command(commands, "check", _check_environment, "checks that an environment keeps its promises"))
    _picture(_command(commands, "picture", _write_picture, "writes what an agent sees as a PNG file"))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status: 0 done, 1 a broken promise, 2 bad input."""
    args = _parser().parse_args(argv)
    try:
        said = args.run(args)
    except (InputError, OSError, OverflowError) as err:
        sys.stderr.write(printable(f"{_in_flags(str(err))}\n"))
        return 2
    except EnvCheckError as err:
        sys.stderr.write(printable(f"{args.name} breaks a promise: {err}\n"))
        return 1
    if said:
        sys.stdout.write(printable(f"{said}\n"))
    return 0


def _in_flags(message: str) -> str:
    """A message in which keys of a config are the flags of this command."""
    flags = {"name": "ENV", "split": "--split", "options": "--option", "generate": "--generate"}
    for key, flag in flags.items():
        message = message.replace(f"config.env.{key}.", f"{flag} ").replace(f"config.env.{key}", flag)
    return message


if __name__ == "__main__":
    sys.exit(main())
