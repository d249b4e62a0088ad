"""Small files of every kind, for the tests of content."""

from __future__ import annotations

import struct
import wave
from io import BytesIO

from harness.models import File


def png(width: int = 2, height: int = 2, *, more: bytes = b"") -> bytes:
    """Return the beginning of an image of this size, which is all that anybody here reads."""
    return b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + struct.pack(">II", width, height) + more


def jpeg(width: int, height: int) -> bytes:
    """Return the beginning of a photo, with a block of other things before its size."""
    frame = struct.pack(">HBHH", 17, 8, height, width)
    return b"\xff\xd8\xff\xe0\x00\x10" + bytes(14) + b"\xff\xc0" + frame


def gif(width: int, height: int) -> bytes:
    """Return the beginning of an animation."""
    return b"GIF89a" + struct.pack("<HH", width, height)


def webp(width: int, height: int) -> bytes:
    """Return the beginning of an image in WebP's extended form."""
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF\x00\x00\x00\x00WEBPVP8X" + bytes(8) + sides


def pdf(pages: int = 1) -> bytes:
    """Return something that has this many pages, as far as anybody here reads it."""
    page = b"<< /Type /Page /Parent 1 0 R >>\n"
    return b"%PDF-1.7\n<< /Type /Pages /Count 9 >>\n" + page * pages


def wav(seconds: float = 1.0) -> bytes:
    """Return silence."""
    written = BytesIO()
    with wave.open(written, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8_000)
        sound.writeframes(bytes(int(seconds * 8_000) * 2))
    return written.getvalue()


PICTURE = File(data=png(), name="receipt.png")
PAPER = File(data=pdf(), name="invoice.pdf")
SOUND = File(data=wav(), name="call.wav")
NOTE = File(data=b"Hello, \xc3\xa9!", name="note.txt")
PICTURE_ELSEWHERE = File(url="https://example.org/receipt.png")
PAPER_ELSEWHERE = File(url="https://example.org/invoice.pdf?key=secret")
