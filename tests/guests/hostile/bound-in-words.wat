;; It has the host bound its store to a number of bytes that is no number.
(data (i32.const 1024) "max-bytesa lot")

(func (export "kv-store:backend/store@1.1.0#open") (param i32 i32 i32 i32) (result i32)
  (drop (call $nothing))
  ;; One fact: a name and a value.
  (i32.store (i32.const 88) (i32.const 256))
  (i32.store (i32.const 92) (i32.const 1))
  (i32.store (i32.const 256) (i32.const 1024))
  (i32.store (i32.const 260) (i32.const 9))
  (i32.store (i32.const 264) (i32.const 1033))
  (i32.store (i32.const 268) (i32.const 5))
  (i32.const 16))
