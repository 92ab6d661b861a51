;; A table of 34 gigabytes.
(table 4294967295 funcref)
