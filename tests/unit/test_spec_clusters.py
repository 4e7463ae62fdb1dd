"""Cluster profiles: names that exist without one, names that files give, and what is wrong with those."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.spec import BadSpec, ClusterProfile, Host, Parsed, read, require_served
from outlast.spec.clusters import configuration_directory


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's clusters.yaml, in a directory that is there."""
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


def test_an_unknown_cluster_is_told_all_known_names(directory: Path) -> None:
    assert mistakes(directory, "frm", clusters="farm: {scheduler: local}\n") == [
        'params.yaml:2: cluster: "frm" is not a cluster; did you mean "farm"? '
        "(known: local, slurm, sge, htcondor, farm)"
    ]
    assert "known are local, slurm" in mistakes(directory, "xyzzy")[0]


def test_more_time_than_the_longest_job_may_have_is_a_mistake(directory: Path) -> None:
    clusters = "farm: {scheduler: local, longest: 1h}\n"
    assert parsed(directory, "farm", "resources: {time: 1h}\n", clusters).cluster.longest == 3600
    (found,) = mistakes(directory, "farm", "resources: {time: 90min}\n", clusters)
    assert found.startswith(
        "params.yaml:3: resources.time: is longer than the longest job of cluster farm, 1 h; ask"
    )


def test_more_cpus_than_any_host_has_are_a_mistake(directory: Path) -> None:
    clusters = "local: {hosts: {alpha: 2, beta: {cpus: 1, gpus: 1}}}\n"
    assert parsed(directory, "local", "resources: {cpus: 2}\n", clusters)
    (found,) = mistakes(directory, "local", "resources: {cpus: 2, gpus: 1}\n", clusters)
    assert "no host of cluster local has 2 cpus and 1 gpus" in found


@pytest.mark.parametrize("asked", ["{cpus: 5}", "{gpus: 2}", "{cpus: 4, gpus: 2}"])
@pytest.mark.parametrize("cluster", ["local", "farm"])
def test_more_than_this_machine_has_is_a_mistake_where_no_hosts_are_listed(
    directory: Path, monkeypatch: pytest.MonkeyPatch, cluster: str, asked: str
) -> None:
    monkeypatch.setattr("outlast.spec.clusters.this_machine", lambda: {"here": Host(4, 1)})
    clusters = "farm: {scheduler: local}\nrehearsal: {scheduler: local, hosts: {alpha: {cpus: 9, gpus: 9}}}\n"
    assert parsed(directory, cluster, "resources: {cpus: 4, gpus: 1}\n", clusters)
    (found,) = mistakes(directory, cluster, f"resources: {asked}\n")
    assert found.startswith(f"params.yaml:3: resources: no host of cluster {cluster} has ")
    assert found.endswith("; ask for less: this machine has 4 cpus and 1 gpus")
    assert parsed(directory, "rehearsal", f"resources: {asked}\n")
    assert parsed(directory, "slurm", f"resources: {asked}\n")


@pytest.mark.parametrize("hosts", ["{alpha: {cpus: 64, gpu: 1}}", "{alpha: {cpus: 64, gpu: 1}, beta: 1}"])
def test_hosts_with_a_mistake_are_not_also_called_too_small(directory: Path, hosts: str) -> None:
    clusters = f"farm: {{scheduler: local, hosts: {hosts}}}\n"
    (found,) = mistakes(directory, "farm", "resources: {cpus: 64}\n", clusters)
    assert found.startswith("clusters.yaml:1: farm.hosts.alpha.gpu: is not known here")


def test_the_hosts_of_a_profile_are_those_of_the_local_cluster() -> None:
    from outlast.local_cluster import hosts

    assert Host is hosts.Host


@pytest.mark.parametrize(
    ("profile", "sentence"),
    [
        ("{}", "farm: does not say which scheduler it is"),
        ("5", "farm: must be a group of keys, not 5; known are scheduler, hosts, longest"),
        ("{scheduler: pbs}", 'the text "pbs" is not a choice; it can be local, slurm, sge or htcondor'),
        ("{scheduler: local, host: {a: 1}}", 'farm.host: is not known here; did you mean "hosts"?'),
        ("{scheduler: local, hosts: {}}", "farm.hosts: is empty"),
        ("{scheduler: local, hosts: {a: 0}}", "farm.hosts.a.cpus: 0 is too small"),
        (
            "{scheduler: local, hosts: {a: {cpu: 1}}}",
            'farm.hosts.a.cpu: is not known here; did you mean "cpus"?',
        ),
        ("{scheduler: local, hosts: {a b: 1}}", "farm.hosts.a b: is not a host's name"),
        ("{scheduler: slurm, hosts: {a: 1}}", "farm.hosts: are for the local scheduler"),
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


def test_a_mistake_in_a_profile_that_is_not_used_stands_in_nobodys_way(directory: Path) -> None:
    assert parsed(directory, "local", clusters="farm: {scheduler: pbs}\n").cluster.name == "local"


def test_a_file_of_clusters_that_is_not_yaml_is_reported_with_its_place(directory: Path, user: Path) -> None:
    user.write_text("farm: [\n")
    assert mistakes(directory, "local")[0].startswith(
        f"{user}:2:1: a value is missing here, or a bracket is not closed"
    )


def test_a_cluster_that_this_version_cannot_submit_to_is_refused_when_asked(directory: Path) -> None:
    require_served(parsed(directory, "local"))
    with pytest.raises(BadSpec, match=r"params.yaml:2: cluster: this version runs cluster: local"):
        require_served(parsed(directory, "htcondor"))


def test_the_configuration_directory_is_where_xdg_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert configuration_directory() == Path("/home/me/.config/outlast")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/etc/mine")
    assert configuration_directory() == Path("/etc/mine/outlast")


def test_a_mistake_in_one_resource_does_not_hide_that_another_is_too_much(directory: Path) -> None:
    clusters = "farm: {scheduler: local, longest: 1h}\n"
    found = mistakes(directory, "farm", "resources:\n  cpus: two\n  time: 90min\n", clusters)
    assert [line.split(": ")[1] for line in found] == ["resources.cpus", "resources.time"]
