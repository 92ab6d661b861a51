#!/usr/bin/env bash
# The C programs of this folder against the installed library, under AddressSanitizer (with its search for leaks) and under
# valgrind: tests/consumer/sanitize.sh [asan | valgrind]; both by default. Needs gcc, valgrind and `cargo xtask dist`.
# What an engine hands over and gets back is checked, byte by byte; the library itself is the one that ships, so its own code is not
# instrumented, but what it takes from malloc, and what it copies, is seen. docs/sanitizers.md has the results. A table of what was run is written to standard output.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,5s/^# //p' "$0"; exit ;; esac
here="$(cd "$(dirname "$0")" && pwd)"
root="$here/../.."
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
library="$root/target/dist/lib/libkv_store_wasm.so"
if [ ! -e "$library" ]; then echo "$library is missing: run \`cargo xtask dist\`" >&2; exit 1; fi
if [ -z "${KV_STORE_TEST_ANY_BUILD:-}" ] && ! (cd "$root" && sha256sum --check --quiet target/dist.sources); then
    echo "target/dist was built from other sources: run \`cargo xtask dist\`, or set KV_STORE_TEST_ANY_BUILD=1" >&2
    exit 1
fi
ways=("$@")
if [ $# -eq 0 ]; then ways=(asan valgrind); fi
: > "$place/asan.toml"
# valgrind knows no process that shares another one's memory, which the compile helper is started by.
printf '[compile]\nhelper = "off"\n' > "$place/valgrind.toml"

failed=0
# One program under one tool, on stores of its own unless it is to find what another left. What it says is shown when it fails.
run() {
    local way="$1" program="$2" before=()
    shift 2
    if [ "$way" = valgrind ]; then
        # Compiled guests are code that was not there at the start; a fiber is a stack that valgrind has not seen made.
        before=(valgrind --quiet "--suppressions=$here/valgrind.supp" --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite
            --show-leak-kinds=definite --smc-check=all-non-file --max-stackframe=16777216)
    fi
    env -i PATH="$PATH" HOME="$place" LD_LIBRARY_PATH="$(dirname "$library")" KV_STORE_LIBRARY="$library" \
        KV_STORE_WASM_CONFIG="$place/$way.toml" KV_STORE_WASM_CACHE="$place/aot" KV_STORE_WASM_LOG=error timeout 600 \
        ${before[@]+"${before[@]}"} "$place/$way-$program" "$@" > "$place/out" 2> "$place/err"
}
check() {
    local shown result=clean
    shown="$(printf '%s ' "${@:2}" | sed "s#$place#/tmp#g")"
    if ! run "$@"; then
        result=FAILED failed=1
        { sed 's/^/    /' "$place/out" "$place/err" | head -60 >&2; } || true
    fi
    echo "| $1 | \`${shown% }\` | $result |"
}
stores=0
fresh() {
    stores=$((stores + 1))
    fresh="local-fs://$place/kv$stores"
}

for way in "${ways[@]}"; do
    flags=(-std=c11 -O1 -g -Wall -Wextra -I "$root/target/dist/include" -pthread)
    if [ "$way" = asan ]; then flags+=(-fsanitize=address -fno-omit-frame-pointer); fi
    for program in calls exits memory metrics paged reload state twenty_lines; do
        gcc "${flags[@]}" "$here/$program.c" -o "$place/$way-$program" -ldl
    done
    # Compiles the components, once, outside of what is judged: valgrind takes optimised matches of the wasmparser crate, which has
    # no unsafe code, for jumps on values that were never set.
    fresh
    run "$way" calls "$fresh" || true
    run "$way" calls "memory://x" || true
    for kind in local-fs memory; do
        for program in memory metrics calls; do
            fresh
            store="$fresh"
            if [ $kind = memory ]; then store="memory://$program"; fi
            rest=()
            if [ $program = calls ]; then
                rest=(put 00ff text get 00ff get 0011 prefetch 1 00ff publish a/b manifest read a/b read c delete a/b read a/b)
            fi
            check "$way" $program "$store" ${rest[@]+"${rest[@]}"}
        done
    done
    fresh
    check "$way" state save "$fresh" prompt 3000000
    check "$way" state restore "$fresh" prompt 3000000
    check "$way" state rounds "$fresh" 7 20
    check "$way" state audit "$fresh"
    # valgrind takes each thread to have one stack, and a guest's stack serves one thread after another.
    if [ "$way" != valgrind ]; then
        fresh
        check "$way" reload "$fresh"
        check "$way" exits return "$fresh" "memory://exits" 20000
        check "$way" paged "$fresh"
        check "$way" paged "memory://paged"
    fi
    fresh
    check "$way" twenty_lines "$fresh"
done
exit "$failed"
