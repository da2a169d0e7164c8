"""Published methods, one folder each; `core.method_table` names them.

The core never imports a method: it looks a name up in the table when a config has it. `METHOD` in
the `__init__.py` of a folder is the method, and `advantages.py` has its formula: a function that
takes `StepColumns` with N >= 1 rows and keyword settings, including those that `gigpo_advantages`
has, and returns `Advantages`. A wrapper takes the function of another algorithm, `base`, instead.
Rows stand in any order; a masked one takes part in nothing: the step before it is followed by the
one after it.
"""
