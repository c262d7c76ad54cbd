"""The meaning of filters, stated as slowly and plainly as possible, to test the fast code against.

Over the tokens `a`, `b` and `c`, the subjects of up to four tokens distinguish all filters of up to three tokens that
use only `a` and `b`: `c` stands for any token a filter does not mention, the fourth for any longer tail.
"""

from itertools import product

from hypothesis import strategies as st

UNIVERSE = [".".join(tokens) for depth in range(1, 5) for tokens in product("abc", repeat=depth)]


def matches(filter: str, subject: str) -> bool:
    """Match token by token, wildcards by their definition."""
    want, _, filter_rest = filter.partition(".")
    have, _, subject_rest = subject.partition(".")
    if want == ">":
        return True
    if want not in ("*", have):
        return False
    if not filter_rest or not subject_rest:
        return filter_rest == subject_rest
    return matches(filter_rest, subject_rest)


def named(filter: str) -> set[str]:
    """All subjects of the universe that the filter matches."""
    return {subject for subject in UNIVERSE if matches(filter, subject)}


def _join(tokens: tuple[list[str], str]) -> str:
    return ".".join([*tokens[0], tokens[1]])


filters = st.tuples(st.lists(st.sampled_from("ab*"), max_size=2), st.sampled_from("ab*>")).map(_join)
subjects = st.sampled_from(UNIVERSE)
