;; It grows a table, and says that it could where it is too large.
(table $table 1 funcref)
(func (export "kv-store:backend/store@1.1.0#get-manifest") (param i32 i32) (result i32)
  (loop $more
    (br_if $more (i32.ne (table.grow $table (ref.null func) (i32.const 1000)) (i32.const -1))))
  (if (i32.gt_u (table.size $table) (i32.const 200000)) (then unreachable))
  (call $nothing))
