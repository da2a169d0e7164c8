"""The language of the package: names are nouns, sentences begin with them, one name is one thing."""

import ast
import collections
import pathlib
import re

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "gigpo_jax"
# Participles, pronouns, adverbs and prepositions: a variable with such a name says nothing.
WORDS = """
found part parts where own known before after shown one wanted told made how of at each other others
left mine there here given taken kept what which whose most least both same such those these that
into over under until while been being got gone seen said put
"""
Nodes = list[tuple[str, ast.AST]]
NOT_NOUNS = frozenset(WORDS.split())
ODD_OPENINGS = {"", "of", "as", "what", "that", "where", "to", "which", "how", "when", "in", "its"}
DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
SECTION = re.compile("Args|Returns|Raises|Yields|Attributes|Example")
PRONOUN = re.compile(r"\b(?:that|those)\s+of\b")
ARGUMENT = re.compile(r"^ {2,6}[a-z_, ]+: (\w+)", re.MULTILINE)
# Names that stand for one thing in several files.
SHARED_NAMES = {
    # The function that a command, a mode or a worker process starts with.
    "main",
    "run",
    "_make_parser",
    # What an environment gives to the registry or to its base.
    "make",
    "make_expert",
    "choose_best",
    "draw_cards",
    "Demonstrator",
    "write_compact_prompt",
    "_write_system_message",
    "_write_user_message",
    # What a method or a part of a run gives to the checks of a config.
    "check",
    "check_member",
    # The base of our environments in a library of others, by adapter.
    "WorldEnv",
    # What every kind of model has: axes of its parameters, scores, the file of its settings
    # and how a family reads and writes it.
    "logical_axes",
    "logits",
    "config_json",
    "read_fields",
    "write_keys",
}


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """The syntax tree of each file, by its path below the package."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text())
        for path in sorted(PACKAGE.rglob("*.py"))
    }


@pytest.fixture(scope="module")
def nodes(trees: dict[str, ast.Module]) -> Nodes:
    return [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]


def name_of(node: ast.AST) -> str | None:
    """The name that a node gives to a variable, an attribute or a parameter."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr
    return node.arg if isinstance(node, ast.arg) else None


def test_at_most_one_name_in_a_hundred_is_no_noun(nodes: Nodes) -> None:
    names = [(name_of(node), f"{path}:{getattr(node, 'lineno', 0)}") for path, node in nodes]
    names = [(name.strip("_"), line) for name, line in names if name is not None]
    odd_names = [f"{name} ({line})" for name, line in names if name in NOT_NOUNS]
    assert len(names) > 20_000
    assert len(odd_names) <= 0.01 * len(names), "\n".join(odd_names)


def test_descriptions_of_arguments_begin_with_a_noun(nodes: Nodes) -> None:
    described = 0
    odd_lines = []
    for path, node in nodes:
        if not isinstance(node, DEFINITIONS):
            continue
        for match in ARGUMENT.finditer(ast.get_docstring(node) or ""):
            described += 1
            if match[1].lower() in ODD_OPENINGS:
                odd_lines.append(f"{path}, {node.name}:{match[0]}")
    assert described > 1000
    assert len(odd_lines) <= 0.01 * described, "\n".join(odd_lines)


def test_docstrings_begin_with_a_whole_sentence(nodes: Nodes) -> None:
    """A short first line and a short paragraph behind it are mostly one sentence cut in two."""
    described = 0
    cut_texts = []
    for path, node in nodes:
        if not isinstance(node, DEFINITIONS):
            continue
        docstring = ast.get_docstring(node)
        if docstring is None:
            continue
        described += 1
        first, second = [*docstring.split("\n\n"), ""][:2]
        is_short = len(first.split()) <= 12 and 0 < len(second.split()) <= 30
        if is_short and not SECTION.match(second):
            cut_texts.append(f"{path}, {node.name}: {docstring}")
    assert described > 2000
    # A short second paragraph may say more, so some are fine.
    assert len(cut_texts) <= 0.06 * described, "\n".join(cut_texts)


def test_docstrings_name_the_noun(nodes: Nodes) -> None:
    docstrings = [
        ast.get_docstring(node) or ""
        for _, node in nodes
        if isinstance(node, DEFINITIONS | ast.Module)
    ]
    words = sum(len(docstring.split()) for docstring in docstrings)
    pronouns = [match[0] for docstring in docstrings for match in PRONOUN.finditer(docstring)]
    assert words > 50_000
    assert len(pronouns) <= words / 10_000, "\n".join(pronouns)


