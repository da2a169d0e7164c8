"""Plays a game in our engine and in the official one side by side; makes odd games for that."""

import json
import random
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

from gigpo_jax.envs.alfworld.data.package import read_package
from gigpo_jax.envs.alfworld.engine.game import Game
from gigpo_jax.envs.alfworld.engine.official import OfficialGame
from gigpo_jax.envs.alfworld.engine.pddl_problem import Expression, parse_expression, parse_problem
from gigpo_jax.envs.alfworld.tasks import TASK_TYPES

Facts = dict[str, dict[tuple[str, ...], None]]

NOISE = (
    "",
    "LOOK",
    "look.",
    "go  to {thing}",
    "go to {thing} ",
    "\t go to {thing}\n",
    "GO TO {thing}",
    "go to",
    "examine {thing}",
    "open {thing}",
    "close {thing}",
    "use {thing}",
    "take {thing} from {other}",
    "move {thing} to {other}",
    "put {thing} in/on {other}",
    "heat {thing} with {other}",
    "clean {thing} with {other}",
    "cool {thing} with {other}",
    "slice {thing} with {other}",
    "dance",
    "inventory\u00a0",
    "help\x00",
    "{{o}}",
    "d\u00e9j\u00e0 vu \U0001f600",
)


def game_text(problem: str, task: str) -> str:
    """A `game.tw-pddl` with the domain and grammar of the installed package."""
    data = resources.files("alfworld") / "data"
    grammar = (data / "alfred.twl2").read_text()
    return json.dumps(
        {
            "pddl_domain": (data / "alfred.pddl").read_text(),
            "grammar": grammar.replace("UNKNOWN GOAL", task),
            "pddl_problem": problem,
            "solvable": True,
            "walkthrough": [],
        }
    )


def write_game(folder: Path, problem: str, task: str = "put a mug in desk") -> Path:
    """Writes a game into a folder and gives its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "game.tw-pddl"
    path.write_text(game_text(problem, task))
    return path


def random_command(game: Game, rng: random.Random, bad: float) -> str:
    """An admissible command, the verb drawn first, or with probability `bad` something else."""
    names = [name for name in game.file.names if name]
    if rng.random() < bad:
        return rng.choice(NOISE).format(thing=rng.choice(names), other=rng.choice(names))
    commands = game.admissible
    verbs = sorted({command.split()[0] for command in commands})
    verb = rng.choices(
        verbs, [{"help": 0.1, "inventory": 0.3, "look": 0.5}.get(verb, 1.0) for verb in verbs]
    )[0]
    return rng.choice([command for command in commands if command.split()[0] == verb])


def differences(path: Path, walks: list[Callable[[Game], str | None]], steps: int) -> Iterator[str]:
    """Differences between the two engines, in words.

    Args:
      path: Game.
      walks: Functions from our game's state to the next command, None to stop; each walk starts
        from a reset.
      steps: Largest number of commands of a walk.
    """
    ours = Game(path)
    official = OfficialGame(path)
    try:
        for walk in walks:
            own_step = ours.reset()
            official_step = official.reset()
            commands: list[str] = []
            for _ in range(steps + 1):
                for field in own_step._fields:
                    own_value = getattr(own_step, field)
                    official_value = getattr(official_step, field)
                    if own_value != official_value:
                        yield (
                            f"{path} after {commands}: {field}\n ours     {own_value!r}\n"
                            f" official {official_value!r}"
                        )
                        return
                command = walk(ours)
                if command is None:
                    break
                commands.append(command)
                own_step = ours.step(command)
                official_step = official.step(command)
    finally:
        official.close()


def render(
    kinds: dict[str, str],
    facts: dict[str, dict[tuple[str, ...], None]],
    goal: Expression,
    extra: str = "",
) -> str:
    """A problem's text."""
    lines = ["(define (problem odd)", "(:domain alfred)", "(:objects"]
    lines += [f"{thing} - {kind}" for thing, kind in kinds.items()]
    lines += [")", "(:init", extra]
    lines += [
        f"({name} {' '.join(arguments)})" for name, tuples in facts.items() for arguments in tuples
    ]
    return "\n".join([*lines, ")", f"(:goal {_text(goal)})", ")"])


def _text(formula: Expression | str) -> str:
    return formula if isinstance(formula, str) else f"({' '.join(_text(term) for term in formula)})"


