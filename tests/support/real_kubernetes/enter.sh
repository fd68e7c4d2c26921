#!/usr/bin/env bash
# Runs a command on the node of up.sh, in this folder: enter.sh FOLDER COMMAND...
folder=$1
shift
exec nsenter --target "$(cat "$folder/init")" --net --mount --uts --ipc --pid --wdns="$PWD" "$@"
