"""Output of Grid Engine's programs for given jobs."""

from __future__ import annotations

BATCH = "0123456789ab"
NAME = "try.group.%s" % BATCH


def job_xml(number: int, state: str, tasks: str, name: str = NAME, queue: str = "", at: str = "") -> str:
    """Return the element of one job in the output of `qstat -xml`; with a queue, the job runs."""
    kind, time = ("running", "JAT_start_time") if queue else ("pending", "JB_submission_time")
    return """
    <job_list state="%s">
      <JB_job_number>%d</JB_job_number>
      <JAT_prio>0.50000</JAT_prio>
      <JB_name>%s</JB_name>
      <JB_owner>root</JB_owner>
      <state>%s</state>
      <%s>%s</%s>
      <queue_name>%s</queue_name>
      <slots>1</slots>
      <tasks>%s</tasks>
      <full_job_name>%s</full_job_name>
      <hard_request name="h_rt" resource_contribution="0.000000">600</hard_request>
      <hard_req_queue>small.q</hard_req_queue>
      <binding>NONE</binding>
    </job_list>""" % (
        kind,
        number,
        name[:10],
        state,
        time,
        at or "2026-11-15T23:40:06",
        time,
        queue,
        tasks,
        name,
    )


def listing_xml(*jobs: str) -> str:
    """Return the output of `qstat -xml` with these elements."""
    running = "".join(job for job in jobs if 'state="running"' in job)
    pending = "".join(job for job in jobs if 'state="pending"' in job)
    return (
        "<?xml version='1.0'?>\n"
        '<job_info  xmlns:xsd="http://arc.liv.ac.uk/repos/darcs/sge/source/dist/util/resources/schemas/qstat/'
        'qstat.xsd">\n  <queue_info>%s\n  </queue_info>\n  <job_info>%s\n  </job_info>\n</job_info>\n'
    ) % (running, pending)


def record(**changes: str) -> str:
    """Return a record in the output of `qacct -j`, with some fields changed."""
    fields = {
        "qname": "main.q              ",
        "hostname": "beta                ",
        "owner": "root                ",
        "jobname": NAME,
        "jobnumber": "6                   ",
        "taskid": "1                   ",
        "qsub_time": "Sun Nov 15 23:41:21 2026",
        "start_time": "Sun Nov 15 23:41:22 2026",
        "end_time": "Sun Nov 15 23:41:30 2026",
        "slots": "1                   ",
        "failed": "0    ",
        "exit_status": "0                   ",
        "ru_wallclock": "8s",
        "maxvmem": "4.707MB",
        "category": "-q main.q -l h_rt=60",
    }
    lines = ["%-12s %s" % pair for pair in {**fields, **changes}.items()]
    return "\n".join(["=" * 62, *lines, ""])
