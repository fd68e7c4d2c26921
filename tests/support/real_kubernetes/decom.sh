#!/usr/bin/env bash
# Asks a pod's executor to be decommissioned, and waits for its end, as /opt/decom.sh of Spark's image does.
executor=$(pgrep -f KubernetesExecutorBackend | tail -n 1)
kill -s PWR "$executor"
tail --pid="$executor" -f /dev/null
