"""The actions of `gigpo envs`: each takes the flags and returns its output."""

import argparse
import contextlib
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import replace_file
from gigpo_jax.core.optional import optional_imports
from gigpo_jax.core.png import encode_png
from gigpo_jax.env_bridge.base import no_progress
from gigpo_jax.env_bridge.checker import check_environment
from gigpo_jax.env_bridge.freeze import write_panel
from gigpo_jax.env_bridge.panels import find_panel
from gigpo_jax.envs import panels, registry
from gigpo_jax.envs.alfworld.data.one_split import generate_games
from gigpo_jax.envs.introductions import find_introduction
from gigpo_jax.envs.panel_score import score_results
from gigpo_jax.envs.search.data import generate as search
from gigpo_jax.envs.search.retrieval import bm25_index, dense_index, service
from gigpo_jax.envs.webshop import browse
from gigpo_jax.envs.webshop.catalogue import prepare, store
from gigpo_jax.envs.webshop.catalogue.sources import find_sources
from gigpo_jax.envs.webshop.data import generate as webshop
from gigpo_jax.envs.world import open_world, playable_spec


def _progress_bar(unit: str, total: int | None = None) -> Any:
    """Makes a progress bar on a terminal, shown after half a second; without tqdm there is none."""
    try:
        from tqdm import tqdm
    except ImportError:
        # tqdm is optional; callers use `update` alone.
        return contextlib.nullcontext(SimpleNamespace(update=no_progress))
    return tqdm(total=total, unit=unit, file=sys.stderr, delay=0.5, leave=False, disable=None)


def describe_environments(args: argparse.Namespace) -> str:
    """Lists the environments: what they are, their panels, their options."""
    del args
    lines = []
    for name, entry in registry.ENVIRONMENTS.items():
        panel_names = sorted(path.stem for path in panels.panel_folder(name).glob("*.json"))
        facts = [f"{entry.max_steps} actions"]
        facts.append("an expert" if entry.expert else "no expert")
        facts.append(f"panels: {', '.join(panel_names) or 'none'}")
        if entry.options:
            facts.append(f"options: {', '.join(entry.options)}")
        introduction = find_introduction(name).intro.partition(". ")[0].rstrip(".")
        lines.append(f"{name:<12}{introduction or entry.build}\n{'':<12}{'; '.join(facts)}")
    return "\n".join(
        [
            *lines,
            "module:NAME is an environment of your own; gigpo new env writes one",
            "gymnasium:ID is an environment of Gymnasium (docs/gymnasium.md)",
            "mcp:COMMAND_OR_URL has the tools of an MCP server (docs/mcp.md)",
            "openenv:URL_OR_IMAGE is the environment of an OpenEnv server (docs/openenv.md)",
            "verifiers:MODULE is an environment of verifiers (docs/verifiers.md)",
        ]
    )


def write_games(args: argparse.Namespace) -> str:
    """Generates ALFWorld games."""
    task_types = None
    if args.task_types is not None:
        task_types = [name.strip() for name in args.task_types.split(",")]
    with _progress_bar("game", args.games) as bar:
        folder = generate_games(
            args.out,
            split=args.split,
            games=args.games,
            seed=args.seed,
            size=args.size,
            receptacles=args.receptacles,
            objects=args.objects,
            task_types=task_types,
            progress=bar.update,
        )
    return str(folder)


def generate_catalogue(args: argparse.Namespace) -> str:
    """Generates a WebShop catalogue."""
    with _progress_bar("product", args.products) as bar:
        webshop.write_catalogue(
            args.out, products=args.products, seed=args.seed, progress=bar.update
        )
    return str(args.out)


def prepare_catalogue(args: argparse.Namespace) -> str:
    """Turns a catalogue into memory-mapped files."""
    sources = find_sources(args.folder, variant=args.variant)
    # Where `open_catalogue` looks for it.
    out = args.out or args.folder / "prepared"
    with _progress_bar("product", args.num_products) as bar:
        was_built = prepare.ensure_prepared(
            sources, out, num_products=args.num_products, rebuild=args.rebuild, progress=bar.update
        )
    manifest = store.read_manifest(out)
    # Built a moment ago, and changed since.
    if manifest is None:
        raise InputError(
            "incomplete, something else writes there", key="--out", value=out, fix="run this again"
        )
    counts = manifest["goals"]
    suffix = "" if was_built else " (already there)"
    return (
        f"{out}: {manifest['products']:,} products, {counts['human']:,} human and "
        f"{counts['synthetic']:,} synthetic goals, content {manifest['content']}{suffix}"
    )


