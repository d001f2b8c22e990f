"""The command line: ``serve``, ``demo``, ``check``, ``workers``, ``sim``.

Owns: parsing flags and printing the result of each command.
Must never enter: request handling, settings of its own.
"""
