"""What a format has to do, as tests that its author runs. See docs/writing-a-format.md.

Owns: the contract suite for formats of any origin. Must never enter: a dialect, anything that the product
imports. The product never imports this package; it needs what ``tito-gateway[testing]`` installs.
"""

import pytest

# Before the modules are imported, so that their bare asserts explain themselves in anybody's test run.
pytest.register_assert_rewrite(
    "gateway.testing.contract", "gateway.testing.endpoint", "gateway.testing.laws", "gateway.testing.rig"
)
