//! Products of `f64`, `i32` and `u32`: exact or in the order of k, obvious, and slow.

use super::Axis;
use crate::pool::{Pool, share};
use serde::{Deserialize, Serialize};

/// What is multiplied and added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Number {
    /// In the order of k, rounded after every operation.
    F64,
    /// Wrapping.
    I32,
    /// Wrapping.
    U32,
}

/// Where a factor's elements lie: (b, i, p) at `batch.at(b) + outer.at(i) + k.at(p)`, in elements.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Layout {
    /// Rows of C for A (length m), columns of C for B (length n).
    pub outer: Axis,
    /// The axis that is summed over.
    pub k: Axis,
    /// One matrix per element.
    pub batch: Axis,
}

/// A batch of products whose results lie contiguously as [batch, m, n].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GenericContraction {
    /// The type of operands and results.
    pub number: Number,
    /// The factor with the rows of C.
    pub a: Layout,
    /// The factor with the columns of C.
    pub b: Layout,
}

impl GenericContraction {
    /// Computes all products; rows are divided among the threads.
    ///
    /// # Panics
    /// The factors disagree about the lengths of k or of the batch.
    ///
    /// # Safety
    /// `a` and `b` are buffers of `number`, inside which all axes stay; `c` holds batch × m × n of them and
    /// overlaps neither.
    pub unsafe fn run(&self, a: *const u8, b: *const u8, c: *mut u8, pool: &Pool) {
        // SAFETY: the caller's contract.
        unsafe {
            match self.number {
                Number::F64 => {
                    self.compute(a.cast::<f64>(), b.cast(), c.cast(), pool, 0.0, |s, x, y| s + x * y)
                }
                Number::I32 => self.compute(a.cast::<i32>(), b.cast(), c.cast(), pool, 0, |s, x, y| {
                    s.wrapping_add(x.wrapping_mul(y))
                }),
                Number::U32 => self.compute(a.cast::<u32>(), b.cast(), c.cast(), pool, 0, |s, x, y| {
                    s.wrapping_add(x.wrapping_mul(y))
                }),
            }
        }
    }

    unsafe fn compute<T: Copy + Sync>(
        &self,
        a: *const T,
        b: *const T,
        c: *mut T,
        pool: &Pool,
        zero: T,
        multiply_add: impl Fn(T, T, T) -> T + Sync,
    ) {
        let lengths = |layout: &Layout| (layout.k.len(), layout.batch.len());
        assert_eq!(lengths(&self.a), lengths(&self.b), "lengths (k, batch) of the factors");
        let (m, n, k) = (self.a.outer.len(), self.b.outer.len(), self.a.k.len());
        let buffers = Buffers { a, b, c };
        pool.run(&|t| {
            for row in share(self.a.batch.len() * m, pool.threads(), t) {
                let (batch, i) = (row / m, row % m);
                let a = buffers.a().wrapping_offset(self.a.batch.at(batch) + self.a.outer.at(i));
                let matrix = buffers.b().wrapping_offset(self.b.batch.at(batch));
                for j in 0..n {
                    let b = matrix.wrapping_offset(self.b.outer.at(j));
                    // SAFETY: the caller's contract; every row of C belongs to one thread.
                    unsafe {
                        let sum = (0..k).fold(zero, |sum, p| {
                            let x = a.offset(self.a.k.at(p)).read_unaligned();
                            let y = b.offset(self.b.k.at(p)).read_unaligned();
                            multiply_add(sum, x, y)
                        });
                        buffers.c().add(row * n + j).write_unaligned(sum);
                    }
                }
            }
        });
    }
}

/// Pointers that threads share. Methods, so that closures capture the whole and not its fields.
struct Buffers<T> {
    a: *const T,
    b: *const T,
    c: *mut T,
}

// SAFETY: threads read A and B and write disjoint rows of C.
unsafe impl<T> Sync for Buffers<T> {}

impl<T> Buffers<T> {
    fn a(&self) -> *const T {
        self.a
    }
    fn b(&self) -> *const T {
        self.b
    }
    fn c(&self) -> *mut T {
        self.c
    }
}
