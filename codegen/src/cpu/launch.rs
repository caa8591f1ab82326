//! Runs the programs of kernels on a pool of threads.

use super::contract::Workspaces;
use super::lower::{ChainScratch, Machine, Program, RowsFn, Step};
use super::memory::Arena;
use super::pool::{Pool, share};
use super::tiles::zero_upper;
use crate::CodegenError;
use kernfusion_ir::kernel::BufferId;
use std::sync::Arc;

/// Points times instructions below which waking the other threads costs more than they save.
const SMALL: usize = 1 << 15;
/// Cleared bytes below which one thread does it.
const SMALL_CLEAR: usize = 1 << 18;
/// Room between what two threads or temporaries write.
const LINE: usize = 64;

/// For each buffer of a plan, where it is.
#[derive(Debug)]
pub(super) struct Pointers(Vec<*mut u8>);

// SAFETY: plain addresses; the executable that owns them answers for what is done through them.
unsafe impl Send for Pointers {}

impl Pointers {
    /// All buffers nowhere.
    pub(super) fn new(buffers: usize) -> Self {
        Pointers(vec![std::ptr::null_mut(); buffers])
    }

    pub(super) fn get(&self, buffer: BufferId) -> *mut u8 {
        self.0[buffer.0 as usize]
    }

    pub(super) fn set(&mut self, buffer: BufferId, pointer: *mut u8) {
        self.0[buffer.0 as usize] = pointer;
    }
}

/// Threads and the memory that kernels need beside buffers.
pub(super) struct Launcher {
    pool: Arc<Pool>,
    workspaces: Workspaces,
    zeros: Arena,
    temporaries: Arena,
    scratch: Arena,
    /// Bytes of scratch per thread.
    scratch_bytes: usize,
    table: Table,
}

/// Pointers of one kernel.
#[derive(Default)]
struct Table(Vec<*mut u8>);

// SAFETY: threads only read the table; what they do through it is the kernel's.
unsafe impl Sync for Table {}
// SAFETY: as above.
unsafe impl Send for Table {}

impl Launcher {
    /// A launcher for these programs.
    pub(super) fn new<'p>(
        pool: Arc<Pool>,
        programs: impl Iterator<Item = &'p Program> + Clone,
    ) -> Result<Self, CodegenError> {
        let most = |bytes: fn(&Program) -> usize| programs.clone().map(bytes).max().unwrap_or(0);
        let scratch_bytes = most(|program| program.scratch).next_multiple_of(4096) + LINE;
        let temporaries = most(|program| program.temporaries.iter().map(|bytes| padded(*bytes)).sum());
        Ok(Launcher {
            workspaces: Workspaces::new(pool.threads()),
            zeros: Arena::new(most(|program| program.zeros))?,
            temporaries: Arena::new(temporaries)?,
            scratch: Arena::new(scratch_bytes * pool.threads())?,
            scratch_bytes,
            table: Table::default(),
            pool,
        })
    }

    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Runs a program.
    ///
    /// # Safety
    /// The machine holds the program's functions, and `pointers` has memory for each of its buffers.
    pub(super) unsafe fn run(
        &mut self,
        program: &Program,
        machine: &Machine,
        slots: &[BufferId],
        pointers: &Pointers,
    ) -> Result<(), CodegenError> {
        let table = &mut self.table.0;
        table.clear();
        table.push(self.zeros.as_ptr());
        table.extend(slots.iter().map(|&slot| pointers.get(slot)));
        let mut free = self.temporaries.as_ptr();
        for &bytes in &program.temporaries {
            table.push(free);
            free = free.wrapping_add(padded(bytes));
        }
        for step in &program.steps {
            match step {
                Step::Clear { slot, bytes } => self.clear(*slot, *bytes),
                Step::Rows { function, units, work } => {
                    // SAFETY: the function was defined with this signature.
                    let function =
                        unsafe { std::mem::transmute::<*const u8, RowsFn>(machine.address(*function)) };
                    self.rows(function, *units, *work);
                }
                Step::Product(product) => {
                    // SAFETY: the caller's contract.
                    unsafe { product.run(machine, &self.table.0, &self.pool, &self.workspaces)? };
                }
                Step::Chain(chain) => {
                    let start = self.scratch.as_ptr() as usize;
                    let scratch = ChainScratch { start, bytes: self.scratch_bytes };
                    // SAFETY: the caller's contract; there is scratch for every thread.
                    unsafe { chain.run(machine, &self.table.0, &self.pool, &self.workspaces, scratch)? };
                }
            }
        }
        Ok(())
    }

    fn rows(&self, function: RowsFn, units: usize, work: usize) {
        let scratch = self.scratch.as_ptr() as usize;
        let (table, bytes) = (&self.table, self.scratch_bytes);
        let part = move |t: usize, threads: usize| {
            let part = share(units, threads, t);
            if part.is_empty() {
                return;
            }
            let scratch = (scratch + t * bytes) as *mut u8;
            zero_upper();
            // SAFETY: the table has the kernel's pointers, the scratch belongs to this thread, and units of
            // different threads write different elements.
            unsafe { function(table.0.as_ptr(), part.start as u64, part.end as u64, scratch) };
        };
        let threads = self.pool.threads();
        if threads == 1 || units == 1 || work < SMALL {
            part(0, 1);
        } else {
            self.pool.run(&|t| part(t, threads));
        }
    }

    fn clear(&self, slot: usize, bytes: usize) {
        let start = self.table.0[1 + slot] as usize;
        let part = |t: usize, threads: usize| {
            let part = share(bytes, threads, t);
            // SAFETY: the buffer has that many bytes, and each thread clears its own.
            unsafe { ((start + part.start) as *mut u8).write_bytes(0, part.len()) };
        };
        let threads = self.pool.threads();
        if threads == 1 || bytes < SMALL_CLEAR {
            part(0, 1);
        } else {
            self.pool.run(&|t| part(t, threads));
        }
    }
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(LINE)
}
