;; Two components within it, one of which passes a string to the other, and no function that a backend has.
(component
  (component $takes
    (core module $m
      (memory (export "memory") 1)
      (func (export "take") (param i32 i32))
      (func (export "realloc") (param i32 i32 i32 i32) (result i32) i32.const 1024))
    (core instance $i (instantiate $m))
    (func (export "take") (param "text" string)
      (canon lift (core func $i "take") (memory $i "memory") (realloc (func $i "realloc")))))
  (component $gives
    (import "take" (func $take (param "text" string)))
    (core module $libc (memory (export "memory") 1))
    (core instance $libc (instantiate $libc))
    (core func $lowered (canon lower (func $take) (memory $libc "memory")))
    (core module $m
      (import "" "take" (func $take (param i32 i32)))
      (func (export "run") i32.const 0 i32.const 5 call $take))
    (core instance $i (instantiate $m (with "" (instance (export "take" (func $lowered))))))
    (func (export "run") (canon lift (core func $i "run"))))
  (instance $one (instantiate $takes))
  (instance $other (instantiate $gives (with "take" (func $one "take"))))
  (instance $store)
  (export "kv-store:backend/store@1.1.0" (instance $store)))
