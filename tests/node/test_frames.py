"""Frames survive every way of being split, and whatever is no frame is refused with all its descriptors known."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide.node.errors import BadFrame
from kvtide.node.frames import BODY_BYTES_MAX, DESCRIPTORS_MAX, HEADER_BYTES, MAGIC, Decoder, Frame, header

FRAMES = st.lists(
    st.builds(
        Frame,
        kind=st.integers(0, 255),
        body=st.binary(max_size=40),
        tag=st.integers(0, (1 << 32) - 1),
        descriptors=st.lists(st.integers(0, 9), max_size=DESCRIPTORS_MAX).map(tuple),
    ),
    max_size=5,
)


def packed(frame: Frame) -> bytes:
    return header(frame) + frame.body


def raw_header(kind: int = 1, descriptors: int = 0, tag: int = 0, length: int = 0, magic: bytes = MAGIC) -> bytes:
    return struct.pack("<4sBBxxII", magic, kind, descriptors, tag, length)


@given(frames=FRAMES, data=st.data())
def test_frames_come_out_as_they_went_in_however_they_are_split(frames: list[Frame], data: st.DataObject) -> None:
    pieces: list[tuple[bytes, tuple[int, ...]]] = []
    for frame in frames:
        stream = packed(frame)
        cuts = sorted(data.draw(st.lists(st.integers(1, len(stream)), max_size=4)))
        parts = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        pieces += [(parts[0], frame.descriptors), *((part, ()) for part in parts[1:])]
    decoder = Decoder()
    found = [frame for part, descriptors in pieces for frame in decoder.feed(part, descriptors)]
    assert found == frames
    assert not decoder.is_half
    assert decoder.left() == []


@given(frames=FRAMES)
def test_frames_that_come_together_are_told_apart(frames: list[Frame]) -> None:
    decoder = Decoder()
    together = [descriptor for frame in frames for descriptor in frame.descriptors]
    assert decoder.feed(b"".join(map(packed, frames)), together) == frames


@given(chunks=st.lists(st.tuples(st.binary(max_size=30), st.lists(st.integers(0, 9), max_size=3)), max_size=10))
def test_whatever_comes_every_descriptor_is_in_a_frame_or_left(chunks: list[tuple[bytes, list[int]]]) -> None:
    check_whatever_comes(chunks)


@given(
    chunks=st.lists(
        st.tuples(
            st.one_of(
                st.binary(max_size=8),
                st.builds(raw_header, st.integers(0, 255), st.integers(0, 20), length=st.sampled_from([0, 1, 1 << 23])),
                st.sampled_from([MAGIC, MAGIC[:2], raw_header()[:9]]),
            ),
            st.lists(st.integers(0, 9), max_size=3),
        ),
        max_size=10,
    )
)
def test_what_looks_like_frames_is_no_different(chunks: list[tuple[bytes, list[int]]]) -> None:
    check_whatever_comes(chunks)


def check_whatever_comes(chunks: list[tuple[bytes, list[int]]]) -> None:
    decoder, came, delivered = Decoder(), 0, 0
    try:
        for data, descriptors in chunks:
            came += len(descriptors)
            delivered += sum(len(frame.descriptors) for frame in decoder.feed(data, descriptors))
            assert len(decoder._descriptors) <= DESCRIPTORS_MAX
            assert len(decoder._half) < HEADER_BYTES + BODY_BYTES_MAX
    except BadFrame:
        pass
    assert delivered + len(decoder.left()) == came
    assert decoder.left() == []


def test_bytes_of_another_protocol_are_refused_at_their_first_byte() -> None:
    with pytest.raises(BadFrame, match="no frame: b'G'"):
        Decoder().feed(b"G")
    with pytest.raises(BadFrame, match="no frame: b'GET '"):
        Decoder().feed(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


def test_a_length_over_the_bound_is_refused_before_its_body_comes() -> None:
    with pytest.raises(BadFrame, match="a frame of 4294967295 bytes, and 16777216 are the most"):
        Decoder().feed(raw_header(length=0xFFFFFFFF))
    with pytest.raises(BadFrame, match="a frame of 65 bytes, and 64 are the most"):
        Decoder(body_bytes_max=64).feed(raw_header(length=65))


def test_a_frame_that_announces_too_many_descriptors_is_refused() -> None:
    with pytest.raises(BadFrame, match="a frame with 17 descriptors, and 16 are the most"):
        Decoder().feed(raw_header(descriptors=17))


def test_a_frame_without_its_descriptors_is_refused_and_those_that_came_are_left() -> None:
    decoder = Decoder()
    with pytest.raises(BadFrame, match="1 of its 2 descriptors"):
        decoder.feed(raw_header(descriptors=2), [7])
    assert decoder.left() == [7]


def test_descriptors_that_no_frame_asked_for_are_refused_and_left() -> None:
    decoder = Decoder()
    with pytest.raises(BadFrame, match="no frame asked for"):
        decoder.feed(packed(Frame(1, descriptors=(5,))), [5, 6])
    assert sorted(decoder.left()) == [5, 6]


def test_descriptors_do_not_pile_up_while_a_frame_comes_byte_by_byte() -> None:
    decoder = Decoder()
    decoder.feed(raw_header(length=100, descriptors=1), [1])
    with pytest.raises(BadFrame, match="no frame asked for"):
        decoder.feed(b"x", [2])
    assert decoder.left() == [1, 2]


def test_a_half_frame_is_known_as_one() -> None:
    decoder = Decoder()
    decoder.feed(packed(Frame(1, b"body"))[:-1])
    assert decoder.is_half
    assert decoder.feed(b"y") == [Frame(1, b"body")]
    assert not decoder.is_half
