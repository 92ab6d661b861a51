;; It imports what WASI has and this host does not offer.
(component
  (import "wasi:http/outgoing-handler@0.2.0" (instance)))
