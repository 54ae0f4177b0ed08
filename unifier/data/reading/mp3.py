"""The length of an MP3 without a length field, from its frames (ISO/IEC 11172-3, section 2.4.1, and 13818-3).

libsndfile guesses the length from the bit rate of the first frame, and reads no further: a sound of varying rates would
lose its end, and one of a constant rate seem cut off.
"""

_KBITS = {
    True: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    False: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""A second, of layer III, by whether it is MPEG-1."""
_RATES = (44100, 48000, 32000)
"""In Hz, of MPEG-1; half of them are MPEG-2's, a quarter MPEG-2.5's."""
_STATED = (b"Xing", b"Info", b"VBRI")
"""What a first frame says that tells how many follow."""
_AFTER = (b"TAG", b"APETAGEX", b"LYRICSBEGIN", b"ID3")
"""What may follow the last frame."""


def with_length(data: bytes) -> bytes:
    """An MP3 whose first frame says how many follow: itself, where one does so already or they cannot be counted."""
    began = at = _after_tag(data)
    frames = 0
    while size := _size(data, at):
        at, frames = at + size, frames + 1
    rest = data[at:].strip(b"\0")
    first = data[began : began + 64]
    if not frames or any(said in first for said in _STATED) or (rest and not rest.startswith(_AFTER)):
        return data
    # The first one's own header, but for the largest bit rate, so that there is room, and no checksum.
    head = int.from_bytes(first[:4]) & ~(15 << 12) | 14 << 12 | 1 << 16
    mpeg1, mono = head >> 19 & 3 == 3, head >> 6 & 3 == 3
    side = bytes((17 if mono else 32) if mpeg1 else (9 if mono else 17))
    frame = head.to_bytes(4) + side + b"Xing" + (1).to_bytes(4) + frames.to_bytes(4)
    return data[:began] + frame.ljust(_size(frame, 0), b"\0") + data[began:]


def _after_tag(data: bytes) -> int:
    """Where the first frame begins, after an ID3v2 tag, whose size is in four groups of seven bits."""
    if data[:3] != b"ID3" or len(data) < 10:
        return 0
    return 10 + sum(byte << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=True))


def _size(data: bytes, at: int) -> int:
    """The bytes of the frame that begins there; 0 where none does."""
    head = int.from_bytes(data[at : at + 4])
    version, layer, kbits, rate = head >> 19 & 3, head >> 17 & 3, head >> 12 & 15, head >> 10 & 3
    if head >> 21 != 0x7FF or version == 1 or layer != 1 or kbits in (0, 15) or rate == 3:
        return 0
    mpeg1 = version == 3
    hertz = _RATES[rate] >> {3: 0, 2: 1, 0: 2}[version]
    return (144 if mpeg1 else 72) * 1000 * _KBITS[mpeg1][kbits] // hertz + (head >> 9 & 1)
