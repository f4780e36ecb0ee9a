"""Readers of object stores with credentials of tests, and what the tests of them share."""

import os

import pytest

from safetensors._remote import objects
from safetensors._remote.settings import Settings
from safetensors._remote.urls import Url

CONTENT = bytes(range(256)) * 1024
CANARY = "CANARY1234567890"
SHORT = {"connect_timeout": 1.0, "idle_timeout": 0.4, "timeout": 3.0, "tries": 2}
OPTIONS = objects.OPTIONS
_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_", "STORAGE_EMULATOR", "SAFETENSORS_REMOTE")


@pytest.fixture
def no_credentials(monkeypatch, tmp_path):
    """No credentials but those of the test."""
    for name in list(os.environ):
        if name.startswith(_PREFIXES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def reader(url, **options):
    """Returns a reader with keys that no server of tests checks."""
    keys = {"access_key_id": "AKIATESTS", "secret_access_key": CANARY, "region": "us-east-1"}
    if options.get("anonymous") or "profile" in options:
        keys = {}
    return objects.ObjectReader(Url.parse(url), Settings.of({**keys, **options}, OPTIONS))


def from_environment(url, **options):
    """Returns a reader with the credentials of the environment."""
    return objects.ObjectReader(Url.parse(url), Settings.of(options, OPTIONS))
