;; It connects to whatever the name of a manifest says.
(import "kv-store:backend/net@1.1.0" "connect" (func $connect (param i32 i32 i32 i32 i32)))
(import "kv-store:backend/net@1.1.0" "[resource-drop]connection" (func $close (param i32)))
(func (export "kv-store:backend/store@1.1.0#get-manifest") (param $name i32) (param $len i32) (result i32)
  ;; A name of an envelope ends in 2; what to do is said by one that has no envelope.
  (if (i32.eq (i32.load8_u (i32.sub (i32.add (local.get $name) (local.get $len)) (i32.const 1))) (i32.const 2))
    (then (return (call $nothing))))
  (call $connect (local.get $name) (local.get $len) (i32.const 0) (i32.const 0) (i32.const 128))
  (if (i32.load8_u (i32.const 128)) (then (return (i32.const 128))))
  (call $close (i32.load (i32.const 132)))
  (call $nothing))
