//! What a CPU can do at most, measured.

use super::contract::{Precision, peak};
use super::isa::Isa;
use super::memory::{Arena, OutOfMemory};
use super::pool::{Pool, share};
use crate::{CodegenError, Peaks};
use std::time::{Duration, Instant};

/// Bytes copied in one repetition: more than any cache holds.
const COPIED: usize = 96 << 20;
/// Time for each of the measurements.
const TIME: Duration = Duration::from_millis(120);

impl Peaks {
    /// Measures this machine's CPU with so many threads, in less than half a second.
    ///
    /// # Errors
    /// If the machine's instruction set is not usable, or memory is short.
    pub fn of_cpu(threads: usize) -> Result<Peaks, CodegenError> {
        let (isa, pool) = (Isa::detect()?, Pool::new(threads));
        // SAFETY: the instruction set was detected.
        let products = |precision| unsafe { peak(isa, precision, &pool, TIME) };
        let f32_products = products(Precision::F32);
        Ok(Peaks {
            bandwidth: bandwidth(&pool)?,
            f32_products,
            bf16_products: products(Precision::Bf16),
            scalars: f32_products / 2.0,
        })
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
        let peaks = Peaks::of_cpu(1).expect("measures");
        assert!((1e8..1e13).contains(&peaks.bandwidth), "{peaks:?}");
        assert!((1e8..1e13).contains(&peaks.f32_products), "{peaks:?}");
        assert!(peaks.bf16_products > 0.5 * peaks.f32_products, "{peaks:?}");
    }
}
