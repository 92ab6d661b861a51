;; Exceptions.
(component
  (core module (tag (param i32))))
