;; It keeps every handle that it is lent.
(func (export "kv-store:backend/store@1.0.0#put-chunks") (param i32) (param $n i32) (param i32) (result i32)
  (call $list (call $take (i32.shl (local.get $n) (i32.const 4))) (local.get $n)))
