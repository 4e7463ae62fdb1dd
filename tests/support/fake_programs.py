"""Fakes of schedulers' programs: small scripts that print recorded output and need nothing on the PATH."""

from __future__ import annotations

from pathlib import Path

PARTITIONS = """\
PartitionName=main AllowGroups=ALL Default=YES QoS=N/A MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0
PartitionName=short AllowGroups=ALL Default=NO QoS=N/A MaxNodes=UNLIMITED MaxTime=1-00:00:00 MinNodes=0
"""
QUEUES = """\
qname                 main.q
slots                 8
s_rt                  INFINITY
h_rt                  12:00:00
h_cpu                 INFINITY

qname                 gpu.q
h_rt                  INFINITY,[@gpu=24:00:00], \\
                      [@old=1:0:0]
"""
SUMMARY = """\
CLUSTER QUEUE                   CQLOAD   USED    RES  AVAIL  TOTAL aoACDS  cdsuE
--------------------------------------------------------------------------------
gpu.q                             0.25      0      0      2      8      0      0
main.q                            0.25      0      0      8      8      0      0
"""


def program(place: Path, name: str, script: str) -> None:
    """Install a program in `place` that runs this shell script."""
    (place / name).write_text("#!/bin/sh\n" + script + "\n")
    (place / name).chmod(0o755)


def printing(text: str) -> str:
    """Return a shell script that prints the text."""
    return "while IFS= read -r line; do echo \"$line\"; done <<'EOF'\n%sEOF" % text.replace("\\", "\\\\")


def slurm(place: Path) -> None:
    """Install the programs of Slurm."""
    for name in ("squeue", "scancel", "sacct"):
        program(place, name, "exit 1")
    program(place, "sbatch", "echo slurm-wlm 22.05.8")
    config = "AccountingStorageType   = accounting_storage/slurmdbd\nClusterName             = test\n"
    program(
        place,
        "scontrol",
        'if [ "$2" = config ]; then\n%s\nelse\n%s\nfi' % (printing(config), printing(PARTITIONS)),
    )


def grid_engine(place: Path) -> None:
    """Install the programs of Grid Engine."""
    for name in ("qsub", "qdel", "qacct"):
        program(place, name, "exit 1")
    program(
        place,
        "qstat",
        'if [ "$1" = -help ]; then echo SGE 8.1.9; exit 1; fi\n' + printing(SUMMARY),
    )
    program(place, "qconf", printing(QUEUES))
