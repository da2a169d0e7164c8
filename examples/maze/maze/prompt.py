"""A prompt style: --config.env.prompt=maze.prompt:short."""

from gigpo_jax.env_bridge.prompts import PromptInput


def short(inputs: PromptInput) -> str:
    """`exit <task> [came <way>] now <observation> can <ways>`; any part may be missing."""
    words = ["exit", inputs.task]
    if inputs.history:
        words += ["came", inputs.history[-1].action.removeprefix("go ")]
    words += ["now", inputs.observation]
    if inputs.admissible is not None:
        words += ["can", *(action.removeprefix("go ") for action in inputs.admissible)]
    return " ".join(words)
