;; It fills a memory of 94 MiB when it is opened, and is closed.
(memory (export "memory") 1500)
(func (export "kv-store:backend/store@1.1.0#open") (param i32 i32 i32 i32) (result i32)
  (memory.fill (i32.const 2097152) (i32.const 1) (i32.const 96000000))
  (drop (call $nothing))
  (i32.store8 (i32.const 32) (i32.const 8))
  (i32.const 16))
