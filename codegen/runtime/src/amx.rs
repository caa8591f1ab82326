//! The tile unit of a processor (AMX): whether a process may use it, and its configuration by threads.
//!
//! Linux gives tiles to processes that ask for them, since their registers are 8 KiB more to save for each thread. It refuses as long
//! as a thread has an alternate stack for signals that these would not fit on.

#[cfg(target_arch = "x86_64")]
use std::arch::asm;
use std::marker::PhantomData;

/// Whether tiles of bf16 can be multiplied; asks the system for the registers, once for the process. Threads that exist
/// already may use them, too.
pub(crate) fn is_available() -> bool {
    static ANSWER: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *ANSWER.get_or_init(|| has_tiles() && may_use_tiles())
}

/// Whether the tile unit multiplies bytes, too.
#[cfg(target_arch = "x86_64")]
pub(crate) fn multiplies_bytes() -> bool {
    const AMX_INT8: u32 = 1 << 25;
    is_available() && std::arch::x86_64::__cpuid_count(7, 0).edx & AMX_INT8 != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn has_tiles() -> bool {
    false
}

/// Whether processor and system have them: CPUID 7 for the instructions, XCR0 for what the system saves.
#[cfg(target_arch = "x86_64")]
fn has_tiles() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const OSXSAVE: u32 = 1 << 27;
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    /// TILECFG and TILEDATA.
    const SAVED: u32 = 0b11 << 17;
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let saved: u32;
    // SAFETY: the processor has XGETBV.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") saved, out("edx") _, options(nomem, nostack)) };
    let there = __cpuid_count(7, 0).edx;
    there & AMX_BF16 != 0 && there & AMX_TILE != 0 && saved & SAVED == SAVED
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn may_use_tiles() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const TILEDATA: libc::c_long = 18;
    // SAFETY: a call that takes numbers.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILEDATA) == 0 }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn may_use_tiles() -> bool {
    false
}

/// What `ldtilecfg` reads.
#[cfg(target_arch = "x86_64")]
#[allow(dead_code, reason = "the processor reads it")]
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    zero: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Eight whole tiles: 16 rows of 64 bytes.
#[cfg(target_arch = "x86_64")]
static WHOLE: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    zero: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// This thread's tiles are configured as long as this lives, about 75 ns for both ends. Then they are released: live tiles
/// make switches between threads dearer, and keep a core from sleeping deeply.
pub(crate) struct Tiles(PhantomData<*const ()>);

impl Tiles {
    /// Configures them.
    ///
    /// # Safety
    /// The process may use tiles ([`is_available`]).
    pub(crate) unsafe fn configured() -> Tiles {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's contract.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const WHOLE, options(nostack, readonly));
        }
        Tiles(PhantomData)
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: they were configured by this thread.
        unsafe {
            asm!("tilerelease", options(nostack, nomem));
        }
    }
}
