;; Its start function never ends, so that it is never instantiated.
(func $ever (loop $again (br $again)))
(start $ever)
