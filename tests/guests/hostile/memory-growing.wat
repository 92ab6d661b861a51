;; It takes memory, page by page, writes to it, and goes on asking when it is refused.
(func (export "kv-store:backend/store@1.1.0#get-manifest") (param i32 i32) (result i32)
  (local $before i32)
  (loop $ever
    (local.set $before (memory.grow (i32.const 1)))
    (if (i32.ne (local.get $before) (i32.const -1))
      (then (i32.store (i32.shl (local.get $before) (i32.const 16)) (i32.const 1))))
    (br $ever))
  unreachable)
