;; It keeps one payload as its manifest, and answers that without asking whether it was put in this instance.
(import "kv-store:backend/payload@1.0.0" "[method]payload.share" (func $share (param i32 i32)))
(global $kept (mut i32) (i32.const 0))
(func (export "kv-store:backend/store@1.0.0#put-manifest") (param i32 i32) (param $data i32) (param i32 i32) (result i32)
  (if (i32.eqz (global.get $kept)) (then (call $share (local.get $data) (i32.const 128))))
  (global.set $kept (i32.const 1))
  (call $drop (local.get $data))
  (call $nothing))
(func (export "kv-store:backend/store@1.0.0#get-manifest") (param i32 i32) (result i32)
  ;; The lent one had the number 1, so the second of an instance has 2.
  (call $share (i32.const 2) (i32.const 128))
  (i32.store (i32.const 136) (i32.load (i32.const 132)))
  (i32.store (i32.const 132) (i32.const 1))
  (i32.const 128))
