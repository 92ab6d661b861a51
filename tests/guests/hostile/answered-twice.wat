;; It answers one payload for two chunks.
(import "kv-store:backend/payloads@1.1.0" "[static]payload.from-bytes" (func $make (param i32 i32 i32)))
(func (export "kv-store:backend/store@1.1.0#get-chunks") (param i32 i32 i32) (result i32)
  (local $at i32)
  (local.set $at (call $take (i32.const 56)))
  (call $make (i32.const 0) (i32.const 100) (i32.const 128))
  (call $outcome (local.get $at) (i32.const 0) (i32.load (i32.const 132)))
  (call $outcome (i32.add (local.get $at) (i32.const 28)) (i32.const 0) (i32.load (i32.const 132)))
  (call $list (local.get $at) (i32.const 2)))
