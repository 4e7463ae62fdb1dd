"""Cluster profiles: names that exist without a file, profiles in files, and mistakes in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outlast.domain.model import attempts_needed
from outlast.schedulers.profile import Profile
from outlast.spec import BadSpec, ClusterProfile, Host, Parsed, read
from outlast.spec.cluster_library import Library, configuration_directory
from outlast.spec.resource_checks import too_much_input


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the user's clusters.yaml, in an existing directory."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "outlast").mkdir(parents=True)
    return tmp_path / "config" / "outlast" / "clusters.yaml"


@pytest.fixture
def directory(tmp_path: Path, user: Path) -> Path:
    (tmp_path / "experiment").mkdir()
    return tmp_path / "experiment"


def parsed(directory: Path, cluster: str, more: str = "", clusters: str = "") -> Parsed:
    (directory / "params.yaml").write_text(f"command: sh -c true\ncluster: {cluster}\n{more}")
    if clusters:
        (directory / "clusters.yaml").write_text(clusters)
    return read(directory)


def mistakes(directory: Path, cluster: str, more: str = "", clusters: str = "") -> list[str]:
    with pytest.raises(BadSpec) as caught:
        parsed(directory, cluster, more, clusters)
    return [str(mistake) for mistake in caught.value.mistakes]


@pytest.mark.parametrize("name", ["local", "slurm", "sge", "htcondor"])
def test_the_four_schedulers_are_clusters_without_a_profile(directory: Path, name: str) -> None:
    assert parsed(directory, name).cluster == ClusterProfile(name, name)


def test_a_profile_of_the_experiment_comes_before_the_users(directory: Path, user: Path) -> None:
    user.write_text("farm: {scheduler: slurm}\nother: {scheduler: sge}\n")
    found = parsed(
        directory, "farm", clusters="farm: {scheduler: local, hosts: {alpha: {cpus: 2, gpus: 1}, beta: 4}}\n"
    )
    assert found.cluster == ClusterProfile("farm", "local", {"alpha": Host(2, 1), "beta": Host(4)})
    assert parsed(directory, "other").cluster.scheduler == "sge"


def test_a_profile_may_describe_a_name_that_exists_anyway(directory: Path, user: Path) -> None:
    user.write_text("local: {hosts: {alpha: 2}}\n")
    assert parsed(directory, "local").cluster == ClusterProfile("local", "local", {"alpha": Host(2)})


def test_an_unknown_cluster_gets_a_hint_with_all_known_names(directory: Path) -> None:
    assert mistakes(directory, "frm", clusters="farm: {scheduler: local}\n") == [
        'params.yaml:2: cluster: "frm" is not a cluster; did you mean "farm"? '
        "(known: local, slurm, sge, htcondor, farm)"
    ]
    assert "known: local, slurm" in mistakes(directory, "xyzzy")[0]


def test_a_training_run_longer_than_the_longest_job_is_split_and_its_attempts_counted(
    directory: Path,
) -> None:
    clusters = "farm: {scheduler: slurm, longest: 24h}\n"
    found = parsed(directory, "farm", "resources: {time: 14d}\nlimits: {total: 30d}\n", clusters)
    assert found.spec.resources.time == 14 * 86400
    assert found.spec.job_time == 86400
    assert attempts_needed(found.spec) == 15
    assert found.notes == (
        "this cluster ends jobs after 24 h; your 14-day training run will take about 15 attempts",
    )
    assert found.warnings == ()


@pytest.mark.parametrize("longest", ["", ", longest: 1h", ", longest: 2h"])
def test_a_training_run_that_fits_one_job_requests_its_own_time(directory: Path, longest: str) -> None:
    found = parsed(directory, "farm", "resources: {time: 1h}\n", f"farm: {{scheduler: slurm{longest}}}\n")
    assert (found.spec.job_time, attempts_needed(found.spec), found.notes) == (3600, 1, ())


def test_the_time_for_saving_and_delivering_is_not_counted_as_time_to_train(directory: Path) -> None:
    more = "resources: {time: 100min}\ncheckpoints: {grace: 10min}\n"
    found = parsed(directory, "farm", more, "farm: {scheduler: sge, longest: 1h}\n")
    # 3600 s less 30 s for delivery and 600 s of grace: 2970 s of each job.
    assert attempts_needed(found.spec) == 3


def test_limits_that_end_the_run_before_its_time_are_warned_about(directory: Path) -> None:
    clusters = "farm: {scheduler: slurm, longest: 24h}\n"
    more = "resources: {time: 14d}\nlimits: {attempts: 10, total: 7d}\n"
    found = [str(warning) for warning in parsed(directory, "farm", more, clusters).warnings]
    assert found == [
        "params.yaml:4: limits.attempts: 10 attempts are too few for 14 d in jobs of 1 d; write 30",
        "params.yaml:4: limits.total: 7 d leaves no time to wait in the queue besides 14 d of training; "
        "write 28d",
    ]


def test_more_cpus_than_any_host_has_are_a_mistake(directory: Path) -> None:
    clusters = "local: {hosts: {alpha: 2, beta: {cpus: 1, gpus: 1}}}\n"
    assert parsed(directory, "local", "resources: {cpus: 2}\n", clusters)
    (found,) = mistakes(directory, "local", "resources: {cpus: 2, gpus: 1}\n", clusters)
    assert "no host of cluster local has 2 cpus and 1 gpu" in found


@pytest.mark.parametrize("requested", ["{cpus: 5}", "{gpus: 2}", "{cpus: 4, gpus: 2}"])
@pytest.mark.parametrize("cluster", ["local", "farm"])
def test_more_than_this_machine_has_is_a_mistake_if_no_hosts_are_listed(
    directory: Path, monkeypatch: pytest.MonkeyPatch, cluster: str, requested: str
) -> None:
    monkeypatch.setattr("outlast.spec.cluster_library.this_machine", lambda: {"here": Host(4, 1)})
    clusters = "farm: {scheduler: local}\nrehearsal: {scheduler: local, hosts: {alpha: {cpus: 9, gpus: 9}}}\n"
    assert parsed(directory, cluster, "resources: {cpus: 4, gpus: 1}\n", clusters)
    (found,) = mistakes(directory, cluster, f"resources: {requested}\n")
    assert found.startswith(f"params.yaml:3: resources: no host of cluster {cluster} has ")
    assert found.endswith("; request less: this machine has 4 cpus and 1 gpu")
    assert parsed(directory, "rehearsal", f"resources: {requested}\n")
    assert parsed(directory, "slurm", f"resources: {requested}\n")


@pytest.mark.parametrize("hosts", ["{alpha: {cpus: 64, gpu: 1}}", "{alpha: {cpus: 64, gpu: 1}, beta: 1}"])
def test_hosts_with_a_mistake_are_not_also_called_too_small(directory: Path, hosts: str) -> None:
    clusters = f"farm: {{scheduler: local, hosts: {hosts}}}\n"
    (found,) = mistakes(directory, "farm", "resources: {cpus: 64}\n", clusters)
    assert found.startswith("clusters.yaml:1: farm.hosts.alpha.gpu: unknown key")


def test_the_hosts_of_a_profile_are_those_of_the_local_cluster() -> None:
    from outlast.local_cluster import hosts

    assert Host is hosts.Host


@pytest.mark.parametrize(
    ("profile", "sentence"),
    [
        ("{}", "farm: scheduler is missing"),
        ("5", "farm: must be a group of keys, not 5; known: scheduler, hosts, project"),
        ("{scheduler: pbs}", 'must be local, slurm, sge or htcondor, not the text "pbs"'),
        ("{scheduler: local, host: {a: 1}}", 'farm.host: unknown key; did you mean "hosts"?'),
        ("{scheduler: local, hosts: {}}", "farm.hosts: is empty"),
        ("{scheduler: local, hosts: {a: 0}}", "farm.hosts.a.cpus: 0 is too small"),
        (
            "{scheduler: local, hosts: {a: {cpu: 1}}}",
            'farm.hosts.a.cpu: unknown key; did you mean "cpus"?',
        ),
        ("{scheduler: local, hosts: {a b: 1}}", "farm.hosts.a b: is not a valid host name"),
        ("{scheduler: slurm, hosts: {a: 1}}", "farm.hosts: is for local, not for slurm"),
        ("{scheduler: local, longest: soonish}", "is not a duration"),
    ],
)
def test_a_mistake_in_the_profile_is_reported_in_its_file(
    directory: Path, profile: str, sentence: str
) -> None:
    found = mistakes(directory, "farm", clusters=f"# mine\nfarm: {profile}\n")
    in_file = [line for line in found if line.startswith("clusters.yaml:2: ")]
    assert len(in_file) == 1
    assert sentence in in_file[0]


def test_a_mistake_in_a_profile_that_is_not_used_does_not_matter(directory: Path) -> None:
    assert parsed(directory, "local", clusters="farm: {scheduler: pbs}\n").cluster.name == "local"


def test_a_misspelt_name_does_not_hide_mistakes_in_the_profile_that_was_meant(directory: Path) -> None:
    clusters = "farm: {scheduler: slurm, longest: 24}\nother: {scheduler: pbs}\n"
    assert [line.partition(";")[0] for line in mistakes(directory, "frm", clusters=clusters)] == [
        'params.yaml:2: cluster: "frm" is not a cluster',
        "clusters.yaml:1: farm.longest: 24 has no unit",
    ]
    every = mistakes(directory, "xyzzy", clusters=clusters)
    assert len(every) == 3, "where no name is near, any of them may have been meant"


def test_a_misspelt_scheduler_is_not_taken_for_another_and_hides_nothing(directory: Path) -> None:
    clusters = "farm: {scheduler: slrum, commit: auto}\nbare: {longest: 24}\n"
    (directory / "clusters.yaml").write_text(clusters)
    found = Library(directory).find("farm")
    assert found is not None and found.profile.scheduler == ""
    assert [line.partition("; ")[2] for line in mistakes(directory, "farm")] == [
        'did you mean "slurm"?',
        "remove it",
    ]
    bare = mistakes(directory, "bare")
    assert "24 has no unit; write 24h, 24min or 24s" in bare[0]
    assert "bare: scheduler is missing" in bare[1]


def test_an_empty_file_of_clusters_gets_a_hint_what_to_write(directory: Path, user: Path) -> None:
    user.write_text("# nothing yet\n")
    hint = "write a profile into it, such as `mine: {scheduler: slurm}`, or remove it"
    assert mistakes(directory, "local") == [f"{user}: is empty; {hint}"]


def test_a_file_of_clusters_that_is_not_yaml_is_reported_with_its_place(directory: Path, user: Path) -> None:
    user.write_text("farm: [\n")
    assert mistakes(directory, "local")[0].startswith(
        f"{user}:2:1: a value is missing here, or a bracket is not closed"
    )


def test_the_configuration_directory_is_where_xdg_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert configuration_directory() == Path("/home/me/.config/outlast")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/etc/mine")
    assert configuration_directory() == Path("/etc/mine/outlast")


def test_a_mistake_in_one_resource_does_not_hide_that_another_is_too_much(directory: Path) -> None:
    clusters = "farm: {scheduler: local, hosts: {alpha: 1}}\n"
    found = mistakes(directory, "farm", "resources:\n  memory: two\n  cpus: 2\n", clusters)
    assert [line.split(": ")[1] for line in found] == ["resources.memory", "resources"]


FULL = """\
farm:
  scheduler: sge
  project: tianlabdl
  queue: gpu.q,long.q@@big
  gpus: gpus={gpus},gpu_c=3.5
  cpus: omp {cpus}
  memory: mem_per_core={memory_gb_per_cpu}G
  modules: python3/3.10 cuda
  before: |
    ulimit -c 0

    export A='b c'
  environment: ~/venvs/torch
  container: images/torch.sif
  scratch: $TMPDIR/me
  python: python3.11
  longest: 48:00:00
  submit_rate: 60
  most_jobs: 200
  directives: ["#$ -m n", "#$ -l avx2"]
  interval: 2min
