"""Fixtures for tests of whole experiments; see `support.experiments`."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from attack.summary import PROPERTY, summarize
from servers.certificates import Authority
from support import clusters
from support.broker import Broker, PrivateBroker, private_broker, shared_broker
from support.experiments import Lab


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What a random test began with, so that it can be run again. Workers of xdist print nothing."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    properties = [(report, key, value) for report in reports for key, value in report.user_properties]
    for report, key, value in properties:
        if key == "seeds":
            terminalreporter.write_line("%s: %s" % (report.nodeid, value))
    walks = [value for report, key, value in properties if key == PROPERTY and report.when == "call"]
    if walks:
        terminalreporter.section("random walks of attacks")
        for line in summarize(walks):
            terminalreporter.write_line(line)


#: Their tests share a process that has imported a framework, or started a broker, which takes seconds.
_SHARING = (
    *("gateway_broker", "gateway_crashes", "gateway_faults", "gateway_hostile", "gateway_users"),
    *("gateway_inputs", "lightning", "transformers", "keras", "tensorboard", "whole_trainings"),
)


class ByCluster(LoadScopeScheduling):
    """All tests on one real cluster go to one worker, every other test to whoever is free."""

    def _split_scope(self, nodeid: str) -> str:
        names = (name for name in clusters.NAMES if "[%s" % name in nodeid or "/test_%s_" % name in nodeid)
        sharing = (name for name in _SHARING if "/test_%s.py" % name in nodeid)
        return next(names, None) or next(sharing, nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByCluster | None:
    return ByCluster(config, log) if config.getvalue("dist") == "loadscope" else None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Clusters that were started for these tests end with them; workers of xdist leave that to it."""
    if not hasattr(session.config, "workerinput"):
        clusters.stop_those_for_tests()


@pytest.fixture(scope="session", autouse=True)
def _private_places() -> Iterator[None]:
    """No test sees or touches the clusters and settings of the person who runs it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background, we would pass on that Ctrl-C is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ol-") as folder:
        patch.setenv("OUTLAST_LOCAL_ROOT", str(Path(folder) / "c"))
        patch.setenv("XDG_CONFIG_HOME", str(Path(folder) / "config"))
        patch.delenv("OUTLAST_CRASH_AT", raising=False)
        yield


@pytest.fixture(autouse=True)
def _handler_of_sigterm() -> Iterator[None]:
    """A handler that a test leaves behind would keep the forked children of later tests alive."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A virtual host of the RabbitMQ that all tests share: no test may stop it."""
    with shared_broker().own_virtual_host() as own:
        yield own


@pytest.fixture(scope="module")
def _private_broker() -> Iterator[PrivateBroker]:
    with private_broker() as private:
        yield private


@pytest.fixture
def fragile_broker(_private_broker: PrivateBroker) -> Iterator[PrivateBroker]:
    """A RabbitMQ for one module, to be killed and frozen; it runs at the beginning of each test."""
    _private_broker.start()
    yield _private_broker
    _private_broker.thaw()


@pytest.fixture
def lab() -> Iterator[Lab]:
    # Short: the name of a Unix socket in it has at most 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="ol-"))
    laboratory = Lab(root)
    try:
        yield laboratory
    finally:
        laboratory.close()
        shutil.rmtree(root, ignore_errors=True)
