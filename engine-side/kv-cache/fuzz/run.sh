#!/usr/bin/env bash
# Fuzz the parser of row files for a while (60 seconds, or as many as the argument says), beginning with real rows.
# Needs a nightly compiler and cargo-fuzz (cargo install cargo-fuzz). Not part of the tests: those have the same
# parser under proptest, and flip every bit of a row.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p fuzz/corpus/row
cp tests/other-software.kvc fuzz/corpus/row/
cargo +nightly fuzz run row -- -max_total_time="${1:-60}" -max_len=4096
