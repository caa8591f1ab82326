//! Sums, products, maxima and minima: of a row, and of rows element by element.
//!
//! A row is reduced in 64 lanes, element i in lane i % 64, and the lanes are folded in halves: the result
//! is a function of the data and its length only, the same on every instruction set. The loops are plain array
//! code that the compiler vectorises inside functions with `#[target_feature]`. NaN wins over any number.

/// Lanes of a row reduction: four registers of AVX-512, enough to hide the latency of an addition.
const LANES: usize = 64;

/// Numbers that can be reduced.
pub(super) trait Number: Copy {
    const ZERO: Self;
    const ONE: Self;
    /// Identity of `maximum`.
    const LOWEST: Self;
    /// Identity of `minimum`.
    const HIGHEST: Self;
    /// Integers wrap.
    fn plus(self, other: Self) -> Self;
    /// Integers wrap.
    fn times(self, other: Self) -> Self;
    fn maximum(self, other: Self) -> Self;
    fn minimum(self, other: Self) -> Self;
}

macro_rules! float {
    ($($type:ident)*) => {$(
        impl Number for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = $type::NEG_INFINITY;
            const HIGHEST: Self = $type::INFINITY;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }
            // Comparisons with a NaN in `other` are false, so it is chosen. In two steps, each of which is one
            // instruction per register.
            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                let larger = if self > other { self } else { other };
                if self.is_nan() { self } else { larger }
            }
            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                let smaller = if self < other { self } else { other };
                if self.is_nan() { self } else { smaller }
            }
        }
    )*};
}
float!(f32 f64);

macro_rules! integer {
    ($($type:ident)*) => {$(
        impl Number for $type {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const LOWEST: Self = $type::MIN;
            const HIGHEST: Self = $type::MAX;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                if self > other { self } else { other }
            }
            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                if self < other { self } else { other }
            }
        }
    )*};
}
integer!(i32 u32);

/// Lanes of a register of AVX-512.
const GROUP: usize = 16;
const GROUPS: usize = LANES / GROUP;

/// Reduces n values by `op`, whose identity is given.
///
/// # Safety
/// `src` covers n values.
#[inline(always)]
pub(super) unsafe fn reduce<T: Number>(src: *const T, n: usize, identity: T, op: impl Fn(T, T) -> T) -> T {
    let mut groups = [[identity; GROUP]; GROUPS];
    let whole = n - n % LANES;
    for i in (0..whole).step_by(LANES) {
        // SAFETY: `whole` values are covered.
        let chunk = unsafe { src.add(i).cast::<[[T; GROUP]; GROUPS]>().read_unaligned() };
        for (group, values) in groups.iter_mut().zip(chunk) {
            *group = each(*group, values, &op);
        }
    }
    let rest = n - whole;
    for (at, group) in groups.iter_mut().enumerate() {
        // SAFETY: only values before `n` are read.
        unsafe {
            let values = src.wrapping_add(whole + at * GROUP);
            if (at + 1) * GROUP <= rest {
                *group = each(*group, values.cast::<[T; GROUP]>().read_unaligned(), &op);
            } else if at * GROUP < rest {
                // By way of memory: lanes indexed by a variable would leave their registers for good.
                let mut padded = [identity; GROUP];
                let bytes = (rest - at * GROUP) * size_of::<T>();
                values.cast::<u8>().copy_to_nonoverlapping(padded.as_mut_ptr().cast(), bytes);
                *group = each(*group, padded, &op);
            }
        }
    }
    let [a, b, c, d] = groups;
    let lanes = each(each(a, c, &op), each(b, d, &op), &op);
    let lanes: [T; 8] = halve(&lanes, &op);
    let lanes: [T; 4] = halve(&lanes, &op);
    let lanes: [T; 2] = halve(&lanes, &op);
    op(lanes[0], lanes[1])
}

#[inline(always)]
fn halve<T: Number, const N: usize, const H: usize>(lanes: &[T; N], op: impl Fn(T, T) -> T) -> [T; H] {
    std::array::from_fn(|i| op(lanes[i], lanes[i + H]))
}

/// Lane by lane.
#[inline(always)]
fn each<T: Number>(mut x: [T; GROUP], y: [T; GROUP], op: impl Fn(T, T) -> T) -> [T; GROUP] {
    for (x, y) in x.iter_mut().zip(y) {
        *x = op(*x, y);
    }
    x
}

/// `acc[i] = op(acc[i], src[i])` for n values.
///
/// # Safety
/// Both pointers cover n values and do not overlap.
#[inline(always)]
pub(super) unsafe fn accumulate<T: Number>(acc: *mut T, src: *const T, n: usize, op: impl Fn(T, T) -> T) {
    for i in 0..n {
        // SAFETY: the caller's contract; memory of any alignment.
        unsafe {
            let value = op(acc.add(i).read_unaligned(), src.add(i).read_unaligned());
            acc.add(i).write_unaligned(value);
        }
    }
}
