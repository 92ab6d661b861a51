;; Ten thousand failures, each with the same 16 MiB of text.
(memory (export "memory") 300)
(func (export "kv-store:backend/store@1.1.0#get-chunks") (param i32 i32 i32) (result i32)
  (local $at i32) (local $left i32)
  (local.set $at (i32.const 1048576))
  (local.set $left (i32.const 10000))
  (memory.fill (i32.const 2097152) (i32.const 97) (i32.const 16777216))
  (loop $next
    ;; Failed, with the kind 0.
    (call $outcome (local.get $at) (i32.const 2) (i32.const 0))
    (i32.store offset=8 (local.get $at) (i32.const 2097152))
    (i32.store offset=12 (local.get $at) (i32.const 16777216))
    (local.set $at (i32.add (local.get $at) (i32.const 28)))
    (local.set $left (i32.sub (local.get $left) (i32.const 1)))
    (br_if $next (local.get $left)))
  (call $list (i32.const 1048576) (i32.const 10000)))
