"""Broken and foreign game files: one line that says what is wrong, with the path in it."""

import json
from importlib import resources
from pathlib import Path

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs.alfworld import Game
from gigpo_jax.envs.alfworld.data.package import read_package
from gigpo_jax.envs.alfworld.engine.help_text import HELP
from gigpo_jax.envs.alfworld.engine.known_rules import check_domain, split_task
from gigpo_jax.envs.alfworld.engine.load_game import load_game
from gigpo_jax.envs.alfworld.engine.pddl_goal import read_goal
from gigpo_jax.envs.alfworld.engine.pddl_problem import Expression, parse_expression
from gigpo_jax.envs.alfworld.tasks import TASK_TYPES, Goal
from tests.envs.alfworld.differential import game_text, write_game
from tests.envs.alfworld.rooms import ROOM


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as error:
        Game(path)
    message = str(error.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def edited(tmp_path: Path, old: str, new: str) -> str:
    assert old in ROOM
    return refusal(write_game(tmp_path, ROOM.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("(:init", "(:start", "no section (:init"),
        ("(:objects", "(:things", "no section (:objects"),
        ("(:goal", "(:aim", "no section (:goal"),
        ("(openable Fridge_bar_1)", "(lockable Fridge_bar_1)", "the fact (lockable ...), which"),
        ("(openable Fridge_bar_1)", "(openable Freezer_bar_1)", "'freezer_bar_1'"),
        ("(pickupable Apple_bar_1)", "(pickupable Fridge_bar_1)", "needs an object"),
        ("(openable Fridge_bar_1)", "(openable Fridge_bar_1 Fridge_bar_1)", "needs 1 argument"),
        ("(openable Fridge_bar_1)", "openable", "cannot read 'openable'"),
        ("agent1 - agent", "agent1 - robot", "unknown type 'robot'"),
        ("agent1 - agent", "agent1 agent1 - agent", "declared twice"),
        ("SinkBasinType - rtype", "SinkBasinType", "no type"),
        ("(atLocation agent1 loc_bar_0)", "", "(atLocation agent place) once"),
        (
            "(openable Fridge_bar_1)",
            "(receptacleAtLocation Fridge_bar_1 loc_bar_1)",
            'engine="official"',
        ),
        ("(objectType ?o AppleType)", "(objectType ?o PearType)", "the goal cannot be reached"),
        ("(objectType ?o AppleType)", "(objectType ?o ChairType)", "the goal cannot be reached"),
        ("(objectType ?o AppleType)", "(objectType ?o BreadType)", "the goal cannot be reached"),
    ],
)
def test_hand_edited_files(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert says in edited(tmp_path, old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(objectType ?o AppleType)", "(objectType ?x AppleType)"),
        ("(objectType ?o AppleType)", "(tastes ?o AppleType)"),
        ("(objectType ?o AppleType)", "(objectType ?o)"),
        ("(objectType ?o AppleType)", "(objectType ?o Apple)"),
        ("(objectType ?o AppleType)", "objectType"),
        ("(objectType ?o AppleType)", "(objectType ?o AppleType) (isSliced ?o) (sliceable ?o)"),
        ("(objectType ?o AppleType)", "(objectType ?o AppleType) (isHot ?o)"),
        ("(receptacleType ?r MicrowaveType)", "(not (opened ?r))"),
        ("(receptacleType ?r MicrowaveType)", "(not (= ?r ?r))"),
        ("(inReceptacle ?o ?r)", "(or (inReceptacle ?o ?r))"),
        ("?o - object", "?o - thing"),
        ("?o - object", "?o"),
        ("(exists (?o - object)", "(forall (?o - object)"),
        ("(:goal (and", "(:goal (and (forall (?r - receptacle) (not (opened ?r)))"),
    ],
)
def test_a_goal_that_is_none_of_the_six_is_left_to_the_official_engine(
    tmp_path: Path, old: str, new: str
) -> None:
    assert (
        'none of the six of ALFWorld\'s task types; play this game with engine="official"'
        in edited(tmp_path, old, new)
    )


def test_the_goal_of_each_task_type_is_recognised_however_it_is_written() -> None:
    tables = read_package()
    for task_type in TASK_TYPES:
        text = tables.goals[task_type].format(obj="Mug", recep="Desk", toggle="DeskLamp").lower()
        formula = parse_expression(text)[1]
        assert isinstance(formula, list)
        lamp = task_type == "look_at_obj_in_light"
        goal = Goal(task_type, "mug", "" if lamp else "desk", "desklamp" if lamp else "")
        assert read_goal(formula) == goal
        assert read_goal(backwards(formula)) == goal
    other_goal = (
        tables.goals["pick_two_obj_and_place"]
        .format(obj="Mug", recep="Desk")
        .lower()
        .replace("mug", "cup", 1)
    )
    assert read_goal(parse_expression(other_goal)[1]) is None


def backwards(formula: Expression) -> Expression:
    """A formula with the parts of every conjunction in the opposite order."""
    terms = [term if isinstance(term, str) else backwards(term) for term in formula]
    return ["and", *terms[:0:-1]] if terms and terms[0] == "and" else terms


def test_a_file_cut_anywhere_is_refused_with_its_path(tmp_path: Path) -> None:
    text = game_text(ROOM, "put a mug in desk")
    path = tmp_path / "game.tw-pddl"
    for end in range(0, len(text) - 1, 997):
        path.write_text(text[:end])
        refusal(path)


def test_a_problem_cut_anywhere_is_refused_with_its_path(tmp_path: Path) -> None:
    whole = ROOM.rstrip()
    for end in range(0, len(whole) - 1, 211):
        refusal(write_game(tmp_path, whole[:end]))


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"null", b"{}", b"\xff\xfe\x00", b"[" * 100_000, b'{"grammar": 1}']
)
def test_files_that_are_no_game(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "game.tw-pddl"
    path.write_bytes(content)
    refusal(path)


def test_a_missing_file_and_a_folder_without_a_game(tmp_path: Path) -> None:
    assert "cannot read the game" in refusal(tmp_path / "no.tw-pddl")
    assert "game.tw-pddl" in refusal(tmp_path)


def test_a_folder_with_a_game_is_as_good_as_the_file(tmp_path: Path) -> None:
    path = write_game(tmp_path, ROOM)
    assert Game(tmp_path).reset() == Game(path).reset() == Game(str(path)).reset()


def test_another_domain_or_grammar_is_refused_and_the_official_engine_named(tmp_path: Path) -> None:
    data = json.loads(game_text(ROOM, "put a mug in desk"))
    path = tmp_path / "game.tw-pddl"
    for key, old, new in (
        ("pddl_domain", "(not (opened ?r))", "(opened ?r)"),
        ("pddl_domain", "(checked ?l)", ""),
        ("grammar", "take {o} from {r}", "grab {o} from {r}"),
        ("grammar", "You arrive at {r.name}.", "You are at {r.name}."),
        ("grammar", '"#look.feedback#"', '"#help.feedback#"'),
        ("grammar", "Your task is to: put a mug in desk.", "Your task is to: put a [mug] in desk."),
    ):
        assert old in data[key]
        path.write_text(json.dumps({**data, key: data[key].replace(old, new, 1)}))
        assert 'engine="official"' in refusal(path)
    path.write_text(
        json.dumps({**data, "grammar": data["grammar"].replace("Your task is to: ", "Task: ")})
    )
    assert "Your task is to" in refusal(path)


def test_the_shipped_texts_and_reformatted_copies_are_known() -> None:
    data = resources.files("alfworld") / "data"
    domain = (data / "alfred.pddl").read_text()
    grammar = (data / "alfred.twl2").read_text()
    assert split_task(grammar, "x") == "UNKNOWN GOAL"
    check_domain(domain, "x")
    check_domain("; a comment\n" + domain.replace("    ", "\t").replace("(and", "( AND"), "x")
    spaced = (
        grammar.replace('"rhs": ', '"rhs":')
        .replace("\n\n", "\n")
        .replace("template ::", "template  ::")
    )
    assert spaced != grammar
    assert split_task(spaced.replace("UNKNOWN GOAL", "heat some egg"), "x") == "heat some egg"


def patched_like_the_downloaded_games(text: str) -> str:
    """A game with the domain comments and the shorter grammar of downloaded games."""
    data = json.loads(text)
    grammar_start, _ = data["grammar"].split("action help {")
    start, end = (
        grammar_start.index(f"action {name} {{")
        for name in ("PutObjectInReceptacleObject", "inventory")
    )
    help_text = "\n" + HELP  # quoted as it is, with real line ends in it
    action = f'action help {{\n    template :: "help";\n    feedback :: "{help_text}";\n}}\n'
    data["grammar"] = grammar_start[:start] + grammar_start[end:] + action
    data["pddl_domain"] = "\n".join(
        line.partition(";")[0] for line in data["pddl_domain"].split("\n")
    )
    return json.dumps(data)


def test_the_older_patched_texts_of_downloaded_games_are_known(tmp_path: Path) -> None:
    path = write_game(tmp_path, ROOM)
    shipped = Game(path).reset()
    path.write_text(patched_like_the_downloaded_games(path.read_text()))
    assert Game(path).reset() == shipped
    path.write_text(path.read_text().replace("look around your", "look at your"))
    assert 'engine="official"' in refusal(path)


def test_the_file_says_the_task(tmp_path: Path) -> None:
    path = write_game(tmp_path, ROOM, "put an apple in microwave")
    assert load_game(path).task == "put an apple in microwave"


def test_facts_about_things_of_another_kind_do_not_matter(tmp_path: Path) -> None:
    """Every file of that kind plays in the official engine too, which does not check."""
    path = write_game(tmp_path, ROOM)
    plain = Game(path).reset()
    write_game(
        tmp_path,
        ROOM.replace("(openable Fridge_bar_1)", "(openable Fridge_bar_1) (openable Apple_bar_1)"),
    )
    assert Game(path).reset() == plain


def test_things_without_facts_are_not_counted(tmp_path: Path) -> None:
    """Genuine problems declare one thing a kind without any fact; it takes no number away."""
    room = ROOM.replace("Vase - object", "Vase Apple_bar_0 - object")
    names = load_game(write_game(tmp_path, room)).names
    assert sorted(name for name in names if name.startswith("apple ")) == ["apple 1", "apple 2"]