def test_help_texts_begin_with_a_noun(nodes: Nodes) -> None:
    """The help of config keys, of settings and options, and of flags."""
    positions = {"Key": 1, "Setting": 1, "Option": 2}
    described = 0
    odd_lines = []
    for path, node in nodes:
        if not isinstance(node, ast.Call):
            continue
        texts = [keyword.value for keyword in node.keywords if keyword.arg == "help"]
        if isinstance(node.func, ast.Name) and node.func.id in positions:
            position = positions[node.func.id]
            texts += node.args[position : position + 1]
        for text in texts:
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                described += 1
                if text.value.partition(" ")[0].lower().strip(",:") in ODD_OPENINGS:
                    odd_lines.append(f"{path}:{node.lineno} {text.value}")
    assert described > 200
    assert not odd_lines, "\n".join(odd_lines)


def test_errors_of_users_have_fields(nodes: Nodes) -> None:
    """Key, value and fix are arguments of `InputError`, which words them; none is in the reason."""
    key = re.compile(r"(config\.|--)[^ ]*[=:]|\0: ")
    fix = re.compile("; (use|give|choose|leave|make|name|set|download|remove|add|write) ")
    errors = 0
    odd_reasons = []
    for path, node in nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id != "InputError" or not node.args:
            continue
        errors += 1
        reason = "".join(
            part.value if isinstance(part, ast.Constant) else "\0"
            for part in getattr(node.args[0], "values", [node.args[0]])
        )
        if key.match(reason) or fix.search(reason):
            odd_reasons.append(f"{path}:{node.lineno} {ast.unparse(node.args[0])}")
    assert errors > 300
    assert not odd_reasons, "\n".join(odd_reasons)


def test_an_assignment_sets_one_thing(nodes: Nodes) -> None:
    """A tuple on the left unpacks one value, such as the result of a call."""
    assignments = [(path, node) for path, node in nodes if isinstance(node, ast.Assign)]
    pairs = [
        f"{path}:{node.lineno}"
        for path, node in assignments
        if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
    ]
    assert len(assignments) > 5000
    assert not pairs, "\n".join(pairs)


def test_comprehensions_with_two_loops_have_no_condition(nodes: Nodes) -> None:
    kinds = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    dense = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path, node in nodes
        if isinstance(node, kinds) and len(node.generators) > 1 and has_condition(node.generators)
    ]
    assert not dense, "\n".join(dense)


def has_condition(loops: list[ast.comprehension]) -> bool:
    return any(loop.ifs for loop in loops)


def test_no_condition_stands_in_another(nodes: Nodes) -> None:
    """`a if x else b if y else c` is two decisions: a `match`, or two statements."""
    nested = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path, node in nodes
        if isinstance(node, ast.IfExp) and count_conditions(node) > 1
    ]
    assert not nested, "\n".join(nested)


def count_conditions(node: ast.AST) -> int:
    return sum(isinstance(child, ast.IfExp) for child in ast.walk(node))


def test_a_name_is_one_thing(trees: dict[str, ast.Module]) -> None:
    """A public function or class stands in one file, a private one in one folder."""
    places = collections.defaultdict(set)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                is_private = node.name.startswith("_")
                places[node.name].add(path.rpartition("/")[0] if is_private else path)
    # Python calls this one, so it has one name everywhere.
    del places["__getattr__"]
    shared_names = {name: files for name, files in places.items() if len(files) > 1}
    # A name that is not shared any more leaves the list.
    assert shared_names.keys() >= SHARED_NAMES
    assert shared_names.keys() <= SHARED_NAMES, shared_names


def test_functions_have_at_most_sixty_lines_and_files_five_hundred() -> None:
    """A docstring does not count; a longer one has a second subject, to which belongs a name."""
    folders = ("benchmarks", "configs", "credit", "docs", "examples", "tests", "worlds")
    roots = [PACKAGE, *(PACKAGE.parent / folder for folder in folders)]
    paths = {path for root in roots for path in root.rglob("*.py")}
    texts = {path.relative_to(PACKAGE.parent).as_posix(): path.read_text() for path in paths}
    long_functions = set()
    functions = 0
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions += 1
                first = node.body[0]
                lines = node.end_lineno - node.lineno + 1
                if ast.get_docstring(node) is not None:
                    lines -= first.end_lineno - first.lineno + 1
                if lines > 60:
                    long_functions.add(f"{path}:{node.name}")
    assert functions > 8000
    assert not long_functions, long_functions
    long_files = {path for path, text in texts.items() if text.count("\n") > 500}
    assert not long_files, long_files
