;; A line for the log that is no UTF-8.
(import "kv-store:backend/system@1.1.0" "log" (func $log (param i32 i32 i32)))
(data (i32.const 1024) "\ff\fe\80line")
(func (export "kv-store:backend/store@1.1.0#get-manifest") (param i32 i32) (result i32)
  (call $log (i32.const 3) (i32.const 1024) (i32.const 7))
  (call $nothing))
