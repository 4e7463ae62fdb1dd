"""A gateway with nothing to do does nothing."""

from __future__ import annotations

import sqlite3

from support.broker import Broker, until
from support.experiments import open_journal
from support.gateway_lab import gateway_lab


def test_a_gateway_that_waits_for_jobs_writes_nothing_into_its_record(broker: Broker) -> None:
    with gateway_lab(broker) as lab:
        one_slot = {"here": {"scheduler": "local", "hosts": {"alpha": 1}}}
        lab.write_template("fast", params={"cluster": "here"}, clusters=one_slot)
        lab.up()
        application = lab.application()
        application.request("running", number=3, seconds=600)
        until(lab.starts.exists, lab.log)
        application.request("queued", number=4, seconds=600)
        until(lambda: lab.count_attempts() == 2, lab.log)

        def is_followed() -> bool:
            with lab.record() as record, open_journal(lab.directory.experiment("fast")) as journal:
                return record.cursor("fast") == journal.last_entry() > 0

        until(is_followed, lab.log)
        watcher = sqlite3.connect(lab.directory.record)
        before = watcher.execute("PRAGMA data_version").fetchone()
        for _ in range(2):  # a heartbeat has the time of its writing, after several steps
            beat = lab.directory.heartbeat.stat().st_mtime_ns
            until(lambda beat=beat: lab.directory.heartbeat.stat().st_mtime_ns != beat, lab.log)  # type: ignore[misc]
        assert watcher.execute("PRAGMA data_version").fetchone() == before
        watcher.close()
        lab.release.touch()
        application.wait_for_answers(60, lab.log)
