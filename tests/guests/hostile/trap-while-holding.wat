;; It takes 20 MiB of payloads, and traps.
(import "kv-store:backend/payloads@1.1.0" "[static]payload.from-bytes" (func $make (param i32 i32 i32)))
(memory (export "memory") 20)
(func (export "kv-store:backend/store@1.1.0#get-manifest") (param i32 i32) (result i32)
  (local $left i32)
  (local.set $left (i32.const 20))
  (loop $next
    (call $make (i32.const 65536) (i32.const 1048576) (i32.const 128))
    (local.set $left (i32.sub (local.get $left) (i32.const 1)))
    (br_if $next (local.get $left)))
  unreachable)
