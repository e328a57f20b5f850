"""Secrets in a line of output, masked before the line is shown or stored."""

from __future__ import annotations

import re

MASK = "********"

_NAMES = (
    r"pass(?:word|wd|phrase)?|pwd|secret|token|api[_-]?key|access[_-]?key(?:[_-]?id)?|private[_-]?key"
    r"|auth(?:orization)?|credentials?|client[_-]?secret|session[_-]?(?:id|key|token)|sas|signature|cookie"
    r"|dsn|bearer|conn(?:ection)?[_-]?str(?:ing)?"
    r"|(?:account|shared|encryption|signing|storage|master|license|service)[_-]?key"
)

_NAME_HINTS = (
    "pass", "pwd", "secret", "token", "key", "auth", "credential", "session", "sas", "signature",
    "cookie", "dsn", "bearer", "conn",
)  # fmt: skip
"""Each of `_NAMES` contains one of these: a text without any needs no slow rule."""

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    # user:password@ in a URL; the user stays.
    (
        re.compile(
            r"(\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@'\"]{0,80}):[^\s/@'\"]{1,400}@", re.IGNORECASE
        ),
        rf"\1:{MASK}@",
    ),
    # A bare token as the user part: https://ghp_...@github.com
    (
        re.compile(r"(\b[a-z][a-z0-9+.-]{1,20}://)[^\s/:@'\"]{12,400}@", re.IGNORECASE),
        rf"\1{MASK}@",
    ),
    (
        re.compile(r"\b(Bearer|Basic|Token|Digest|token)( +)[A-Za-z0-9._~+/=-]{8,2000}"),
        rf"\1\2{MASK}",
    ),
    (
        re.compile(
            r"\beyJ[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]{4,2000}(?:\.[A-Za-z0-9_-]{0,2000})?"
        ),
        MASK,
    ),
    (re.compile(r"\b(?:AKIA|ASIA|AGPA|AIDA|AROA|ANPA)[A-Z0-9]{12,20}\b"), MASK),
    (
        re.compile(
            r"([?&](?:sig|signature|token|key|code|x-amz-(?:signature|credential|security-token))=)"
            r"[^&\s\"']{1,2000}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(
            r"\b(?:gh[pousr]_|github_pat_|hf_(?=[A-Za-z0-9]{10})|glpat-|sk-|sk_live_|rk_live_|xox[abprs]-|pypi-|npm_|dckr_pat_"
            r"|pnu_|pnb_|AIza|ya29\.|dop_v1_|nvapi-|wandb_v1_)[A-Za-z0-9_.-]{8,400}"
        ),
        MASK,
    ),
    (
        re.compile(
            r"(\bhooks\.slack\.com/(?:services|workflows)/|\bdiscord(?:app)?\.com/api/webhooks/"
            r"|/bot(?=\d{6,12}:))[\w:/-]{8,200}"
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(
            r"\b(?:xapp-|SG\.|dapi(?=[0-9a-f]{32})|hv[sbr]\.|AGE-SECRET-KEY-|r8_|gsk_|shp(?:at|ss|ca)_"
            r"|lsv2_|ATATT|xai-|tvly-)[A-Za-z0-9_.=-]{8,400}"
        ),
        MASK,
    ),
    (re.compile(r"\bMII[A-Za-z0-9+/]{50,4000}"), MASK),
    (re.compile(r"(\bwandb\b[^\n]{0,200}?\s)[0-9a-f]{40}\b"), rf"\1{MASK}"),
    # -u user:password, but not -u 1000:1000.
    (
        re.compile(
            r"((?:^|\s)(?:-u"
            r"|--(?:proxy-)?user)[ =][\"']?[^\s:\"']{1,80}:)(?!\d{1,6}\b)[^\s\"']{1,400}"
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(
            r"(\bsshpass -p ?|\blogin\b[^\n]{0,200}? -p ?|\bmysql(?:dump|admin)?\b[^\n]{0,200}? -p)"
            r"[^\s-][^\s]{0,200}"
        ),
        rf"\1{MASK}",
    ),
    (re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.{0,4000}"), MASK),
)

_NAMED_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    # NAME=value, "name": "value", --name value, where the name says that it is a secret.
    (
        re.compile(
            rf"([\"']?\b[\w.-]{{0,60}}?(?:{_NAMES})[\w-]{{0,20}}\\{{0,3}}[\"']?\s{{0,3}}(?:[=:]|=>)\s{{0,3}}\\{{0,3}}[\"'])"
            rf"[^\"'\n]{{1,2000}}([\"'])",
            re.IGNORECASE,
        ),
        rf"\1{MASK}\2",
    ),
    (
        re.compile(
            rf"(\b[\w.-]{{0,60}}?(?:{_NAMES})[\w-]{{0,20}}\s{{0,3}}=\s{{0,3}})(?![\"'])[^\s,;&)\]}}]{{1,2000}}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(
            rf"(\b[\w.-]{{0,60}}?(?:{_NAMES})[\w-]{{0,20}}[\"']?: ?)(?![\"' ])"
            rf"(?=[^\s,;]{{0,40}}[\d_=/+-])[A-Za-z0-9._~+/=-]{{8,2000}}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(
            rf"(--?[\w-]{{0,40}}?(?:{_NAMES})[\w-]{{0,20}}[ =])(?!\*)[^\s\"'-][^\s\"']{{0,2000}}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # Header: value.
    (
        re.compile(
            r"(\b(?:(?:Proxy-)?Authorization|X-[\w-]{0,40}?(?:Key|Token|Secret|Auth)[\w-]{0,10})[\"']?"
            r": ?[\"']?)(?!(?:Bearer|Basic|Token|Digest)\b|\*)[^\s\"',]{4,2000}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # password: value, password 'value', password is value1
    (
        re.compile(
            r"(\bpass(?:word|wd|phrase)(?:(?: is| was)?:? ?[\"']| ?: ?(?![\"'])))"
            r"(?!\*)[^\s\"',;)}]{3,400}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(
            r"(\bpass(?:word|wd|phrase) (?:is|was) )(?=[^\s]{0,40}\d)[^\s\"',;]{3,400}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(
            r"(\b(?:key|token|secret|password)s? (?:provided|supplied|given|used): ?[\"']?)"
            r"[^\s\"',]{6,400}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # A long random word after a key word: "key 9f86d081884c7d659a2f..."
    (
        re.compile(
            rf"(\b(?:key|{_NAMES})\b[^\w\n]{{1,4}})(?=[A-Za-z+/_-]{{0,80}}\d)[A-Za-z0-9+/_=-]{{20,2000}}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
)


def mask_secrets(text: str) -> str:
    """`text` with what looks like a password, key or token replaced by asterisks.

    It errs on the side of masking. Names stay, so that a person sees which secret it was.
    """
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    lowered = text.lower()
    if any(hint in lowered for hint in _NAME_HINTS):
        for pattern, replacement in _NAMED_RULES:
            text = pattern.sub(replacement, text)
    return text
