;; A function of the asynchronous component model.
(component
  (type (future u8))
  (instance $store)
  (export "kv-store:backend/store@1.1.0" (instance $store)))
