"""This file holds an S3 server on 127.0.0.1 (moto's), filled from local folders, that records what each request cost.

    with ObjectStore() as store:
        url = store.put("bucket/model", folder)        # s3://bucket/model
        fsspec.filesystem("s3", **store.options).ls(url)

A tool in a process of its own finds it by `store.environment`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

KEYS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}


@dataclass(kw_only=True)
class Request:
    """One request as the server saw it, with its answer's status and bytes of body."""

    method: str
    path: str
    range: str | None
    status: int = 0
    body_bytes: int = 0


class ObjectStore:
    """moto's S3 with a counter in front of it. moto keeps one state per process: give each test a prefix of its own."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._counting(app), threaded=True, request_handler=_Quiet)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.options = {"key": "testing", "secret": "testing", "client_kwargs": {"endpoint_url": self.url, "region_name": "us-east-1"}}
        self.environment = {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
        }

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def put(self, place: str, folder: Path) -> str:
        """Uploads a folder's files below `bucket/prefix` and gives its s3:// URL; these requests are not recorded."""
        bucket, _, prefix = place.partition("/")
        client = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **KEYS)
        try:
            client.create_bucket(Bucket=bucket)
            for file in sorted(file for file in folder.rglob("*") if file.is_file()):
                client.put_object(Bucket=bucket, Key=f"{prefix}/{file.relative_to(folder).as_posix()}", Body=file.read_bytes())
        finally:
            client.close()
        self.requests.clear()
        return f"s3://{place}"

    @property
    def body_bytes(self) -> int:
        return sum(request.body_bytes for request in self.requests)

    def _counting(self, app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterator[bytes]]:
        """The application, with each answer recorded before the client can have its last byte."""

        def counted(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
            request = Request(method=environ["REQUEST_METHOD"], path=environ["PATH_INFO"], range=environ.get("HTTP_RANGE"))
            self.requests.append(request)

            def start(status: str, *more: Any) -> Any:
                request.status = int(status.split(maxsplit=1)[0])
                return start_response(status, *more)

            for piece in app(environ, start):
                request.body_bytes += len(piece)
                yield piece

        return counted


class _Quiet(MotoRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log(self, *_: object) -> None:
        """Nothing: `ObjectStore.requests` is the log."""
