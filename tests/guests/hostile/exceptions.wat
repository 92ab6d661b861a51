;; Exceptions.
(component
  (core module (tag (param i32)))
  (instance $store)
  (export "kv-store:backend/store@1.1.0" (instance $store)))
