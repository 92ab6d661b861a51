;; Asked to publish an empty manifest, it says that chunks are gone and names none; asked for any other, it names one that it
;; was not given. (The 64 bytes of its envelope do not count.)
(data (i32.const 1024) "abc")
(func (export "kv-store:backend/store@1.1.0#commit") (param i32 i32 i32 i32 i32) (param $len i64) (result i32)
  (drop (call $nothing))
  ;; Absent, with a list of as many lists; the first has one hash, of 3 bytes.
  (i32.store8 (i32.const 20) (i32.const 1))
  (i32.store (i32.const 24) (i32.const 1040))
  (i32.store (i32.const 28) (i64.ne (local.get $len) (i64.const 64)))
  (i32.store (i32.const 1040) (i32.const 3))
  (i32.store (i32.const 1044) (i32.const 1024))
  (i32.store (i32.const 1048) (i32.const 3))
  (i32.const 16))
