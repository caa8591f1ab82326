//! Lines of B that are [half bytes](super::Element::HalfByte): unpacked in registers, and multiplied by the scale of their group there.
//!
//! A weight is exact in `f32`, so that this computes what a product of the unpacked matrix does. With AVX-512, sixteen products of a scale with
//! −8 … 7 are a table in a register, in which a permutation looks sixteen half bytes up, for all rows.

use super::gemv::{CACHE_LINE, Fetch, Line, Start};
use super::microkernel::prefetch;
use crate::math::vector::Lanes;

/// Numbers of a group.
pub(super) const GROUP: usize = 32;
/// Bytes of a scale.
const SCALE: usize = 2;

/// Sums that are under way at once for each row of A and line of B: lines are several at a time.
const fn chains(rows: usize) -> usize {
    if rows <= 2 { 2 } else { 1 }
}

/// Where the scales of what lies at this byte of B are, in bytes.
#[inline(always)]
pub(super) const fn of_scales(byte: isize) -> isize {
    byte / (GROUP / 2 / SCALE) as isize
}

/// `(values, scales, count, out)`: writes `count` values, unpacked and scaled. They are whole groups.
pub(super) type Unpack = unsafe fn(*const u8, *const u8, usize, *mut f32);

/// The scales of half bytes, and what unpacks them.
#[derive(Clone, Copy)]
pub(super) struct HalfBytes {
    pub scales: *const u8,
    pub unpack: Unpack,
}

impl HalfBytes {
    /// The scales of what begins that many bytes further on.
    pub(super) fn after(self, bytes: isize) -> Self {
        HalfBytes { scales: self.scales.wrapping_offset(of_scales(bytes)), ..self }
    }

    /// Unpacks the values whose scales these are.
    ///
    /// # Safety
    /// As [`Unpack`]; the instruction set is there.
    pub(super) unsafe fn unpack(self, values: *const u8, count: usize, out: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { (self.unpack)(values, self.scales, count, out) }
    }
}

/// # Safety
/// As [`Unpack`]; the instruction set is there.
#[inline(always)]
pub(super) unsafe fn unpack<L: Lanes>(values: *const u8, scales: *const u8, count: usize, out: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe {
        for group in 0..count / GROUP {
            for at in (0..GROUP).step_by(L::LANES) {
                line::<L>(Start { values, scales }, group, at).store(out.add(group * GROUP + at));
            }
        }
    }
}

/// The values of a line from number `at` of a group on.
///
/// # Safety
/// The instruction set is there, and the line has the group.
#[inline(always)]
unsafe fn line<L: Lanes>(line: Start, group: usize, at: usize) -> L {
    // SAFETY: the caller's contract.
    unsafe {
        let values = line.values.add(group * GROUP / 2 + at % (GROUP / 2));
        let scale = L::splat_bf16(line.scales.cast::<u16>().add(group));
        match at < GROUP / 2 {
            true => L::half_bytes::<false>(values, scale),
            false => L::half_bytes::<true>(values, scale),
        }
    }
}

/// Lines of half bytes.
pub(super) struct HalfByte;

impl Line for HalfByte {
    type Stored = u8;
    const IS_PACKED: bool = true;

    #[inline(always)]
    fn bytes(count: usize) -> usize {
        count / 2
    }

    unsafe fn load<L: Lanes>(_: *const u8) -> L {
        unreachable!("half bytes are unpacked with their scales")
    }

    #[inline(always)]
    unsafe fn dots<L: Lanes, const R: usize, const S: usize>(
        a: *const f32,
        lda: usize,
        b: [Start; S],
        k: usize,
        fetch: Option<Fetch>,
    ) -> [[L; S]; R] {
        const GROUPS: usize = 2 * CACHE_LINE / GROUP;
        // SAFETY: the instruction set is there.
        let zero = unsafe { L::splat(0.0) };
        let mut sums = [[[zero; 2]; S]; R];
        let mut wait = match fetch {
            Some(fetch) => fetch.turn.0,
            None => 0,
        };
        for group in 0..k / GROUP {
            let byte = group * GROUP / 2;
            if let Some(Fetch { ahead, turn: (_, turns) }) = fetch
                && group.is_multiple_of(GROUPS)
            {
                if wait == 0 {
                    for b in b {
                        prefetch(b.values.wrapping_offset(byte as isize + ahead));
                    }
                    if group.is_multiple_of(CACHE_LINE / SCALE) {
                        for b in b {
                            prefetch(b.scales.wrapping_offset(of_scales(byte as isize + ahead)));
                        }
                    }
                    wait = turns;
                }
                wait -= 1;
            }
            for at in (0..GROUP).step_by(L::LANES) {
                // SAFETY: rows have `k` values, and lines as many half bytes.
                unsafe {
                    let mut lines = [zero; S];
                    for (values, b) in lines.iter_mut().zip(b) {
                        *values = line::<L>(b, group, at);
                    }
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let row = L::load(a.add(i * lda + group * GROUP + at));
                        for (sums, line) in sums.iter_mut().zip(lines) {
                            let sum = &mut sums[at / L::LANES % chains(R)];
                            *sum = L::fma(row, line, *sum);
                        }
                    }
                }
            }
        }
        let mut results = [[zero; S]; R];
        for (results, sums) in results.iter_mut().zip(sums) {
            for (result, sums) in results.iter_mut().zip(sums) {
                *result = if chains(R) == 1 { sums[0] } else { sums[0] + sums[1] };
            }
        }
        results
    }
}
