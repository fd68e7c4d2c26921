#!/usr/bin/env bash
# Starts what a pod's arguments ask for, as the entry point of Spark's image does.
set -e
export SPARK_CLASSPATH="${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_CLASSPATH:$SPARK_HOME/jars/*:$PWD"
case "$1" in
  driver)
    shift
    command=("$SPARK_HOME/bin/spark-submit" --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS"
      --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@")
    ;;
  executor)
    options=()
    for name in $(compgen -v SPARK_JAVA_OPT_ | sort -t_ -k4 -n); do options+=("${!name}"); done
    command=("$JAVA_HOME/bin/java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY"
      -cp "$SPARK_CLASSPATH:$SPARK_DIST_CLASSPATH" org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend
      --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES"
      --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP"
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME")
    ;;
  *) exec "$@" ;;
esac
exec /usr/bin/tini -s -- "${command[@]}"
