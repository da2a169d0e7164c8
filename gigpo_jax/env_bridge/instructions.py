"""The prompt for language models that follow instructions."""

from dataclasses import dataclass

from gigpo_jax.env_bridge.prompts import PromptInput


@dataclass(frozen=True)
class Instruct:
    """The prompt for a language model that follows instructions.

    Attributes:
      intro: One or two sentences about the environment and the agent's role.
      hidden: Admissible actions that are not listed.
      thought: Instruction for the beginning of the response; the action comes after it.
      plan_title: Words before the agent's present plan.
    """

    intro: str
    hidden: tuple[str, ...] = ()
    thought: str = (
        "First reason about what you know and what brings you closer to the goal, "
        "between <think> and </think>. "
    )
    plan_title: str = "Your plan: "

    def __call__(self, inputs: PromptInput, /) -> str:
        lines = [self.intro, "Your task: " + inputs.task]
        if inputs.steps:
            lines.append(f"Steps taken so far: {inputs.steps}.")
        if inputs.history:
            count = len(inputs.history)
            heading = "step:" if count == 1 else "steps, the oldest first:"
            lines.append(f"Your last {count} {heading}")
            for number, event in enumerate(inputs.history, inputs.steps - count + 1):
                lines.append(f"[step {number}] You saw: " + event.observation)
                lines.append(f"[step {number}] You did: " + event.action)
        if inputs.plan:
            lines.append(self.plan_title + inputs.plan)
        lines += [advice.title + advice.text for advice in inputs.advice]
        lines.append(self.user(inputs))
        lines.append(self._request(inputs))
        return "\n".join(lines)

    def system(self, inputs: PromptInput, /) -> str:
        """The system message of a conversation: what all steps share."""
        return "\n".join((self.intro, "Your task: " + inputs.task, self._request(inputs)))

    def user(self, inputs: PromptInput, /) -> str:
        """The user message of a conversation: the step."""
        lines = [f"Now, at step {inputs.steps + 1}, you see: " + inputs.observation]
        if inputs.admissible is not None:
            lines.append("What you can do now:")
            lines.extend("- " + action for action in inputs.admissible if action not in self.hidden)
        return "\n".join(lines)

    def _request(self, inputs: PromptInput) -> str:
        request = "Then write one action"
        if inputs.admissible is not None:
            request = "Then choose one action from the list"
        return (
            f"{self.thought}{request} and give it, and nothing else, "
            "between <action> and </action>."
        )


TAGGED_THOUGHT = (
    "First reason between <think> and </think>, in there under one tag: "
    "<planning>..</planning> where you break the task down into steps or make a new plan, "
    "<explore>..</explore> where you try what you have not tried yet, "
    "<reflection>..</reflection> where the last action failed and you find out why, or "
    "<monitor>..</monitor> where you check how far the plan has come. "
)
