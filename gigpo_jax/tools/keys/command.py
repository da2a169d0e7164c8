"""The command gigpo keys [PATTERN ...]: config keys with meaning, default and allowed values."""

import argparse
import sys
from collections.abc import Iterator, Sequence

from gigpo_jax.config.keys import KEYS
from gigpo_jax.core.errors import InputError, escape_controls
from gigpo_jax.core.settings import Setting
from gigpo_jax.core.spelling import nearest_names
from gigpo_jax.envs.registry import ENVIRONMENTS, INCOMING
from gigpo_jax.rl.algorithms import ALGORITHMS
from gigpo_jax.tools.keys.verl_agent import translate


def main(argv: Sequence[str] | None = None) -> int:
    """Prints keys that fit all patterns; returns the exit status, 0 if done, 2 if no key fits."""
    parser = argparse.ArgumentParser(
        prog="gigpo keys",
        description="Prints config keys: name, default, meaning, allowed values. Set one with "
        "--config.KEY=VALUE.",
    )
    parser.add_argument(
        "patterns", nargs="*", metavar="PATTERN", help="part of a name or of a meaning"
    )
    parser.add_argument(
        "--from",
        dest="source",
        choices=["verl-agent"],
        help="translate overrides of a script, PATTERN is the FILE or KEY=VALUE ...",
    )
    args = parser.parse_args(argv)
    if args.source:
        try:
            print(escape_controls(translate(args.patterns)))
        except InputError as error:
            print(escape_controls(f"gigpo keys: {error}"), file=sys.stderr)
            return 2
        return 0
    patterns = [pattern.lower() for pattern in args.patterns]
    # A pattern may also be a word of a meaning, so whole lines are searched.
    descriptions = dict(_describe_all())
    lines = []
    for name, description in descriptions.items():
        text = f"{name} {description}".lower()
        if all(pattern in text for pattern in patterns):
            lines.append(f"{name:<36} {description}")
    if lines:
        print(escape_controls("\n".join(lines)))
        return 0
    near = ", ".join(nearest_names(patterns[-1], descriptions)) or "none"
    message = f"gigpo keys: no key has {' and '.join(patterns)}; nearest: {near}"
    print(escape_controls(message), file=sys.stderr)
    return 2


def _describe_all() -> Iterator[tuple[str, str]]:
    """Name and description of each key, and of each option of environments and algorithms."""
    for name, key in KEYS.items():
        yield name, _describe_setting(key)
    sections = {
        "env.options": "options",
        "env.generate": "generate_options",
        "sft.demonstrator": "expert_options",
    }
    # The table names functions as texts, so listing options imports no world.
    incoming = {f"{name}:ID": make_entry("ID") for name, make_entry in INCOMING.items()}
    for environment, entry in {**ENVIRONMENTS, **incoming}.items():
        yield f"env.anchor [{environment}]", entry.anchor.requirement
        for section, field in sections.items():
            for option, declaration in getattr(entry, field).items():
                text = f"{declaration.help} (of {environment}; default: {declaration.default})"
                yield f"{section}.{option} [{environment}]", text
    for algorithm, method in ALGORITHMS.items():
        for setting, value in method.settings.items():
            yield f"rl.settings.{setting} [{algorithm}]", _describe_setting(value)


def _describe_setting(setting: Setting) -> str:
    rule = f"; {setting.rule.requirement}" if setting.rule.requirement else ""
    return f"{setting.help} (default: {setting.default!r}{rule})"
