"""For how many clients the files of a process are enough."""

from __future__ import annotations

import pytest

from gateway.downstream.limits import RESERVED_CONNECTIONS
from gateway.fleet.quotas import KINDS
from gateway.process.open_files import SPARE_FILES, max_connections_for, quota_of


@pytest.mark.parametrize("files", [144, 192, 1024, 65_536, 1 << 20])
def test_all_that_may_be_open_at_once_is_no_more_than_may_be_open(files: int) -> None:
    """And little is left over."""
    most = 2 * max_connections_for(files) + KINDS * quota_of(files) + RESERVED_CONNECTIONS + SPARE_FILES
    assert files - 2 < most <= files


def test_process_with_the_least_files_takes_a_client() -> None:
    assert max_connections_for(68) == 1 <= quota_of(68)


def test_limit_is_the_one_that_is_documented() -> None:
    assert max_connections_for(8192) == 8192 * 3 // 8 - 48
