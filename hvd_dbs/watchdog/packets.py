"""Authenticated datagrams: keys that never travel, and packets that nobody else can make.

Pure: no socket, no clock. Rank 0 and each other rank compute the key of their pair from public
values by the method of Diffie and Hellman (RFC 3526, group 14). Whoever reads the network sees
the contents of packets, but cannot make, change or repeat one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import struct
from dataclasses import dataclass
from typing import Any

MOST_BYTES = 4096
"""Of a packet; a longer one is not ours."""

_PRIME = int(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404"
    "DDEF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406"
    "B7EDEE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3DC2007CB8A163BF0598DA48361C55D39A69163FA8FD"
    "24CF5F83655D23DCA3AD961C62F356208552BB9ED529077096966D670C354E4ABC9804F1746C08CA18217C32905E46"
    "2E36CE3BE39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF6955817183995497CEA956AE515D226"
    "1898FA051015728E5A8AACAA68FFFFFFFFFFFFFFFF",
    16,
)
_EXPONENT_BITS = 224
"""RFC 3526: at least twice the strength of the group, which is at least 110 bits."""

_HEAD = struct.Struct("!4sIQ")
_MAGIC = b"HDW1"
_TAG_BYTES = 32


class KeyPair:
    """The secret of one process, and the public value that belongs to it.

    Attributes:
        public: What the others have to know, as hexadecimal text.
    """

    def __init__(self) -> None:
        self._secret = secrets.randbits(_EXPONENT_BITS) | 1 << (_EXPONENT_BITS - 1)
        self.public = f"{pow(2, self._secret, _PRIME):x}"
        self._shared: dict[str, bytes] = {}

    def knows(self, public: str) -> bool:
        """Whether the key shared with the owner of this public value has been computed."""
        return public in self._shared

    def shared(self, public: str) -> bytes:
        """The key shared with the owner of this public value; computed once, in milliseconds.

        Raises:
            ValueError: If it is not the public value of any key pair.
        """
        if public not in self._shared:
            value = int(public, 16)
            if not 1 < value < _PRIME - 1:
                raise ValueError("the public value of a rank is not one of the group.")
            number = pow(value, self._secret, _PRIME)
            self._shared[public] = hashlib.sha256(number.to_bytes(256, "big")).digest()
        return self._shared[public]


@dataclass
class Channel:
    """One end of what rank 0 and another rank send each other during one training.

    Attributes:
        rank: The other rank of the pair, not 0; on both ends.
        sending: Key of what this end sends.
        receiving: Key of what this end receives.
        num_sent: Number of the last packet sent.
        last_received: Number of the last packet opened; packets with no higher one are rejected.
    """

    rank: int
    sending: bytes
    receiving: bytes
    num_sent: int = 0
    last_received: int = 0

    @classmethod
    def of_pair(cls, shared: bytes, training: str, rank: int, is_rank_0: bool) -> Channel:
        """From the key of the pair, and a name that no other training has."""
        to_rank_0, from_rank_0 = (
            hmac.digest(shared, f"{training} {rank} {direction}".encode(), "sha256")
            for direction in ("to rank 0", "from rank 0")
        )
        if is_rank_0:
            return cls(rank, from_rank_0, to_rank_0)
        return cls(rank, to_rank_0, from_rank_0)

    def pack(self, fields: dict[str, Any]) -> bytes:
        """The next packet."""
        self.num_sent += 1
        content = json.dumps(fields, ensure_ascii=False).encode(errors="replace")
        data = _HEAD.pack(_MAGIC, self.rank, self.num_sent) + content
        return data + hmac.digest(self.sending, data, "sha256")

    def open(self, data: bytes) -> dict[str, Any] | None:
        """What a packet holds; None if it is not from the other end, damaged, or not newer."""
        if claimed_rank(data) != self.rank or len(data) > MOST_BYTES:
            return None
        number = _HEAD.unpack_from(data)[2]
        content, tag = data[:-_TAG_BYTES], data[-_TAG_BYTES:]
        if number <= self.last_received:
            return None
        if not hmac.compare_digest(hmac.digest(self.receiving, content, "sha256"), tag):
            return None
        self.last_received = number
        try:
            fields = json.loads(content[_HEAD.size :])
        except ValueError:
            return None
        return fields if isinstance(fields, dict) else None


def claimed_rank(data: bytes) -> int | None:
    """The rank of the pair by a packet's own account; None if it is no packet of ours."""
    if len(data) < _HEAD.size + _TAG_BYTES:
        return None
    magic, rank, _ = _HEAD.unpack_from(data)
    return int(rank) if magic == _MAGIC else None
