"""Lines of an attempt's output that the user's own rules match, however much comes after them."""

from __future__ import annotations

from collections.abc import Sequence

from prefect_heteroflow.core.linear import UNBOUNDED
from prefect_heteroflow.core.log_lines import split_lines, strip_prefixes
from prefect_heteroflow.core.user_rules import UserRule

_LONGEST = 64 * 1024
"""Characters of a line without an end that are kept until more of it comes."""


class RuleLines:
    """Reads output in chunks and keeps the newest line of each rule.

    What a scanner keeps for the built-in rules is the beginning, the end and what those match: a
    line that only the user knows to be important would be lost between them.

    Args:
        rules: The rules; without any nothing is read.
    """

    def __init__(self, rules: Sequence[UserRule]) -> None:
        self._rules = tuple(rules)
        self._unfinished = ""
        self._found: dict[UserRule, tuple[int, str]] = {}
        self._seen = 0

    @property
    def are_wanted(self) -> bool:
        """Whether there is any rule to look for."""
        return bool(self._rules)

    def feed(self, text: str) -> None:
        """Take the next part of the output; it may end anywhere."""
        if not self._rules or not text:
            return
        whole, _, rest = (self._unfinished + text).replace("\r", "\n").rpartition("\n")
        self._look(whole)
        if len(rest) > _LONGEST:
            self._look(rest)
            rest = rest[-UNBOUNDED:]
        self._unfinished = rest

    def text(self) -> str:
        """The lines that were found, in the order of the output; empty if there are none."""
        if self._unfinished:
            self._look(self._unfinished)
        return "\n".join(line for _, line in sorted(set(self._found.values())))

    def _look(self, text: str) -> None:
        wanted = [rule for rule in self._rules if rule.is_regex or rule.pattern in text]
        for line in split_lines(text) if wanted else ():
            self._seen += 1
            # As `apply_user_rules` will look at it.
            shortened = strip_prefixes(line[: 4 * UNBOUNDED])[:UNBOUNDED]
            for rule in wanted:
                if rule.regex.search(shortened) is not None:
                    self._found[rule] = (self._seen, shortened)
