"""What differs between two servers, without what is known to differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Final, NamedTuple


class Known(NamedTuple):
    """A difference that is none: in cases of a kind, where patterns are found in what ours says, and in theirs.

    ``ends``: from here on, the streams are not the same. ``aside``: without what this matches, both say the same.
    ``after``: one of them must have said this before.
    """

    kind: str
    ours: str
    theirs: str
    why: str
    ends: bool = False
    aside: str = ""
    after: str = ""

    def fits(self, ours: str, theirs: str, before: str) -> bool:
        """Whether this is the difference of two lines, of which the lines ``before`` were said already."""
        if not (re.search(self.ours, ours) and re.search(self.theirs, theirs) and re.search(self.after, before)):
            return False
        return not self.aside or re.sub(self.aside, "", ours) == re.sub(self.aside, "", theirs)


_ALL: Final = r'"subjects": \[">"\].*"messages": '
_NOBODY: Final = r"^\d+: $"
_REFUSED: Final = r'\{"error": .*"type": "io.nats.jetstream.api.v1.%s_response"'
_FAULT: Final = r'\{"error": .*"err_code": %s\b.*\}$'
_TEXT: Final = r'"description": "(\\.|[^"\\])*"'
# What is checked of a configuration.
_CHECKS: Final = "(10031|10034|10052|10133|10140|10142|10143|10156|10186)"
# Consumers that go when they are idle for less than a second.
_BRIEF: Final = r'"inactive_threshold": \d{1,9}\b'
_EMPTY: Final = '"first_seq": %d, "first_ts": "TIME", "last_seq": 0'
KNOWN: Final = (
    Known("configurations", "^refused", "^refused", "errors of a configuration have words of our own"),
    Known("configurations", "^refused", "^accepted", "what would be ignored is refused"),
    Known("configurations", "^accepted", "config has no values or is empty", "nothing is the default"),
    Known("configurations", "not all of it", "", "the value of a key without effect is not read"),
    Known("configurations", "^accepted", "invalid use of field", "a warning, which only nats-server -t refuses"),
    *(
        Known(kind, "^$", "^-ERR Invalid Publish Subject$", "said twice of a message that it read in portions")
        for kind in ("commands", "frames")
    ),
    Known("frames", "^(10 .*)?$", "^(8|10) .*|^$", "what was sent when a connection ended, and how it is said"),
    Known("frames", "^8 ", "^(8 .*)?$", "why a WebSocket ends is said before it does"),
    Known("frames", "", "^no command: Parser Error$", "a subject that is no UTF-8, of a frame that was changed", True),
    Known("logins", "Permissions Violation", "", "a name or tag with a wildcard fills in no template"),
    Known("requests", r"503\|Nats-Subject: \$JS\.", _NOBODY, "who asks for what there is not is told so at once"),
    Known("requests", '"err_code": 10010', _NOBODY, "what only a cluster does is refused, not left unanswered"),
    Known("requests", _REFUSED % "consumer_reset", _NOBODY, "nats-server does not say that it cannot reset"),
    Known("requests", '"reset_seq"', '"reset_seq"', "who is reset goes on counting: the numbers are tokens", ends=True),
    Known("requests", '"duplicate": true', '"err_code": (10071|10111)', "a duplicate is one whatever it expects"),
    Known(
        "requests",
        "404 No Messages",
        f"{_NOBODY}|408 Requests Pending|409 Consumer Deleted",
        "a pull of which max_ack_pending stops the rest is over",
        ends=True,
    ),
    *(
        Known("requests", *said, "a consumer that may be idle for an instant", ends=True, after=_BRIEF)
        for said in (
            ("Consumer Deleted|consumer not found", ""),
            ("", "Consumer Deleted|consumer not found"),
            ('"consumer_count": ', '"consumer_count": '),
        )
    ),
    Known(
        "requests",
        '"republish": {"dest": "",',
        '"republish": {"dest": ">",',
        "an update makes nats-server republish to where it stores, for ever",
        ends=True,
    ),
    Known(
        "requests",
        '"num_pending": ',
        '"num_pending": ',
        "a stream of > has what clients ask of the server, and its answers: here it has not",
        ends=True,
        after=r'"subjects": \[">"\]',
    ),
    *(
        Known("requests", said, said, "the same", ends=True, after=r'"subjects": \[">"\]')
        for said in ('"messages": ', '"purged": ')
    ),
    Known("requests", _ALL, _ALL, "the same, at once", ends=True),
    Known(
        "requests",
        '"messages": ',
        '"messages": ',
        "a stream that has kept all: for nats-server, what is delivered without acks stays as if it still did",
        ends=True,
        after=r'"ack_policy": "none"(.|\n)*"retention": "interest"',
    ),
    Known("requests", "priority policy and groups can not be updated", "", "ADR-42 forbids it", ends=True),
    Known(
        "requests",
        '"delivered": {"consumer_seq": 0, "stream_seq": 0}',
        '"delivered": {"consumer_seq": 0, "stream_seq": [1-9]',
        "in memory, nats-server counts what it has skipped",
        aside='"delivered": {[^}]*}',
    ),
    Known(
        "requests",
        '"ack_policy": "all"',
        '"ack_floor"',
        "an ack whose number is of another delivery moves the floor to it",
        aside='"ack_floor": {[^}]*},? ?',
    ),
    Known(
        "requests",
        '"ack_floor"',
        r'"ack_floor": {"consumer_seq": [1-9]\d*, "stream_seq": 0}',
        "a floor of deliveries that has no message: an ack had the number of another one, whose message was purged",
        aside='"ack_floor": {[^}]*},? ?',
    ),
    Known(
        "requests",
        '"ack_floor"',
        '"num_ack_pending"',
        "several were purged by a filter: nats-server still counts those of them that were delivered",
        ends=True,
        aside=r'"(ack_floor|delivered)": {[^}]*},? ?|"num_(ack_pending|redelivered)": \d+,? ?',
        after=r'"purged": ([2-9]|\d\d)',
    ),
    Known(
        "requests",
        _NOBODY,
        "404 No Messages",
        "what is to be delivered again at once",
        True,
        "",
        r'"ack_wait": \d{1,9}\b',
    ),
    Known(
        "requests",
        '"num_redelivered": ',
        '"num_ack_pending": ',
        "a NAK whose number is that of a delivery before the floor: here its message is delivered again",
        ends=True,
        aside=r'"(num_redelivered|num_(ack_)?pending|num_waiting|(consumer|stream)_seq)": \d+,? ?',
    ),
    Known("requests", "only one priority group", "", "of which nats-server uses the first alone", ends=True),
    Known(
        "requests", "", f'"first_seq": {1 << 63}|"first_seq": {(1 << 64) - 1}', "no sequence is larger here", ends=True
    ),
    Known("requests", f'"seq": {(1 << 63) - 1}', f'"seq": {1 << 63}', "the same of a message", ends=True),
    Known("requests", '"err_code": 10165', r'\{"seq": ', "of a message that nobody waits for, less is read", ends=True),
    Known("requests", "holds a NUL character", "", "which cannot be stored", ends=True),
    Known("requests", "10057", "stream store EOF", "words of its store"),
    Known("requests", "invalid JSON", "stream not found", "what cannot be read is refused before it is looked for"),
    Known(
        "requests",
        "Priority Group missing",
        f"{_NOBODY}|409 Consumer Deleted",
        "a number alone is a pull of no group, which nobody serves",
    ),
    Known("requests", "400 Bad Request - ", "400 Bad Request - ", "where Go's decoder stopped"),
    Known(
        "requests",
        _FAULT % r"10\d+",
        _FAULT % r"10\d+",
        "of several faults with one code, any may be told",
        aside=_TEXT,
    ),
    Known("requests", _FAULT % 10074 + "|refers to a NATS system", _FAULT % r"10\d+", "what no embedded store has"),
    Known("requests", _FAULT % _CHECKS, _FAULT % "(10031|10034|10140|10143)", "of several faults, any may be told"),
    Known("requests", _FAULT % 10014, _FAULT % 10059, "a name that no consumer can have is looked at first"),
    Known("requests", _FAULT % 10059, _FAULT % "(10003|10052)", "a name that no stream can have is not there"),
    Known("requests", _FAULT % 10227, _FAULT % 10071, "what only a stream's source may say is refused first"),
    Known("requests", _FAULT % 10059, _FAULT % 10074, "copies that a consumer of no stream should have"),
    Known("requests", _FAULT % 10015, _FAULT % 10059, "a snapshot's subject is looked at first"),
    Known("requests", "stream name is required", _FAULT % 10056, "a name that cannot be printed is none here"),
    Known("requests", _FAULT % 10165, _FAULT % "(10166|10169)", "a TTL of more digits than a number has, or looked at"),
    Known("requests", r"- \[\] b''$", _NOBODY, "an ack of what was not delivered yet is answered: it settles nothing"),
    Known("requests", r"\[NATS/1.0 408 ", "503", "a direct get that is wrong, of a stream that has none"),
    Known(
        "requests", "does not exist|not found", "priority group name must match", "a group that no consumer can have"
    ),
    Known("requests", "refers to a NATS system", "", "a store does not reach other systems", ends=True),
    Known(
        "requests", '"(sources|mirror)": .*10059', '"(sources|mirror)": ', "that an origin is missing is said at once"
    ),
    Known(
        "requests", "counter stream cannot use message TTLs", "", "markers have one, and would end counts", ends=True
    ),
    Known("requests", '"inactive_threshold": 5000000000', "", "a durable consumer that becomes ephemeral", ends=True),
    Known("requests", "", '"inactive_threshold": 5000000000', "an ephemeral consumer that becomes durable", ends=True),
    Known(
        "requests", '"replay_policy": "original"', '"replay_policy": "original"', "when it delivers again", ends=True
    ),
    Known("requests", "consumer_create_resp", '"err_code": 10148', "to it, filters written as [] are others than none"),
    Known("requests", _EMPTY % 0, _EMPTY % 1, "a stream that never had a message, and was purged"),
    Known("requests", _EMPTY % 1, _EMPTY % 0, "a stream that never had a message, and has another first sequence"),
    Known("requests", "no message found.*10057", '"err_code": 10003', "{} is a request for sequence 0"),
    Known("archives", "refers to a NATS system", "", "a store does not reach other systems"),
    Known("archives", '"messages": 0', '"max_age": [1-9].*"messages": [1-9]', "what is too old goes at once"),
    Known("archives", "err_code", "err_code", "what is wrong with an archive is said in words of our own"),
    Known(
        "archives", "restore failed: |does have mirror direct", '"state"', "more is refused than nats-server refuses"
    ),
    Known("archives", '"state"', "(error in|invalid) .*state|10047", "what is not needed of the state is not read"),
    Known("archives", '"state"', "expected sequence does not match", "first_seq is that of the archive"),
    Known(
        "archives", '"messages": 0', '"retention": "interest".*"messages": [1-9]', "what nobody waits for goes at once"
    ),
    Known(
        "archives", '"(sources|mirror)": .*10059', '"(sources|mirror)": ', "that an origin is missing is said at once"
    ),
    Known("archives", _EMPTY % 0, _EMPTY % 1, "a stream that never had a message"),
)


def differences(kind: str, ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[str, str]]:
    """Return what differs: lines of ours, and the lines of theirs in their place."""
    found: list[tuple[str, str]] = []
    for begin, end, there, until in _different(kind, ours, theirs):
        size = max(end - begin, until - there)
        lines = ((*one, *[""] * (size - len(one))) for one in (ours[begin:end], theirs[there:until]))
        for number, both in enumerate(zip(*lines, strict=True)):
            if both[0] == both[1]:
                continue
            before = "\n".join([*ours[: begin + number], *theirs[: there + number]])
            known = next((each for each in KNOWN if each.kind == kind and each.fits(*both, before)), None)
            if known is None:
                found.append(both)
            elif known.ends:
                return found
    return found


def _different(kind: str, ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """Return the parts that are not the same; of a flow of commands, one may be missing."""
    if kind not in ("commands", "frames"):
        return [(0, len(ours), 0, len(theirs))]
    if ours[-1:] == theirs[-1:] == ["END"]:
        # What a client is told last may get lost if the server has not read all that it sent.
        known = min(ours.count("Pong"), theirs.count("Pong"))
        ours, theirs = _up_to(ours, known), _up_to(theirs, known)
    matched = SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes()
    return [tuple(places) for change, *places in matched if change != "equal"]  # type: ignore[misc]  # there are four


def _up_to(lines: Sequence[str], pongs: int) -> Sequence[str]:
    """Return the lines up to so many pongs."""
    places = [number for number, line in enumerate(lines) if line == "Pong"]
    return lines[: places[pongs - 1] + 1] if pongs else []
