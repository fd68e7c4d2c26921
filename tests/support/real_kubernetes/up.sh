#!/usr/bin/env bash
# Starts a Kubernetes of one node in namespaces of its own, so that its end is that of one process: up.sh BUILD FOLDER PYTHON
#
# The node is at 10.10.0.1, pods at 10.244.0.0/24, the API at https://10.10.0.1:6443; nothing of it is visible outside.
# enter.sh FOLDER COMMAND runs a command on the node, and down.sh FOLDER ends it. Needs root, cgroup v1, and Debian's
# containerd, runc, etcd-server, containernetworking-plugins, iptables, openssl; kubectl.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) build=$(realpath "$1") folder=$(realpath -m "$2") python=$3
mkdir -p "$folder"
[ ! -e "$folder/init" ] || { echo "$folder is up, or was not ended by down.sh" >&2; exit 1; }
setsid nohup unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc \
  bash "$here/node.sh" "$build" "$folder" "$python" >"$folder/node.log" 2>&1 </dev/null &
echo $! >"$folder/pid"
for _ in $(seq 300); do
  kill -0 "$(cat "$folder/pid")" 2>/dev/null || { tail -5 "$folder/node.log" >&2; exit 1; }
  [ -s "$folder/init" ] || pgrep -P "$(cat "$folder/pid")" >"$folder/init" || true
  [ ! -e "$folder/ready" ] || exit 0
  sleep 1
done
echo "not ready within 300 s: see $folder/node.log and $folder/log" >&2
exit 1
