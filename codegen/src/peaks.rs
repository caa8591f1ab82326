//! What a machine can do at most, as it was measured: the floors under the times of kernels.

/// Rates of a whole CPU or GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peaks {
    /// Bytes a second between memory and cores, read and written ones counted, in a copy.
    pub bandwidth: f64,
    /// Bytes a second from memory to cores in a loop that only reads; on a GPU, those of a copy.
    pub reads: f64,
    /// Operations a second of the instructions that products of `f32` are made of; a multiplication and an addition are two.
    pub f32_products: f64,
    /// The same of `bf16` operands with sums in `f32`.
    pub bf16_products: f64,
    /// The same of bytes, on CPUs with whole numbers as sums; on a GPU, as of `f32`.
    pub int8_products: f64,
    /// Arithmetic of other kernels, in operations a second: one operation takes the place of a multiplication with an
    /// addition.
    pub scalars: f64,
}
