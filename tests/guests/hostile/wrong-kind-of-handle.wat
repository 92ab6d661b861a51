;; It uses a directory as if it were a payload.
(import "kv-store:backend/files@1.1.0" "open-directory" (func $open (param i32 i32 i32)))
(import "kv-store:backend/payloads@1.1.0" "[method]payload.len" (func $len (param i32) (result i64)))
(func (export "kv-store:backend/store@1.1.0#get-manifest") (param i32 i32) (result i32)
  (call $open (i32.const 0) (i32.const 0) (i32.const 128))
  (drop (call $len (i32.load (i32.const 132))))
  (call $nothing))
