;; It was built for a draft of the contract.
(component
  (import "kv-store:backend/payload@1.1.0" (instance)))
