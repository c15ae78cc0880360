#!/bin/sh
# Puts etcd and etcdctl into the folder $1, from Debian's or Ubuntu's packages: unpacked, not installed, so no root is
# needed, no service starts and nothing else on the machine changes. Does nothing if both are on the path already.
set -eu
folder=$1
if command -v etcd >/dev/null && command -v etcdctl >/dev/null; then exit 0; fi
if [ -x "$folder/usr/bin/etcd" ] && [ -x "$folder/usr/bin/etcdctl" ]; then exit 0; fi

give_up() {
    echo "setup: $1. The tests start a real etcd: put etcd and etcdctl (3.4 or newer) on the path and try again" >&2
    exit 1
}
command -v apt-get >/dev/null && command -v dpkg >/dev/null || give_up "this is no Debian or Ubuntu, so etcd cannot be had here"

echo "setup: fetching etcd for the tests into $folder (once)"
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
cd "$work"
apt() {
    apt-get -qq -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User="$(id -un)" \
        -o Acquire::Retries=2 "$@" >"$work/log" 2>&1
}
apt update || { cat "$work/log" >&2; give_up "apt-get could not read the lists of packages"; }
apt download etcd-server etcd-client || apt download etcd || { cat "$work/log" >&2; give_up "apt-get could not fetch etcd"; }
for package in "$work"/*.deb; do dpkg -x "$package" "$folder"; done
[ -x "$folder/usr/bin/etcd" ] && [ -x "$folder/usr/bin/etcdctl" ] || give_up "the packages contain no etcd and etcdctl"
