#!/usr/bin/env bash
# Ends the node of up.sh, and removes its control groups: down.sh FOLDER
folder=$1
kill -KILL "$(cat "$folder/pid")" 2>/dev/null
while kill -0 "$(cat "$folder/init")" 2>/dev/null; do sleep 0.1; done
for _ in 1 2 3 4 5 6 7 8 9 10; do
  find /sys/fs/cgroup/*/kubepods -depth -type d -exec rmdir {} + 2>/dev/null
  ls -d /sys/fs/cgroup/*/kubepods >/dev/null 2>&1 || break
  sleep 0.5
done
rm -f "$folder/pid" "$folder/init" "$folder/ready"
