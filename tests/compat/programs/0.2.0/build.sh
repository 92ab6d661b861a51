#!/bin/sh
# Build the programs against the headers and libraries of a release: build.sh DIST, the folder that `cargo xtask dist` of that release has
# laid out. They were built so once, at 26476c9, by Debian's gcc, and are not built again: what they show is that the files that are here run.
set -eu
cd "$(dirname "$0")"
build() {
    name=$1
    shift
    cc -std=c11 -D_GNU_SOURCE -Os -Wall -Wextra -Wpedantic -Werror -I"$dist/include" "$name.c" -o "$name" -s -Wl,-z,noseparate-code "$@"
    chmod 755 "$name"
}
dist=$(realpath "$1")
for loads in kv_store_abi kv_store_batch kv_blocks; do
    build $loads -ldl
done
for linked in kv_store_kvx kvx; do
    build $linked -L"$dist/lib" -lkv_store_wasm -ldl
done
build kv_cache -L"$dist/lib" -lkv_cache -ldl