def odd_problem(problem: str, rng: random.Random) -> str:
    """A variation of a problem, with features that generated games lack."""
    parsed = parse_problem(problem, "base")
    kinds = dict(parsed.kinds)
    facts = {name: dict(tuples) for name, tuples in parsed.facts.items()}
    things_by_kind = {
        kind: [thing for thing in kinds if kinds[thing] == kind] for kind in set(kinds.values())
    }
    objects = things_by_kind["object"]
    receptacles = things_by_kind["receptacle"]
    agent = things_by_kind["agent"][0]
    places = sorted({place for _, place in facts["receptacleatlocation"]})

    def add(name: str, *arguments: str) -> None:
        facts.setdefault(name, {})[arguments] = None

    def some(things: list[str], most: int) -> list[str]:
        return rng.sample(things, rng.randint(0, min(most, len(things))))

    for receptacle in some(receptacles, 4):  # shared locations
        facts["receptacleatlocation"] = {
            (r, rng.choice(places) if r == receptacle else place): None
            for r, place in facts["receptacleatlocation"]
        }
    location = {pair[0]: pair[1] for pair in facts["receptacleatlocation"]}
    for thing in some(objects, 4):  # in two receptacles, often side by side
        homes = {
            location.get(receptacle)
            for inner, receptacle in facts["inreceptacle"]
            if inner == thing
        }
        beside = [receptacle for receptacle in receptacles if location.get(receptacle) in homes]
        add(
            "inreceptacle",
            thing,
            rng.choice(beside if beside and rng.random() < 0.7 else receptacles),
        )
    for thing in some(objects, 4):
        add("inreceptacleobject", thing, thing if rng.random() < 0.2 else rng.choice(objects))
        add("isreceptacleobject", rng.choice(objects))
    for receptacle in some(receptacles, 4):
        add("opened", receptacle)
    for thing in some(objects, 2):  # the rules speak of receptacles only
        add("openable", thing)
        add("opened", thing)
    for predicate in (
        "ishot",
        "iscool",
        "isclean",
        "issliced",
        "istoggled",
        "ison",
        "toggleable",
        "sliceable",
    ):
        for thing in some(objects, 3):
            add(predicate, thing)
    for thing in some(objects, 3):
        add(
            "objecttype",
            thing,
            rng.choice(["knifetype", "butterknifetype", "appletype", "mugtype"]),
        )
    for receptacle in some(receptacles, 2):
        add(
            "receptacletype",
            receptacle,
            rng.choice(["sinkbasintype", "microwavetype", "fridgetype"]),
        )
    for thing in some(objects, 3):
        add("objectatlocation", thing, rng.choice(places))
    for predicate in (
        "pickupable",
        "inreceptacle",
        "objectatlocation",
        "objecttype",
        "receptacleatlocation",
    ):
        for arguments in rng.sample(
            list(facts[predicate]), min(len(facts[predicate]), rng.randint(0, 2))
        ):
            del facts[predicate][arguments]
    if rng.random() < 0.3:
        facts["atlocation"] = {(agent, rng.choice(places)): None}
    if rng.random() < 0.2:
        for thing in rng.sample(objects, rng.randint(1, 2)):
            add("holds", agent, thing)
        if rng.random() < 0.7:
            add("holdsany", agent)
    for template in ("chair", "strangebasin_bar_1", "mug_bar_2_bar_3", "sink_bar_9_bar_sinkbasin"):
        kinds[template] = "object"
        if rng.random() < 0.5:
            add("objecttype", template, "mugtype")
            add("inreceptacle", template, rng.choice(receptacles))
            add("pickupable", template)
    numbers = f"(= (total-cost) 0)\n(= (distance {places[0]} {places[-1]}) 22)"
    return render(kinds, facts, _odd_goal(parsed.goal, kinds, rng), rng.choice(["", numbers]))


def _odd_goal(goal: Expression, kinds: dict[str, str], rng: random.Random) -> Expression:
    """The goal itself, or the goal of any task type; many cannot be reached."""
    if rng.random() < 0.5:
        return goal
    things, places = (
        [name for name in kinds if kinds[name] == kind] for kind in ("otype", "rtype")
    )
    text = (
        read_package()
        .goals[rng.choice(TASK_TYPES)]
        .format(
            obj=rng.choice(things).removesuffix("type"),
            recep=rng.choice(places).removesuffix("type"),
            toggle=rng.choice(["desklamp", rng.choice(things).removesuffix("type")]),
        )
    )
    formula = parse_expression(text.lower())[1]
    assert isinstance(formula, list)
    return formula
