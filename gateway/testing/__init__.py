"""What a format has to do, as tests that its author runs.

Owns: the contract suite for formats of any origin. Must never enter: a dialect, anything that the product
imports (the product never imports this package; it needs hypothesis and pytest, ``tito-gateway[testing]``).
"""
