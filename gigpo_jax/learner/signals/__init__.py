"""Optional signals of algorithms, one file each; `table.SIGNALS` lists them.

A signal is computed only if the algorithm of the run needs it. To add one: write its file here, add
its class to `table.SIGNALS`, and add the columns or batch fields that it fills to `rl.types`.
"""
