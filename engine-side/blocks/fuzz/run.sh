#!/usr/bin/env bash
# Fuzz the config and the keys of the block cache: engine-side/blocks/fuzz/run.sh [SECONDS]; 60 by default. Needs a nightly compiler (rustup
# toolchain install nightly) and a C++ compiler. What is found is left in target/fuzz/found, and the inputs that reach new code in
# target/fuzz/corpus, where the next run goes on. Not part of the tests: those have the same code under proptest.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,4s/^# //p' "$0"; exit ;; esac
here="$(cd "$(dirname "$0")" && pwd)"
place="${FUZZ_TARGET_DIR:-$here/../../../target/fuzz}"
corpus="$place/corpus/config_and_keys"
triple="$(rustc +nightly -vV | sed -n 's/^host: //p')"
# What cargo-fuzz sets, so that it need not be installed.
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
coverage="$coverage -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
RUSTFLAGS="$coverage --cfg fuzzing -Zsanitizer=address -Ccodegen-units=1" cargo +nightly build --release --locked \
    --manifest-path "$here/Cargo.toml" --target "$triple" --target-dir "$place"
mkdir -p "$corpus" "$place/found"
printf 'chunk_size = 64\n[l1]\neviction_policy = "LRU"\n[l2]\nnamespace = "x"\0' > "$corpus/config"
printf '\0004,0.1\000ROLLING_HASH\000sha256\0004\0000.5\0001\000some tokens of a prompt' > "$corpus/variables"
"$place/$triple/release/config_and_keys" -max_total_time="${1:-60}" -max_len=4096 -rss_limit_mb=2048 -timeout=10 \
    -print_final_stats=1 -verbosity=0 -artifact_prefix="$place/found/config_and_keys-" "$corpus"
