;; It imports an interface of a contract that is newer than this host.
(component
  (import "kv-store:backend/tape@1.4.0" (instance)))
