# Settings of start.sh and stop.sh; every one can be set in the environment.
# shellcheck shell=bash
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
STATE=${STATE:-$ROOT/build/standalone}          # process ids, logs, work of the executors
# By default the Spark that make venv installed.
SPARK_HOME=${SPARK_HOME:-$("$ROOT/.venv/bin/python" -c 'import pyspark; print(pyspark.__path__[0])' || true)}
export SPARK_HOME
MASTER_PORT=${MASTER_PORT:-7077}
MASTER_UI_PORT=${MASTER_UI_PORT:-8080}
WORKERS=${WORKERS:-2}
WORKER_CORES=${WORKER_CORES:-1}
WORKER_MEMORY=${WORKER_MEMORY:-2g}
# Keeps the web pages off every other interface too.
export SPARK_LOCAL_IP=127.0.0.1

# is_ours PID: whether a process is alive and a Spark daemon, and not a later process that got the same id.
is_ours() { ps -o args= -p "$1" 2>/dev/null | grep -q 'org\.apache\.spark\.deploy\.'; }

# is_listening PORT: whether a port of the loopback interface is taken.
is_listening() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
