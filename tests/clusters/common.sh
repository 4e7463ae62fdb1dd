# What the start scripts of the test clusters have in common. Sourced, not run.
#
# Every cluster lives in a directory of its own below $CLUSTERS (default /var/tmp/outlast-clusters), talks on
# loopback only, and is found again by its pid files: `up` is idempotent, `down` ends what `up` started.

CLUSTERS=${CLUSTERS:-/var/tmp/outlast-clusters}

say() { printf '%s\n' "$*" >&2; }

die() { say "$*"; exit 1; }

# wait_for SECONDS COMMAND...: until it succeeds.
wait_for() {
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || { say "still not true: $*"; return 1; }
    sleep 0.1
  done
}

# runs PIDFILE NAME: whether that process is there and still is the program NAME, started for this cluster.
# Process ids are soon used again, so that a pid alone proves nothing.
runs() {
  local pid; pid=$(cat "$1" 2>/dev/null) || return 1
  [ -n "$pid" ] && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$2" ] || return 1
  cat "/proc/$pid/cmdline" "/proc/$pid/environ" 2>/dev/null | tr '\0' '\n' | grep -qF "$HOME_OF_CLUSTER"
}

# stop PIDFILE NAME: ask it to end, and insist after 15 s.
stop() {
  local pid
  if runs "$1" "$2"; then
    pid=$(cat "$1"); kill "$pid"
    for _ in $(seq 150); do runs "$1" "$2" || break; sleep 0.1; done
    ! runs "$1" "$2" || kill -9 "$pid" 2>/dev/null || true # it has just ended by itself
  fi
  rm -f "$1"
}

# install_packages NAME...: those that are missing, from Debian, without letting them start their daemons.
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
