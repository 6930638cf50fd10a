"""Makes text that may be shown: without secrets, without control characters, and of a length that can be read.

All of it takes time in proportion to the text, whatever a server puts into it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

#: A run without white space is cut to this many characters, a whole message to so many.
LONGEST_WORD, LONGEST_MESSAGE = 600, 20_000
_TAIL, _NOTE = 2_000, 60

_WORD = re.compile(r"[^\s\"'<>]+")
_SCHEME = re.compile(r":\\?/\\?/")
#: urllib3 quotes the path alone: "Max retries exceeded with url: /f.parquet?X-Amz-Signature=abc".
_PATH_QUERY = re.compile(r"(?P<base>\burl: /[^\s\"'<>?]*)\?[^\s\"'<>]*")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=\\-]{8,}")
#: A JSON web token, which a server may quote without a name.
_JWT = re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_SECRET_FIELD = re.compile(
    r"(?i)(?P<key>\b(?:bearer_?token|access_?token|refresh_?token|client_?secret|secret_?access_?key|session_?token|"
    r"access_?key_?id|sas_?token|oauth_?token|password|private_?key|client_?assertion|assertion)\b\\*[\"']?\s*[:=]\s*)"
    r"(?P<value>\\*\"[^\"]*\"?|\\*'[^']*'?|[^\s,;&}\"']+)"
)
_SIGNATURE = re.compile(
    r"(?i)\b(?P<key>sig|signature|x-amz-(?:signature|credential|security-token)|x-goog-signature)=[^\s&\"']+"
)
#: Control characters but tab and line feed, halves of characters, marks that turn or hide text.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
_LINE_BREAKS = re.compile(r"[\t\n]")
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


def redact(text: str) -> str:
    """Return ``text`` without URL queries, user info, bearer tokens and named secrets.

    >>> redact("GET https://host/f.parquet?X-Amz-Signature=abc failed")
    'GET https://host/f.parquet?[redacted] failed'
    """
    text = _WORD.sub(_without_query, text)
    text = _PATH_QUERY.sub(r"\g<base>?[redacted]", text)
    text = _BEARER.sub(r"\1 [redacted]", text)
    text = _JWT.sub("[redacted]", text)
    text = _SECRET_FIELD.sub(r"\g<key>[redacted]", text)
    return _SIGNATURE.sub(r"\g<key>=[redacted]", text)


def _without_query(match: re.Match[str]) -> str:
    """A word without the query and the user info of the URLs in it."""
    word = match[0]
    first = _SCHEME.search(word)
    if first is None:
        return word
    query = word.find("?", first.end())
    if query >= 0:
        word = word[:query] + "?[redacted]"
    parts = [word[: first.end()]]
    position = first.end()
    while position < len(word):
        following = _SCHEME.search(word, position)
        end = following.start() if following else len(word)
        authority, slash, path = word[position:end].partition("/")
        user, separator, host = authority.rpartition("@")
        parts.append(f"{'[redacted]' if ':' in user else user}{separator}{host}{slash}{path}")
        position = following.end() if following else end
        parts.append(word[end:position])
    return "".join(parts)


def printable(text: str, *, one_line: bool = False) -> str:
    r"""Return ``text`` with control characters, marks that turn the direction of text and half characters escaped.

    Args:
        text: Whatever a server, a log or a file says.
        one_line: Whether tabs and line feeds are escaped as well.

    >>> printable("a\x1b[2Jb\u202ec")
    'a\\x1b[2Jb\\u202ec'
    """
    text = _CONTROL.sub(_escaped, text)
    return _LINE_BREAKS.sub(_escaped, text) if one_line else text


def printable_json(value: object) -> str:
    """A value as indented JSON, readable but for what ``printable`` escapes."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return _CONTROL.sub(lambda match: json.dumps(match[0])[1:-1] if match[0] != "\x7f" else "\\u007f", text)


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def shown(text: str) -> str:
    """Return ``text`` as an error shows it: redacted, printable, and cut where it is too long to be read."""
    text = _LONG_WORD.sub(_cut_word, printable(redact(text)))
    if len(text) <= LONGEST_MESSAGE:
        return text
    left_out = len(text) - LONGEST_MESSAGE + _NOTE
    return f"{text[: LONGEST_MESSAGE - _TAIL - _NOTE]} [{left_out} characters left out] {text[-_TAIL:]}"


def _cut_word(match: re.Match[str]) -> str:
    word = match[0]
    kept = LONGEST_WORD // 3
    return f"{word[:kept]}[{len(word) - 2 * kept} characters left out]{word[-kept:]}"


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    r"""Return ``text`` without ``secrets``, however each character of them is spelled.

    JSON (``\u003d``, ``\/``), percent and HTML spellings are known, and any mixture of them.
    """
    for secret in secrets:
        if secret:
            text = re.sub("".join(map(_spellings, secret)), "[redacted]", text)
    return text


def _spellings(character: str) -> str:
    code = ord(character)
    spelled = [
        rf"\\{{0,4}}{re.escape(character)}",
        rf"\\{{1,4}}u(?i:{code:04x})",
        rf"&#0{{0,6}}{code};",
        rf"&#[xX]0{{0,6}}(?i:{code:x});",
    ]
    spelled.append("".join(f"%(?i:{byte:02x})" for byte in character.encode("utf-8", "replace")))
    return f"(?:{'|'.join(spelled)})"
