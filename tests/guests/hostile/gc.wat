;; Types that a collector looks after.
(component
  (core module (type (struct (field i32))))
  (instance $store)
  (export "kv-store:backend/store@1.1.0" (instance $store)))