def browse_shop(args: argparse.Namespace) -> str:
    """Serves the shop as a web page until interrupted."""
    folder = args.folder or webshop.ensure_catalogue()
    browse.serve_shop(folder, args.port, goals=args.goals, variant=args.variant)
    return ""


def generate_world(args: argparse.Namespace) -> str:
    """Generates a world of passages and questions with its index."""
    with _progress_bar("passage") as bar:
        search.write_world(
            args.out,
            people=args.people,
            seed=args.seed,
            progress=bar.update,
        )
    return str(args.out)


def index_passages(args: argparse.Namespace) -> str:
    """Builds the BM25 index of a corpus."""
    with _progress_bar("passage") as bar:
        bm25_index.index_corpus(Path(args.corpus), args.out, progress=bar.update)
    return str(args.out)


def encode_passages(args: argparse.Namespace) -> str:
    """Encodes the passages of an index folder."""
    with _progress_bar("passage") as bar:
        dense_index.encode_index(args.index, args.encoder, args.out, bar.update)
    return str(args.out)


def serve_passages(args: argparse.Namespace) -> str:
    """Serves passages over HTTP until it is interrupted."""
    with _progress_bar("passage") as bar:
        index = bm25_index.ensure_index(args.corpus, progress=bar.update)
    service.run_server(
        index, args.host, args.port, threads=args.threads, faiss=args.faiss, encoder=args.encoder
    )
    return ""


def serve_openenv(args: argparse.Namespace) -> str:
    """Serves the tasks of a world over OpenEnv until it is interrupted."""
    with optional_imports("openenv", key="openenv"):
        from gigpo_jax.envs.openenv import worlds
    world = open_world(
        args.name,
        panel=args.panel,
        split=args.split,
        prompt=args.prompt,
        history=args.history,
        **dict(args.option),
    )
    worlds.serve_world(world, args.host, args.port, args.sessions)
    return ""


def write_frozen_panel(args: argparse.Namespace) -> str:
    """Writes a panel of the tasks of a split."""
    if args.each is not None and args.each < 1:
        raise InputError(
            "must be at least 1",
            key="--each",
            value=args.each,
            fix="leave it out for all tasks",
        )
    panel = panels.freeze_tasks(
        args.environment,
        args.name,
        args.split,
        options=dict(args.option),
        generate=dict(args.generate),
        each=args.each,
    )
    write_panel(args.out, panel)
    return f"{args.out}: {len(panel.tasks)} tasks, sha256 {panel.sha256}"


def compare_panel(args: argparse.Namespace) -> str:
    """Compares an environment's data with a panel."""
    tasks = panels.check_tasks(args.environment, args.name, options=dict(args.option))
    return f"{args.name}: {len(tasks)} tasks are those of the panel"


def score_panel(args: argparse.Namespace) -> str:
    """Scores the results of another program on a panel."""
    folder = panels.panel_folder(args.environment)
    return score_results(find_panel(args.name, args.environment, folder), args.results)


def check_promises(args: argparse.Namespace) -> str:
    """Checks that an environment keeps its promises."""
    if args.tasks < 1:
        raise InputError("must be at least 1", key="--tasks", value=args.tasks)
    if args.limit <= 0:
        raise InputError("must be above 0", key="--limit", value=f"{args.limit:g}")
    entry = playable_spec(args.name)
    findings = check_environment(
        entry.build,
        # Before anything is built: a wrong type is one line.
        registry.builder_options(entry, dict(args.option)),
        split=args.split,
        make_expert=partial(registry.make_expert, args.name) if entry.expert else None,
        tasks=args.tasks,
        steps=entry.max_steps,
        limit_s=args.limit,
    )
    return "\n".join("holds: " + line for line in findings)


def write_picture(args: argparse.Namespace) -> str:
    """Writes the picture of an observation as a PNG file."""
    playable_spec(args.name)
    env = registry.make(args.name, **dict(args.option))
    with contextlib.closing(env):
        tasks = env.tasks(args.split)
        if not 0 <= args.task < len(tasks):
            raise InputError(
                f"the split {args.split} has the tasks 0 to {len(tasks) - 1}",
                key="--task",
                value=args.task,
            )
        observation = env.reset(tasks[args.task])
        for action in args.actions.split():
            observation = env.step(action).observation
    if not observation.images:
        raise InputError("this observation has no picture", key=args.name)
    with replace_file(args.out) as temporary:
        temporary.write_bytes(encode_png(observation.images[0]))
    return f"{args.out}: {tasks[args.task].id}\n{observation.anchor}"
