;; A memory with 64-bit addresses.
(component
  (core module (memory i64 1))
  (instance $store)
  (export "kv-store:backend/store@1.1.0" (instance $store)))
