"""Removes secrets from text that is shown: queries and users of URLs, values by the names they have, and tokens by their forms.

All of it takes time in proportion to the text, whatever a server puts into it. What looks like prose stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_HIDDEN = "[redacted]"

_WORD = re.compile(r"[^\s\"'<>]+")
_SCHEME = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9+.-]{0,19})?:\\?/\\?/")
#: Schemes of Azure's, in which a container stands where others have a user.
_CONTAINERS = frozenset({"abfs", "abfss", "wasb", "wasbs"})
#: ``%``, and what else follows it where it is itself encoded once or twice.
_PERCENT = "%(?:25){0,3}"
#: A query whatever stands before it: a URL without its scheme, one that quotes or a blank cut, urllib3's "with url: /f?sig=a".
_QUERY = re.compile(r"(?i)(?P<mark>\?|\\{1,4}u003f)(?=[\w.~%\[\]+-]{1,200}(?:=|\\{1,4}u003d)|[\w%+/~-]{20})[^\s\"'<>]*")
_ENCODED_QUERY = re.compile(rf"(?i)(?P<mark>{_PERCENT}3f)(?=[\w.~+-]{{1,200}}(?:=|{_PERCENT}3d))[^\s\"'<>]*")
_ENCODED_USER = re.compile(
    rf"(?i)(?P<scheme>(?P<level>{_PERCENT})3a(?:(?P=level)2f){{2}})"
    r"(?:(?!(?P=level)(?:2f|3f))[^\s\"'<>]){1,4096}?(?P<at>(?P=level)40)"
)
_USER = re.compile(r"(?<![^\s\"'<>(=,;])[^\s:/@\"'<>(=,;]{1,200}:[^\s:/@\"'<>]{1,512}@(?=\w)")
_PEM_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{1,40}-----")
_PEM_LINES = re.compile(r"(?:(?:\s|\\+[nr])*[A-Za-z0-9+/=]{16,})*")

#: Words of which ``:`` or ``=`` and a value after them make a secret, in any spelling and behind any other word.
_NAMES = (
    r"bearer_?token|access_?token|refresh_?token|id_?token|session_?token|security_?token|sas_?token|sas_?fixed_?token(?:\.[\w-]{1,63}){2,9}|oauth_?token|auth_?token|"
    r"identity_?token|client_?secret|secret_?access_?key|secret_?key|access_?key_?id|access_?key|account_?key(?:\.[\w-]{1,63}){2,9}|account_?key|shared_?key|"
    r"shared_?access_?(?:key|signature)|subscription_?key|storage_?key|signing_?key|encryption_?key|api_?key|private_?key|"
    r"client_?secret(?:\.[\w-]{1,63}){2,9}|password|passwd|passphrase|client_?assertion|subject_?token|actor_?token|connection_?string|x_?csrf_?token|"
    r"x_?amz_?(?:signature|credential)|x_?goog_?(?:signature|credential)"
).replace("_?", "[_.-]?")
#: Words that are parts of others, and so are looked for by themselves.
_SHORT_NAMES = r"(?<![A-Za-z])(?:pwd|sig|signature|secret|assertion|set-cookie|cookie)"
_VALUE = r"(?:\\*[bru]?\\*\"[^\"\n]*\"?|\\*[bru]?\\*'[^'\n]*'?|[^\s,;&}\"'<>]+)"
_FIELD = re.compile(
    rf"(?i)(?P<key>(?:{_NAMES}|{_SHORT_NAMES})(?:\\*[\"']?\s*(?:=>|[:=])\s*|\\*[\"']\s*,\s*(?=\\*[\"'])|{_PERCENT}3[ad]))"
    rf"(?!\\*[\[{{]){_VALUE}"
)
_ELEMENT = re.compile(rf"(?i)(?P<key><[\w:.-]{{0,60}}?(?:{_NAMES})>)[^<]+")
_ARGUMENT = re.compile(
    rf"(?i)(?P<key>(?<![\w-])--?(?:[\w-]{{0,40}}-)?(?:{_NAMES}|password|secret|token)\s+)(?!--?\w){_VALUE}"
)
#: Before a value: it has digits, or is longer than a word.
_NO_WORD = r"(?=[\w.~+/=-]{16}|(?=[^\s,;\"']{0,100}[0-9])[^\s,;\"']{6})"
#: Names that are words of prose as well.
_TOKEN = re.compile(
    rf"(?i)(?P<key>(?<![A-Za-z])(?:tokens?|pass|pw)(?:\\*[\"']?\s*=\s*|\\*[\"']\s*:\s*|\s*:\s*{_NO_WORD})){_VALUE}"
)
#: Names as people speak them.
_SPOKEN = re.compile(rf"(?i)(?P<key>(?:{_NAMES.replace('[_.-]?', ' ?')})(?: (?:is|was))?\s*[:=]?\s+{_NO_WORD}){_VALUE}")
#: Words that follow these ones in prose.
_PROSE = r"(?!(?:authenticat|authoriz|credential|token|profile|access|scheme|password)[a-z]*\b)"
_AUTHORIZATION = re.compile(
    r"(?i)(?P<key>authorization\\*[\"']?\s*[:=,]\s*\\*[bru]?\\*[\"']?)"
    r"(?:(?P<scheme>bearer|basic|digest|negotiate|token|apikey|dpop|sharedkey(?:lite)?|aws4-hmac-sha256)\s+[^\s\"']+|"
    r"(?=[^\s\"']{0,200}[0-9])[^\s\"']{8,})"
)
_BEARER = re.compile(
    rf"(?i)\b(?P<key>(?:bearer|basic|sharedkey(?:lite)?)(?:\s+|%20|\+)|bearer[:=]\s*){_PROSE}[A-Za-z0-9._~+/=:%\\-]{{8,}}"
)
#: Tokens that may be quoted without a name: JSON web tokens, those of Databricks, Google and AWS.
_FORMS = re.compile(
    r"(?<![A-Za-z0-9_-])(?:eyJ[A-Za-z0-9_-]{3,}(?:\.[A-Za-z0-9_-]*){1,4}|eyJ[A-Za-z0-9_-]{20,}|(?:dapi|dose|dkea)[0-9a-f]{30,}(?:-\d+)?|"
    r"ya29\.[A-Za-z0-9_-]{10,}|AIza[A-Za-z0-9_-]{30,}|(?:AKIA|ASIA)[A-Z0-9]{12,})"
)


def redact(text: str) -> str:
    """Return ``text`` without URL queries, user info, bearer tokens, keys and named secrets.

    >>> redact("GET https://host/f.parquet?X-Amz-Signature=abc failed")
    'GET https://host/f.parquet?[redacted] failed'
    >>> redact("aws_secret_access_key = abc, api-key: 'd e'")
    'aws_secret_access_key = [redacted], api-key: [redacted]'
    """
    text = _without_keys(text)
    text = _WORD.sub(_without_query, text)
    text = _QUERY.sub(rf"\g<mark>{_HIDDEN}", text)
    text = _ENCODED_USER.sub(rf"\g<scheme>{_HIDDEN}\g<at>", text)
    text = _ENCODED_QUERY.sub(rf"\g<mark>{_HIDDEN}", text)
    text = _AUTHORIZATION.sub(rf"\g<key>{_HIDDEN}", text)
    text = _BEARER.sub(rf"\g<key>{_HIDDEN}", text)
    text = _FORMS.sub(_HIDDEN, text)
    for named in (_ELEMENT, _FIELD, _ARGUMENT, _TOKEN, _SPOKEN):
        text = named.sub(rf"\g<key>{_HIDDEN}", text)
    return _USER.sub(f"{_HIDDEN}@", text)


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    r"""Return ``text`` without ``secrets``, however each character of them is spelled.

    JSON (``\u003d``, ``\/``), percent and HTML spellings are known, and any mixture of them.
    """
    for secret in secrets:
        if secret:
            text = re.sub("".join(map(_spellings, secret)), _HIDDEN, text)
    return text


def _without_keys(text: str) -> str:
    """Text without what stands in PEM blocks; of one that was cut off, without the lines that look like one's."""
    parts, position = [], 0
    while (begin := _PEM_BEGIN.search(text, position)) is not None:
        end = text.find("-----END ", begin.end())
        if end >= 0:
            close = text.find("-----", end + 9)
            stop = len(text) if close < 0 else close + 5
        else:
            lines = _PEM_LINES.match(text, begin.end())
            assert lines is not None
            stop = lines.end()
        parts += [text[position : begin.end()], _HIDDEN]
        position = stop
    return "".join((*parts, text[position:]))


def _without_query(match: re.Match[str]) -> str:
    """A word without the query and the user info of the URLs in it."""
    word = match[0]
    first = _SCHEME.search(word)
    if first is None:
        return word
    query = word.find("?", first.end())
    if query >= 0:
        word = word[:query] + f"?{_HIDDEN}"
    parts = [word[: first.end()]]
    scheme, position = first, first.end()
    while position < len(word):
        following = _SCHEME.search(word, position)
        end = following.start() if following else len(word)
        authority, slash, path = word[position:end].partition("/")
        port = authority.partition(":")[2]
        if port and not port.isdecimal() and authority[0] != "[" and "@" not in authority and "@" in path:
            authority, slash, path = f"{_HIDDEN}@", "", path.rpartition("@")[2]  # a password with a slash
        user, separator, host = authority.rpartition("@")
        is_container = ":" not in user and (scheme["name"] or "").lower() in _CONTAINERS
        parts.append(f"{user if is_container or not user else _HIDDEN}{separator}{host}{slash}{path}")
        scheme, position = following or scheme, following.end() if following else end
        parts.append(word[end:position])
    return "".join(parts)


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
