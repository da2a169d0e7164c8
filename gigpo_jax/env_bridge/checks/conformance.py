"""Checks that an environment keeps its promises:
`python -m gigpo_jax.env_bridge.checks.conformance NAME --split train`.

What is promised stands in `base.TextEnv`; how it is checked in promises.py; what bounds a call in confined.py.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gigpo_jax.env_bridge.base import Expert, TextEnv
from gigpo_jax.env_bridge.checks import promises
from gigpo_jax.env_bridge.checks.confined import ConformanceError as ConformanceError
from gigpo_jax.env_bridge.checks.confined import Limits, run
from gigpo_jax.envs import registry
from gigpo_jax.errors import InputError


def check_environment(
    make: Callable[[], TextEnv],
    *,
    split: str,
    make_expert: Callable[[int], Expert] | None = None,
    tasks: int = 4,
    steps: int = 30,
    seed: int = 0,
    limit_s: float = 10.0,
    build_s: float = 60.0,
) -> list[str]:
    """Plays an environment in several ways and compares.

    Args:
      make: builds one; has to be picklable (`functools.partial(registry.make, name, **options)` is), because the
        checks run in fresh interpreters, which are ended when a call hangs.
      split: whose tasks are played.
      make_expert: seed -> a demonstrator, if there is one; without it perhaps no episode reaches its end.
      tasks: how many tasks are played, spread over the split.
      steps: the most actions in an episode.
      seed: of the random actions.
      limit_s: a call may take so long, s.
      build_s: but make, make_expert and tasks so long, s.

    Returns:
      What was found to hold, a line each.

    Raises:
      ConformanceError: the first promise that was broken.
      InputError: make or tasks says what is wrong with the options, the split or the data.
    """
    limits = Limits(limit_s, build_s)
    held, played = run(promises.check_here, make, make_expert, split, tasks, steps, seed, limits=limits)
    for hash_seed in ("0", "1"):
        run(promises.check_afresh, make, played, hash_seed, limits=limits, hash_seed=hash_seed, ends=True)
    held.append("a fresh interpreter with another hash seed sees the same, anchors included; jax is not imported")
    held.append("closing gives back threads, files and processes")
    return list(held)


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gigpo_jax.env_bridge.checks.conformance", description=__doc__)
    parser.add_argument("name", help="an environment of the registry, or module:NAME")
    parser.add_argument("--split", default="train")
    parser.add_argument(
        "--option", action="append", type=_option, default=[], metavar="KEY=VALUE", help="for the builder; repeatable"
    )
    parser.add_argument("--tasks", type=int, default=4, help="how many tasks are played")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds that a call may take (to build: 60)")
    args = parser.parse_args(argv)
    options = dict(args.option)
    try:
        if args.tasks < 1 or args.limit <= 0:
            raise InputError(f"--tasks {args.tasks} --limit {args.limit:g}: give at least one task and some time")
        entry = registry.spec(args.name)
        expert = partial(registry.make_expert, args.name) if entry.expert else None
        make = partial(registry.make, args.name, **options)
        limits = {"tasks": args.tasks, "steps": entry.max_steps, "limit_s": args.limit}
        held = check_environment(make, split=args.split, make_expert=expert, **limits)
    except InputError as err:
        print(err, file=sys.stderr)
        return 2
    except ConformanceError as err:
        print(f"{args.name} breaks a promise: {err}", file=sys.stderr)
        return 1
    print("\n".join("holds: " + line for line in held))
    return 0


if __name__ == "__main__":
    sys.exit(main())
