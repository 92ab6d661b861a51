;; A gigabyte before it has been called.
(memory (export "memory") 16384)
