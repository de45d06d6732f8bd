"""Records: what was sealed opens, and nothing else does."""

from __future__ import annotations

import logging
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide.tiers.encryption import Cipher
from kvtide.tiers.record import HEADER_BYTES, KEY_BYTES_MAX, Header, Reading, Sealer, stored_key, unpack

NAMESPACE = bytes(range(16))
BODY = memoryview(bytes(range(256)) * 8)
SEALERS = [None, Cipher(bytes(32))]


def sealer(cipher: Cipher | None = None) -> Sealer:
    return Sealer(NAMESPACE, cipher)


def room(size: int = BODY.nbytes) -> memoryview:
    return memoryview(bytearray(size))


def test_a_header_takes_128_bytes() -> None:
    header, body = sealer().seal(b"key", BODY)
    assert len(header) == HEADER_BYTES == 128
    assert body is BODY, "bytes are not copied"


@given(
    key=st.binary(min_size=0, max_size=KEY_BYTES_MAX),
    length=st.integers(0, 2**32 - 1),
    sequence=st.integers(0, 2**64 - 1),
    place=st.integers(0, 2**32 - 1),
    encrypted=st.booleans(),
)
def test_what_a_header_says_is_what_was_put_into_it(
    key: bytes, length: int, sequence: int, place: int, encrypted: bool
) -> None:
    header = Header(NAMESPACE, key, length, bytes(16), sequence, place, b"n" * 12, b"t" * 16, encrypted)
    assert unpack(header.pack()) == header


@pytest.mark.parametrize("cipher", SEALERS, ids=["plain", "encrypted"])
def test_f8_no_flipped_bit_of_a_header_is_taken_for_good(cipher: Cipher | None) -> None:
    made = sealer(cipher)
    header, body = made.seal(b"key", BODY)
    for bit in range(8 * HEADER_BYTES):
        changed = bytearray(header)
        changed[bit // 8] ^= 1 << bit % 8
        assert made.open(b"key", bytes(changed), body, room()) is Reading.CORRUPT
    assert made.corrupt_records == 8 * HEADER_BYTES


@pytest.mark.parametrize("cipher", SEALERS, ids=["plain", "encrypted"])
def test_f8_no_flipped_bit_of_a_body_is_taken_for_good(cipher: Cipher | None) -> None:
    made = sealer(cipher)
    header, body = made.seal(b"key", BODY[:64])
    for bit in range(8 * 64):
        changed = bytearray(body)
        changed[bit // 8] ^= 1 << bit % 8
        assert made.open(b"key", header, bytes(changed), room(64)) is Reading.CORRUPT


@pytest.mark.parametrize("cipher", SEALERS, ids=["plain", "encrypted"])
def test_f8_bytes_of_another_key_or_namespace_or_length_never_come_back(cipher: Cipher | None) -> None:
    made = sealer(cipher)
    header, body = made.seal(b"key", BODY)
    assert made.open(b"other", header, body, room()) is Reading.OTHER
    assert made.open(b"key", header, body, room(8)) is Reading.OTHER
    assert Sealer(bytes(16), cipher).open(b"key", header, body, room()) is Reading.OTHER
    assert made.open(b"key", header, body[:-1], room()) is Reading.CORRUPT
    assert made.open(b"key", b"", body, room()) is Reading.CORRUPT
    into = room()
    assert made.open(b"key", header, body, into) is Reading.GOOD
    assert into == BODY


def test_a_record_can_be_verified_where_it_is() -> None:
    header, body = sealer().seal(b"key", BODY)
    into = memoryview(bytearray(body))
    assert sealer().open(b"key", header, into, into) is Reading.GOOD


@given(first=st.binary(max_size=80), second=st.binary(max_size=80))
def test_keys_that_differ_are_stored_under_names_that_differ(first: bytes, second: bytes) -> None:
    assert (stored_key(first) == stored_key(second)) == (first == second)
    assert len(stored_key(first)) <= KEY_BYTES_MAX


def test_the_log_names_the_key_of_a_corrupt_record(caplog: pytest.LogCaptureFixture) -> None:
    made = Sealer(NAMESPACE, where="the attic")
    header, _ = made.seal(b"key", BODY)
    with caplog.at_level(logging.WARNING):
        made.open(b"key", header, bytes(BODY.nbytes), room())
    assert b"key".hex() in caplog.text
    assert "the attic" in caplog.text


def test_a_bad_disk_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    made = sealer()
    for number in range(1234):
        assert made.open(f"key {number}".encode(), bytes(128), BODY, room()) is Reading.CORRUPT
    assert made.corrupt_records == 1234
    assert [record.getMessage().partition(" in ")[0] for record in caplog.records] == [
        "kvtide: a corrupt record",
        "kvtide: corrupt record 10",
        "kvtide: corrupt record 100",
        "kvtide: corrupt record 1000",
    ]


# ---------------------------------------------------------------------- encryption


def test_an_encrypted_record_shows_nothing_of_the_body_and_has_its_length() -> None:
    _, body = sealer(Cipher(os.urandom(32))).seal(b"key", BODY)
    assert body.nbytes == BODY.nbytes
    assert bytes(BODY[:16]) not in bytes(body)


def test_another_key_is_a_miss_and_counted_apart(caplog: pytest.LogCaptureFixture) -> None:
    header, body = sealer(Cipher(b"a" * 32)).seal(b"key", BODY)
    other, none = sealer(Cipher(b"b" * 32)), sealer()
    for made in (other, none):
        for _ in range(3):
            assert made.open(b"key", header, body, room()) is Reading.WRONG_SECRET
        assert (made.wrong_secret_records, made.corrupt_records) == (3, 0)
    assert caplog.text.count("another key") == 2, "once each"


def test_a_plain_record_is_not_taken_by_who_encrypts() -> None:
    header, body = sealer().seal(b"key", BODY)
    assert sealer(Cipher(bytes(32))).open(b"key", header, body, room()) is Reading.WRONG_SECRET


def test_a_body_under_the_header_of_another_key_does_not_decrypt() -> None:
    """Who can write to the store and knows no secret cannot make one block pass for another."""
    cipher = Cipher(bytes(32))
    made = sealer(cipher)
    raw, body = made.seal(b"one", BODY)
    header = unpack(raw)
    assert header is not None
    forged = header._replace(key=b"two").pack()
    assert made.open(b"two", forged, body, room()) is Reading.WRONG_SECRET


def test_no_nonce_is_used_twice() -> None:
    seen = set()
    for _ in range(5):
        made = sealer(Cipher(bytes(32)))
        for _ in range(200):
            header = unpack(made.seal(b"key", BODY[:1]).header)
            assert header is not None
            seen.add(header.nonce)
    assert len(seen) == 1000
