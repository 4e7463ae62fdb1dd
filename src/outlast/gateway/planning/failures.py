"""Why a run has no result, for its sender: from recorded facts, never from their wording."""

from __future__ import annotations

from outlast.domain.model import Attempt, Cause, Ending, Limits, Outcome, Run, RunState, Spec
from outlast.domain.policy import CLUSTER_PATIENCE
from outlast.gateway.planning.input_items import target_of
from outlast.gateway.requests import FailureCode, RequestFailure
from outlast.gateway.settings import Template
from outlast.node.staging.errors import ErrorKind
from outlast.text import printable
from outlast.units import show_limit, show_size

#: Of the end of the training's output, in lines and characters.
MOST_LINES, LONGEST_LINE, MOST_TEXT = 20, 200, 2000
_LONGEST_DETAIL = 500
#: Shorter values would be found everywhere.
_SHORTEST_SECRET = 4
_DATA = (Outcome.NOT_FOUND, Outcome.CORRUPT_INPUT, Outcome.NETWORK, Outcome.STALLED)

#: Errors for which a file will never be accepted, by their kind. Any other may pass.
_INPUT_CODES = {
    **dict.fromkeys(
        (
            ErrorKind.FORBIDDEN.value,
            ErrorKind.BAD_ARCHIVE.value,
            ErrorKind.WRONG_DIGEST.value,
            ErrorKind.WRONG_LENGTH.value,
        ),
        FailureCode.INPUT_REFUSED,
    ),
    ErrorKind.TOO_LARGE.value: FailureCode.OVER_CEILING,
}
_INPUT_MESSAGES = {
    FailureCode.INPUT_REFUSED: (
        "%s was refused",
        "Send a file from a host that this site lists, whose size and sha256 are right.",
    ),
    FailureCode.OVER_CEILING: ("%s is larger than the template allows", "Send a smaller file."),
    FailureCode.INPUT_UNAVAILABLE: (
        "%s could not be fetched",
        "Check that the file can be downloaded, then send the request again.",
    ),
}


def failure_of(run: Run, last_attempt: Attempt | None, spec: Spec, template: Template) -> RequestFailure:
    """Return the failure of a run that ended as failed or cancelled; `last_attempt` is its newest one."""
    return _EndedRun(run, last_attempt, spec, template).failure()


