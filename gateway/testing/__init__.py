"""The contract suite for authors of formats. See docs/testing.md and docs/writing-a-format.md.

Owns: the tests that every format must pass, and the scripted worker and gateway they need. Must never enter:
a dialect. The gateway does not import this package; its dependencies come with ``tito-gateway[testing]``.
"""

import pytest

# Before these modules are imported, so that a failing assert in them shows its values.
pytest.register_assert_rewrite(
    "gateway.testing.contract", "gateway.testing.endpoint", "gateway.testing.laws", "gateway.testing.rig"
)
