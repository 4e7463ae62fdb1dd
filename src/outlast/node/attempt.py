"""One attempt, phase by phase, from a claimed work order to its outcome."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, replace
from typing import Sequence

from outlast.node import code_archive, environment, failure, oom, process, process_cleanup, progress_file
from outlast.node.checkpoint_watch import CheckpointWatch
from outlast.node.event_log import EventLog, print_stderr
from outlast.node.legs import Leg, is_superseded
from outlast.node.order import WorkOrder
from outlast.node.outputs import validation
from outlast.node.outputs.collection import OutputCollection
from outlast.node.outputs.delivery import Manifest, deliver
from outlast.node.process import signal_name
from outlast.node.protocol import Outcome, Phase
from outlast.node.pulse import TAKEN_OVER, Interrupted, Pulse
from outlast.node.sandbox.committer import Committer
from outlast.node.scratch import Scratch, node_directory_name
from outlast.node.signals import Signals
from outlast.node.staging.phase import StagePhase, StagingFailed
from outlast.node.supervise import TO_COMMIT, StopSignals, TimeLimits, TrainingExit, run_bounded, supervise

#: After these the user will want to look at what the training left behind.
_WORTH_A_LOOK = (Outcome.CRASHED, Outcome.WRONG_OUTPUT, Outcome.OUT_OF_MEMORY, Outcome.OUT_OF_DISK)
#: What a node, or a file system it has mounted, says when it is broken; another node may do better.
_BROKEN_NODE = (
    *(errno.EIO, errno.EROFS, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.EREMOTEIO),
    *(errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENFILE),
)
#: Seconds that checking and delivering get even when limit or grace is used up: small outputs take less.
_HAND_OVER_AT_LEAST = 1.0


@dataclass(frozen=True)
class AttemptResult:
    """How the attempt ended: the fields of the event log's last line."""

    outcome: Outcome
    #: One plain sentence (for outputs, one for each rule that is not kept) for the user.
    detail: str
    code: int | None = None
    signal: int | None = None
    signature: str | None = None
    tail: str = ""
    progressed: bool = False
    delivered: Manifest | None = None


