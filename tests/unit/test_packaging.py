"""The shell around the package: zip, documentation pages, make targets, deployment files. No JVM."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from stemroot_spark.tables import ddl

ROOT = Path(__file__).resolve().parents[2]


def load(path: str) -> ModuleType:
    """A module of a folder that is no package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def build_zip() -> ModuleType:
    return load("deploy/build_zip.py")


@pytest.fixture(scope="module")
def package_zip(build_zip: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zip") / "stemroot_spark.zip"
    build_zip.build(path)
    return path


def test_zip_carries_every_module_schema_and_configuration(package_zip: Path) -> None:
    with zipfile.ZipFile(package_zip) as archive:
        names = archive.namelist()
    expected = {path.relative_to(ROOT).as_posix() for path in (ROOT / "stemroot_spark").rglob("*.py")}
    expected |= {f"stemroot_spark/schemas/{path.name}" for path in (ROOT / "schemas").iterdir()}
    expected |= {f"stemroot_spark/conf/{path.name}" for path in (ROOT / "conf").iterdir()}
    assert set(names) == expected | {"stemroot_spark/py.typed"}
    assert names == sorted(names)


def test_zip_depends_on_contents_alone(build_zip: ModuleType, tmp_path: Path) -> None:
    for name in (*build_zip.package_files(), "setup.cfg"):
        copy = tmp_path / "copy" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy)
        copy.chmod(0o600)
        os.utime(copy, (1_700_000_000, 1_700_000_000))
    build_zip.build(tmp_path / "a.zip")
    build_zip.build(tmp_path / "b.zip", root=tmp_path / "copy")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_schemas_and_defaults_are_read_from_the_zip(package_zip: Path, tmp_path: Path) -> None:
    program = (
        "from stemroot_spark import config, resources\n"
        "print(resources.__file__)\n"
        "print(len(resources.list_names('schemas', '.sql')), config.load_config().plan.epsilon)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(package_zip)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert answer[0].startswith(str(package_zip))
    assert answer[1].split()[0] == str(len(list((ROOT / "schemas").glob("*.sql"))))


def test_a_pattern_of_package_data_without_a_file_is_an_error(build_zip: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "stemroot_spark").mkdir()
    shutil.copyfile(ROOT / "setup.cfg", tmp_path / "setup.cfg")
    with pytest.raises(FileNotFoundError, match=r"no file matches stemroot_spark/py\.typed"):
        build_zip.package_files(tmp_path)


def test_page_of_tables_is_current() -> None:
    page = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    assert page == ddl.markdown(), "run make docs"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_bare_make_lists_the_targets() -> None:
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("venv", "demo", "test", "dist", "lint", "bench", "docs", "clean"):
        assert re.search(rf"^  {target} +\w", listed, re.MULTILINE), target


def test_readme_names_every_job() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [path.name for path in (ROOT / "jobs").glob("*.py") if f"`jobs/{path.name}`" not in readme]
    assert missing == []


def test_links_of_the_readme_lead_somewhere() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)]+)\)", readme)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


@pytest.mark.parametrize("name", ["pipeline", "nightly"])
def test_kubernetes_applications_have_the_settings_of_spark_defaults(name: str) -> None:
    lines = (ROOT / "conf" / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    defaults = dict(line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    text = (ROOT / "deploy" / "kubernetes" / f"{name}.yaml").read_text(encoding="utf-8")
    settings = dict(re.findall(r'^ +(spark\.[\w.]+): "?([^"\n]+)"?$', text, re.MULTILINE))
    assert "spark.sql.extensions" in settings
    assert settings == {key: defaults[key].strip() for key in settings}


def test_nightly_fills_in_the_date(monkeypatch: pytest.MonkeyPatch) -> None:
    nightly = load("deploy/nightly.py")
    calls: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(nightly.runpy, "run_path", lambda path, run_name: calls.append((path, sys.argv[1:])))
    monkeypatch.setenv("STEMROOT_DATE", "2026-01-31")
    monkeypatch.setattr(sys, "argv", ["nightly.py", "--source", "/traces/{date}", "--run-id", "w-{date}"])
    nightly.main()
    assert calls == [
        (str(ROOT / "jobs" / "pipeline.py"), ["--source", "/traces/2026-01-31", "--run-id", "w-2026-01-31"])
    ]
