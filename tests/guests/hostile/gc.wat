;; Types that a collector looks after.
(component
  (core module (type (struct (field i32)))))
