;; A memory with 64-bit addresses.
(component
  (core module (memory i64 1)))
