;; Two memories in one module.
(component
  (core module (memory 1) (memory 1))
  (instance $store)
  (export "kv-store:backend/store@1.1.0" (instance $store)))
