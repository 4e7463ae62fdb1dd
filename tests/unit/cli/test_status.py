"""`outlast status` as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from outlast.cli import group
from outlast.domain.model import EntryKind, JournalEntry, Spec
from support.journals import added, ended, intended, writer

#: Modules that take long to import, or import many others.
SLOW = {
    *("pydantic", "ruamel", "rich", "hashlib", "socket", "difflib", "tempfile"),
    *("outlast.spec", "outlast.schedulers", "outlast.controller.controller", "outlast.controller.inbox"),
    *("outlast.domain.engine", "outlast.domain.fold", "outlast.node.order"),
}
#: What only runs with a job need.
FOR_JOBS = {"outlast.exchange.attempt_log", "outlast.domain.observation"}
CODE = """
import json, sys
from outlast.cli import group
group.main(["status", sys.argv[1]], standalone_mode=False)
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize("over", [True, False])
def test_status_imports_no_slow_module(tmp_path: Path, over: bool) -> None:
    (tmp_path / "params.yaml").write_text("name: x\ncommand: 'true'\n")
    journal = writer(tmp_path / "journal.sqlite")
    journal.add_spec(Spec("x", "true"))
    journal.append([added("a"), intended("a", "t1")])
    if over:
        failed = JournalEntry(4.0, "a", EntryKind.FAILED, None, {"reason": "it crashed"})
        journal.append([ended("a", "t1"), failed])
    else:
        journal.append([JournalEntry(3.0, "a", EntryKind.QUEUED, "t1", {"job": "17"})])
    journal.renew_lease({})
    journal.close()
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ("failed" if over else "queued") in done.stdout
    imported = set(json.loads(done.stdout.splitlines()[-1]))
    assert imported & (SLOW | FOR_JOBS if over else SLOW) == set()


@pytest.mark.parametrize("kind", [EntryKind.CANCELLED, EntryKind.HELD_BACK])
def test_a_run_without_an_attempt_is_cancelled_or_held_back_since_that_was_recorded(
    tmp_path: Path, kind: EntryKind
) -> None:
    (tmp_path / "params.yaml").write_text("name: x\ncommand: 'true'\n")
    journal = writer(tmp_path / "journal.sqlite")
    journal.add_spec(Spec("x", "true"))
    journal.append([added("a"), JournalEntry(500.0, "a", kind, None, {"reason": "why"})])
    journal.renew_lease({})
    journal.close()
    done = CliRunner().invoke(group, ["status", str(tmp_path), "--json"], catch_exceptions=False)
    assert json.loads(done.output)["runs"][0]["now"]["since"] == 500.0


def test_an_experiment_without_runs_says_so(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("name: x\ncommand: 'true'\n")
    journal = writer(tmp_path / "journal.sqlite")
    journal.renew_lease({})
    journal.close()
    done = CliRunner().invoke(group, ["status", str(tmp_path)], catch_exceptions=False)
    assert "no runs yet" in done.output
