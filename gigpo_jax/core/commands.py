"""The commands of `gigpo`: the module of each and its line of help.

A table without imports: `gigpo --help` and `gigpo envs` start at once.
"""

from typing import NamedTuple


class Command(NamedTuple):
    """A command.

    Attributes:
      module: Module below gigpo_jax, with its function `run` (modes) or `main` (tools).
      help: Description for --help.
    """

    module: str
    help: str


MODES = {  # commands with a config; main.py runs them
    "train": Command("modes.train", "reinforcement learning"),
    "eval": Command(
        "modes.evaluate",
        "plays the evaluation set eval.panel with the newest weights of the workdir",
    ),
    "sft": Command("modes.sft", "imitation of the environment's expert"),
    "serve": Command(
        "modes.serve", "serves the newest weights of the workdir to agent programs, as OpenAI does"
    ),
    "engine": Command(
        "modes.engine", "samples for a learner on another machine (engine.name=jax_server)"
    ),
    "export": Command(
        "modes.export", "writes the newest weights of the workdir as a Hugging Face folder"
    ),
    "preflight": Command(
        "tools.preflight.run",
        "compiles the run for devices that are not here and reports its needs",
    ),
}
TOOLS = {
    "compare": Command("tools.compare.command", "compares finished runs, or trains them first"),
    "credit": Command(
        "tools.credit.command", "measures the true advantage of steps and grades estimates of it"
    ),
    "envs": Command(
        "envs.command_line", "environments: list, generate, check, freeze, picture, serve"
    ),
    "import": Command(
        "tools.import_gguf.command", "a GGUF file as a Hugging Face folder, for model.path"
    ),
    "inspect": Command("tools.inspect.command", "a run as one HTML page: the credit of every step"),
    "keys": Command("tools.keys.command", "config keys: meaning, default, allowed values"),
    "new": Command("tools.new.command", "writes a new environment or algorithm to start from"),
}
