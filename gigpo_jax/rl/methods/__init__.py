"""Advantage functions, one file a method; `gigpo_jax.rl.algorithms` names them.

Each takes `StepColumns` with N >= 1 rows and keyword settings, those of `gigpo_advantages` among
them, and returns `Advantages`. A wrapper takes another one's function, `base`, in place of these.
Rows stand in any order; a masked one takes part in nothing: the step before it is followed by the
one after it.
"""
