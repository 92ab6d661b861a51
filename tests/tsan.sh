#!/bin/sh
# The crate kv-store-core under ThreadSanitizer: what threads share in a store.
#
#     tests/tsan.sh [NIGHTLY] [FILTER]
#
# needs a nightly toolchain (`nightly` by default) with the component rust-src, because the standard library is built along. Guests are not
# run: they have stacks of their own, of which ThreadSanitizer is not told. FILTER: only tests whose names contain it.
set -eu
cd "$(dirname "$0")/.."
nightly=${1:-nightly}
target=$(rustc "+$nightly" -vV | sed -n 's/^host: //p')
if [ ! -e "$(rustc "+$nightly" --print sysroot)/lib/rustlib/src/rust/library/Cargo.toml" ]; then
    echo "tests/tsan.sh: no source of the standard library: rustup component add rust-src --toolchain $nightly" >&2
    exit 2
fi
# Children that tests fork go on without it.
export RUSTFLAGS=-Zsanitizer=thread TSAN_OPTIONS="halt_on_error=1 die_after_fork=0"
exec cargo "+$nightly" test --locked --package kv-store-core --lib -Zbuild-std --target "$target" --target-dir target/tsan -- ${2:-}
