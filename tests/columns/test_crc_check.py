"""One CRC over all payloads verifies the checksum of every row."""

from zlib import crc32

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pelton.columns.joined_columns import Repeated, Sums, crcs_match, positions
from pelton.storage.messages import row_checksum

INT64 = st.integers(-(2**63), 2**63 - 1)
# Of one length, or of several; some exceed one table of distances.
LENGTHS = st.one_of(
    st.tuples(st.integers(0, 70_000), st.integers(1, 20)).map(lambda drawn: [drawn[0]] * drawn[1]),
    st.lists(st.one_of(st.integers(0, 300), st.integers(0, 70_000)), min_size=1, max_size=20),
)


# The payloads are long on purpose.
@settings(suppress_health_check=[HealthCheck.data_too_large])
@given(LENGTHS, st.integers(0, 2**63 - 21), st.randoms(use_true_random=False), st.data())
def test_rows_that_are_whole_are_told_from_damaged_ones(
    lengths: list[int], first: int, random: object, data: st.DataObject
) -> None:
    payloads = [random.randbytes(length) for length in lengths]  # type: ignore[attr-defined]  # a Random
    subjects = [data.draw(st.sampled_from(["a", "b.c", "é"])) for _ in payloads]
    seqs = [first + index for index in range(len(payloads))]
    times = [data.draw(INT64) for _ in payloads]
    rows = zip(seqs, times, subjects, payloads, strict=True)
    wanted = np.array([row_checksum(s, t, subject, None, d) for s, t, subject, d in rows], np.uint32)
    different = np.array([crc32(subject.encode()) for subject in subjects], np.uint32)

    def meets(stored: Sums, content: bytes) -> bool:
        places = positions(np.array(seqs), np.array(times))
        repeated = Repeated(different, np.arange(len(seqs), dtype=np.int32))
        return crcs_match(places, stored, repeated, np.array(lengths), content)

    content = b"".join(payloads)
    assert meets(wanted, content)
    flips = np.zeros(len(wanted), np.uint32)
    # The same bit, in one row or several.
    bit = data.draw(st.integers(0, 31))
    for index in data.draw(st.sets(st.integers(0, len(wanted) - 1), min_size=1)):
        flips[index] = 1 << bit
    assert not meets(wanted ^ flips, content)
    if content:
        damaged = bytearray(content)
        damaged[data.draw(st.integers(0, len(content) - 1))] ^= 1 << bit % 8
        assert not meets(wanted, bytes(damaged))
