//! Element types of K/V caches and of the tokens that go in and out of them.

/// The type of one element of K or V (KVX section 4.3).
///
/// Index types are not here: [`IndexSlice`](crate::IndexSlice) knows its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an F32.
    BF16,
    /// IEEE 754 binary32.
    F32,
    /// OCP FP8 E4M3: 4 exponent bits of bias 7, largest value 448, NaN but no infinity.
    F8E4M3,
    /// OCP FP8 E5M2: 5 exponent bits of bias 15, largest value 57344, infinity and NaN.
    F8E5M2,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::F16 | DType::BF16 => 2,
            DType::F32 => 4,
            DType::F8E4M3 | DType::F8E5M2 => 1,
        }
    }

    /// Whether this is one of the two 8-bit types, which a cache may hold quantised.
    pub const fn is_fp8(self) -> bool {
        matches!(self, DType::F8E4M3 | DType::F8E5M2)
    }
}
