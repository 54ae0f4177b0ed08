"""MP3 files: the frames of a file, and a first frame with their number (ISO/IEC 11172-3, 2.4.1, and 13818-3)."""

from collections.abc import Iterator

from unifier_tokenizers import InputError

_KBITS = {
    True: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    False: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Bit rates of MPEG audio layer III in kbit/s, for MPEG-1 (True) and MPEG-2 (False)."""

_RATES = (44100, 48000, 32000)
"""Sample rates of MPEG-1 in Hz. MPEG-2 has half of these rates, and MPEG-2.5 has a quarter of these rates."""

_TRAILING_TAGS = (b"TAG", b"APETAGEX", b"LYRICSBEGIN", b"ID3")
"""First bytes of the tags that may follow the last frame."""

_MIN_CHAIN = 3
"""Number of consecutive frames that prove the start of an MP3 stream. Other bytes may look like a single frame."""

_SYNC_SEARCH = 1 << 20
"""Number of bytes that are searched for the first frame, after the tags at the start of the file."""

_SAME_STREAM = 0xFFFE0C00
"""Bits of a frame's header that are equal in all frames of a stream: sync, version, layer and sample rate."""


def add_mp3_length(data: bytes) -> bytes | None:
    """Return the frames of an MP3 file, after a first frame with the number of frames.

    Without this number, libsndfile estimates the length from the bit rate of the first frame. If the bit rate varies,
    the estimate may be too short, and the end of the sound is lost. If the bit rate is constant, a complete sound may
    seem truncated. Several MP3 files in one file also have a wrong number. Tags and other bytes before, between and
    after the frames are left out.

    Args:
        data: The bytes of the file.

    Returns:
        The bytes of an MP3 stream, or None if the file contains no MP3 frames.

    Raises:
        InputError: The sample rate or the MPEG version changes within the file.
    """
    start = _first_frame(data)
    if start is None:
        return None
    frames = list(_frames(data, start))
    count = _declared_count(data, *frames[0])
    if count is not None and len(frames) - 1 <= count:
        return b"".join(data[at : at + size] for at, size in frames)
    frames = [(at, size) for at, size in frames if _declared_count(data, at, size) is None]
    # The new frame has the header of the first frame, but no checksum. The new frame has the largest bit rate, because
    # it must be large enough for the tag.
    header = int.from_bytes(data[start : start + 4]) & ~(15 << 12) | 14 << 12 | 1 << 16
    frame = header.to_bytes(4) + bytes(_side_info_size(header)) + b"Xing" + (1).to_bytes(4) + len(frames).to_bytes(4)
    return frame.ljust(_frame_size(frame, 0), b"\0") + b"".join(data[at : at + size] for at, size in frames)


def _side_info_size(header: int) -> int:
    mpeg1, mono = header >> 19 & 3 == 3, header >> 6 & 3 == 3
    return (17 if mono else 32) if mpeg1 else (9 if mono else 17)


def _declared_count(data: bytes, at: int, size: int) -> int | None:
    """Return the number of frames that a header frame declares: 0 if unknown, or None if the frame contains sound."""
    frame = data[at : at + size]
    if frame[36:40] == b"VBRI":
        return int.from_bytes(frame[50:54])
    start = 4 + _side_info_size(int.from_bytes(frame[:4]))
    # A checksum of 2 bytes may precede the side information.
    tag = max(frame.find(name, start, start + 6) for name in (b"Xing", b"Info"))
    if tag < 0:
        return None
    return int.from_bytes(frame[tag + 8 : tag + 12]) if int.from_bytes(frame[tag + 4 : tag + 8]) & 1 else 0


def _first_frame(data: bytes) -> int | None:
    """Return the position where the first chain of frames starts (see `_is_chain`), or None if there is no chain."""
    at = skip_tags(data)
    end = min(at + _SYNC_SEARCH, len(data))
    while (at := data.find(b"\xff", at, end)) >= 0:
        if _is_chain(data, at):
            return at
        at += 1
    return None


def skip_tags(data: bytes, at: int = 0) -> int:
    """Return the position after all ID3v2 and APEv2 tags that begin at a position."""
    while True:
        if data[at : at + 3] == b"ID3" and len(data) >= at + 10:
            # The tag stores its size in four bytes, with seven bits in each byte. A flag announces a footer.
            size = sum(byte << shift for byte, shift in zip(data[at + 6 : at + 10], (21, 14, 7, 0), strict=True))
            at += 10 + size + (10 if data[at + 5] & 0x10 else 0)
        elif data[at : at + 8] == b"APETAGEX" and len(data) >= at + 32:
            at += 32 + int.from_bytes(data[at + 12 : at + 16], "little")
        else:
            return at


def _is_chain(data: bytes, at: int, *, may_end: bool = True) -> bool:
    """Return True if `_MIN_CHAIN` frames of one stream follow each other from a position.

    With `may_end`, fewer frames are enough at the end of the file.
    """
    header = int.from_bytes(data[at : at + 4])
    for _ in range(_MIN_CHAIN):
        size = _frame_size(data, at)
        if not size or not _is_same_stream(data, at, header):
            return False
        at += size
        if may_end and (at >= len(data) or data.startswith(_TRAILING_TAGS, at)):
            break
    return True


def _frames(data: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield the position and the size of each frame. An incomplete last frame is included, so its loss is noticed."""
    header = int.from_bytes(data[at : at + 4])
    while at < len(data):
        size = _frame_size(data, at)
        if size and _is_same_stream(data, at, header):
            yield at, size
            at += size
            continue
        if len(data) - at < 4 and data[at] == 0xFF:  # The file ends within the header of a frame.
            yield at, len(data) - at
            return
        at = max(skip_tags(data, at), at + 1)
        while not _is_chain(data, at):
            at = data.find(b"\xff", at + 1)
            if at < 0:
                return
        if not _is_same_stream(data, at, header) and _is_chain(data, at, may_end=False):
            raise InputError("its sample rate changes: save each part as a file")


def _is_same_stream(data: bytes, at: int, header: int) -> bool:
    return not (int.from_bytes(data[at : at + 4]) ^ header) & _SAME_STREAM


def _frame_size(data: bytes, at: int) -> int:
    """Return the size in bytes of the frame that begins at offset `at`, or 0 if no frame begins there."""
    header = int.from_bytes(data[at : at + 4])
    version, layer, kbits, rate = header >> 19 & 3, header >> 17 & 3, header >> 12 & 15, header >> 10 & 3
    if header >> 21 != 0x7FF or version == 1 or layer != 1 or kbits in (0, 15) or rate == 3:
        return 0
    mpeg1 = version == 3
    hertz = _RATES[rate] >> {3: 0, 2: 1, 0: 2}[version]
    return (144 if mpeg1 else 72) * 1000 * _KBITS[mpeg1][kbits] // hertz + (header >> 9 & 1)
