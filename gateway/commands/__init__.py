"""The command line: ``serve``, ``demo``, ``check``, ``workers``, ``sim``.

Owns: parsing of flags and what each command prints.
Must never enter: request handling, settings of its own.
"""
