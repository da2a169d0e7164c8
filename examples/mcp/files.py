"""An MCP server with the official SDK: projects of four files, which can be searched and read.

    pip install -e ".[mcp]"
    o="--option tasks=examples/mcp/files.jsonl --option scorer=examples.mcp.entry:score_owner"
    gigpo envs check "mcp:python examples/mcp/files.py" $o
    python examples/mcp/files.py tasks > examples/mcp/files.jsonl

The content of a project follows from its name, so the server has no state. The last command makes
the task file again.
"""

import json
import random
import sys

from mcp.server.mcpserver import MCPServer

WORDS = ("amber", "blue", "coral", "green", "lemon", "olive", "pink", "red", "teal", "white")
FILES = ("index", "list", "memo", "notes", "plan", "report", "table")
TEAMS = (
    "coast",
    "east",
    "forest",
    "harbor",
    "hill",
    "lake",
    "meadow",
    "north",
    "river",
    "south",
    "valley",
    "west",
)
NAMES = (
    "apollo",
    "atlas",
    "comet",
    "delta",
    "echo",
    "falcon",
    "jupiter",
    "luna",
    "mercury",
    "nova",
    "orion",
    "pluto",
)
OWNERS = (
    "anna",
    "boris",
    "carla",
    "david",
    "emma",
    "felix",
    "greta",
    "hugo",
    "irene",
    "julia",
    "karl",
    "laura",
    "marta",
    "nora",
    "oscar",
    "paula",
)
SPLITS = {"train": 112, "test": 32}  # projects

server = MCPServer("files")


def draw_project(name: str) -> dict[str, tuple[str, str]]:
    """The files of a project, in the order of their names, each with its word and its owner."""
    generator = random.Random(f"project {name}")
    files = sorted(generator.sample(FILES, 4))
    words = generator.sample(WORDS, 4)
    owners = generator.sample(OWNERS, 4)
    return dict(zip(files, zip(words, owners)))


@server.tool()
def find_file(project: str, word: str) -> str:
    """Finds the file of a project that has a word."""
    files = draw_project(project)
    return next((file for file in files if files[file][0] == word), "no such file")


@server.tool()
def read_file(project: str, file: str) -> str:
    """Reads a file of a project: its word and its owner."""
    files = draw_project(project)
    if file not in files:
        return "no such file"
    word, owner = files[file]
    return f"{file} has {word} of {owner}"


def draw_tasks() -> list[dict[str, str]]:
    """The rows of the task file, one for each file of a project; the splits share no project."""
    projects = [f"{team} {name}" for team in TEAMS for name in NAMES]
    random.Random(0).shuffle(projects)
    rows = []
    for split, count in SPLITS.items():
        for _ in range(count):
            project = projects.pop()
            for word, _ in draw_project(project).values():
                rows.append(
                    {
                        "split": split,
                        "task": f"who owns the file with {word} in {project}?",
                        "project": project,
                        "word": word,
                    }
                )
    return rows


if __name__ == "__main__":
    if sys.argv[1:] == ["tasks"]:
        for row in draw_tasks():
            print(json.dumps(row))
    else:
        server.run()
