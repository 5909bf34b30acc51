"""A webhook receiver as a process: checks the signature by its own means, keeps what it got, then says 204.

python webhook_receiver.py FOLDER PORT     needs cert.pem, key.pem and secret (base64) in the folder
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import uvicorn

MOST_BYTES = 300_000


class Receiver:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = base64.b64decode((folder / "secret").read_text())
        self.database = sqlite3.connect(folder / "received.db", isolation_level=None)
        self.database.execute("PRAGMA journal_mode=WAL")
        self.database.execute("CREATE TABLE IF NOT EXISTS received (path TEXT, headers TEXT, body BLOB)")

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "GET":
            await answer(send, 200, str(self.folder).encode())
            return
        body, more = b"", True
        while more:
            part = await receive()
            if part["type"] == "http.disconnect":
                return
            body, more = body + part.get("body", b""), part.get("more_body", False)
        headers = [(name.decode(), value.decode()) for name, value in scope["headers"]]
        await answer(send, self.judge(scope["path"], headers, body))

    def judge(self, path: str, headers: list[tuple[str, str]], body: bytes) -> int:
        given = dict(headers)
        signed = f"{given['webhook-id']}.{given['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.new(self.key, signed, hashlib.sha256).digest()).decode()
        if f"v1,{expected}" not in given["webhook-signature"].split(" "):
            return 401
        if len(body) > MOST_BYTES:
            return 413
        self.database.execute("INSERT INTO received VALUES (?, ?, ?)", (path, json.dumps(headers), body))
        return 204


async def answer(send: Any, status: int, body: bytes = b"") -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    uvicorn.run(
        Receiver(folder),
        host="127.0.0.1",
        port=int(sys.argv[2]),
        ssl_certfile=str(folder / "cert.pem"),
        ssl_keyfile=str(folder / "key.pem"),
        log_level="warning",
    )