class _EndedRun:
    """What is known about one run that ended without a result."""

    def __init__(self, run: Run, attempt: Attempt | None, spec: Spec, template: Template) -> None:
        self.run = run
        self.attempt = attempt
        self.spec = spec
        self.template = template

    def failure(self) -> RequestFailure:
        run, last = self.run, self.run.last
        if run.state is RunState.CANCELLED:
            return self._failure(FailureCode.CANCELLED, "The run was cancelled.", "")
        if run.unpublished:
            advice = "Send it again later; the site has the result of the training."
            return self._failure(FailureCode.INTERNAL, "The result could not be stored at the site.", advice)
        if last is None:
            limit = show_limit(self.spec.limits.total)
            return self._unavailable("No job could be started within %s." % limit)
        if run.blocked_since is not None or last.cause is Cause.ACCESS_POINT:
            return self._unavailable("The site could not read or write the files of the run.")
        if not last.computed and (last.outcome in _DATA or self._was_fetching(last)):
            return self._input(last)
        match last.outcome:
            case Outcome.OUT_OF_MEMORY:
                return self._memory(last)
            case Outcome.OUT_OF_DISK:
                return self._disk()
            case Outcome.REJECTED:
                return self._unavailable("The cluster did not accept the job: %s." % self._detail(last))
            case Outcome.CRASHED | Outcome.WRONG_OUTPUT:
                return self._training(last)
        return self._time(last)

    def _failure(self, code: FailureCode, message: str, advice: str) -> RequestFailure:
        return RequestFailure(code, self._without_secrets(message), advice, attempts=self.run.attempts)

    def _unavailable(self, message: str) -> RequestFailure:
        advice = "Send it again later; if it fails again, ask the site."
        return self._failure(FailureCode.SITE_UNAVAILABLE, message, advice)

    # Inputs

    def _was_fetching(self, last: Ending) -> bool:
        """Return True if all of the time passed before the files had arrived."""
        items = self.attempt.account.data if self.attempt is not None else ()
        return last.outcome is Outcome.OVER_TIME and any(not item.arrived for item in items)

    def _input(self, last: Ending) -> RequestFailure:
        """Return the failure of a run whose files did not get into its job."""
        name, kind, is_requests = self._failed_item()
        if not is_requests:
            return self._unavailable("Data of the template itself could not be brought into the job.")
        code = _INPUT_CODES.get(kind, FailureCode.INPUT_UNAVAILABLE)
        message, advice = _INPUT_MESSAGES[code]
        reason = " (%s)" % kind if kind else ""
        text = "%s%s: %s." % (message % name, reason, self._detail(last))
        if code is FailureCode.OVER_CEILING:
            advice = "%s %s" % (advice, self._most_of(name))
        return self._failure(code, text, advice.rstrip())

    def _failed_item(self) -> tuple[str, str, bool]:
        """Return the input that did not arrive, why, and whether the request named it."""
        items = self.attempt.account.data if self.attempt is not None else ()
        failed = next((item for item in reversed(items) if not item.arrived), None)
        restricted = [item for item in self.spec.data if item.is_restricted]
        if failed is None:
            return "An input", "", bool(restricted)
        names = {target_of(item): item.name for item in restricted}
        for name, rule in self.template.inputs.items():
            if names.get(rule.to) == failed.name:
                return "The input %s" % printable(name), failed.failed, True
        return "An input", failed.failed, failed.name in names.values()

    def _most_of(self, shown: str) -> str:
        rules = {"The input %s" % printable(name): rule for name, rule in self.template.inputs.items()}
        return "It may have %s." % show_size(rules[shown].most) if shown in rules else ""

    # Resources

    def _memory(self, last: Ending) -> RequestFailure:
        had = self.run.memory or self.spec.resources.memory
        if not last.lacked_memory:
            message = "The training ran out of the memory of its GPU: %s." % self._detail(last)
            return self._failure(FailureCode.OUT_OF_MEMORY, message, "Use smaller batches or patches.")
        most, ceiling = self.spec.limits.memory or had, self.template.ceilings.memory
        message = "The training ran out of memory; its last attempt had %s." % show_size(had)
        if most < ceiling:
            advice = "Allow more than %s: the template can have up to %s."
            advice %= show_size(most), show_size(ceiling)
        else:
            advice = "Train with less data at once: %s is the most that the template can have."
            advice %= show_size(ceiling)
        return self._failure(FailureCode.OUT_OF_MEMORY, message, advice)

    def _disk(self) -> RequestFailure:
        had, most = self.run.disk or self.spec.resources.disk, self.spec.limits.disk
        if most is not None and had >= most:
            message = "The run needs more than the %s of disk that it may have." % show_size(had)
            return self._failure(FailureCode.OVER_CEILING, message, "Allow more disk, or send less data.")
        return self._unavailable("The disks of the nodes were full.")

    def _time(self, last: Ending) -> RequestFailure:
        """Return the failure of a run that the cluster or its own limits ended again and again."""
        limits, run = self.spec.limits, self.run
        if last.outcome in (Outcome.OVER_TIME, Outcome.CONTINUE) and not _is_overdue(run, limits):
            time = show_limit(run.time or self.spec.job_time)
            text = "The training saved nothing new in attempts of %s each." % time
            return self._failure(FailureCode.OUT_OF_TIME, text, "Ask for more time, or for less training.")
        if _is_overdue(run, limits) and (run.saved or last.outcome in (Outcome.OVER_TIME, Outcome.CONTINUE)):
            text = "The training did not finish within %s." % show_limit(limits.total)
            advice = "Allow a later deadline, or ask for less training."
            return self._failure(FailureCode.OUT_OF_TIME, text, advice)
        return self._unavailable("The cluster ended the job again and again: %s." % self._detail(last))

    # The training

    def _training(self, last: Ending) -> RequestFailure:
        if last.outcome is Outcome.CRASHED and not last.computed:
            text = "The job failed before the training began."
            return self._failure(FailureCode.INTERNAL, text, "Ask the site: the request is not the cause.")
        what = "wrote no valid result" if last.outcome is Outcome.WRONG_OUTPUT else "failed"
        text = "The training %s: %s." % (what, self._detail(last))
        lines = self._last_lines() if last.outcome is Outcome.CRASHED else ""
        if lines.strip().rstrip(". ") in text:
            lines = ""  # the last line alone
        advice = "Check the inputs and the parameters; with the same ones it would fail again."
        message = "%s The end of its output:\n%s" % (text, lines) if lines else text
        return self._failure(FailureCode.TRAINING_FAILED, message, advice)

    def _detail(self, last: Ending) -> str:
        return printable(last.detail)[:_LONGEST_DETAIL].rstrip(". ")

    def _last_lines(self) -> str:
        tail = self.attempt.account.tail if self.attempt is not None else ()
        text = "\n".join(printable(line)[:LONGEST_LINE] for line in tail[-MOST_LINES:])
        return text[-MOST_TEXT:]

    def _without_secrets(self, text: str) -> str:
        for name, parameter in self.template.parameters.items():
            value = self.run.params.get(name, "")
            if parameter.secret and len(value) >= _SHORTEST_SECRET:
                text = text.replace(value, "(secret)")
        return text


def _is_overdue(run: Run, limits: Limits) -> bool:
    """Return True if `limits.total` ended the run: none of its other limits did."""
    last = run.last
    return not (
        last is None
        or (last.unsaved and not limits.start_over)
        or run.stuck >= limits.without_progress
        or run.stuck_any >= CLUSTER_PATIENCE * limits.without_progress
        or run.ran >= limits.attempts
    )
