"""Command lines: what is wrong with them ends with exit code 2 and a line that says so, before any Spark starts."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stemroot_spark.cli import run_job
from stemroot_spark.errors import DataError, UnknownIdError

_JOBS = Path(__file__).resolve().parents[2] / "jobs"
_PIPELINE = ["--source", "x", "--run-id", "r", "--plan-id", "p"]
Run = Callable[..., tuple[int, str, str]]


def _job(name: str) -> dict[str, Any]:
    return runpy.run_path(str(_JOBS / f"{name}.py"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a job's command line with a session that must not start; returns exit code, stdout and stderr."""

    def start(*_: object, **__: object) -> None:
        raise AssertionError("started a session")

    def run(name: str, *argv: str) -> tuple[int, str, str]:
        job = _job(name)
        flags = job.get("config_flags") or job.get("ingest_options") or job.get("plan_options")
        code = run_job(
            job["parser"](), job["body"], start=start, config_flags=flags or (lambda _: {}), argv=argv
        )
        return code, *capsys.readouterr()

    return run


def _refused(answer: tuple[int, str, str], text: str) -> None:
    code, out, err = answer
    assert (code, out) == (2, ""), err
    assert err.count("\n") == 1
    assert text in err


@pytest.mark.parametrize("job", sorted(path.stem for path in _JOBS.glob("*.py")))
def test_help_imports_neither_spark_nor_delta(job: str) -> None:
    # In a process of its own: other tests may have imported them already.
    script = (
        "import runpy, sys\n"
        f"sys.argv = ['{job}.py', '--help']\n"
        "try:\n"
        f"    runpy.run_path({str(_JOBS / (job + '.py'))!r}, run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    print('exit', end.code, sorted({'pyspark', 'py4j', 'delta'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("exit 0 []\n")
    assert f"usage: {job}.py" in done.stdout
    assert "--warehouse" in done.stdout


def test_an_unknown_flag_is_refused_and_flags_are_not_abbreviated(run: Run) -> None:
    _refused(run("pipeline", *_PIPELINE, "--warehouse", "w", "--epsilom", "0.1"), "--epsilom")
    _refused(run("pipeline", *_PIPELINE, "--warehouse", "w", "--eps", "0.1"), "--eps")
    _refused(run("pipeline", *_PIPELINE, "--warehouse", "w", "stray"), "stray")


def test_a_required_flag_is_named(run: Run) -> None:
    _refused(run("ingest", "--warehouse", "w", "--source", "x"), "--run-id")
    _refused(run("ingest", "--warehouse", "w", "--run-id", "r"), "--source")
    _refused(run("plan", "--warehouse", "w", "--run-id", "r"), "--plan-id")
    _refused(run("reconstruct", "--warehouse", "w", "--plan-id", "r"), "--results-id")


@pytest.mark.parametrize("epsilon", ["0", "7", "1", "-0.5", "nan", "inf", "5%", ""])
@pytest.mark.parametrize("job", ["plan", "pipeline"])
def test_an_epsilon_out_of_its_domain_is_refused(run: Run, job: str, epsilon: str) -> None:
    argv = ["--run-id", "r", "--plan-id", "p", "--warehouse", "w", f"--epsilon={epsilon}"]
    _refused(run(job, *argv, *(["--source", "x"] if job == "pipeline" else [])), "epsilon")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--confidence", "1"),
        ("--confidence", "0"),
        ("--factor-spread", "-1"),
        ("--launch-noise", "-0.1"),
        ("--launch-noise", "some"),
        ("--max-bad-fraction", "1.1"),
        ("--max-bad-fraction", "-1"),
        ("--seed", "1.5"),
        ("--seed", str(2**63)),
        ("--method", "magic"),
        ("--guarantee", "none"),
        ("--communication", "maybe"),
        ("--format", "csv?"),
        ("--rank", "one"),
        ("--rank", "-1"),
        ("--rank", str(2**31)),
    ],
)
def test_a_value_out_of_its_domain_is_refused(run: Run, flag: str, value: str) -> None:
    code, out, err = run("pipeline", *_PIPELINE, "--warehouse", "w", f"{flag}={value}")
    assert (code, out) == (2, ""), err
    # The parser names the flag, the check of a domain the option.
    assert flag.removeprefix("--").replace("-", "_") in err.replace("-", "_")
    assert value in err


