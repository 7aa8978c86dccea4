"""The one error of this package; each service turns it into its own at its edge."""

from __future__ import annotations


class AccessError(Exception):
    """`message` says which file or name, what is wrong with it and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class PairMismatch(AccessError):
    """A key of another certificate: also what is seen while one file of two has been replaced."""


class CannotListen(AccessError):
    """The address is in use, or not of this machine."""


class WrongAddress(AccessError, ValueError):
    """The text is no address of a server."""
