#!/usr/bin/env bash
# The tests of the wheel under AddressSanitizer: bindings/python/tests/sanitize.sh PYTHON [TEST..], where PYTHON has the wheel and pytest
# (`cargo xtask wheel --test` makes target/python/fresh/bin/python). Needs gcc.
# The extension is the one that ships. Its own reads and writes are not instrumented; what it and Python take from malloc and give
# back is, and what is copied: an object of Python's that was freed while the extension held its memory, a block that is freed
# twice, a copy past an end. Python's leaks at its end are left out.
set -euo pipefail
case "${1:---help}" in -h | --help) sed -n '2,6s/^# //p' "$0"; exit ;; esac
python="$(realpath -s "$1")"
shift
cd "$(dirname "$0")/.."
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
: > "$place/empty.toml"
# Python's own allocator would hand out pieces of large blocks, of whose ends nobody knows.
env PYTHONMALLOC=malloc PYTHONDONTWRITEBYTECODE=1 KV_STORE_WASM_CONFIG="$place/empty.toml" KV_STORE_WASM_CACHE="$place/aot" \
    LD_PRELOAD="$(gcc -print-file-name=libasan.so)" ASAN_OPTIONS="detect_leaks=0:exitcode=99:log_path=$place/report" \
    "$python" -P -m pytest "$@" || status=$?
# pytest keeps what a test writes, and ends with the process.
cat "$place"/report.* >&2 2> /dev/null || true
exit "${status:-0}"
