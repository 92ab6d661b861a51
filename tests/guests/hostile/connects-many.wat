;; It connects ten thousand times at once to what the name of a manifest says, and traps with what it got.
(import "kv-store:backend/net@1.1.0" "connect-all" (func $connect (param i32 i32 i32)))
(memory (export "memory") 300)

(func (export "kv-store:backend/store@1.1.0#get-manifest") (param $name i32) (param $len i32) (result i32)
  (local $at i32) (local $left i32)
  ;; A name of an envelope ends in 2; what to do is said by one that has no envelope.
  (if (i32.eq (i32.load8_u (i32.sub (i32.add (local.get $name) (local.get $len)) (i32.const 1))) (i32.const 2))
    (then (return (call $nothing))))
  (local.set $at (i32.const 16777216))
  (local.set $left (i32.const 10000))
  (loop $next
    (i32.store (local.get $at) (local.get $name))
    (i32.store offset=4 (local.get $at) (local.get $len))
    (local.set $at (i32.add (local.get $at) (i32.const 16)))
    (local.set $left (i32.sub (local.get $left) (i32.const 1)))
    (br_if $next (local.get $left)))
  (call $connect (i32.const 16777216) (i32.const 10000) (i32.const 128))
  ;; All are answered: as many as were asked for.
  (if (i32.eq (i32.load (i32.const 132)) (i32.const 10000)) (then unreachable))
  (call $nothing))
