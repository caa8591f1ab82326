//! Runs the programs of kernels on a pool of threads.

use crate::chain::{ChainStep, Scratch};
use crate::functions::Functions;
use crate::gemm::Workspaces;
use crate::math::zero_upper;
use crate::memory::{Arena, OutOfMemory};
use crate::pool::{Pool, share};
use crate::product::ProductStep;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How to run a kernel: steps over a table of pointers to zeros, to the kernel's buffers and to temporaries. A slot
/// counts from the first buffer.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct KernelProgram {
    /// In order.
    pub steps: Vec<LaunchKind>,
    /// Bytes of each temporary.
    pub temporaries: Vec<usize>,
    /// Bytes of zeros that guarded loads may read.
    pub zeros: usize,
    /// Bytes of scratch for each thread.
    pub scratch: usize,
}

impl KernelProgram {
    /// The only product, if there is one and nothing else that needs workspaces.
    pub fn lone_product(&self) -> Option<&ProductStep> {
        let mut products = self.steps.iter().filter_map(|step| match step {
            LaunchKind::Product(product) => Some(Some(&**product)),
            LaunchKind::Chain(_) => Some(None),
            LaunchKind::Clear { .. } | LaunchKind::Rows { .. } => None,
        });
        let first = products.next()??;
        products.next().is_none().then_some(first)
    }

    /// The functions that its steps call.
    pub fn functions(&self) -> impl Iterator<Item = usize> {
        self.steps.iter().flat_map(|step| match step {
            LaunchKind::Clear { .. } => vec![],
            LaunchKind::Rows { function, .. } => vec![*function],
            LaunchKind::Product(product) => product.functions().collect(),
            LaunchKind::Chain(chain) => vec![chain.function],
        })
    }
}

/// One launch.
#[derive(Debug, Serialize, Deserialize)]
pub enum LaunchKind {
    /// Sets bytes to zero.
    Clear {
        /// Which buffer.
        slot: usize,
        /// How many.
        bytes: usize,
    },
    /// Runs units of rows.
    Rows {
        /// A [`RowsFn`].
        function: usize,
        /// How many there are.
        units: usize,
        /// Points times instructions, to tell whether threads pay.
        work: usize,
    },
    /// Runs a matrix product.
    Product(Box<ProductStep>),
    /// Runs products, a region on their rows, and products of that.
    Chain(Box<ChainStep>),
}

/// `(table, start, end, scratch)`: units `start..end` of a kernel's rows. The table points to zeros, then to the kernel's
/// buffers and temporaries; the scratch is the thread's own.
pub type RowsFn = unsafe extern "C" fn(*const *mut u8, u64, u64, *mut u8);

/// Points times instructions below which waking the other threads costs more than they save.
const SMALL: usize = 1 << 15;
/// Cleared bytes below which one thread does it.
const SMALL_CLEAR: usize = 1 << 18;
/// Room between what two threads or temporaries write.
const LINE: usize = 64;

/// For each buffer of a plan, where it is.
#[derive(Debug)]
pub struct Pointers(Vec<*mut u8>);

// SAFETY: plain addresses; the executable that owns them answers for what is done through them.
unsafe impl Send for Pointers {}

impl Pointers {
    /// All buffers nowhere.
    pub fn new(buffers: usize) -> Self {
        Pointers(vec![std::ptr::null_mut(); buffers])
    }

    /// Where a buffer is.
    pub fn get(&self, buffer: impl Into<usize>) -> *mut u8 {
        self.0[buffer.into()]
    }

    /// Says where a buffer is.
    pub fn set(&mut self, buffer: impl Into<usize>, pointer: *mut u8) {
        self.0[buffer.into()] = pointer;
    }
}

/// Threads and the memory that kernels need beside buffers.
pub struct Launcher {
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
    ///
    /// # Errors
    /// There is no memory for what they need beside buffers.
    pub fn new<'p>(
        pool: Arc<Pool>,
        programs: impl Iterator<Item = &'p KernelProgram> + Clone,
    ) -> Result<Self, OutOfMemory> {
        let most = |bytes: fn(&KernelProgram) -> usize| programs.clone().map(bytes).max().unwrap_or(0);
        let scratch_bytes = most(|program| program.scratch).next_multiple_of(4096) + LINE;
        let temporaries = most(|program| program.temporaries.iter().map(|bytes| padded(*bytes)).sum());
        Ok(Launcher {
            workspaces: Workspaces::new(pool.threads()),
            zeros: Arena::new(most(|program| program.zeros))?,
            temporaries: Arena::undefined(temporaries)?,
            scratch: Arena::undefined(scratch_bytes * pool.threads())?,
            scratch_bytes,
            table: Table::default(),
            pool,
        })
    }

    /// The threads.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Runs a program on these buffers; with the workspaces of its [only product](KernelProgram::lone_product), if there are some of its own.
    ///
    /// # Errors
    /// There is no memory for packed operands.
    ///
    /// # Safety
    /// These are the program's functions, and `pointers` has memory for each of the buffers. Workspaces that
    /// [keep](Workspaces::keeping) a factor forget it when it changes.
    pub unsafe fn run(
        &mut self,
        program: &KernelProgram,
        functions: &Functions,
        slots: &[usize],
        pointers: &Pointers,
        own: Option<&Workspaces>,
    ) -> Result<(), OutOfMemory> {
        let workspaces = own.unwrap_or(&self.workspaces);
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
                LaunchKind::Clear { slot, bytes } => self.clear(*slot, *bytes),
                LaunchKind::Rows { function, units, work } => {
                    // SAFETY: the function was defined with this signature.
                    let function =
                        unsafe { std::mem::transmute::<*const u8, RowsFn>(functions.address(*function)) };
                    self.rows(function, *units, *work);
                }
                LaunchKind::Product(product) => {
                    // SAFETY: the caller's contract.
                    unsafe { product.run(functions, &self.table.0, &self.pool, workspaces)? };
                }
                LaunchKind::Chain(chain) => {
                    let start = self.scratch.as_ptr() as usize;
                    let scratch = Scratch { start, bytes: self.scratch_bytes };
                    // SAFETY: the caller's contract; there is scratch for every thread.
                    unsafe { chain.run(functions, &self.table.0, &self.pool, &self.workspaces, scratch)? };
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
