;; It imports what no host of ours ever had.
(component
  (import "acme:tape/drive@1.0.0" (instance)))
