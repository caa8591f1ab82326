//! What a CPU can do at most, measured.

use crate::Products;
use kernfusion_codegen::{CodegenError, Peaks};
use kernfusion_runtime::gemm::{Precision, peak};
use kernfusion_runtime::isa::Isa;
use kernfusion_runtime::memory::Arena;
use kernfusion_runtime::pool::{Pool, share};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that are read in one repetition, half of which are copied to the other half: more than most caches hold.
const MEASURED: usize = 192 << 20;
/// Bytes of a line of a cache.
const LINE: usize = 64;
/// Words of a line.
const WORDS: usize = LINE / 8;
/// Time for each of the measurements.
const TIME: Duration = Duration::from_millis(120);

/// Measures this machine's CPU with `threads` threads, in less than a second, with products that are computed this way.
///
/// # Errors
/// If the machine's instruction set is not usable, or memory is short.
pub fn peaks(threads: usize, products: Products) -> Result<Peaks, CodegenError> {
    let meter = Meter::new(Arc::new(Pool::new(threads)), MEASURED)?.of(products);
    Ok(meter.peaks(TIME))
}

/// Measures what memory and register tiles give all threads together. That changes from moment to moment on machines that others use,
/// too, so what is to be compared with it is timed in turn with it.
pub struct Meter {
    isa: Isa,
    products: Products,
    memory: Arena,
    bytes: usize,
    pool: Arc<Pool>,
}

impl Meter {
    /// A meter with `bytes` bytes of memory on these threads. Parts of them stay in a large last cache from one reading to the next, so
    /// what is to be compared should read as many, on the same threads: others would have to be woken.
    ///
    /// # Errors
    /// The machine's instruction set is not usable, or memory is short.
    pub fn new(pool: Arc<Pool>, bytes: usize) -> Result<Meter, CodegenError> {
        let bytes = bytes.next_multiple_of(2 * LINE);
        let meter = Meter {
            isa: Isa::detect()?,
            products: Products::default(),
            memory: Arena::new(bytes)?,
            bytes,
            pool,
        };
        // SAFETY: the arena has these bytes, and threads touch disjoint ones.
        meter.seconds(bytes, &|from, bytes| unsafe { from.write_bytes(1, bytes) });
        Ok(meter)
    }

    /// With products that are computed this way.
    pub fn of(self, products: Products) -> Meter {
        Meter { products, ..self }
    }

    /// All rates, the best of what each gets in about this time; of copies and readings together in twice of it.
    pub fn peaks(&self, time: Duration) -> Peaks {
        // SAFETY: the instruction set was detected.
        let products = |precision| unsafe { peak(self.isa, precision, &self.pool, time) };
        let exact = products(Precision::F32);
        let of_f32 = self.products.on(self.isa, false);
        let f32_products = if of_f32 == Precision::Fixed { products(of_f32) } else { exact };
        let (start, mut bandwidth, mut reads) = (Instant::now(), 0.0_f64, 0.0_f64);
        while bandwidth == 0.0 || start.elapsed() < 2 * time {
            (bandwidth, reads) = (bandwidth.max(self.copies()), reads.max(self.reads()));
        }
        Peaks {
            bandwidth,
            reads,
            f32_products,
            bf16_products: products(self.products.on(self.isa, true)),
            int8_products: products(Precision::Int8),
            scalars: exact / 2.0,
        }
    }

    /// Bytes a second of a copy of one half to the other, read and written ones counted.
    fn copies(&self) -> f64 {
        let half = self.bytes / 2;
        // SAFETY: the arena has two halves, and threads copy disjoint parts.
        let seconds = self.seconds(half, &|from, bytes| unsafe {
            from.wrapping_add(half).copy_from_nonoverlapping(from, bytes);
        });
        2.0 * half as f64 / seconds
    }

    /// Bytes a second of a loop that only reads.
    pub fn reads(&self) -> f64 {
        // SAFETY: the arena has these bytes, which were written and are aligned to lines.
        let seconds = self.seconds(self.bytes, &|from, bytes| unsafe {
            black_box(sum(std::slice::from_raw_parts(from.cast(), bytes / LINE)));
        });
        self.bytes as f64 / seconds
    }

    /// Seconds that all threads take for these first bytes, divided among them.
    fn seconds(&self, bytes: usize, work: &(dyn Fn(*mut u8, usize) + Sync)) -> f64 {
        // Wakes them.
        self.pool.run(&|_| {});
        let start = Instant::now();
        self.pool.run(&|t| {
            let part = share(bytes / LINE, self.pool.threads(), t);
            work(self.memory.as_ptr().wrapping_add(part.start * LINE), part.len() * LINE);
        });
        start.elapsed().as_secs_f64()
    }
}

/// Adds up lines of memory, as fast as they come: several streams side by side, each fetched ahead of its sums, got 1.5 times what one
/// stream without that got on two threads of an Intel Xeon with 480 MiB of L3.
fn sum(lines: &[[u64; WORDS]]) -> u64 {
    const STREAMS: usize = 4;
    const AHEAD: usize = 32;
    let length = lines.len() / STREAMS;
    let mut sums = [[0u64; WORDS]; STREAMS];
    // Without iterators, since calls that are not inlined would be measured instead.
    for i in 0..length {
        for stream in 0..STREAMS {
            let line = &lines[stream * length + i];
            #[cfg(target_arch = "x86_64")]
            // SAFETY: part of the baseline, and it may point anywhere.
            unsafe {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).wrapping_add(AHEAD).cast());
            }
            for word in 0..WORDS {
                sums[stream][word] = sums[stream][word].wrapping_add(line[word]);
            }
        }
    }
    sums.iter().flatten().fold(0, |sum: u64, &word| sum.wrapping_add(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_a_computer() {
        let peaks = peaks(1, Products::default()).expect("measures");
        assert!((1e8..1e13).contains(&peaks.bandwidth), "{peaks:?}");
        assert!((1e8..1e13).contains(&peaks.reads), "{peaks:?}");
        assert!((1e8..1e13).contains(&peaks.f32_products), "{peaks:?}");
        assert!(peaks.bf16_products > 0.5 * peaks.f32_products, "{peaks:?}");
    }
}
