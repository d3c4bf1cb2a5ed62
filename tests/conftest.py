"""Fixtures that several test files share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from hub_server import Hub

# openvino would send what is converted to a server, from a process that it forks for that; without this package it sends nothing
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]


@pytest.fixture
def hub() -> Iterator[Hub]:
    """An empty Hub of its own for each test."""
    with Hub() as hub:
        yield hub
        if "huggingface_hub" in sys.modules:  # its pooled connections would outlive the server
            sys.modules["huggingface_hub"].close_session()


@pytest.fixture
def online(hub: Hub, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The Hub as the one that audits in this process talk to, with a cache of its own and nobody logged in."""
    from huggingface_hub import constants

    cache = tmp_path_factory.mktemp("hub-cache")
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
    # as the command line does: no request that asks for a list of agents
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    return hub
