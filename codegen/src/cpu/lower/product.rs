//! A matrix product as a step of a program.

use super::Machine;
use crate::CodegenError;
use crate::cpu::contract::{Buffers, Contraction, GenericContraction, TileFn, Touched, Workspaces};
use crate::cpu::pool::Pool;

/// A matrix product and where its operands and results are.
#[derive(Debug)]
pub(crate) struct ProductStep {
    pub(super) work: Work,
    pub(super) a: Target,
    pub(super) b: Target,
    /// Where the product itself goes, unless an epilogue stores it.
    pub(super) target: Option<Target>,
    /// A [`TileFn`].
    pub(crate) epilogue: Option<usize>,
    /// What the epilogue reads and writes at the coordinates of the product, to be prefetched.
    pub(super) reads: Option<Tiled>,
    pub(super) writes: Option<Tiled>,
}

/// Who computes it.
#[derive(Debug)]
pub(super) enum Work {
    /// The driver of `f32` products.
    Driver(Contraction),
    /// Any other number.
    Generic(GenericContraction),
}

/// A place in a buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) slot: usize,
    /// In bytes.
    pub(super) offset: i64,
}

/// A matrix at the coordinates of the product; strides in elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tiled {
    pub(super) slot: usize,
    /// In bytes.
    pub(super) offset: i64,
    pub(super) row: usize,
    pub(super) batch: isize,
}

impl ProductStep {
    /// Runs the product.
    ///
    /// # Safety
    /// The table has the pointers of the step's program, and the machine its functions.
    pub(crate) unsafe fn run(
        &self,
        machine: &Machine,
        table: &[*mut u8],
        pool: &Pool,
        workspaces: &Workspaces,
    ) -> Result<(), CodegenError> {
        let at = |target: Target| table[1 + target.slot].wrapping_offset(target.offset as isize);
        let (a, b) = (at(self.a), at(self.b));
        let c = self.target.map_or(std::ptr::null_mut(), at);
        let contraction = match &self.work {
            Work::Driver(contraction) => contraction,
            Work::Generic(generic) => {
                // SAFETY: index maps stay inside their buffers, and the target holds the whole product.
                unsafe { generic.run(a, b, c, pool) };
                return Ok(());
            }
        };
        // SAFETY: epilogues are built with this signature.
        let function = |at| unsafe { std::mem::transmute::<*const u8, TileFn>(machine.address(at)) };
        let contraction = Contraction { epilogue: self.epilogue.map(function), ..contraction.clone() };
        let touched = |tiled: Tiled| Touched {
            start: at(Target { slot: tiled.slot, offset: tiled.offset }).cast(),
            row: tiled.row,
            batch: tiled.batch,
        };
        let buffers = Buffers {
            a,
            b,
            c: c.cast(),
            context: table.as_ptr().cast(),
            reads: self.reads.map(touched),
            writes: self.writes.map(touched),
        };
        // SAFETY: index maps stay inside their buffers, results overlap no operand, and the epilogue only needs
        // the table, which outlives the run.
        unsafe { contraction.run(&buffers, pool, workspaces)? };
        Ok(())
    }
}
