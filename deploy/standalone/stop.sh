#!/usr/bin/env bash
# Stop what start.sh started.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Workers go before their master.
for file in "$STATE"/worker-*.pid "$STATE"/master.pid; do
    [ -f "$file" ] || continue
    pid=$(cat "$file")
    if is_ours "$pid"; then
        kill "$pid"
        for _ in $(seq 60); do
            is_ours "$pid" || break
            sleep 0.5
        done
        is_ours "$pid" && kill -9 "$pid"
    fi
    rm -f "$file"
done
echo "stopped"
