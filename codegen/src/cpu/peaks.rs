//! What a machine can do at most, measured: the floors under the times of kernels.

use super::contract::{Precision, peak};
use super::isa::Isa;
use super::memory::{Arena, OutOfMemory};
use super::pool::{Pool, share};
use crate::CodegenError;
use std::time::{Duration, Instant};

/// Bytes copied in one repetition: more than any cache holds.
const COPIED: usize = 96 << 20;
/// Time for each of the measurements.
const TIME: Duration = Duration::from_millis(120);

/// Rates of all threads together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peaks {
    /// Bytes a second between memory and cores, read and written ones counted, in a copy.
    pub bandwidth: f64,
    /// Operations a second of the `f32` register tile of matrix products; a multiplication and an addition are two.
    pub f32_products: f64,
    /// The same of `bf16` operands with sums in `f32`.
    pub bf16_products: f64,
}

impl Peaks {
    /// Measures this machine with so many threads, in less than half a second.
    ///
    /// # Errors
    /// If the machine's instruction set is not usable, or memory is short.
    pub fn measure(threads: usize) -> Result<Peaks, CodegenError> {
        let (isa, pool) = (Isa::detect()?, Pool::new(threads));
        // SAFETY: the instruction set was detected.
        let products = |precision| unsafe { peak(isa, precision, &pool, TIME) };
        Ok(Peaks {
            bandwidth: bandwidth(&pool)?,
            f32_products: products(Precision::F32),
            bf16_products: products(Precision::Bf16),
        })
    }

    /// Arithmetic of other kernels, in operations a second: one operation takes the place of a multiplication with an
    /// addition.
    pub fn scalars(&self) -> f64 {
        self.f32_products / 2.0
    }
}

fn bandwidth(pool: &Pool) -> Result<f64, OutOfMemory> {
    let (from, to) = (Arena::new(COPIED)?, Arena::new(COPIED)?);
    let start = Instant::now();
    let mut best = f64::INFINITY;
    // The first time touches the pages.
    let mut rounds = 0;
    while rounds < 3 || start.elapsed() < TIME {
        let round = Instant::now();
        pool.run(&|t| {
            let part = share(COPIED, pool.threads(), t);
            // SAFETY: both arenas have these bytes, and threads copy disjoint ones.
            unsafe {
                let (from, to) = (from.as_ptr().add(part.start), to.as_ptr().add(part.start));
                match rounds {
                    0 => from.write_bytes(1, part.len()),
                    _ => to.copy_from_nonoverlapping(from, part.len()),
                }
            }
        });
        if rounds > 1 {
            best = best.min(round.elapsed().as_secs_f64());
        }
        rounds += 1;
    }
    Ok(2.0 * COPIED as f64 / best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_a_computer() {
        let peaks = Peaks::measure(1).expect("measures");
        assert!((1e8..1e13).contains(&peaks.bandwidth), "{peaks:?}");
        assert!((1e8..1e13).contains(&peaks.f32_products), "{peaks:?}");
        assert!(peaks.bf16_products > 0.5 * peaks.f32_products, "{peaks:?}");
    }
}
