"""What a worker's card says: the types of its values, how they are read and what follows from them.

Owns: values and rules that need no worker. Must never enter: I/O, clocks, a dialect, third-party packages,
where a value came from.
"""
