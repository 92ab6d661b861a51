#!/usr/bin/env bash
# Open generated components under limits: tests/fuzz/components.sh [SECONDS [FIRST]]; 600 seconds by default, from the number FIRST.
# Needs what `cargo xtask dist` and `cargo xtask guests` lay out. What does not hold is left in target/fuzz/found.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,3s/^# //p' "$0"; exit ;; esac
root="$(cd "$(dirname "$0")/../.." && pwd)"
built="${CARGO_TARGET_DIR:-$root/target}"
cd "$root"
cargo build --release --locked --workspace --exclude xtask --example open_components
cargo build --release --locked --manifest-path tests/fuzz/components/Cargo.toml --target-dir "$built/components"
until=$((SECONDS + ${1:-600}))
first="${2:-$(($(date +%s) * 1000))}"
found="$root/target/fuzz/found"
mkdir -p "$found"
while [ "$SECONDS" -lt "$until" ]; do
    work="$(mktemp -d "$root/target/fuzz/components-XXXXXX")"
    "$built/components/release/kv-store-components" "$work" "$first" 200
    # What an engine commonly has.
    if ! (ulimit -Sn 1024 -Sv 6000000; exec "$built/release/examples/open_components" "$work") > "$work.log"; then
        echo "it does not hold: see the files in $found; the last opened was $(tail -n 1 "$work.log")" >&2
        tail -n 1 "$work.log" | xargs -I{} cp {} "$found" 2> /dev/null || true
        mv "$work"/*.wasm "$found"
        exit 1
    fi
    rm -r "$work" "$work.log"
    first=$((first + 200))
done
echo "all held, up to the number $first"