def test_an_unknown_option_of_set_names_the_closest(run: Run) -> None:
    _refused(
        run("plan", "--run-id", "r", "--plan-id", "p", "--warehouse", "w", "--set", "plan.epsilom=0.1"),
        "did you mean epsilon",
    )
    _refused(
        run("moments", "--run-id", "r", "--warehouse", "w", "--config", "/nowhere.toml"), "/nowhere.toml"
    )


def test_either_a_warehouse_or_a_schema_is_needed(run: Run) -> None:
    text = "either --warehouse URI or --schema"
    _refused(run("moments", "--run-id", "r"), text)
    _refused(run("moments", "--run-id", "r", "--warehouse", "w", "--schema", "c.s"), text)
    for schema in ("a.b.c", "a-b", "a b", "a;b", "a.`b`", ""):
        _refused(run("moments", "--run-id", "r", "--schema", schema), "--schema")
    _refused(run("moments", "--run-id", "r", "--warehouse", ""), "--warehouse")


@pytest.mark.parametrize(
    "bad", ["", " ", "a b", "../x", "a/b", "a'b", "-a", "é", "a\n", "a;drop", "x" * 129, "{a}", "*"]
)
def test_an_id_that_is_unsafe_in_paths_and_predicates_is_refused(run: Run, bad: str) -> None:
    _refused(run("moments", "--warehouse", "w", f"--run-id={bad}"), "--run-id")
    _refused(run("plan", "--warehouse", "w", "--run-id=r", f"--plan-id={bad}"), "--plan-id")
    _refused(run("reconstruct", "--warehouse", "w", "--plan-id=p", f"--results-id={bad}"), "--results-id")
    _refused(
        run(
            "import_results",
            *("--warehouse", "w", "--plan-id=p", "--results-id=r", "--simulator=profile"),
            f"--from-run-id={bad}",
        ),
        "--from-run-id",
    )


class _Session(SimpleNamespace):
    """Stands in for a Spark session; remembers that it was stopped."""

    stopped = False

    def stop(self) -> None:
        self.stopped = True


def _run_body(body: Any, tmp_path: Path, *argv: str) -> tuple[int, _Session]:
    session = _Session()
    code = run_job(
        _job("moments")["parser"](),
        body,
        start=lambda *_, **__: session,
        argv=["--run-id", "r", "--warehouse", str(tmp_path), *argv],
    )
    return code, session


def test_the_summary_is_the_last_line_of_stdout_and_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "summary.json"
    code, session = _run_body(lambda *_: {"b": 1, "a": None}, tmp_path, "--summary-path", str(target))
    assert (code, session.stopped) == (0, True)
    assert capsys.readouterr().out == '{"a": null, "b": 1}\n'
    assert json.loads(target.read_text("utf-8")) == {"a": None, "b": 1}


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (DataError("rows are wrong"), 1, "error [data]: rows are wrong"),
        (UnknownIdError("no such run"), 2, "error [unknown-id]: no such run"),
        (ValueError("first line\nsecond"), 1, "error [internal]: ValueError: first line;"),
        (KeyboardInterrupt(), 1, "interrupted; rerun"),
    ],
)
def test_an_error_is_one_line_with_its_code_and_the_session_is_stopped(
    error: BaseException, code: int, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def body(*_: object) -> dict[str, Any]:
        raise error

    found, session = _run_body(body, tmp_path)
    out, err = capsys.readouterr()
    assert (found, session.stopped, out) == (code, True, "")
    assert text in err
    assert err.count("\n") == 1


def test_an_unexpected_error_can_be_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(*_: object) -> dict[str, Any]:
        raise ValueError("inside")

    monkeypatch.setenv("STEMROOT_DEBUG", "1")
    with pytest.raises(ValueError, match="inside"):
        _run_body(body, tmp_path)


def test_a_summary_file_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = _run_body(lambda *_: {"a": 1}, tmp_path, "--summary-path", str(tmp_path / "no" / "x.json"))
    assert code == 2
    assert "x.json: No such file or directory; the tables are written" in capsys.readouterr().err
