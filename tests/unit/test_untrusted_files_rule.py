"""Files that somebody else could have changed are opened by `untrusted_files`, and by nothing else.

Every other way to open, read, walk, copy or remove files in the rooms that meet such files must be listed
here, with the reason why it is safe.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import outlast

PACKAGE = Path(outlast.__file__).parent
ROOMS = ("controller", "data", "exchange", "frameworks", "journal", "local_cluster", "node", "training")
FUNCTIONS = {
    *("open", "os.open", "os.walk", "os.fwalk", "json.load", "json.loads", "pickle.load", "pickle.loads"),
    *("shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copytree", "shutil.move", "shutil.rmtree"),
}
METHODS = {"read_text", "read_bytes", "write_text", "write_bytes", "rglob", "glob"}

MODES = {"r", "rb", "w", "wb", "a", "ab", "x", "xb", "r+", "rb+"}

KERNEL = "a file of the kernel or of the operating system"
NEW = "creates a file that must not exist yet (O_EXCL)"
NO_LINK = "refuses links (O_NOFOLLOW), and what it opens is a file or directory of ours"
HELD = "relative to the descriptor of a directory that was checked before; links are refused"
USER = "a file that the user names in params.yaml, clusters.yaml or the script: links are wanted"
OURS = "the local cluster's directory, which belongs to this user alone"
OWN = "a text of Outlast's own: nobody else could have changed it"

#: How many such calls each module has, and why they are safe.
ALLOWED: dict[str, tuple[int, str]] = {
    "data/archive_file.py": (1, USER + "; only regular files are read"),
    "data/index_file.py": (2, NEW + ", and reads one without following a link"),
    "exchange/sandbox_results.py": (1, NEW),
    "exchange/shared_files.py": (3, "lists names in scratch; the node refuses links there"),
    "exchange/zipapp.py": (2, "the installed package"),
    "frameworks/transformers.py": (2, "a directory that Transformers has just made, and " + OWN),
    "journal/journal_file.py": (1, "values of the journal's own tables, after it was opened safely"),
    "journal/private_copy.py": (1, NEW),
    "local_cluster/daemon_main.py": (5, OURS),
    "local_cluster/fingerprint.py": (1, "the installed package"),
    "local_cluster/hosts.py": (1, KERNEL),
    "local_cluster/job_log.py": (3, OURS),
    "local_cluster/messages.py": (2, OURS + ", and what its socket sends"),
    "local_cluster/processes.py": (3, KERNEL),
    "local_cluster/spawn.py": (4, OURS + ", and /dev/null"),
    "node/archives/resume.py": (1, NO_LINK),
    "node/archives/skeleton.py": (1, NO_LINK),
    "node/archives/tree.py": (4, HELD),
    "node/archives/unpack_modes.py": (1, NO_LINK),
    "node/archives/workspace.py": (1, NO_LINK),
    "node/archives/writeback.py": (1, "syncs a directory"),
    "node/archives/writer.py": (1, NO_LINK),
    "node/claim.py": (1, NEW),
    "node/code_archive.py": (3, "packs the user's own code; unpacks with O_EXCL"),
    "node/diagnosis/oom.py": (2, KERNEL),
    "node/environment.py": (1, KERNEL),
    "node/files.py": (2, NEW + ", and syncs a directory"),
    "node/diagnosis/usage.py": (2, KERNEL),
    "node/process_cleanup.py": (2, KERNEL),
    "node/sandbox/chirp.py": (1, "the starter's own file with the address of its service"),
    "node/scratch.py": (2, NO_LINK),
    "node/staging/cache/content_state.py": (1, HELD),
    "node/staging/cache/entry.py": (2, NEW + ", and adds up sizes without following links"),
    "node/staging/cache/fetch_lock.py": (1, NO_LINK),
    "node/staging/cache/given_up.py": (1, NO_LINK),
    "node/staging/cache/in_place.py": (1, OWN),
    "node/staging/cache/in_use.py": (1, NEW),
    "node/staging/cache/user_directory.py": (1, HELD),
    "node/staging/condor_plugin.py": (2, "files that HTCondor names on the command line"),
    "node/staging/fetch/part_file.py": (3, HELD),
    "node/staging/phase.py": (1, NEW),
    "node/staging/plugin_receipt.py": (1, NEW),
    "node/staging/sources/file_source.py": (1, USER + "; only regular files are read"),
    "node/staging/sources/tokens.py": (1, USER + "; its owner and mode are checked"),
    "node/staging/stager.py": (1, "a directory below the job's own, where a link is made"),
    "node/staging/writable_copy.py": (1, NEW),
    "node/time_limits.py": (1, "the slot's description, which the scheduler's own variable names"),
    "training/checkpoints/durable_files.py": (2, "checkpoints, which are verified by checksums when read"),
    "training/checkpoints/file_format.py": (1, "bounded numbers and depth, after the checksum"),
    "training/checkpoints/kept_files.py": (3, USER),
    "training/checkpoints/kept_places.py": (1, HELD),
    "training/job_clock.py": (2, KERNEL),
}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def is_descriptor(call: ast.Call) -> bool:
    """Return True for `open(descriptor, …)`: it was opened before, by a call that counts itself."""
    first = call.args[0] if call.args else None
    return (isinstance(first, ast.Name) and first.id in ("descriptor", "fd")) or (
        isinstance(first, ast.Call)
        and dotted(first.func) in ("os.open", "open_file", "open_to_append", "os.dup")
    )


def is_path_open(call: ast.Call) -> bool:
    """Return True for `path.open("rb")`: a method whose first argument is a mode."""
    mode = call.args[0] if call.args else None
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "open"
    return is_method and isinstance(mode, ast.Constant) and mode.value in MODES


def raw_calls() -> Counter[str]:
    found: Counter[str] = Counter()
    for room in ROOMS:
        for path in sorted((PACKAGE / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call):
                    continue
                name = dotted(node.func)
                is_method = isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
                if (
                    is_method
                    or is_path_open(node)
                    or (name in FUNCTIONS and not (name == "open" and is_descriptor(node)))
                ):
                    found[path.relative_to(PACKAGE).as_posix()] += 1
    return found


def test_every_reader_of_files_that_others_could_have_changed_uses_the_module_for_it() -> None:
    assert {name: count for name, (count, _) in ALLOWED.items()} == dict(raw_calls()), (
        "use outlast.untrusted_files, or list the call with the reason why it is safe"
    )


def test_every_exception_has_a_reason() -> None:
    assert all(len(reason) > 10 for _, reason in ALLOWED.values())
