//! A matrix product as a step of a program.

use super::contraction::{Factor, place};
use super::{Machine, Step};
use crate::CodegenError;
use crate::cpu::contract::{Axis, Buffers, Contraction, GenericContraction, TileFn, Touched, Workspaces};
use crate::cpu::pool::Pool;

/// A matrix product and where its operands and results are.
#[derive(Debug)]
pub(crate) struct ProductStep {
    pub(super) work: Work,
    pub(super) a: Target,
    pub(super) b: Target,
    /// Which matrices of a table these are, where that is known at run time only: A's, B's, and those of the target.
    pub(super) choices: [Option<Choice>; 3],
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

/// One matrix of a table for each of a batch.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    /// The numbers of the matrices, `i32` or `u32`.
    pub(super) slot: usize,
    /// The place of the number of each product, in elements.
    pub(super) places: Axis,
    /// How many matrices there are.
    pub(super) limit: usize,
    /// From matrix to matrix, in elements.
    pub(super) stride: isize,
}

impl Choice {
    /// Where the matrices of a batch lie that would lie at `batch` if all were number 0.
    ///
    /// # Safety
    /// The slot of the table has the numbers.
    unsafe fn locate(&self, table: &[*mut u8], batch: &Axis) -> Axis {
        let numbers = table[1 + self.slot].cast::<i32>().cast_const();
        let matrix = |at: usize| {
            // SAFETY: the caller's contract; a buffer's alignment is that of its elements.
            let number = unsafe { numbers.wrapping_offset(self.places.at(at)).read_unaligned() };
            let number = usize::try_from(number).unwrap_or(0).min(self.limit - 1);
            batch.at(at) + number as isize * self.stride
        };
        Axis::Table((0..batch.len()).map(matrix).collect())
    }
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
    /// A product that goes straight to its target.
    pub(super) fn step(
        work: Work,
        a: Factor,
        b: Factor,
        target: Option<Target>,
        of_target: Option<Choice>,
    ) -> Step {
        let places = [place(&a), place(&b)];
        let ([a, b], choices) = (places, [a.choice, b.choice, of_target]);
        let (epilogue, reads, writes) = (None, None, None);
        Step::Product(Box::new(ProductStep { work, a, b, choices, target, epilogue, reads, writes }))
    }

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
        let mut contraction = Contraction { epilogue: self.epilogue.map(function), ..contraction.clone() };
        let [of_a, of_b, of_c] = &self.choices;
        let batches = [(of_a, Some(&mut contraction.a.batch)), (of_b, Some(&mut contraction.b.batch))];
        for (choice, batch) in batches.into_iter().chain([(of_c, contraction.output.batch_mut())]) {
            if let (Some(choice), Some(batch)) = (choice, batch) {
                // SAFETY: the numbers are in the table.
                *batch = unsafe { choice.locate(table, batch) };
            }
        }
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