"""


def test_every_key_is_read_and_survives_the_journal(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    found = parsed(directory, "farm", clusters=FULL)
    site = Profile(
        project="tianlabdl",
        queue="gpu.q,long.q@@big",
        gpus="gpus={gpus},gpu_c=3.5",
        cpus="omp {cpus}",
        memory="mem_per_core={memory_gb_per_cpu}G",
        modules=("python3/3.10", "cuda"),
        before=("ulimit -c 0", "export A='b c'"),
        environment="/home/me/venvs/torch",
        container=str(directory / "images/torch.sif"),
        scratch="$TMPDIR/me",
        python="python3.11",
        longest=48 * 3600.0,
        submit_rate=60,
        most_jobs=200,
        directives=("#$ -m n", "#$ -l avx2"),
        interval=120.0,
    )
    assert found.cluster == ClusterProfile("farm", "sge", {}, site)
    assert Profile.from_dict(json.loads(json.dumps(found.spec.profile))) == site
    assert json.loads(json.dumps(found.spec.profile)) == found.spec.profile


def test_a_default_value_is_not_stored_with_the_run(directory: Path) -> None:
    found = parsed(directory, "mine", clusters="mine: {scheduler: slurm}\n")
    assert found.spec.profile == {"scheduler": "slurm"}


def test_lists_may_be_written_as_such(directory: Path) -> None:
    text = 'farm: {scheduler: slurm, modules: [gcc, cuda], before: ["a b"], directives: "#SBATCH --qos=x"}\n'
    site = parsed(directory, "farm", clusters=text).cluster.site
    assert (site.modules, site.before) == (("gcc", "cuda"), ("a b",))
    assert site.directives == ("#SBATCH --qos=x",)


def test_slurms_names_for_keys_mean_the_same(directory: Path) -> None:
    text = "farm: {scheduler: slurm, account: def-me, partition: gpu}\n"
    assert parsed(directory, "farm", clusters=text).cluster.site == Profile(project="def-me", queue="gpu")
    (found,) = mistakes(directory, "farm", clusters="farm: {scheduler: slurm, account: a, project: a}\n")
    assert "farm.account: means the same as project, which is also set; keep one" in found


@pytest.mark.parametrize(
    ("scheduler", "key", "value"),
    [
        ("local", "project", "me"),
        ("local", "directives", "['#SBATCH -x']"),
        ("slurm", "hosts", "{a: 1}"),
        ("slurm", "memory", "x={memory_gb}"),
        ("slurm", "largest_transfer", "5GB"),
        ("sge", "partition", "gpu"),
        ("sge", "commit", "chirp"),
        ("htcondor", "queue", "gpu"),
        ("htcondor", "scratch", "/tmp"),
    ],
)
def test_a_key_that_is_not_for_the_scheduler_is_a_mistake(
    directory: Path, scheduler: str, key: str, value: str
) -> None:
    text = f"farm:\n  scheduler: {scheduler}\n  {key}: {value}\n"
    (found,) = mistakes(directory, "farm", clusters=text)
    assert found.startswith(f"clusters.yaml:3: farm.{key}: is for ")
    assert f", not for {scheduler}; " in found


@pytest.mark.parametrize("key", ["project", "account", "queue", "partition"])
@pytest.mark.parametrize("value", [r'"a\n#SBATCH --uid=0"', r'"a\rb"', "a b", "'\"x'", "-x", "$(id)", "a`b"])
def test_a_name_that_would_become_more_than_a_name_is_refused(directory: Path, key: str, value: str) -> None:
    (found,) = mistakes(directory, "farm", clusters=f"farm:\n  scheduler: slurm\n  {key}: {value}\n")
    assert found.startswith(f"clusters.yaml:3: farm.{key}: ")


@pytest.mark.parametrize("key", ["gpus", "environment", "container", "scratch", "python"])
@pytest.mark.parametrize("end", ["n", "r"])
def test_a_value_of_several_lines_is_refused_where_one_is_written(
    directory: Path, key: str, end: str
) -> None:
    text = f'farm:\n  scheduler: slurm\n  {key}: "a\\{end}b"\n'
    (found,) = mistakes(directory, "farm", clusters=text)
    assert found == f"clusters.yaml:3: farm.{key}: must be on one line"


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("gpu:{gpu}", 'unknown placeholder {gpu}; did you mean "gpus"?'),
        ("gpu:{}", "unknown placeholder {}; known: cpus, gpus, memory_mb"),
        ("gpu:{gpus.real}", "unknown placeholder {gpus.real}"),
        ("gpu:{gpus!r}", "unknown placeholder {gpus}"),
        ("gpu:{gpus:09}", "unknown placeholder {gpus}"),
        ("gpu:{gpus", "unbalanced { or }"),
        ("gpu: {gpus}", "has a space in it"),
    ],
)
def test_a_template_holds_only_places_that_can_be_filled(
    directory: Path, template: str, sentence: str
) -> None:
    (found,) = mistakes(directory, "farm", clusters=f"farm: {{scheduler: slurm, gpus: '{template}'}}\n")
    assert found.startswith("clusters.yaml:1: farm.gpus: ")
    assert sentence in found


@pytest.mark.parametrize(
    ("scheduler", "line", "sentence"),
    [
        ("slurm", "--qos=gold", "is not a line for slurm; write it like #SBATCH --qos=gold"),
        ("slurm", "#SBATCH", "is not a line for slurm"),
        ("slurm", "#$ -m n", "is not a line for slurm"),
        ("slurm", "#SBATCH -Jmine", "sets -J, by which Outlast finds its jobs again; remove it"),
        ("slurm", "#SBATCH --qos=x --job-name mine", "sets --job-name"),
        ("slurm", "#SBATCH --export=ALL", "would send your shell's whole environment"),
        ("slurm", "#SBATCH --time=24:00:00", "sets --time, which follows from resources.time in params.yaml"),
        ("sge", "#SBATCH --qos=x", "is not a line for sge"),
        ("sge", "#$ -V", "would send your shell's whole environment"),
        ("sge", "#$ -l gpus=1,h_rt=24:00:00", "sets h_rt, which follows from resources.time in params.yaml"),
        ("htcondor", "queue", "is not a line for htcondor; write it like concurrency_limits = gpu_users"),
        ("htcondor", "queue 1000", "is not a line for htcondor"),
        ("htcondor", "a = b " + "\\" * 2, "is not a line for htcondor"),
        ("htcondor", "MY.OutlastToken = 5", "sets +outlasttoken, by which Outlast finds its jobs again"),
        ("htcondor", "getenv = True", "would send your shell's whole environment"),
    ],
)
def test_a_native_line_that_is_invalid_or_sets_what_outlast_sets_is_a_mistake(
    directory: Path, scheduler: str, line: str, sentence: str
) -> None:
    text = f'farm:\n  scheduler: {scheduler}\n  directives:\n    - "{line}"\n'
    (found,) = mistakes(directory, "farm", clusters=text)
    assert found.startswith("clusters.yaml:4: farm.directives[1]: ")
    assert sentence in found


@pytest.mark.parametrize(
    ("scheduler", "line"),
    [
        ("slurm", "#SBATCH --mail-type=END --mail-user='me@x'"),
        ("sge", "#$ -l gpu_type=A100 -m n"),
        ("htcondor", "+WantGPULab = true"),
        ("htcondor", 'requirements = (OSGVO_OS_STRING == "RHEL 9")'),
    ],
)
def test_other_native_lines_go_through_as_they_are(directory: Path, scheduler: str, line: str) -> None:
    text = f"farm: {{scheduler: {scheduler}, directives: [{json.dumps(line)}]}}\n"
    assert parsed(directory, "farm", clusters=text).cluster.site.directives == (line,)


def test_more_native_input_than_the_pool_takes_is_a_mistake(directory: Path) -> None:
    (directory / "weights.bin").write_bytes(b"x" * 3000)
    clusters = "pool: {scheduler: htcondor, largest_transfer: 3kB}\n"
    assert parsed(directory, "pool", "code: [weights.bin]\n", clusters)
    (directory / "image.sif").write_bytes(b"x" * 2000)
    clusters = "pool: {scheduler: htcondor, largest_transfer: 3kB, container: image.sif}\n"
    (found,) = mistakes(directory, "pool", "code: [weights.bin]\n", clusters)
    assert found == (
        "params.yaml:3: code: 5 kB of native input exceeds the 3 kB limit of this pool; use http or osdf"
    )


def test_all_kinds_of_native_input_are_added_up() -> None:
    sizes = {"code": 10**6, "data": 150 * 10**9}
    assert too_much_input(sizes, 5 * 10**9) == (
        "150 GB of native input exceeds the 5 GB limit of this pool",
        "use http or osdf",
    )
    assert too_much_input(sizes, None) == too_much_input(sizes, 10**12) == ("", "")


def test_another_cluster_than_the_one_in_the_file_can_be_requested(directory: Path) -> None:
    (directory / "params.yaml").write_text("command: sh -c true\ncluster: farm\n")
    (directory / "clusters.yaml").write_text("farm: {scheduler: pbs}\nmine: {scheduler: slurm}\n")
    found = read(directory, "mine")
    assert (found.spec.cluster, found.spec.profile) == ("mine", {"scheduler": "slurm"})
    with pytest.raises(BadSpec, match=r'^--cluster: "mien" is not a cluster; did you mean "mine"'):
        read(directory, "mien")