class AttemptRunner:
    def __init__(
        self,
        order: WorkOrder,
        leg: Leg,
        limits: TimeLimits,
        stops: StopSignals,
        signals: Signals,
        events: EventLog,
        commits: Committer | None = None,
    ) -> None:
        self._order = order
        self._commits = commits
        self._leg = leg
        self._limits = limits
        self._stops = stops
        self._signals = signals
        self._events = events
        self._scratch = Scratch(order.scratch, _place_on_node(order))
        self._staging = StagePhase(order.data, self._scratch.data, leg.fetching_path, events)
        self._pulse = Pulse(
            signals,
            events,
            limits.last_moment,
            order.grace,
            lambda: is_superseded(order, leg),
            self._staging.refresh,
        )
        paths = [rule.path for rule in order.outputs]
        self._workplace = OutputCollection(paths, self._scratch.output, self._scratch.working)
        self._environment: dict[str, str] = {}
        self._log = 2
        self._log_start = 0
        self._occupied: int | None = None

    def carry_out(self) -> AttemptResult:
        """All phases after the claim. Only a bug in Outlast makes it raise."""
        try:
            end = self._prepare()
            if end is None:
                self._open_log()
                try:
                    end = self._compute_and_hand_over()
                finally:
                    if self._log != 2:
                        os.close(self._log)
        finally:
            self._staging.release()
        self._clean_up(end.outcome)
        if self._occupied is not None:
            os.close(self._occupied)
        return end

    def _prepare(self) -> AttemptResult | None:
        """None: the training can start."""
        order = self._order
        phase = Phase.STAGE
        try:
            self._begin(phase)
            self._scratch.prepare(order.previous_scratch)
            self._occupied = self._scratch.occupy()
            self._scratch.sweep_up(self._limits.stop_at, self._pulse)
            os.makedirs(order.checkpoints, exist_ok=True)
            environment.adopt_network_settings(order)
            self._staging.run(self._pulse)
            phase = Phase.UNPACK
            self._begin(phase)
            if order.code is not None:
                code_archive.unpack(order.code, order.code_sha256, self._scratch.working, self._pulse)
            self._scratch.carry_on(order.previous_scratch, self._pulse)
            self._workplace.look(self._pulse)
        except code_archive.BadCodeArchive as error:
            return AttemptResult(Outcome.CORRUPT_INPUT, f"{error}.")  # another host may read it well
        except StagingFailed as error:
            signature = failure.signature_of("data", error.failure_key) if error.failure_key else None
            return AttemptResult(error.outcome, f"{error}.", signature=signature)
        except OSError as error:
            return self._trouble(phase, error)
        except Interrupted as interrupted:
            return self._given_up(interrupted, f"before the training had started, in the phase {phase.value}")
        self._begin(Phase.ENVIRONMENT)
        self._environment = environment.for_training(
            order,
            self._limits.deadline_epoch,
            self._limits.grace,
            self._scratch.data,
            self._scratch.output,
            self._leg.progress_path,
            os.environ,
        )
        return None

    def _compute_and_hand_over(self) -> AttemptResult:
        self._begin(Phase.COMPUTE)
        watch = CheckpointWatch(self._order.checkpoints)
        kills_before = oom.oom_kills()
        received = self._signals.pending_stop()
        if received is not None:
            self._events.write("stop", why="signal", signal=received)
            return AttemptResult(Outcome.EVICTED, "The job was told to stop before the training had started.")
        try:
            child = self._start(self._order.command)
        except process.CannotStart as error:
            return AttemptResult(Outcome.CRASHED, f"{error}.", signature=failure.signature_of("start", error))
        try:
            ended = supervise(
                child,
                self._limits,
                self._stops,
                self._order.grace,
                self._pulse,
                watch,
                self._commits,
                lambda: progress_file.has_left(self._leg.progress_path),
            )
        finally:
            if self._commits is not None:
                self._commits.finish()
            self._end_descendants()
        text = failure.read_end(self._order.log, self._log_start)
        end = self._judge(ended, text, oom_killed=(oom.oom_kills() or 0) > (kills_before or 0))
        return replace(
            end,
            code=ended.code,
            signal=ended.signal,
            tail=failure.tail(text),
            progressed=watch.progressed,
        )

    def _judge(self, ended: TrainingExit, text: str, oom_killed: bool) -> AttemptResult:
        if ended.code == 0:
            end = self._hand_over()
            if end.outcome is not Outcome.WRONG_OUTPUT or ended.stopped is None:
                return end
            # Many programs exit with 0 when told to stop; that alone is no success and no failure.
            return _told_to_stop(ended.stopped, "ended before its outputs were complete")
        if ended.left:
            return AttemptResult(Outcome.CONTINUE, "The training has saved and asks to be continued.")
        if is_superseded(self._order, self._leg):
            return _told_to_stop(TAKEN_OVER, "was given up")  # whatever it died of, it was not to go on
        if ended.stopped is not None:
            how = "had to be killed" if ended.killed else "ended without saying that it has saved"
            return _told_to_stop(ended.stopped, how)
        found = failure.diagnose(text, ended.code, ended.signal, oom_killed)
        return AttemptResult(found.outcome, found.detail, signature=found.signature)

    def _hand_over(self) -> AttemptResult:
        phase = Phase.VALIDATE
        rules, output = self._order.outputs, self._scratch.output
        self._pulse.wind_up(_HAND_OVER_AT_LEAST)
        try:
            self._begin(phase)
            self._settle()  # a link of the same name must not stand in the way of what is brought over
            self._workplace.bring_over(self._pulse)
            self._settle()  # what was brought over may hold links as well
            problems = validation.validate(rules, output, self._run_check)
            if problems:
                detail = " ".join(problem.sentence for problem in problems)
                signature = failure.signature_of("outputs", *(problem.rule for problem in problems))
                return AttemptResult(Outcome.WRONG_OUTPUT, detail, signature=signature)
            phase = Phase.DELIVER
            self._begin(phase)
            self._settle()  # check commands write too
            manifest = deliver(output, self._leg.delivery_path, self._pulse)
        except OSError as error:
            return self._trouble(phase, error)
        except Interrupted as interrupted:
            when = f"after the training had finished, in the phase {phase.value}"
            return self._given_up(interrupted, f"{when}; its outputs are kept for the next attempt")
        files = "1 file" if len(manifest) == 1 else f"{len(manifest)} files"
        return AttemptResult(
            Outcome.FINISHED, f"The training finished; {files} checked and delivered.", delivered=manifest
        )

    def _settle(self) -> None:
        for text in validation.normalize_output(self._scratch.output, self._pulse):
            self._events.warn(text)

    def _run_check(self, command: Sequence[str]) -> str | None:
        try:
            child = self._start(command)
        except process.CannotStart as error:
            return f"could not run: {error}"
        try:
            return run_bounded(child, self._pulse)
        finally:
            self._end_descendants()

    def _start(self, command: Sequence[str]) -> process.Child:
        command = environment.resolve_python(command, self._environment)
        return process.start(command, self._environment, self._scratch.working, self._log)

    def _end_descendants(self) -> None:
        survivors = process_cleanup.end_descendants(self._order.token)
        if survivors:
            listed = ", ".join(str(pid) for pid in survivors)
            self._events.warn(f"these processes of the training could not be ended: {listed}")

    def _open_log(self) -> None:
        try:
            os.makedirs(os.path.dirname(self._order.log), exist_ok=True)
            self._log = os.open(self._order.log, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o644)
            self._log_start = os.fstat(self._log).st_size
        except OSError as error:
            self._events.warn(
                f"the log {self._order.log} cannot be opened ({error.strerror}); output goes to stderr"
            )

    def _clean_up(self, outcome: Outcome) -> None:
        self._begin(Phase.CLEAN_UP)
        if outcome in _WORTH_A_LOOK:
            return
        self._pulse.wind_up()
        keep_output = outcome is not Outcome.FINISHED
        try:
            cleared = self._scratch.clear(keep_output, self._limits.last_moment, self._pulse)
        except (OSError, Interrupted):
            cleared = False
        if not cleared:
            self._events.warn(f"{self._scratch.top} could not be removed in full")

    def _begin(self, phase: Phase) -> None:
        self._events.write("phase", phase=phase.value)

    def _trouble(self, phase: Phase, error: OSError) -> AttemptResult:
        """Trouble of the node's or the file system's, met by the node program itself.

        Before the training has started nothing of the user's can be the cause, but for code that is gone.
        """
        what = f"{error.strerror} ({error.filename})" if error.filename else f"{error.strerror or error}"
        detail = f"The node program could not {phase.value}: {what}."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            outcome = Outcome.OUT_OF_DISK
        elif error.errno == errno.ENOENT and error.filename == self._order.code:
            outcome = Outcome.NOT_FOUND
        elif phase in (Phase.STAGE, Phase.UNPACK) or error.errno in _BROKEN_NODE:
            return AttemptResult(Outcome.NODE_TROUBLE, detail)
        else:
            outcome = Outcome.CRASHED
        return AttemptResult(outcome, detail, signature=failure.signature_of(phase.value, error.errno))

    def _given_up(self, interrupted: Interrupted, when: str) -> AttemptResult:
        self._events.write("stop", why=interrupted.why, signal=interrupted.signal)
        if interrupted.why == TAKEN_OVER:
            return _told_to_stop(TAKEN_OVER, "was given up")
        if interrupted.signal is None:
            return AttemptResult(Outcome.OVER_TIME, f"The job's time was used up {when}.")
        return AttemptResult(
            Outcome.EVICTED, f"The job was told to stop by {signal_name(interrupted.signal)} {when}."
        )


def _told_to_stop(why: str, how: str) -> AttemptResult:
    if why == "limit":
        return AttemptResult(
            Outcome.OVER_TIME, f"The training was told to stop at its wall-time limit and {how}."
        )
    if why == TO_COMMIT:
        return AttemptResult(
            Outcome.EVICTED, f"The training was told to stop so that its checkpoints get out, and {how}."
        )
    if why == TAKEN_OVER:
        return AttemptResult(
            Outcome.EVICTED, "The attempt was given up or taken over while this job was still at work."
        )
    return AttemptResult(Outcome.EVICTED, f"The job was told to stop by a signal, and the training {how}.")


def _place_on_node(order: WorkOrder) -> str | None:
    """Where the node has room of its own; None where it was not asked for, or is not what was promised."""
    if order.node_scratch is None:
        return None
    place = os.path.expandvars(os.path.expanduser(order.node_scratch))
    if not os.path.isabs(place) or not os.path.isdir(place):
        print_stderr(f"the scratch directory {order.node_scratch} is not there; working in {order.scratch}")
        return None
    return os.path.join(place, node_directory_name(order.token))
