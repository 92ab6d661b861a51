;; It answers a payload that there is not.
(func (export "kv-store:backend/store@1.1.0#get-chunks") (param i32 i32 i32) (result i32)
  (local $at i32)
  (local.set $at (call $take (i32.const 28)))
  (call $outcome (local.get $at) (i32.const 0) (i32.const 4242))
  (call $list (local.get $at) (i32.const 1)))
