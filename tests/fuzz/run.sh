#!/usr/bin/env bash
# Fuzz the parsers: tests/fuzz/run.sh [SECONDS [TARGET...]]; 60 seconds and every target by default.
# Needs a nightly compiler (rustup toolchain install nightly) and a C++ compiler. What is found is left in target/fuzz/found, and
# the inputs that reach new code in target/fuzz/corpus, where the next run goes on.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,4s/^# //p' "$0"; exit ;; esac
here="$(cd "$(dirname "$0")" && pwd)"
seconds="${1:-60}"
shift || true
if [ $# -gt 0 ]; then targets=("$@"); else targets=(http_responses memkv_frames redis_replies uris); fi
place="$here/../../target/fuzz"
triple="$(rustc +nightly -vV | sed -n 's/^host: //p')"
# What cargo-fuzz sets, so that it need not be installed.
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
coverage="$coverage -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
RUSTFLAGS="$coverage --cfg fuzzing -Zsanitizer=address -Ccodegen-units=1" cargo +nightly build --release --locked \
    --manifest-path "$here/Cargo.toml" --target "$triple" --target-dir "$place"
failed=0
for target in "${targets[@]}"; do
    mkdir -p "$place/corpus/$target" "$place/found"
    echo "== $target: $seconds s"
    "$place/$triple/release/$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 \
        -verbosity=0 -artifact_prefix="$place/found/$target-" "$place/corpus/$target" || failed=1
done
exit "$failed"
