"""Frames whose properties pamqp cannot read, such as a timestamp beyond the year 9999.

aiormq would give up the connection, and the message would come again on the next one: nothing behind it would ever be
read. So a stream gives in place of such a frame one without the properties, which says why. A publisher who writes that
header itself has only its own message buried.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Final

import pamqp.frame
from pamqp import commands, header

UNREADABLE: Final = "x-relaybox-unreadable"
METHOD, CONTENT = 1, 2  # kinds of frames
DELIVER = struct.pack("!HH", 60, 60)  # Basic.Deliver
_SIZE = struct.Struct("!Q")
_LENGTH = struct.Struct("!I")


class Readable:
    """A stream for aiormq, which reads frames in three parts: kind, channel and length, the rest."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self._given = bytearray()  # of a frame that takes the place of another

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def readexactly(self, n: int) -> bytes:
        if self._given:
            part = bytes(self._given[:n])
            del self._given[:n]
            return part
        if n != 1:
            return await self._stream.readexactly(n)
        head = await self._stream.readexactly(7)
        if head[0] in (METHOD, CONTENT):
            (length,) = _LENGTH.unpack_from(head, 3)
            head = readable(head + await self._stream.readexactly(length + 1))
        self._given += head[1:]
        return head[:1]


def readable(frame: bytes) -> bytes:
    """The frame, or what stands for it."""
    if frame[0] == METHOD:
        return _deliver(frame) if frame[7:11] == DELIVER and not frame[12:].isascii() else frame
    try:
        pamqp.frame.unmarshal(frame)
        return frame
    except Exception as error:
        why = f"its properties cannot be read ({type(error).__name__})"
        (size,) = _SIZE.unpack_from(frame, 11)
        substitute = header.ContentHeader(0, size, commands.Basic.Properties(headers={UNREADABLE: why}))
        return pamqp.frame.marshal(substitute, int.from_bytes(frame[1:3]))


def _deliver(frame: bytes) -> bytes:
    """The names of exchange and routing key may be any bytes; nobody asks for them."""
    names = 12 + frame[11] + 9  # behind the tags of the consumer and of the delivery, and a bit
    try:
        frame[names:-1].decode()
        return frame
    except UnicodeDecodeError:
        return frame[:names] + bytes(c if c < 0x80 else ord("?") for c in frame[names:-1]) + frame[-1:]
