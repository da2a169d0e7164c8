"""How the corridor asks for beliefs (`env.plan=belief`); no worker imports it."""

from gigpo_jax.methods.rebel.graders import GradedBeliefs

BELIEFS = GradedBeliefs(
    "First write what you know, as one JSON object between <belief> and </belief>, with these "
    'keys: "sign": the colour that the sign named; "phase": walk or doors; "prediction": what you '
    "expect to see after your action. Then reason about it between <think> and </think>. ",
    "examples.corridor.env:SignGrader",
)
