#!/usr/bin/env bash
# Start a Spark master and workers on the loopback interface of this machine, for trying the jobs on a real cluster.
#
#   deploy/standalone/start.sh            # WORKERS=2 WORKER_CORES=1 WORKER_MEMORY=2g MASTER_PORT=7077
#   deploy/standalone/stop.sh
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

fail() { echo "start.sh: $1" >&2; exit 1; }

[ -x "$SPARK_HOME/bin/spark-class" ] || fail "no Spark was found; run make venv, or set SPARK_HOME"
is_listening "$MASTER_PORT" && fail "port $MASTER_PORT is taken; run stop.sh, or choose another with MASTER_PORT"
mkdir -p "$STATE"

# start NAME CLASS ARGUMENTS...
start() {
    local name=$1
    shift
    nohup "$SPARK_HOME/bin/spark-class" "$@" >"$STATE/$name.log" 2>&1 </dev/null &
    echo $! >"$STATE/$name.pid"
}

# wait_for NAME PATTERN: until the log of a daemon shows that it is up.
wait_for() {
    for _ in $(seq 360); do
        grep -q "$2" "$STATE/$1.log" && return
        kill -0 "$(cat "$STATE/$1.pid")" 2>/dev/null || fail "$1 ended at once; see $STATE/$1.log"
        sleep 0.5
    done
    fail "$1 is not up after 180 s; see $STATE/$1.log"
}

start master org.apache.spark.deploy.master.Master \
    --host 127.0.0.1 --port "$MASTER_PORT" --webui-port "$MASTER_UI_PORT"
wait_for master 'I have been elected leader'
for number in $(seq "$WORKERS"); do
    start "worker-$number" org.apache.spark.deploy.worker.Worker --host 127.0.0.1 --webui-port 0 \
        --cores "$WORKER_CORES" --memory "$WORKER_MEMORY" --work-dir "$STATE/work-$number" \
        "spark://127.0.0.1:$MASTER_PORT"
done
for number in $(seq "$WORKERS"); do
    wait_for "worker-$number" 'Successfully registered with master'
done
echo "spark://127.0.0.1:$MASTER_PORT is up with $WORKERS workers; logs in $STATE"
