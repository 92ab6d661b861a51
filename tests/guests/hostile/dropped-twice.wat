;; It drops a payload, and drops it again.
(import "kv-store:backend/payloads@1.1.0" "[static]payload.from-bytes" (func $make (param i32 i32 i32)))
(func (export "kv-store:backend/store@1.1.0#get-manifest") (param i32 i32) (result i32)
  (call $make (i32.const 0) (i32.const 100) (i32.const 128))
  (call $drop (i32.load (i32.const 132)))
  (call $drop (i32.load (i32.const 132)))
  (call $nothing))
