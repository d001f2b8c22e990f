"""The expected reply to a request."""

from __future__ import annotations

from tests.chaos.run.dialects import part_of, public_id


class Wrong(Exception):
    """The reply differs from the expected one."""


class Expected:
    """The expected reply, and the part received so far."""

    def __init__(self, kind: str, id: str | None, tokens: list[int]) -> None:
        self._kind = kind
        self._id = None if id is None else public_id(kind, id)
        self._tokens = tokens
        self._got: list[int] = []
        self._done = False
        self.finish: str | None = None
        self.error: str | None = None

    def take(self, event: bytes) -> None:
        """Compare one event of a stream. Raises Wrong."""
        data = event.removeprefix(b"data: ")
        if self._done or data == event:
            raise Wrong(f"an event that cannot be: {event[:120]!r}")
        if data == b"[DONE]":
            self._done = True
            return
        self.part(data)

    def part(self, text: bytes) -> None:
        """Compare one reply, or one event's data. Raises Wrong."""
        try:
            part = part_of(self._kind, text)
        except ValueError as error:
            raise Wrong(str(error)) from error
        # An error may follow the last token: the stream broke before it was closed.
        if self.error is not None or (self.finish is not None and part.error is None):
            raise Wrong("more after the end")
        self.finish, self.error = part.finish, part.error
        self._got = part.tokens if part.complete else self._got + part.tokens
        if self._got != self._tokens[: len(self._got)] and part.error is None:
            raise Wrong(f"tokens of another request: {self._got[:4]} for {self._tokens[:4]}")
        if self._id is not None and part.id != self._id and part.error is None:
            raise Wrong(f"the id {part.id!r} for {self._id!r}")

    def close(self) -> None:
        """Check that the reply ended with its terminal event. Raises Wrong."""
        if not self._done:
            raise Wrong("a stream without [DONE] that ends as if it were complete")
        self.check()

    def check(self) -> None:
        if self.error is None and self.finish is None:
            raise Wrong("a reply that ends as if it were complete, without a finish reason")
        if self.finish == "length" and len(self._got) != len(self._tokens):
            raise Wrong(f"{len(self._got)} of {len(self._tokens)} tokens")
