"""NumberLine: a number moves to a target in steps of one."""
