;; A function of the asynchronous component model.
(component
  (type (future u8)))
