#!/usr/bin/env bash
# Open generated components under limits: tests/fuzz/components.sh [SECONDS [SEED]]; 600 seconds by default. A SEED repeats one.
# Needs what `cargo xtask dist` and `cargo xtask guests` lay out. What does not hold is left in target/fuzz/found.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,3s/^# //p' "$0"; exit ;; esac
root="$(cd "$(dirname "$0")/../.." && pwd)"
cd "$root"
cargo build --release --locked --workspace --exclude xtask --example components
# What an engine commonly has.
ulimit -Sn 1024 -Sv 6000000
if "${CARGO_TARGET_DIR:-$root/target}/release/examples/components" "${1:-600}" "${@:2}"; then exit; fi
status=$?
echo "it does not hold, or it ended the process ($status): the last seed was $(cat target/fuzz/work/seed)" >&2
exit 1
