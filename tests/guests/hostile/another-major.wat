;; It exports a store of another major version.
(component
  (instance $store)
  (export "kv-store:backend/store@2.0.0" (instance $store)))
