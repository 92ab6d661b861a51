;; An answer of two thousand million items.
(func (export "kv-store:backend/store@1.1.0#get-chunks") (param i32 i32 i32) (result i32)
  (call $list (i32.const 1024) (i32.const 0x7fffffff)))
