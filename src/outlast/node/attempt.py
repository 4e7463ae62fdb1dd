"""Runs one attempt, phase by phase, from the claimed work order to its outcome."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from typing import Sequence

from outlast.node import code_archive, environment, process, process_cleanup, progress_file
from outlast.node.attempt_result import AttemptResult, stopped_end
from outlast.node.diagnosis import failure, oom
from outlast.node.diagnosis.usage import UsageMeter
from outlast.node.event_log import EventLog, print_stderr
from outlast.node.failure_streak import blames_checkpoint
from outlast.node.files import lift_deep
from outlast.node.legs import Leg, is_superseded
from outlast.node.order import WorkOrder
from outlast.node.outputs import made_archive, validation
from outlast.node.outputs.collection import LeftFile, OutputCollection
from outlast.node.outputs.delivery import deliver
from outlast.node.outputs.made_archive import MadeSnapshot
from outlast.node.outputs.made_files import CodeListing, list_code, list_made, state_selector
from outlast.node.outputs.output_tree import BadOutputDirectory, normalize_output
from outlast.node.process import signal_name
from outlast.node.protocol import STOP_AT_LIMIT, STOP_SIGNALLED, Outcome, Phase
from outlast.node.pulse import TAKEN_OVER, Interrupted, Pulse
from outlast.node.quantities import show_size
from outlast.node.sandbox.committer import Committer
from outlast.node.scratch import Scratch, node_directory_name
from outlast.node.signals import Signals
from outlast.node.snapshots.checkpoint_watch import CheckpointWatch
from outlast.node.snapshots.earlier_state import EarlierState, find_made_state
from outlast.node.snapshots.script_files import ScriptFiles, WorkingFiles
from outlast.node.snapshots.snapshot_keeper import SnapshotKeeper
from outlast.node.snapshots.snapshot_store import SnapshotStore
from outlast.node.snapshots.start_state import StartState, StartStateFinder
from outlast.node.staging.phase import StagePhase, StagingFailed
from outlast.node.supervise import StopSignals, TrainingExit, run_bounded, supervise
from outlast.node.time_limits import TimeLimits
from outlast.untrusted_files import open_to_append

#: Outcomes after which scratch is kept, so that the user can inspect it.
_KEEPS_SCRATCH = (Outcome.CRASHED, Outcome.WRONG_OUTPUT, Outcome.OUT_OF_MEMORY, Outcome.OUT_OF_DISK)
#: Errors of a broken node, or of a broken file system on it; another node may work.
_BROKEN_NODE = (
    *(errno.EIO, errno.EROFS, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.EREMOTEIO),
    *(errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENFILE),
)
#: Seconds for validation and delivery even if limit or grace is used up: small outputs take less.
_MIN_HANDOVER = 1.0
#: How many names of files a sentence has, and how much of each.
_MOST_NAMES = 5
_LONGEST_NAME = 100


class AttemptRunner:
    """Runs all phases of an attempt after the claim."""

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
        self._scratch = Scratch(order.scratch, _find_node_scratch(order), order.sandbox)
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
        self._collection = OutputCollection(
            paths, self._scratch.output, self._scratch.working, order.other_outputs
        )
        #: The code in the working directory, once that is complete.
        self._code: CodeListing | None = None
        #: What earlier attempts had made in it.
        self._earlier = EarlierState(order.checkpoints, self._scratch.working)
        self._has_survivors = False
        self._environment: dict[str, str] = {}
        self._log = 2
        self._log_start = 0
        self._node_lock: int | None = None
        self._script = ScriptFiles(order.checkpoints)
        self._snapshots: SnapshotStore | None = None
        self._start_state = StartState()

    def run(self) -> AttemptResult:
        """Run the attempt and return its end. Raises only if Outlast has a bug."""
        try:
            end = self._prepare()
            if end is None:
                self._open_log()
                try:
                    end = self._compute()
                finally:
                    if self._log != 2:
                        os.close(self._log)
        finally:
            self._staging.release()
        made = self._clean_up(end.outcome)
        if not progress_file.has_checkpoints(self._leg.progress_path):
            end = self._earlier.compare(end, made)  # those of `outlast.training` are always read
        end = replace(end, made=bool(made) and not end.started_over)
        if self._node_lock is not None:
            os.close(self._node_lock)
        return end

    def _prepare(self) -> AttemptResult | None:
        """Stage and unpack; return None if the training can start, else the end of the attempt."""
        order = self._order
        phase = Phase.STAGE
        try:
            self._begin(phase)
            self._scratch.prepare(order.previous_scratch)
            self._node_lock = self._scratch.mark_in_use()
            self._scratch.remove_abandoned(self._limits.stop_at, self._pulse)
            environment.adopt_network_settings(order)
            self._staging.run(self._pulse)
            phase = Phase.UNPACK
            self._begin(phase)
            if order.code is not None:
                code_archive.unpack(order.code, order.code_sha256, self._scratch.working, self._pulse)
            code = list_code(self._scratch.working, order.code_sha256, self._pulse)
            for text in self._scratch.carry_over(order.previous_scratch, code, self._pulse):
                self._events.warn_of_files(text)
            self._code = code
            self._prepare_checkpoints(code)
            self._earlier.record(list_made(self._scratch.working, code, self._pulse))
            if self._commits is not None:
                place = os.path.join(order.home, f".{made_archive.NAME}")
                names = [rule.path for rule in order.outputs]
                snapshot = MadeSnapshot(self._scratch.working, code, place, order.other_outputs, names)
                self._commits.include(snapshot.pack)
            self._collection.record_initial_state(code, self._pulse)
        except code_archive.BadCodeArchive as error:
            # No signature: on another host the file may be readable.
            return AttemptResult(Outcome.CORRUPT_INPUT, f"{error}.")
        except StagingFailed as error:
            signature = failure.signature_of("data", error.failure_key) if error.failure_key else None
            return AttemptResult(error.outcome, f"{error}.", signature=signature)
        except OSError as error:
            return self._node_error(phase, error)
        except Interrupted as interrupted:
            return self._interrupted(interrupted, f"before the training started, in the phase {phase.value}")
        self._begin(Phase.ENVIRONMENT)
        try:
            self._environment = environment.for_training(
                order,
                self._limits,
                self._scratch.data,
                self._scratch.output,
                self._leg.progress_path,
                os.environ,
            )
        except environment.BadEnvironment as error:
            return AttemptResult(Outcome.CRASHED, str(error), signature=failure.signature_of("env", error))
        return None

    def _prepare_checkpoints(self, code: CodeListing) -> None:
        order = self._order
        self._script = ScriptFiles(
            order.checkpoints, WorkingFiles(self._scratch.working, state_selector(code))
        )
        self._snapshots = _snapshot_store(order, self._script)
        if self._snapshots is not None:
            finder = StartStateFinder(self._snapshots, order.checkpoints, self._events, self._pulse)
            self._start_state = finder.prepare(order.start_before)
        os.makedirs(order.checkpoints, exist_ok=True)

    def _compute(self) -> AttemptResult:
        self._begin(Phase.COMPUTE)
        began = time.monotonic()
        keeper = SnapshotKeeper(self._snapshots, self._events) if self._snapshots is not None else None
        watch = CheckpointWatch(self._order.checkpoints, working=self._script.working)
        kills_before = oom.oom_kills()
        received = self._signals.pending_stop()
        if received is not None:
            return self._interrupted(Interrupted(received), "before the training started")
        self._earlier.watch(self._pulse)
        meter = UsageMeter(self._order.gpus, self._environment)
        try:
            child = self._start(environment.add_resume_words(self._order, self._earlier.has_made_state))
        except process.CannotStart as error:
            return AttemptResult(Outcome.CRASHED, f"{error}.", signature=failure.signature_of("start", error))
        self._pulse.measure = meter.measure
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
                lambda: progress_file.has_checkpoints(self._leg.progress_path),
                keeper,
            )
        finally:
            self._pulse.measure = dict
            meter.close()
            if keeper is not None:
                keeper.finish()
            self._earlier.end_watch()
            if self._commits is not None:
                self._commits.finish()
            self._kill_descendants()
        text = failure.read_end(self._order.log, self._log_start)
        end, signal = self._decide(ended), ended.signal
        if end is None:
            oom_killed = (oom.oom_kills() or 0) > (kills_before or 0)
            found = failure.diagnose(text, ended.code, ended.signal, oom_killed)
            end = AttemptResult(found.outcome, found.detail, signature=found.signature)
            signal = found.signal  # of the rank that failed first, under a launcher
            progressed = watch.progressed or watch.made_progressed
            if blames_checkpoint(end.outcome, time.monotonic() - began, progressed=progressed):
                end = self._note_checkpoint(end)
        return replace(
            end,
            code=ended.code,
            signal=signal,
            tail=failure.tail(text),
            progressed=watch.progressed,
        )

    def _lift_deep(self) -> None:
        """Bring directories of the working directory that are nested too deeply within reach."""
        working = self._scratch.working
        if os.path.isdir(working) and not os.path.islink(working):  # what a link leads to is not ours
            for text in lift_deep(working, self._pulse):
                self._events.warn_of_files(f"in the working directory, {text}")

    def _note_checkpoint(self, end: AttemptResult) -> AttemptResult:
        """Add the snapshot that the training began from, if there is an older one."""
        if progress_file.has_checkpoints(self._leg.progress_path):
            return end  # those of `outlast.training` are checked when they are loaded
        state = self._start_state
        return replace(end, go_back=state.snapshot, unsure=not state.sure) if state.older else end

    def _decide(self, ended: TrainingExit) -> AttemptResult | None:
        """Return the end of the attempt; None if the training failed."""
        if ended.code == 0:
            end = self._hand_over()
            if end.outcome is not Outcome.WRONG_OUTPUT or ended.stopped is None:
                return end
            # Many programs exit with 0 after a stop signal; that alone is neither success nor failure.
            return stopped_end(ended.stopped, "ended before its outputs were complete")
        if ended.left:
            return AttemptResult(
                Outcome.CONTINUE, "The training saved its state and exited before it was done."
            )
        if is_superseded(self._order, self._leg):
            return stopped_end(TAKEN_OVER, "was given up")  # however it died, it must not continue
        if ended.stopped is not None:
            how = "had to be killed" if ended.killed else "ended without reporting a save"
            return stopped_end(ended.stopped, how)
        return None

    def _hand_over(self) -> AttemptResult:
        phase = Phase.VALIDATE
        rules, output = self._order.outputs, self._scratch.output
        self._pulse.begin_handover(_MIN_HANDOVER)
        try:
            self._begin(phase)
            self._normalize_output()  # a link must not block an output of the same name
            self._lift_deep()
            left = self._collection.collect(self._pulse)
            self._normalize_output()  # the collected outputs may hold links too
            problems = validation.validate(rules, output, self._run_check)
            if problems:
                detail = " ".join(problem.sentence for problem in problems)
                signature = failure.signature_of("outputs", *(problem.rule for problem in problems))
                lasting = any(problem.is_lasting for problem in problems)
                return AttemptResult(Outcome.WRONG_OUTPUT, detail, signature=signature, lasting=lasting)
            phase = Phase.DELIVER
            self._begin(phase)
            self._normalize_output()  # check commands write too
            manifest = deliver(output, self._leg.delivery_path, self._pulse)
        except BadOutputDirectory as error:
            return AttemptResult(
                Outcome.WRONG_OUTPUT, str(error), signature=failure.signature_of("outputs", "directory")
            )
        except OSError as error:
            return self._node_error(phase, error)
        except Interrupted as interrupted:
            when = f"after the training had finished, in the phase {phase.value}"
            return self._interrupted(interrupted, f"{when}; its outputs are kept for the next attempt")
        detail = f"The training finished; {_counted(len(manifest))} checked and delivered"
        if left:
            detail += f". {self._keep_left(left)}"
        return AttemptResult(Outcome.FINISHED, f"{detail}.", delivered=manifest)

    def _keep_left(self, left: Sequence[LeftFile]) -> str:
        """Keep the files that are too large for the results; return a sentence about them."""
        names = _listed(left)
        limit = f"other_outputs ({show_size(self._order.other_outputs)})"
        if self._order.sandbox:
            advice = "raise it or name them in outputs, then `outlast retry --again`"
            return f"Larger than {limit}, and not transferred from the job ({advice}): {names}"
        try:
            self._scratch.keep_left(left, self._pulse)
        except (OSError, Interrupted) as error:
            return f"Larger than {limit}, and could not be kept ({error}): {names}"
        return f"Larger than {limit}, and left in {self._scratch.left}: {names}"

    def _normalize_output(self) -> None:
        link = self._scratch.find_link()
        if link is not None:
            raise BadOutputDirectory(
                f"{link} was replaced by a link to {os.readlink(link)}; its files stay there. "
                "Link to a larger disk from $OUTLAST_OUTPUT_DIR instead."
            )
        for text in normalize_output(self._scratch.output, self._pulse):
            self._events.warn_of_files(text)

    def _run_check(self, command: Sequence[str]) -> str | None:
        try:
            child = self._start(command)
        except process.CannotStart as error:
            return f"could not run: {error}"
        try:
            return run_bounded(child, self._pulse)
        finally:
            self._kill_descendants()

    def _start(self, command: Sequence[str]) -> process.Child:
        command = environment.replace_variables(command, self._environment)
        command = environment.resolve_python(command, self._environment)
        return process.start(command, self._environment, self._scratch.working, self._log)

    def _kill_descendants(self) -> None:
        survivors = process_cleanup.kill_descendants(self._order.token)
        self._has_survivors = bool(survivors)
        if survivors:
            listed = ", ".join(str(pid) for pid in survivors)
            self._events.warn(f"these processes of the training could not be killed: {listed}")

    def _open_log(self) -> None:
        try:
            os.makedirs(os.path.dirname(self._order.log), exist_ok=True)
            self._log = open_to_append(self._order.log)
            self._log_start = os.fstat(self._log).st_size
        except OSError as error:
            self._events.warn(
                f"the log {self._order.log} cannot be opened ({error.strerror}); output goes to stderr"
            )

    def _clean_up(self, outcome: Outcome) -> list[str]:
        """Save what the next attempt needs, and remove the rest; return the state that was made, as below."""
        self._begin(Phase.CLEAN_UP)
        self._pulse.begin_handover()
        made = [] if outcome is Outcome.FINISHED else self._save_made()
        if outcome in _KEEPS_SCRATCH:
            return made
        keep_output = outcome is not Outcome.FINISHED
        try:
            cleared = self._scratch.clear(keep_output, self._limits.last_moment, self._pulse)
        except (OSError, Interrupted):
            cleared = False
        if not cleared:
            self._events.warn(f"{self._scratch.top} could not be removed in full")
        return made

    def _save_made(self) -> list[str]:
        """Save for the next attempt what the training made in its working directory.

        Return the models and checkpoints that are new or changed: it may resume from these.
        """
        if self._code is None:
            return []  # the working directory is not complete: the earlier one still is
        order = self._order
        link = self._scratch.find_link()
        if link is not None:
            self._events.warn_of_files(
                f"{link} was replaced by a link; its files stay in {os.readlink(link)}"
            )
            return []
        try:
            self._lift_deep()
            new = list_made(self._scratch.working, self._code, self._pulse) - self._earlier.made
            if not self._has_survivors:
                self._scratch.note_ended()
            limit = order.other_outputs if order.sandbox else None
            names = [rule.path for rule in order.outputs]
            left = self._scratch.stash(self._code, limit, names, self._pulse)
        except (OSError, Interrupted) as error:
            self._events.warn_of_files(f"the files in the working directory could not be saved: {error}")
            return []
        if left:
            self._events.warn_of_files(f"not saved for the next attempt: {_listed(left)}")
        not_saved = {file.path for file in left}
        return find_made_state(self._scratch.working, (one for one in new if one[0] not in not_saved))

    def _begin(self, phase: Phase) -> None:
        self._events.write("phase", phase=phase.value)

    def _node_error(self, phase: Phase, error: OSError) -> AttemptResult:
        """Return the end for an error of the node program itself.

        Before the training starts, the node or its file system is the cause, unless the code archive is gone.
        """
        what = f"{error.strerror} ({error.filename})" if error.filename else f"{error.strerror or error}"
        detail = f"The node program could not {phase.value}: {what}."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            outcome = Outcome.OUT_OF_DISK
        elif error.errno == errno.ENOENT and error.filename == self._order.code:
            outcome = Outcome.NOT_FOUND
        elif phase in (Phase.STAGE, Phase.UNPACK) or error.errno in _BROKEN_NODE:
            return AttemptResult(Outcome.NODE_TROUBLE, detail, signature=self._sign_shared_error(error))
        else:
            outcome = Outcome.CRASHED
        return AttemptResult(outcome, detail, signature=failure.signature_of(phase.value, error.errno))

    def _sign_shared_error(self, error: OSError) -> str | None:
        """Return a signature if every node would get the error, for a file of the experiment; else None.

        The controller fails a run whose attempts keep ending in this way.
        """
        inside = os.path.join(self._order.experiment, "")
        if error.errno in _BROKEN_NODE or not str(error.filename).startswith(inside):
            return None
        return failure.signature_of("files", error.errno)

    def _interrupted(self, interrupted: Interrupted, when: str) -> AttemptResult:
        why = interrupted.why
        if why == STOP_SIGNALLED and interrupted.signal == self._stops.limit:
            why = STOP_AT_LIMIT
        self._events.write("stop", why=why, signal=interrupted.signal)
        if why == TAKEN_OVER:
            return stopped_end(TAKEN_OVER, "was given up")
        if why == STOP_AT_LIMIT or interrupted.signal is None:
            return AttemptResult(Outcome.OVER_TIME, f"The job's time was used up {when}.")
        return AttemptResult(
            Outcome.EVICTED, f"The job was stopped by {signal_name(interrupted.signal)} {when}."
        )


def _listed(files: Sequence[LeftFile]) -> str:
    """Return the number, the size and the names of files, the largest first."""
    ordered = sorted(files, key=lambda file: file.size, reverse=True)
    names = ", ".join(file.path[:_LONGEST_NAME] for file in ordered[:_MOST_NAMES])
    rest = ", …" if len(ordered) > _MOST_NAMES else ""
    return f"{_counted(len(ordered))} of {show_size(sum(file.size for file in ordered))} ({names}{rest})"


def _counted(files: int) -> str:
    return "1 file" if files == 1 else f"{files} files"


def _snapshot_store(order: WorkOrder, script: ScriptFiles) -> SnapshotStore | None:
    if order.snapshots is None or order.most_snapshots < 1:
        return None
    most, most_bytes = order.most_snapshots, order.snapshot_bytes
    return SnapshotStore(order.snapshots, script, most, most_bytes, foreign=order.sandbox)


def _find_node_scratch(order: WorkOrder) -> str | None:
    """Return the attempt's directory in the node's own scratch; None if not requested or not there."""
    if order.node_scratch is None:
        return None
    place = os.path.expandvars(os.path.expanduser(order.node_scratch))
    if not os.path.isabs(place) or not os.path.isdir(place):
        print_stderr(
            f"the scratch directory {order.node_scratch} does not exist; using {order.scratch} instead"
        )
        return None
    return os.path.join(place, node_directory_name(order.token))
