"""Guess how many tokens a file has, by the public rule of whoever counts them.

What isn't in the first bytes of a file, such as the number of pages of a compressed PDF, is guessed
from its size. A guess counts until the provider's own count is there.
"""

from __future__ import annotations

import math
import re
import struct

from harness.models._file import File

_PAGE = re.compile(rb"/Type\s*/Page(?![a-zA-Z])")
_BYTES_PER_PAGE = 50_000
_TEXT_TOKENS_PER_PAGE = 600  # About 2,400 characters.
_BYTES_PER_SECOND = 16_000  # Of compressed sound: 128 kbit/s.
_BYTES_PER_TOKEN = 4
_SIDE_UNKNOWN = 1_568  # Of images elsewhere: nearly as dear as one can be.
_A4 = (1_100, 1_556)  # A page as an image.
# The markers that begin a frame, and so have its size.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_MARKERS_AT_MOST = 1_000


def file_tokens(file: File, provider: str | None = None) -> int:
    """Return about how many tokens of input a file has.

    Args:
      file: The file.
      provider: Who counts: ``"anthropic"``, or anybody else as OpenAI does.
    """
    image_tokens = anthropic_image_tokens if provider == "anthropic" else openai_image_tokens
    kind = file.media_type.partition("/")[0]
    if kind == "image":
        return image_tokens(*(image_size(file.data) or (_SIDE_UNKNOWN, _SIDE_UNKNOWN)))
    if file.media_type == "application/pdf":
        return pdf_pages(file.data) * (_TEXT_TOKENS_PER_PAGE + image_tokens(*_A4))
    if kind == "audio":
        return audio_tokens(sound_seconds(file.data))
    return -(-len(file.data or b"") // _BYTES_PER_TOKEN)


def anthropic_image_tokens(width: int, height: int) -> int:
    """Return what an image counts at Anthropic: a token for 750 pixels.

    It is scaled first to a long edge of 1,568 and to about 1,600 tokens at most; see
    https://docs.anthropic.com/en/docs/build-with-claude/vision#calculate-image-costs. Newer models
    may see larger images whole, and count more.
    """
    scale = min(1.0, 1_568 / max(width, height), math.sqrt(1_600 * 750 / (width * height)))
    return math.ceil(width * scale * height * scale / 750)


def openai_image_tokens(width: int, height: int) -> int:
    """Return what an image counts at OpenAI: 85, and 170 for each square of 512 pixels.

    It is scaled first into a square of 2,048, and to a short side of 768; see
    https://platform.openai.com/docs/guides/images-vision#calculating-costs, for GPT-4o, GPT-4.1 and
    the o series. The small models count other patches, at another price.
    """
    scale = min(1.0, 2_048 / max(width, height))
    scale *= min(1.0, 768 / (min(width, height) * scale))
    return 85 + 170 * math.ceil(width * scale / 512) * math.ceil(height * scale / 512)


def audio_tokens(seconds: float) -> int:
    """Return what sound counts at OpenAI: a token for 100 ms of what a user says.

    See https://platform.openai.com/docs/guides/realtime-costs.
    """
    return max(1, math.ceil(seconds * 10))


def pdf_pages(data: bytes | None) -> int:
    """Return about how many pages a PDF has.

    Each counts as its text and as an image; see
    https://docs.anthropic.com/en/docs/build-with-claude/pdf-support#estimate-your-costs and
    https://platform.openai.com/docs/guides/pdf-files.
    """
    if data is None:
        return 1
    return len(_PAGE.findall(data)) or max(1, len(data) // _BYTES_PER_PAGE)


def sound_seconds(data: bytes | None) -> float:
    """Return about how long a recording is."""
    if data is None:
        return 60.0
    if data[8:12] == b"WAVE" and len(data) >= 32:
        per_second: int = struct.unpack_from("<I", data, 28)[0]
        return len(data) / (per_second or _BYTES_PER_SECOND)
    return len(data) / _BYTES_PER_SECOND


def image_size(data: bytes | None) -> tuple[int, int] | None:
    """Return the width and height that an image's first bytes state; None if they don't."""
    try:
        size = None if data is None else _size_in(data)
    except struct.error:  # Cut off, or no image at all.
        return None
    return size if size and all(side > 0 for side in size) else None


def _size_in(data: bytes) -> tuple[int, int] | None:
    if data.startswith(b"\x89PNG"):
        width, height = struct.unpack_from(">II", data, 16)
    elif data.startswith(b"GIF8"):
        width, height = struct.unpack_from("<HH", data, 6)
    elif data[8:15] == b"WEBPVP8":
        return _webp_size(data)
    elif data.startswith(b"\xff\xd8"):
        return _jpeg_size(data)
    else:
        return None
    return width, height


def _webp_size(data: bytes) -> tuple[int, int]:
    if data[15:16] == b"X":
        return (
            1 + int.from_bytes(data[24:27], "little"),
            1 + int.from_bytes(data[27:30], "little"),
        )
    if data[15:16] == b"L":
        bits: int = struct.unpack_from("<I", data, 21)[0]
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    for _ in range(_JPEG_MARKERS_AT_MOST):
        if data[at : at + 1] != b"\xff":
            return None
        marker, length = struct.unpack_from(">BH", data, at + 1)
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 2 + length
    return None
