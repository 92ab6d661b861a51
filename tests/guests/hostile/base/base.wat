;; A backend that holds nothing and says so: every put is `stored`, every get `missing`. It answers at 16, and has the host
;; answer at 128. Its heap begins at 65536 and only grows, so what is taken from it is zero.
(import "kv-store:backend/payloads@1.1.0" "[resource-drop]payload" (func $drop (param i32)))

(memory (export "memory") 2)

(global $heap (mut i32) (i32.const 65536))

(func $take (param $size i32) (result i32)
  (local $at i32)
  (local.set $at (i32.and (i32.add (global.get $heap) (i32.const 7)) (i32.const -8)))
  (global.set $heap (i32.add (local.get $at) (local.get $size)))
  (loop $grow
    (if (i32.gt_u (global.get $heap) (i32.shl (memory.size) (i32.const 16)))
      (then
        (if (i32.eq (memory.grow (i32.const 1)) (i32.const -1)) (then unreachable))
        (br $grow))))
  (local.get $at))

(func (export "cabi_realloc") (param i32 i32 i32) (param $size i32) (result i32)
  (call $take (local.get $size)))

;; The answer that is all zero: success, and nothing.
(func $nothing (result i32)
  (memory.fill (i32.const 16) (i32.const 0) (i32.const 96))
  (i32.const 16))

;; Success with a list.
(func $list (param $at i32) (param $len i32) (result i32)
  (drop (call $nothing))
  (i32.store (i32.const 20) (local.get $at))
  (i32.store (i32.const 24) (local.get $len))
  (i32.const 16))

;; One item of a list of outcomes, 28 bytes: its case, and what it holds.
(func $outcome (param $at i32) (param $case i32) (param $holds i32)
  (i32.store (local.get $at) (local.get $case))
  (i32.store offset=4 (local.get $at) (local.get $holds)))

;; Features: nothing but write-through.
(func (export "kv-store:backend/store@1.1.0#open") (param i32 i32 i32 i32) (result i32)
  (drop (call $nothing))
  (i32.store8 (i32.const 32) (i32.const 8))
  (i32.const 16))

(func (export "kv-store:backend/store@1.1.0#exists") (param $width i32) (param i32) (param $len i32) (result i32)
  (local $n i32)
  (local.set $n (i32.div_u (local.get $len) (local.get $width)))
  (call $list (call $take (i32.mul (local.get $n) (i32.const 24))) (local.get $n)))

(func (export "kv-store:backend/store@1.1.0#put-chunks") (param i32 i32 i32 i32) (param $n i32) (param i32) (result i32)
  (call $list (call $take (i32.mul (local.get $n) (i32.const 28))) (local.get $n)))

(func (export "kv-store:backend/store@1.1.0#get-chunks") (param $width i32) (param i32) (param $len i32) (result i32)
  (local $n i32) (local $answers i32) (local $left i32)
  (local.set $n (i32.div_u (local.get $len) (local.get $width)))
  (local.set $answers (call $take (i32.mul (local.get $n) (i32.const 28))))
  (local.set $left (local.get $n))
  (loop $next
    (if (local.get $left)
      (then
        (local.set $left (i32.sub (local.get $left) (i32.const 1)))
        (call $outcome (i32.add (local.get $answers) (i32.mul (local.get $left) (i32.const 28))) (i32.const 1) (i32.const 0))
        (br $next))))
  (call $list (local.get $answers) (local.get $n)))

(func (export "kv-store:backend/store@1.1.0#delete-chunks") (param $width i32) (param i32) (param $len i32) (result i32)
  (local $n i32)
  (local.set $n (i32.div_u (local.get $len) (local.get $width)))
  (call $list (call $take (i32.mul (local.get $n) (i32.const 28))) (local.get $n)))

;; Published.
(func (export "kv-store:backend/store@1.1.0#commit") (param i32 i32 i32 i32 i32 i64) (result i32)
  (call $nothing))

(func (export "kv-store:backend/store@1.1.0#get-manifest") (param i32 i32) (result i32)
  (call $nothing))

(func (export "kv-store:backend/store@1.1.0#delete-manifest") (param i32 i32) (result i32)
  (call $nothing))
