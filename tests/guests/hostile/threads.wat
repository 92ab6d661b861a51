;; A memory that threads share.
(component
  (core module (memory 1 1 shared))
  (instance $store)
  (export "kv-store:backend/store@1.1.0" (instance $store)))
