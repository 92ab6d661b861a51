;; It reads the file, in the directory of the URI, that the name of a manifest says.
(import "kv-store:backend/files@1.1.0" "open-directory" (func $open (param i32 i32 i32)))
(import "kv-store:backend/files@1.1.0" "[resource-drop]directory" (func $close (param i32)))
(import "kv-store:backend/files@1.1.0" "[method]directory.read" (func $read (param i32 i32 i32 i32)))
(func (export "kv-store:backend/store@1.1.0#get-manifest") (param $name i32) (param $len i32) (result i32)
  (local $directory i32) (local $outcome i32)
  ;; A name of an envelope ends in 2; what to do is said by one that has no envelope.
  (if (i32.eq (i32.load8_u (i32.sub (i32.add (local.get $name) (local.get $len)) (i32.const 1))) (i32.const 2))
    (then (return (call $nothing))))
  (call $open (i32.const 0) (i32.const 0) (i32.const 128))
  (if (i32.load8_u (i32.const 128)) (then (return (i32.const 128))))
  (local.set $directory (i32.load (i32.const 132)))
  ;; From 0 to the end.
  (memory.fill (i32.const 256) (i32.const 0) (i32.const 40))
  (i32.store (i32.const 256) (local.get $name))
  (i32.store (i32.const 260) (local.get $len))
  (call $read (local.get $directory) (i32.const 256) (i32.const 1) (i32.const 128))
  (call $close (local.get $directory))
  (if (i32.load8_u (i32.const 128)) (then (return (i32.const 128))))
  (local.set $outcome (i32.load (i32.const 132)))
  (drop (call $nothing))
  ;; Found: the payload. Missing: none. Failed: that.
  (if (i32.eqz (i32.load8_u (local.get $outcome)))
    (then
      (i32.store (i32.const 20) (i32.const 1))
      (i32.store (i32.const 24) (i32.load offset=4 (local.get $outcome)))))
  (if (i32.eq (i32.load8_u (local.get $outcome)) (i32.const 2))
    (then
      (i32.store (i32.const 16) (i32.const 1))
      (i32.store (i32.const 20) (i32.load offset=4 (local.get $outcome)))
      (i32.store (i32.const 24) (i32.load offset=8 (local.get $outcome)))
      (i32.store (i32.const 28) (i32.load offset=12 (local.get $outcome)))))
  (i32.const 16))
