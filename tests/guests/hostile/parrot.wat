;; It answers what it was told to, byte for byte. What is put as a manifest is copied to where its answers lie: from 1024 on; and
;; every function of the store but that answers there. The host has made 8 payloads for it before, numbered by their order.
(import "kv-store:backend/payloads@1.1.0" "[static]payload.from-bytes" (func $make (param i32 i32 i32)))
(import "kv-store:backend/payloads@1.1.0" "[method]payload.read" (func $read (param i32 i64 i32 i32)))
(import "kv-store:backend/payloads@1.1.0" "[static]payload.from-parts" (func $join (param i32 i32 i32)))
(global $made (mut i32) (i32.const 0))
(func (export "kv-store:backend/store@1.1.0#commit") (param i32 i32 i32 i32 i32) (param $len i64) (result i32)
  (local $data i32)
  ;; Without the tail of its envelope.
  (local.set $len (i64.sub (local.get $len) (i64.const 64)))
  ;; Item 0, as a payload.
  (i32.store (i32.const 256) (i32.const 3))
  (i32.store (i32.const 264) (i32.const 0))
  (call $join (i32.const 256) (i32.const 1) (i32.const 128))
  (local.set $data (i32.load (i32.const 132)))
  (call $read (local.get $data) (i64.const 0) (i32.wrap_i64 (local.get $len)) (i32.const 128))
  (call $drop (local.get $data))
  (memory.copy (i32.const 1024) (i32.load (i32.const 132)) (i32.wrap_i64 (local.get $len)))
  (loop $next
    (if (i32.lt_u (global.get $made) (i32.const 8))
      (then
        (call $make (i32.const 0) (i32.const 10) (i32.const 128))
        (global.set $made (i32.add (global.get $made) (i32.const 1)))
        (br $next))))
  (call $nothing))
(func (export "kv-store:backend/store@1.1.0#get-manifest") (param i32 i32) (result i32) (i32.const 1024))
(func (export "kv-store:backend/store@1.1.0#get-chunks") (param i32 i32 i32) (result i32) (i32.const 1024))
(func (export "kv-store:backend/store@1.1.0#put-chunks") (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 1024))
(func (export "kv-store:backend/store@1.1.0#delete-manifest") (param i32 i32) (result i32) (i32.const 1024))
(func (export "kv-store:backend/store@1.1.0#delete-chunks") (param i32 i32 i32) (result i32) (i32.const 1024))
