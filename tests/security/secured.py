"""A gateway that serves TLS, and a raw client of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.security.certificates import Authority
from tests.support.gateway import RawClient, Rig, rig
from tests.support.generate import body_of


@asynccontextmanager
async def secured(authority: Authority, *workers: str, **settings: Any) -> AsyncIterator[Rig]:
    """Run a gateway with a certificate of ``authority``."""
    certificate, key = authority.files()
    async with rig(*workers, ssl_certfile=certificate, ssl_keyfile=key, **settings) as gateway:
        yield gateway


async def client_of(gateway: Rig, authority: Authority, limit: int = 2**16) -> RawClient:
    """Connect over TLS and trust ``authority``."""
    return await RawClient.connect(gateway.port, limit, authority.client())


def request_of(*arguments: Any) -> bytes:
    """The body of a request for SGLang; ``arguments`` are those of ``body_of``."""
    return json.dumps(body_of("sglang", *arguments)).encode()
