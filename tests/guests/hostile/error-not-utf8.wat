;; A failure whose text is no UTF-8.
(data (i32.const 1024) "\ff\fe\80line")
(func (export "kv-store:backend/store@1.1.0#get-manifest") (param i32 i32) (result i32)
  (drop (call $nothing))
  (i32.store8 (i32.const 16) (i32.const 1))
  (i32.store (i32.const 24) (i32.const 1024))
  (i32.store (i32.const 28) (i32.const 7))
  (i32.const 16))
