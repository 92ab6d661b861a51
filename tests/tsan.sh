#!/bin/sh
# What threads share in the host, under ThreadSanitizer: the queue, the fan-out over helpers, the ledger of a save, the time of a call.
#
#     tests/tsan.sh [NIGHTLY]
#
# needs a nightly toolchain (`nightly` by default) with the component rust-src, because the standard library is built along. The code is
# the host's own, in the crate tests/tsan, without wasmtime: a guest runs on a stack of its own, of which ThreadSanitizer is not told.
set -eu
cd "$(dirname "$0")/tsan"
nightly=${1:-nightly}
target=$(rustc "+$nightly" -vV | sed -n 's/^host: //p')
if [ ! -e "$(rustc "+$nightly" --print sysroot)/lib/rustlib/src/rust/library/Cargo.toml" ]; then
    echo "tests/tsan.sh: no source of the standard library: rustup component add rust-src --toolchain $nightly" >&2
    exit 2
fi
export RUSTFLAGS=-Zsanitizer=thread TSAN_OPTIONS=halt_on_error=1
exec cargo "+$nightly" test --locked -Zbuild-std --target "$target" --target-dir ../../target/tsan
