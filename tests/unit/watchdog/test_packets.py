"""Packets that nobody else can make, change or repeat."""

from __future__ import annotations

import pytest

from hvd_dbs.watchdog import packets
from hvd_dbs.watchdog.packets import MOST_BYTES, Channel, KeyPair, claimed_rank


@pytest.fixture(scope="module")
def pairs():
    return KeyPair(), KeyPair(), KeyPair()


def channels(pairs, rank=3, training="training"):
    """The ends of a pair of ranks: rank 0's, and the other's."""
    rank_0, other, _ = pairs
    return (
        Channel.of_pair(rank_0.shared(other.public), training, rank, is_rank_0=True),
        Channel.of_pair(other.shared(rank_0.public), training, rank, is_rank_0=False),
    )


def pi(bits):
    """Pi times 2 ** bits, by Machin's formula."""
    one = 1 << (bits + 64)

    def arctangent_of_one_over(x):
        total, term, n = 0, one // x, 1
        while term:
            total += term // n if n % 4 == 1 else -(term // n)
            term //= x * x
            n += 2
        return total

    return (16 * arctangent_of_one_over(5) - 4 * arctangent_of_one_over(239)) >> 64


def test_the_group_is_that_of_rfc_3526():
    expected = 2**2048 - 2**1984 - 1 + 2**64 * (pi(1918) + 124476)
    assert expected == packets._PRIME


def test_packets_travel_both_ways(pairs):
    rank_0, other = channels(pairs)
    for number in (1, 2):
        data = other.pack({"doing": "ü", "number": number})
        assert claimed_rank(data) == 3
        assert rank_0.open(data) == {"doing": "ü", "number": number}
        assert rank_0.last_received == number
        assert other.open(rank_0.pack({"answers": number})) == {"answers": number}


def test_a_packet_is_opened_once_and_none_before_it(pairs):
    rank_0, other = channels(pairs)
    first, second = other.pack({}), other.pack({})
    assert rank_0.open(second) == {}
    assert rank_0.open(second) is None
    assert rank_0.open(first) is None


def test_nobody_else_can_make_or_change_one(pairs):
    rank_0, other = channels(pairs)
    data = other.pack({"rank": 3})
    for i in range(len(data)):
        assert rank_0.open(data[:i]) is None
        assert rank_0.open(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :]) is None
    assert rank_0.open(data + b"x") is None
    assert rank_0.open(channels(pairs)[1].pack({"doing": "x" * MOST_BYTES})) is None
    assert rank_0.open(data + b" " * MOST_BYTES) is None
    assert other.open(data) is None  # Sent back to where it comes from.
    stranger = Channel.of_pair(pairs[2].shared(pairs[0].public), "training", 3, is_rank_0=False)
    assert rank_0.open(stranger.pack({"rank": 3})) is None
    for changed in ({"training": "another"}, {"rank": 4}):
        assert rank_0.open(channels(pairs, **changed)[1].pack({"rank": 3})) is None
    assert rank_0.open(data) == {"rank": 3}


def test_what_is_no_packet_has_no_rank():
    for data in (b"", b"HDW1", b"x" * 100):
        assert claimed_rank(data) is None


@pytest.mark.parametrize("public", ["0", "1", f"{packets._PRIME - 1:x}", f"{packets._PRIME:x}"])
def test_public_values_outside_the_group_are_rejected(pairs, public):
    with pytest.raises(ValueError, match="public value"):
        pairs[0].shared(public)


def test_a_key_is_computed_once(pairs):
    own = KeyPair()
    assert not own.knows(pairs[0].public)
    assert own.shared(pairs[0].public) == pairs[0].shared(own.public)
    assert own.knows(pairs[0].public)
    assert own.shared(pairs[0].public) is own.shared(pairs[0].public)
