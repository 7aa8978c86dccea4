"""Takes secrets out of whatever is written down: passwords in URLs, and values of what is called a secret."""

from __future__ import annotations

import re

HIDDEN = "***"
# postgresql://me:secret@host, up to the last @ of the word: a password may hold one that nobody quoted.
_IN_URL = re.compile(r"""(//[^\s:/@'"]*:)[^\s'"]+@""")
# password=secret, "db_password": "secret", API_KEY='secret'
_NAMED = re.compile(
    r"""(\w*(?:password|passwd|secret|token|api_?key|access_?key)["']?\s*[=:]\s*["']?)(?!\*\*\*)[^\s"',;&}\])]+""",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    return _NAMED.sub(rf"\1{HIDDEN}", _IN_URL.sub(rf"\1{HIDDEN}@", text))
