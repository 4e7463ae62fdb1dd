# Functions that the start scripts of the test clusters share. Sourced, not run.
#
# Every cluster has a directory of its own below $CLUSTERS (default /var/tmp/outlast-clusters), uses loopback
# only, and is found again by its pid files: `up` is idempotent, `down` stops what `up` started.

CLUSTERS=${CLUSTERS:-/var/tmp/outlast-clusters}

say() { printf '%s\n' "$*" >&2; }

die() { say "$*"; exit 1; }

# wait_for SECONDS COMMAND...: wait until the command succeeds.
wait_for() {
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || { say "timeout: $*"; return 1; }
    sleep 0.1
  done
}

# runs PIDFILE NAME: succeed if that process exists and is the program NAME, started for this cluster.
# Process ids are reused, so a pid alone proves nothing.
runs() {
  local pid words; pid=$(cat "$1" 2>/dev/null) || return 1
  [ -n "$pid" ] && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$2" ] || return 1
  # Not with grep at the end: it stops at the first match, and the program before it dies of a closed pipe.
  words=$(cat "/proc/$pid/cmdline" "/proc/$pid/environ" 2>/dev/null | tr '\0' '\n') || return 1
  [[ $words == *"$HOME_OF_CLUSTER"* ]]
}

# stop PIDFILE NAME: terminate the process, and kill it after 15 s.
stop() {
  local pid
  if runs "$1" "$2"; then
    pid=$(cat "$1"); kill "$pid"
    for _ in $(seq 150); do runs "$1" "$2" || break; sleep 0.1; done
    ! runs "$1" "$2" || kill -9 "$pid" 2>/dev/null || true # it has just ended by itself
  fi
  rm -f "$1"
}

# install_packages NAME...: install the missing packages from Debian, without starting their daemons.
install_packages() {
  local missing=() policy=/usr/sbin/policy-rc.d made=
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  [ "$(id -u)" = 0 ] || die "missing, and only root can install: ${missing[*]}"
  [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy; chmod 755 $policy; made=1; }
  local apt=(apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${missing[@]}")
  export DEBIAN_FRONTEND=noninteractive
  local log="$HOME_OF_CLUSTER.apt.log"
  mkdir -p "$(dirname "$log")"
  "${apt[@]}" >"$log" 2>&1 || { apt-get -qq update && "${apt[@]}" >"$log" 2>&1; } || { tail -20 "$log" >&2; exit 1; }
  [ -z "$made" ] || rm -f $policy
  say "installed: ${missing[*]}"
}

# --- programs of a newer Debian, in a directory of their own ---------------------------------------------------

needs_debian() {
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || die "$1 come from Debian's packages; this is not Debian"
}

# private_apt DIRECTORY SUITE: make apt use only that suite of Debian, and keep all its files in that directory.
private_apt() {
  local mirror
  mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/$')} ||
    die "no Debian mirror is configured; set DEBIAN_MIRROR"
  mkdir -p "$1"/{lists/partial,archives/partial,empty}
  : >"$1/status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $2 main" >"$1/sources.list"
  # An outdated mirror is fine: the packages are signed in any case.
  cat >"$1/apt.conf" <<END
Acquire::Check-Valid-Until "false";
Dir::Etc::SourceList "$1/sources.list";
Dir::Etc::SourceParts "$1/empty";
Dir::Etc::Parts "$1/empty";
Dir::Etc::PreferencesParts "$1/empty";
Dir::State "$1";
Dir::State::Lists "$1/lists";
Dir::State::Status "$1/status";
Dir::Cache "$1";
Dir::Cache::Archives "$1/archives";
Dir::Log "$1";
APT::Sandbox::User "$(id -un)";
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::Retries "3";
Debug::NoLocking "true";
END
  export APT_CONFIG=$1/apt.conf
  apt-get -qq update
}

# with_dependencies PACKAGE...: print these packages and all their dependencies.
with_dependencies() { apt-get -qq install -y --print-uris "$@" | sed -n "s/^'[^']*' \([^_]*\)_.*/\1/p"; }

# unpack DIRECTORY ROOT: unpack the packages in that directory into ROOT.
unpack() {
  local package
  mkdir -p "$2"
  for package in "$1"/*.deb; do dpkg-deb -x "$package" "$2"; done
}

# settle_programs ROOT PLACE LIBRARIES...: prepare programs that were unpacked into ROOT (with patchelf) to run in
# PLACE, with the C library that was unpacked with them and the libraries in these directories of PLACE.
settle_programs() {
  local root=$1 place=$2 libraries loader program search
  libraries=$(dirname "$(find "$root/usr/lib" -name libc.so.6 | head -n 1)")
  loader=$(find "$libraries" -maxdepth 1 -name 'ld-linux*.so.*' | head -n 1)
  search=$(printf "$place/%s:" "${@:3}")$place${libraries#"$root"}
  cp "$root/usr/bin/patchelf" "$root.patchelf"
  local patchelf=("$loader" --library-path "$libraries" "$root.patchelf")
  find "$root/usr" -type f -perm -u+x ! -name '*.so*' -print0 |
    while IFS= read -r -d '' program; do
      "${patchelf[@]}" --print-interpreter "$program" >/dev/null 2>&1 || continue # a script, or a library
      "${patchelf[@]}" --set-interpreter "$place${loader#"$root"}" --force-rpath --set-rpath "$search" "$program"
    done
  rm "$root.patchelf"
}
